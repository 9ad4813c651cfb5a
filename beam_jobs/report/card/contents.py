"""What the card shows of a data set, computed from its manifest and its samples for the template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from beam_jobs.examples.images import BadImageError
from beam_jobs.report import image_facts
from beam_jobs.report.card import pictures
from beam_jobs.report.card.pictures import Picture
from beam_jobs.report.card.samples import Samples
from beam_jobs.report.image_facts import ImageFacts
from beam_jobs.report.summary import by_size
from pipeline.commands.text import count_of
from pipeline.manifest import Feature, Manifest

_MANY_CLASSES = 40
_COLUMNS, _LONG_NUMBER = 2, 100_000  # of splits and examples that a phone shows beside each other in a row of labels
_PICTURES = 1 << 20  # 1 MiB, of all pictures: a third more in the page
_LARGEST_PICTURE = 64 << 10  # 64 KiB
_SIDE = 96  # CSS pixels: what there is room for on a wide screen, five in a row


def shape(feature: Feature) -> str:
    """Returns a feature's shape in words: its sizes with multiplication signs between them."""
    return " \u00d7 ".join("any" if size is None else str(size) for size in feature.shape) or "one value"


def encoding(feature: Feature) -> str:
    """Returns how a feature is encoded; how many classes it has, if it is a label."""
    if feature.class_names:
        return count_of(len(feature.class_names), "class", "classes")
    names = {None: "", "png": "PNG", "jpeg": "JPEG", "any": "PNG and JPEG"}
    return names.get(feature.encoding, str(feature.encoding))


def labels(made: Manifest) -> dict[str, Any]:
    """Returns how many examples of each class each split has; many classes are sorted by size."""
    histograms = [split.label_histogram for _, split in by_size(made)]
    count = max(len(made.class_names), *map(len, histograms))
    padded = [[*histogram, *[0] * (count - len(histogram))] for histogram in histograms]
    totals = [sum(counts) for counts in zip(*padded, strict=True)]
    order: Sequence[int] = range(count)
    profile = None
    if count > _MANY_CLASSES:
        order = sorted(order, key=lambda label: (-totals[label], label))
        profile = step_curve([totals[label] for label in order])
    largest = [max(histogram) or 1 for histogram in padded]
    rows = [
        {
            "number": "" if _class_name(made, label) == str(label) else label,
            "name": _class_name(made, label),
            "bars": [(h[label] / most, h[label]) for h, most in zip(padded, largest, strict=True)],
        }
        for label in order
    ]
    is_wide = len(padded) > _COLUMNS or (len(padded) > 1 and max(largest) >= _LONG_NUMBER)
    return {"count": count, "profile": profile, "rows": rows, "most": _MANY_CLASSES, "is_wide": is_wide}


def sizes(made: Manifest, images: ImageFacts) -> dict[str, Any]:
    """Returns how many sizes the images have, and a histogram, in which many sizes are rounded up."""
    counts = made.image_sizes
    return {
        "count": len(images.sizes),
        "largest": images.largest.replace("x", " \u00d7 ") if images.sizes else "",
        "rows": [{"size": size.replace("x", " \u00d7 "), "part": n / counts[0][1], "count": n} for size, n in counts],
        "are_rounded": images.sizes != image_facts.of_manifest(made).sizes,
    }


def step_curve(values: Sequence[int], steps: int = 240) -> str:
    """Returns an SVG path, 100 wide and high, that outlines the values with at most `steps` steps."""
    count, top = min(len(values), steps), max(values, default=0) or 1
    path = "M0 100"
    for i in range(count):
        piece = values[i * len(values) // count : (i + 1) * len(values) // count]
        path += f"V{100 - 100 * sum(piece) / len(piece) / top:.1f}H{100 * (i + 1) / count:.2f}"
    return f"{path}V100Z"


def figures(made: Manifest, samples: Samples) -> dict[str, Any]:
    """Returns the pictures of each class; the samples are few enough to decode in seconds."""
    most_bytes = min(_LARGEST_PICTURE, _PICTURES // max(1, sum(map(len, samples.by_label.values()))))
    shown: dict[int, list[tuple[str, Picture]]] = {label: [] for label in samples.by_label}
    undecodable = 0
    for label, of_class in samples.by_label.items():
        for image, key in of_class:
            try:
                shown[label].append((key, _picture(made, image, most_bytes)))
            except BadImageError:
                undecodable += 1
    histogram = made.splits[samples.split].label_histogram
    return {
        "split": samples.split,
        "classes": sum(1 for n in histogram if n),
        "undecodable": undecodable,
        "cell": _cell(made),
        "of_class": [(_class_name(made, label), histogram[label], pairs) for label, pairs in shown.items()],
    }


def _picture(made: Manifest, image: bytes, most_bytes: int) -> Picture:
    if made.features["image"].encoding == "raw":
        return pictures.of_pixels(image, made.image_shape, most_bytes)
    return pictures.of_file(image, most_bytes)


def _cell(made: Manifest) -> int | None:
    """Returns the CSS pixels that a picture is wide at most: a multiple of its own, so that each becomes a square.

    None: as wide as there is room, for images that differ or are not that small.
    """
    height, width, _ = made.features["image"].shape
    if height is None or width is None or max(height, width) > _SIDE // 2:
        return None
    return _SIDE // max(height, width) * max(height, width)


def _class_name(made: Manifest, label: int) -> str:
    return made.class_names[label] if label < len(made.class_names) else str(label)
