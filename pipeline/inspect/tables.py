"""A data set as tables: splits, shards, labels, image sizes."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.commands.text import table
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import IMAGE_FEATURES

_MOST_SIZES = 20  # of images, listed


def summary(made: Manifest) -> list[str]:
    """Returns the lines of the tables: splits, shards, labels, and sizes where images differ."""
    total = sum(split.num_examples for split in made.splits.values())
    shards = [[shard.file, f"{shard.num_examples:,}", f"{shard.num_bytes:,}", shard.crc32c] for shard in made.shards]
    return [
        f"{made.dataset}: {total:,} examples, {_kind(made)}",
        *_more_lines(made),
        "",
        *table(["split", "shards", "examples", "MiB", "examples per shard", "rejects"], _split_rows(made)),
        "",
        *table(["shard", "examples", "bytes", "CRC32C"], shards),
        *(_label_lines(made) if made.has_images else []),
    ]


def _kind(made: Manifest) -> str:
    if not made.has_images:
        return "records of any kind, which input_fn reads with a parse function"
    mean, std = (", ".join(f"{v:.1f}" for v in values) for values in (made.image_mean, made.image_std))
    image = f"image {_text(made.features['image'])}, {len(made.class_names)} classes"
    return f"{image}, pixel mean {mean}, standard deviation {std}"


def _text(feature: Feature) -> str:
    shape = "x".join("?" if size is None else str(size) for size in feature.shape)
    return " ".join(part for part in (shape, feature.dtype, feature.encoding) if part)


def _more_lines(made: Manifest) -> Iterator[str]:
    others = [f"{name} ({_text(f)})" for name, f in sorted(made.features.items()) if name not in IMAGE_FEATURES]
    if others:
        yield f"other features: {', '.join(others)}"
    if made.compression:
        yield f"shards compressed with {made.compression}"


def _size_lines(made: Manifest) -> list[str]:
    if None not in made.features["image"].shape[:2]:
        return []
    sizes = made.image_sizes
    rows = [
        [size, *(f"{split.image_sizes.get(size, 0):,}" for split in made.splits.values())]
        for size, _ in sizes[:_MOST_SIZES]
    ]
    more = [f"and {len(sizes) - _MOST_SIZES} more sizes"] if len(sizes) > _MOST_SIZES else []
    return ["", *table(["height x width", *made.splits], rows), *more]


def _split_rows(made: Manifest) -> list[list[str]]:
    rows = []
    for name, split in made.splits.items():
        counts = [shard.num_examples for shard in split.shards]
        spread = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
        size = f"{split.num_bytes / (1 << 20):,.1f}"
        rows.append([name, f"{len(counts):,}", f"{sum(counts):,}", size, spread, f"{split.num_rejects:,}"])
    return rows


def _label_lines(made: Manifest) -> list[str]:
    histograms = [split.label_histogram for split in made.splits.values()]
    rows = [
        [str(label), name, *(f"{h[label] if label < len(h) else 0:,}" for h in histograms)]
        for label, name in enumerate(made.class_names)
    ]
    return ["", *table(["label", "class", *made.splits], rows), *_size_lines(made)]
