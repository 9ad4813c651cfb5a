"""`python -m pipeline.inspect DATA_DIR`: what is in a data set, as tables and as a picture."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import simple_parsing

from pipeline import commandline, manifest, manifest_checks, quiet, read
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature, Manifest

COMMAND = "pipeline.inspect"
_NEEDED = ("image", "label", "key")  # features of every data set
_MOST_SIZES = 20  # of images, listed


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """Look at a data set made by beam_jobs.convert or pipeline.index."""

    data_dir: str = simple_parsing.field(positional=True, metavar="DATA_DIR")  # the data set's folder
    png: str | None = None  # write a contact sheet here: images as stored and distorted
    split: str | None = None  # the split or slice that the contact sheet shows; default: train
    distort: str | None = None  # the contact sheet's recipe; default: one that fits the images
    seed: int | None = None  # of the contact sheet's batch; default: 0

    def __post_init__(self) -> None:
        if self.png is not None and not self.png.endswith(".png"):
            raise UsageError(f"--png={self.png}: the file's name must end in .png")
        given = [name for name in ("split", "distort", "seed") if getattr(self, name) is not None]
        if self.png is None and given:
            raise UsageError(
                f"--{given[0]}={getattr(self, given[0])}: chooses what --png shows; give --png=FILE.png too"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables and writes the picture.

    Raises:
      DataError: no valid data set, or a shard that is missing or has another size.
      UsageError: a flag that cannot work; a picture of images that the input does not read.
    """
    parser = commandline.Parser(COMMAND, "Show what is in a data set.")
    parser.add_arguments(InspectConfig, "config")
    config = parser.parse(argv).config
    content = manifest.load(config.data_dir)
    for split in content.splits.values():
        read.check_present(config.data_dir, split.shards)
    print("\n".join(summary(content)))
    if config.png is not None:
        manifest_checks.require_images(content)
        _write_sheet(config, content)


def summary(content: Manifest) -> list[str]:
    """Returns the lines of the tables: splits, shards, labels, and sizes where images differ."""
    total = sum(split.num_examples for split in content.splits.values())
    return [
        f"{content.dataset}: {total:,} examples, {_kind(content)}",
        *_more_lines(content),
        "",
        *_table(["split", "shards", "examples", "MiB", "examples a shard", "rejects"], _split_rows(content)),
        "",
        *_table(["shard", "examples", "bytes", "CRC32C"], _shard_rows(content)),
        *_image_tables(content),
    ]


def _kind(content: Manifest) -> str:
    if not manifest_checks.has_images(content):
        return "records of any kind: give input_fn a parse function"
    mean, std = (", ".join(f"{v:.1f}" for v in values) for values in (content.image_mean, content.image_std))
    image = f"image {_text(content.features['image'])}, {len(content.class_names)} classes"
    return f"{image}, pixel mean {mean}, standard deviation {std}"


def _image_tables(content: Manifest) -> list[str]:
    if not manifest_checks.has_images(content):
        return []
    return ["", *_table(["label", "class", *content.splits], _label_rows(content)), *_size_lines(content)]


def _text(feature: Feature) -> str:
    shape = "x".join("?" if size is None else str(size) for size in feature.shape)
    return " ".join(part for part in (shape, feature.dtype, feature.encoding) if part)


def _more_lines(content: Manifest) -> list[str]:
    others = [f"{name} ({_text(f)})" for name, f in sorted(content.features.items()) if name not in _NEEDED]
    return [
        *([f"other features: {', '.join(others)}"] if others else []),
        *([f"shards compressed with {content.compression}"] if content.compression else []),
    ]


def _size_lines(content: Manifest) -> list[str]:
    if None not in content.features["image"].shape[:2]:
        return []
    splits = content.splits.values()
    counts = {
        size: [split.image_sizes.get(size, 0) for split in splits] for split in splits for size in split.image_sizes
    }
    common = sorted(counts, key=lambda size: (-sum(counts[size]), [int(side) for side in size.split("x")]))
    rows = [[size, *(f"{count:,}" for count in counts[size])] for size in common[:_MOST_SIZES]]
    more = [f"and {len(common) - _MOST_SIZES} more sizes"] if len(common) > _MOST_SIZES else []
    return ["", *_table(["height x width", *content.splits], rows), *more]


def _split_rows(content: Manifest) -> list[list[str]]:
    rows = []
    for name, split in content.splits.items():
        counts = [shard.num_examples for shard in split.shards]
        spread = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
        rows.append([name, f"{len(counts):,}", f"{sum(counts):,}", f"{split.num_bytes / (1 << 20):,.1f}", spread])
        rows[-1].append(f"{split.num_rejects:,}")
    return rows


def _shard_rows(content: Manifest) -> list[list[str]]:
    shards = [shard for split in content.splits.values() for shard in split.shards]
    return [[shard.file, f"{shard.num_examples:,}", f"{shard.num_bytes:,}", shard.crc32c] for shard in shards]


def _label_rows(content: Manifest) -> list[list[str]]:
    histograms = [split.label_histogram for split in content.splits.values()]
    return [
        [str(label), name, *(f"{h[label] if label < len(h) else 0:,}" for h in histograms)]
        for label, name in enumerate(content.class_names)
    ]


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *rows]
    ]


def _write_sheet(config: InspectConfig, content: Manifest) -> None:
    commandline.require("tensorflow")
    commandline.quiet_tensorflow()
    with quiet.loading():
        import tensorflow  # noqa: F401, PLC0415

        from pipeline import contact_sheet  # noqa: PLC0415

    recipe = config.distort or contact_sheet.default_recipe(content)
    split = config.split or "train"
    sheet = contact_sheet.draw_contact_sheet(config.data_dir, content, split, recipe, seed=config.seed or 0)
    path = pathlib.Path(config.png or "")
    try:
        sheet.save(path)
    except OSError as error:
        raise DataError(f"--png={path}: cannot be written: {error.strerror or error}") from None
    print(f"\n{path}: contact sheet of {split}, as stored and by {recipe}")


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
