"""`python -m pipeline.inspect DATA_DIR`: what is in a data set, as tables and as a picture."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pipeline import images, manifest
from pipeline.commands import commandline, quiet
from pipeline.commands.flags import check_all, flag
from pipeline.commands.text import count_of, range_of, size_of, table
from pipeline.errors import UsageError, named
from pipeline.files.paths import PathLike
from pipeline.input import input_fn
from pipeline.manifest import Feature, Manifest, SplitInfo
from pipeline.manifest.manifest import IMAGE_FEATURES, rounded_up
from pipeline.manifest.sources import VIEWS
from pipeline.read.shards import check_present
from pipeline.request import ViewOptions

COMMAND = "pipeline.inspect"
_MOST_SIZES = 20  # of images, listed
_TILE = 96  # pixels on a side of a drawn image
_CAPTION = 16
_GAP = 6
_COLUMNS = 8
_IMAGES = 32
_TINY = 4  # pixels on a side: pad_crop_flip would leave nothing of such images
_INK = (40, 40, 40)


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """Look at a data set made by beam_jobs.convert or pipeline.index."""

    data_dir: str = flag(text="the data set's folder", positional=True, metavar="DATA_DIR")
    png: str | None = flag(None, "write a contact sheet here: images as stored and distorted")
    split: str | None = flag(None, "the split or slice that the contact sheet shows; default: train")
    distort: str | None = flag(None, "the contact sheet's recipe; default: one that fits the images")
    seed: int | None = flag(None, "of the contact sheet's batch; default: 0")
    where: str | None = flag(None, "the contact sheet's records, by columns: \"label in ('cat', 'dog')\"")
    limit: str | None = flag(None, "number of them to choose from, or '500 per label'")
    balance: str | None = flag(None, "column whose values get equally many rows: label, or 'sqrt(label)'")
    weigh: str | None = flag(None, "column of weights: how often a record is in an epoch, in the mean")

    def __post_init__(self) -> None:
        check_all(self._check_png, self._check_needed)

    def _check_png(self) -> None:
        if self.png is not None and not self.png.endswith(".png"):
            raise UsageError(f"--png={self.png}: the file's name must end in .png")

    def _check_needed(self) -> None:
        given = [name for name in ("split", "distort", "seed", *VIEWS) if getattr(self, name) is not None]
        if self.png is None and given:
            raise UsageError(
                f"--{given[0]}={getattr(self, given[0])}: chooses what --png shows; give --png=FILE.png too"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables and writes the picture.

    Raises:
      DataError: there is no valid data set, or a shard is missing or has another size.
      UsageError: a flag cannot work, or the data set has no images to draw.
    """
    config = commandline.parse(COMMAND, "Show what is in a data set.", InspectConfig, argv)
    made = manifest.load(config.data_dir)
    for split in made.splits.values():
        check_present(config.data_dir, split.shards)
    print("\n".join(_summary(made)))
    if config.png is not None:
        made.require_images()
        _write_sheet(config, made)


def _write_sheet(config: InspectConfig, made: Manifest) -> None:
    commandline.require("tensorflow")
    with quiet.loading():
        import tensorflow  # noqa: F401, PLC0415, here, where its startup notes are hidden

    recipe = config.distort or _default_recipe(made)
    split = config.split or "train"
    view: Any = {name: getattr(config, name) for name in VIEWS}
    sheet = _contact_sheet(config.data_dir, made, split, recipe, config.seed or 0, view)
    path = pathlib.Path(config.png or "")
    with named(f"--png={path}", "cannot be written"):
        sheet.save(path)
    print(f"\n{path}: contact sheet of {split}, as stored and by {recipe}")


def _default_recipe(made: Manifest) -> str:
    """Returns a recipe that fits the images: `shift` for grey ones (digits), a crop for others, none for tiny ones."""
    if None in made.features["image"].shape:
        return f"random_resized_crop(size={_TILE})"
    height, width, channels = made.image_shape
    if min(height, width) <= _TINY:
        return "none"
    if channels == 1:
        return "shift"
    return "cifar10_tutorial" if min(height, width) >= 24 else "pad_crop_flip"


