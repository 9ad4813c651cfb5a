"""A data set as tables: splits, shards, labels, image sizes."""

from __future__ import annotations

from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import IMAGE_FEATURES

_MOST_SIZES = 20  # of images, listed


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
    if not content.has_images:
        return "records of any kind: give input_fn a parse function"
    mean, std = (", ".join(f"{v:.1f}" for v in values) for values in (content.image_mean, content.image_std))
    image = f"image {_text(content.features['image'])}, {len(content.class_names)} classes"
    return f"{image}, pixel mean {mean}, standard deviation {std}"


def _image_tables(content: Manifest) -> list[str]:
    if not content.has_images:
        return []
    return ["", *_table(["label", "class", *content.splits], _label_rows(content)), *_size_lines(content)]


def _text(feature: Feature) -> str:
    shape = "x".join("?" if size is None else str(size) for size in feature.shape)
    return " ".join(part for part in (shape, feature.dtype, feature.encoding) if part)


def _more_lines(content: Manifest) -> list[str]:
    others = [f"{name} ({_text(f)})" for name, f in sorted(content.features.items()) if name not in IMAGE_FEATURES]
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
