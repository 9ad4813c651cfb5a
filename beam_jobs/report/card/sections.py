"""The parts of the card that tell a manifest: facts, splits, labels, sizes, shards, source, options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from beam_jobs.report import mixing
from beam_jobs.report.card.html import Html, bar, element, joined, profile, table
from beam_jobs.report.summary import image_sizes, size_text
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo, naming

_MANY_CLASSES, _LARGEST, _SMALLEST = 40, 20, 5
_MANY_FILES, _ENDS = 200, 20
_OPEN_SHARDS = 12  # a longer table is folded
_SIZES = 12
TIMES = " \u00d7 "  # a multiplication sign


def section(title: str, *children: str) -> Html:
    """Returns a part of the page."""
    return element("section", element("h2", title), *children)


def fitted(content: Html) -> Html:
    """Returns a table that is as wide as its text, not as the page."""
    return element("div", content, class_="fit")


def by_size(made: Manifest) -> list[tuple[str, SplitInfo]]:
    """Returns the splits, the largest first."""
    return sorted(made.splits.items(), key=lambda item: -item[1].num_examples)


def class_name(made: Manifest, label: int) -> str:
    """Returns the name of a class, or its number where it has none."""
    return made.class_names[label] if label < len(made.class_names) else str(label)


def head(made: Manifest) -> Html:
    """Returns the title and the facts that one looks for first."""
    splits = made.splits.values()
    image = made.features["image"]
    shape = TIMES.join(map(str, image.shape)) if None not in image.shape else f"{len(image_sizes(made)):,} sizes,"
    facts = [
        ("examples", f"{sum(split.num_examples for split in splits):,}"),
        ("classes", f"{_num_classes(made):,}"),
        ("images", f"{shape} {_encoding(image)}"),
        ("shards", f"{sum(len(split.shards) for split in splits):,}"),
        ("on disk", size_text(sum(split.num_bytes for split in splits))),
    ]
    items = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return element("header", element("h1", made.dataset), element("dl", *items, class_="facts"))


def warning(made: Manifest) -> Html:
    """Returns what speaks against the data set: classes that are not mixed; nothing where nothing does."""
    text = mixing.warning(made)
    if not text:
        return Html()
    parts = re.split(r"(--[a-z_]+=\w+)", f"Warning: {text}.")  # every second one is a flag
    shown = [element("code", part, class_="flag") if i % 2 else part for i, part in enumerate(parts)]
    return element("p", *shown, class_="warning", role="note")


def splits(made: Manifest) -> Html:
    """Returns the table of the splits."""
    rejects = any(split.num_rejects for split in made.splits.values())
    header = ["split", "examples", "shards", "size", *(["left out"] if rejects else [])]
    rows = []
    for name, split in by_size(made):
        row = [name, f"{split.num_examples:,}", f"{len(split.shards):,}", size_text(split.num_bytes)]
        rows.append([*row, *([f"{split.num_rejects:,}"] if rejects else [])])
    text = f"Rows of the source that were left out, and why, are in {naming.REJECTS}."
    return section(
        "Splits", fitted(table(header, rows, range(1, 5))), element("p", text, class_="soft") if rejects else ""
    )


def labels(made: Manifest) -> Html:
    """Returns how many examples of each class each split has."""
    histograms = [split.label_histogram for _, split in by_size(made)]
    totals = [sum(h[label] if label < len(h) else 0 for h in histograms) for label in range(_num_classes(made))]
    many = len(totals) > _MANY_CLASSES
    order = sorted(range(len(totals)), key=lambda label: (-totals[label], label)) if many else range(len(totals))
    chosen = [*order[:_LARGEST], *order[-_SMALLEST:]] if many else list(order)
    rows: list[list[str]] = [_label_row(made, label) for label in chosen]
    if many:
        rows.insert(_LARGEST, [f"{len(totals) - _LARGEST - _SMALLEST:,} classes between"])
    header = ["", "class", *(cell for name, _ in by_size(made) for cell in (name, ""))]
    numbers = [0, *range(3, len(header), 2)]
    parts = [element("div", table(header, rows, numbers), class_="bars one" if len(made.splits) == 1 else "bars")]
    if many:
        text = f"All {len(totals):,} classes, the largest first; the table has the {_LARGEST} largest "
        text += f"and the {_SMALLEST} smallest."
        parts = [profile([totals[label] for label in order]), element("p", text, class_="soft"), *parts]
    return section("Labels", *parts)


def sizes(made: Manifest) -> Html:
    """Returns how large the images are and what their pixels are on average; a histogram where sizes differ."""
    mean, std = (", ".join(f"{v:.2f}" for v in values) for values in (made.image_mean, made.image_std))
    split = "train" if "train" in made.splits else "all splits"
    text = f"Pixels of {split}, 0 to 255, by channel: mean {mean}; standard deviation {std}."
    counts = image_sizes(made)
    if len(counts) < 2:
        return section("Images", element("p", text))
    most = counts[0][1]
    rows: list[list[str]] = [[size.replace("x", TIMES), bar(n / most), f"{n:,}"] for size, n in counts[:_SIZES]]
    if len(counts) > _SIZES:
        rest = sum(n for _, n in counts[_SIZES:])
        rows.append([f"{len(counts) - _SIZES:,} other sizes, {rest:,} images"])
    if all(int(side) % 64 == 0 for size, _ in counts for side in size.split("x")):
        text += " Sides are rounded up to a multiple of 64, as there are many sizes."
    bars = element("div", table([f"height{TIMES}width", "", "images"], rows, [2]), class_="bars one")
    return section("Images", element("p", text), bars)


def shards(made: Manifest) -> Html:
    """Returns the table of the shards; of very many their ends."""
    files = [shard for split in made.splits.values() for shard in split.shards]
    total = size_text(sum(shard.num_bytes for shard in files))
    rows = _ends([_shard_row(shard) for shard in files], "shards")
    shown = f"; the first and the last {_ENDS} are shown" if len(files) > _MANY_FILES else ""
    listing = element(
        "details",
        element("summary", f"{len(files):,} {'file' if len(files) == 1 else 'files'}, {total}{shown}"),
        table(["file", "records", "bytes", "CRC32C", "label entropy, bits"], rows, (1, 2, 4)),
        open="" if len(files) <= _OPEN_SHARDS else None,
    )
    return section("Shards", listing)


def source(made: Manifest) -> Html:
    """Returns the files that the data set was made from."""
    if not made.source:
        return Html()
    rows = [
        [_file(file.file), f"{file.num_bytes:,}", element("code", file.sha256, class_="digest")] for file in made.source
    ]
    return section("Source", table(["file", "bytes", "SHA-256 of the content"], _ends(rows, "files"), [1]))


def options(made: Manifest, command: str) -> Html:
    """Returns the command that made the data set, and what of it shaped the bytes."""
    rows = [[f"--{name}", _value(value)] for name, value in sorted(made.options.items())]
    return joined(
        [
            section("Command", element("pre", element("code", command))),
            section("Options that shape the bytes", fitted(table([], rows))),
        ]
    )


def features(made: Manifest) -> Html:
    """Returns the table of what an example has."""
    rows = []
    for name, feature in sorted(made.features.items()):
        shape = TIMES.join("any" if size is None else str(size) for size in feature.shape) or "one value"
        note = f"{len(feature.class_names):,} classes" if feature.class_names else _encoding(feature)
        rows.append([element("code", name), feature.dtype, shape, note])
    return section("Features", fitted(table(["name", "type", "shape", "encoding"], rows)))


def _num_classes(made: Manifest) -> int:
    return max(len(made.class_names), *(len(split.label_histogram) for split in made.splits.values()))


def _label_row(made: Manifest, label: int) -> list[str]:
    name = class_name(made, label)
    number = "" if name == str(label) else str(label)
    row: list[str] = [element("span", number, class_="soft"), element("div", name, class_="name")]
    for _, split in by_size(made):
        count = split.label_histogram[label] if label < len(split.label_histogram) else 0
        row += [bar(count / (max(split.label_histogram) or 1)), f"{count:,}"]
    return row


def _shard_row(shard: ShardInfo) -> list[str]:
    bits = "" if shard.label_entropy is None else f"{shard.label_entropy:.3f}"
    crc = element("code", shard.crc32c)
    return [_file(shard.file), f"{shard.num_examples:,}", f"{shard.num_bytes:,}", crc, bits]


def _encoding(feature: Feature) -> str:
    return {None: "", "png": "PNG", "jpeg": "JPEG", "any": "PNG and JPEG"}.get(feature.encoding, str(feature.encoding))


def _file(name: str) -> Html:
    return element("div", name, class_="file")


def _ends(rows: Sequence[list[str]], noun: str) -> list[list[str]]:
    if len(rows) <= _MANY_FILES:
        return list(rows)
    return [*rows[:_ENDS], [f"{len(rows) - 2 * _ENDS:,} more {noun}"], *rows[-_ENDS:]]


def _value(value: Any) -> str:
    return ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