def _contact_sheet(
    data_dir: PathLike, made: Manifest, split: str, distort: str, seed: int, view: ViewOptions
) -> Image.Image:
    """Draws the first training batch: each image as stored and, below it, as a model gets it, with its class.

    Raises:
      DataError, UsageError: as `input_fn`.
    """
    size = (_TILE, _TILE) if None in made.features["image"].shape else None
    batches = functools.partial(input_fn, data_dir, split, global_batch_size=_IMAGES, training=True, seed=seed, **view)
    raw, labels, weights = next(batches(distort="none", resize=size).as_numpy_iterator())
    distorted, _, _ = next(batches(distort=distort).as_numpy_iterator())
    shown = int((weights > 0).sum())
    rows = -(-shown // _COLUMNS)
    pair = 2 * _TILE + _GAP // 2 + _CAPTION + 2 * _GAP
    sheet = Image.new("RGB", (_COLUMNS * (_TILE + _GAP) + _GAP, rows * pair + 3 * _CAPTION), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    title = f"{made.dataset} {split}, step 0, seed {seed}: above as stored, below {distort}"
    pen.text((_GAP, _CAPTION // 2), f"{title} (floats stretched to black..white)", _INK, font)
    for i in range(shown):
        left = _GAP + i % _COLUMNS * (_TILE + _GAP)
        top = 2 * _CAPTION + i // _COLUMNS * pair
        sheet.paste(_tile(raw[i]), (left, top))
        sheet.paste(_tile(distorted[i]), (left, top + _TILE + _GAP // 2))
        label = int(labels[i])
        name = made.class_names[label] if label < len(made.class_names) else str(label)
        pen.text((left, top + 2 * _TILE + _GAP // 2), name, _INK, font)
    return sheet


def _tile(image: NDArray[np.generic]) -> Image.Image:
    """Returns one image (height, width, 1 or 3), uint8 or float, scaled to a tile."""
    return Image.fromarray(images.as_rgb(image)).resize((_TILE, _TILE), Image.Resampling.NEAREST)


def _summary(made: Manifest) -> list[str]:
    """Returns the lines of all tables: splits, shards, labels, and sizes if images differ in size."""
    total = sum(split.num_examples for split in made.splits.values())
    shards = [
        [
            ("shard", shard.file),
            ("examples", f"{shard.num_examples:,}"),
            ("bytes", f"{shard.num_bytes:,}"),
            ("CRC32C", shard.crc32c),
        ]
        for shard in made.shards
    ]
    return [
        f"{made.dataset}: {total:,} examples, {_kind(made)}",
        *_more_lines(made),
        "",
        *table([_split_row(name, split) for name, split in made.splits.items()]),
        "",
        *table(shards),
        *(_label_lines(made) if made.has_images else []),
    ]


def _kind(made: Manifest) -> str:
    if not made.has_images:
        return "records of any kind, which input_fn reads with a parse function"
    mean, std = (", ".join(f"{v:.1f}" for v in values) for values in (made.image_mean, made.image_std))
    image = f"{_image(made)}, {len(made.class_names)} classes"
    return f"{image}, pixel mean {mean}, standard deviation {std}"


def _image(made: Manifest) -> str:
    image = made.features["image"]
    if None not in image.shape:
        return f"image {_text(image)}"
    height, width, channels = image.shape
    size = "several sizes" if height is None else f"{height}x{width}"
    colours = {1: "grey", 3: "colour"}.get(channels or 0, "grey or colour")
    return f"{'png and jpeg' if image.encoding == 'any' else image.encoding} images of {size}, {colours}"


def _text(feature: Feature) -> str:
    shape = "x".join("?" if size is None else str(size) for size in feature.shape)
    return " ".join(part for part in (shape, feature.dtype, feature.encoding) if part)


def _more_lines(made: Manifest) -> Iterator[str]:
    others = [f"{name} ({_text(f)})" for name, f in sorted(made.features.items()) if name not in IMAGE_FEATURES]
    if others:
        yield f"other features: {', '.join(others)}"
    if made.columns:
        listed = (f"{name} ({'string' if c.values else c.dtype})" for name, c in sorted(made.columns.items()))
        yield f"columns: {', '.join(listed)}"
    if made.compression:
        forward = sum(not shard.is_seekable(made.compression) for shard in made.shards)
        limits = f"; {forward} of {len(made.shards)} are read forward only" if forward else ""
        yield f"shards compressed with {made.compression}{limits}"


def _split_row(name: str, split: SplitInfo) -> list[tuple[str, str]]:
    return [
        ("split", name),
        ("shards", f"{len(split.shards):,}"),
        ("examples", f"{split.num_examples:,}"),
        ("size", size_of(split.num_bytes)),
        ("examples per shard", range_of(shard.num_examples for shard in split.shards)),
        ("rejects", f"{split.num_rejects:,}"),
    ]


def _label_lines(made: Manifest) -> list[str]:
    histograms = {name: dict(enumerate(split.label_histogram)) for name, split in made.splits.items()}
    rows = [
        [("label", str(label)), ("class", name), *((split, f"{h.get(label, 0):,}") for split, h in histograms.items())]
        for label, name in enumerate(made.class_names)
    ]
    return ["", *table(rows), *_size_lines(made)]


def _size_lines(made: Manifest) -> list[str]:
    if None not in made.features["image"].shape[:2]:
        return []
    sizes = [size for size, _ in made.image_sizes]
    rows = [
        [("height x width", size), *((n, f"{s.image_sizes.get(size, 0):,}") for n, s in made.splits.items())]
        for size in sizes[:_MOST_SIZES]
    ]
    more = [f"and {count_of(len(sizes) - _MOST_SIZES, 'more size')}"] if len(sizes) > _MOST_SIZES else []
    sides = {int(side) for size in sizes for side in size.split("x")}
    if all(side == rounded_up(side) for side in sides):
        more.append("of a split with more than 100 sizes, sides are rounded up to a multiple of 64")
    return ["", *table(rows), *more]


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
