"""Statistics of boxes for a data set's card: boxes per image, the part of the image that they cover, and classes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline import images
from pipeline.manifest import Manifest
from pipeline.manifest.manifest import BOX_LABELS, BOXES
from pipeline.read.statistics import number_bars
from pipeline.records import annotation, tf_example

Bars = list[tuple[str, dict[str, int]]]  # (value or range as text, {split: count})

# Bounds of the bins for parts of an image's area, each about three times the one before.
_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


@dataclasses.dataclass(frozen=True)
class Boxes:
    """Boxes of some records.

    Attributes:
      per_image: number of boxes of each record, int64 (records,).
      parts: part of its image that each box covers, 0 to 1, float64 (boxes,).
      classes: class of each box, int64 (boxes,); empty if boxes have none.
    """

    per_image: NDArray[np.int64]
    parts: NDArray[np.float64]
    classes: NDArray[np.int64]


def of_record(record: bytes, made: Manifest) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the boxes in a record, clipped to its image, and their classes.

    Args:
      record: serialized Example.
      made: manifest of the data set.

    Returns:
      ymin, xmin, ymax, xmax as fractions of the image's sides, float64 (n, 4), no rows if they cannot be read; classes,
      int64 (n,), empty if boxes have none.
    """
    none = np.zeros((0, 4)), np.zeros(0, np.int64)
    if BOXES not in made.features:
        return none
    image, wanted = made.features["image"], [name for name in (BOXES, BOX_LABELS) if name in made.features]
    stored_names = [own for name in wanted for own in made.features[name].stored_names(name)]
    with contextlib.suppress(ValueError):  # BadImageError is one
        stored = tf_example.decode(record, [image.named("image"), *stored_names])
        if image.encoding == "raw":
            size = made.image_shape[:2]
        else:
            opened = images.open_file(stored[image.named("image")][0])
            size = images.upright_size(opened) if made.turns_images else (opened.height, opened.width)
        boxes, *classes = (annotation.of_record(stored, name, made.features[name], size) for name in wanted)
        return boxes.clip(0, 1).astype(np.float64), classes[0] if classes else none[1]
    return none


def counted(records: Iterable[bytes], made: Manifest) -> Boxes:
    """Returns the boxes of some records."""
    found = [of_record(record, made) for record in records]
    boxes = np.concatenate([np.zeros((0, 4)), *(own for own, _ in found)])
    return Boxes(
        per_image=np.array([len(own) for own, _ in found], np.int64),
        parts=np.prod(boxes[:, 2:] - boxes[:, :2], axis=1),
        classes=np.concatenate([np.zeros(0, np.int64), *(classes for _, classes in found)]),
    )


def per_image(found: Mapping[str, Boxes]) -> Bars:
    """Returns how many records have each number of boxes, by split."""
    return number_bars({split: boxes.per_image for split, boxes in found.items()})


def by_part(found: Mapping[str, Boxes]) -> Bars:
    """Returns how many boxes cover each part of their image, by split."""
    shown = [f"{100 * bound:g}%" for bound in _BOUNDS]
    names = [f"below {shown[0]}", *(f"{low} to {high}" for low, high in itertools.pairwise(shown)), f"over {shown[-1]}"]
    counts = {
        split: np.bincount(np.searchsorted(_BOUNDS, boxes.parts, side="right"), minlength=len(names)).tolist()
        for split, boxes in found.items()
    }
    return [(name, {split: counts[split][number] for split in found}) for number, name in enumerate(names)]


def by_class(found: Mapping[str, Boxes], names: tuple[str, ...]) -> list[tuple[str, dict[str, int], str]]:
    """Returns (class, {split: number of boxes}, median part of the image as text) for each class that has a box."""
    classes = np.concatenate([boxes.classes for boxes in found.values()])
    parts = np.concatenate([boxes.parts for boxes in found.values()])[: len(classes)]
    return [
        (
            names[label] if label < len(names) else str(label),
            {split: int((boxes.classes == label).sum()) for split, boxes in found.items()},
            f"{100 * np.median(parts[classes == label]):.2g}%",
        )
        for label in np.unique(classes).tolist()
    ]
