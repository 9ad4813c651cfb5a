"""Masks, boxes and points of a source's rows, as a shard stores them: turned and resized with their images.

Coordinates in the source refer to the image as its file has it. An image that EXIF data turn is stored upright, and its
annotations are turned too; if images are resized, pixel coordinates are scaled, and masks take the nearest pixel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import Block
from pipeline import images
from pipeline.commands.text import shape_of
from pipeline.images import BadImageError
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, BOXES, CONVENTIONS, MASK, RELATIVE
from pipeline.records import annotation
from pipeline.records.annotation import ShardAnnotations

_GREY = "L"  # Pillow's mode of the masks that are stored as they are


def of_source(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Returns the features that lie on the image."""
    return {name: feature for name, feature in features.items() if feature.convention}


def moved(
    block: Block, features: Mapping[str, Feature], size: tuple[int, int] | None, bad: dict[int, str]
) -> dict[str, Any]:
    """Returns the values of a block's features, those on the images moved as its images will be.

    Args:
      block: a block of a source.
      features: features of the source.
      size: (height, width) that images are resized to; None if they keep their sizes.
      bad: {row: reason} of invalid rows, which are skipped; rows with impossible values are added.
    """
    placed = of_source(features)
    extra = {name: list(values) if name in placed else values for name, values in block.extra.items()}
    for row in range(len(block.labels)) if placed else ():
        if row in bad:
            continue
        try:
            own, turn = _of_image(block.images[row])
        except BadImageError as error:
            bad[row] = str(error)
            continue
        stored = {name: extra[name][row] for name in placed}
        problem = ""
        for name, feature in placed.items():
            try:
                extra[name][row] = _moved(stored, name, feature, own, turn, size)
            except ValueError as error:  # includes BadImageError
                problem = problem or str(error)
        if BOXES in placed and BOX_LABELS in placed and not problem:
            count, named = len(stored[BOXES]) // 4, len(stored[BOX_LABELS])
            problem = f"it has {count} boxes, but classes of {named}" if count != named else ""
        if problem:
            bad[row] = problem
    return extra


def counted(rows: Block, sides: NDArray[np.int32], features: Mapping[str, Feature]) -> dict[str, dict[str, Any]]:
    """Returns the counts of a shard's masks, boxes and points for its receipt; empty without any.

    Args:
      rows: the shard's rows.
      sides: height and width of each image as stored, int32 (n, 2).
      features: features of the source.
    """
    placed = of_source(features)
    shard = ShardAnnotations(placed)
    for row, (height, width) in enumerate(sides.tolist()) if placed else ():
        values = {name: rows.extra[name][row] for name in placed}
        shard.add({name: [value] if name == MASK else value for name, value in values.items()}, (height, width))
    return shard.packed()


def described(
    counts: list[dict[str, dict[str, Any]]], features: Mapping[str, Feature], shape: tuple[int | None, ...]
) -> dict[str, Feature]:
    """Returns the manifest's features for annotations of images; for errors see `annotation.described`.

    Args:
      counts: results of `counted` for all shards.
      features: features of the source.
      shape: (height, width, channels) of the images; None for a size that varies.
    """
    placed = of_source(features)
    return annotation.described([ShardAnnotations(placed, one) for one in counts], shape, ()) if placed else {}


def notes(counts: list[dict[str, dict[str, Any]]], features: Mapping[str, Feature]) -> tuple[str, ...]:
    """Returns lines about the masks, boxes and points that were converted; for the arguments see `described`."""
    shards = [ShardAnnotations(of_source(features), one) for one in counts]
    return tuple(annotation.lines(described(counts, features, (None, None, None)), shards))


def _of_image(image: bytes | NDArray[np.uint8]) -> tuple[tuple[int, int], int]:
    """Returns the (height, width) of an image as its file has it, and its EXIF orientation."""
    if not isinstance(image, bytes):
        return (image.shape[0], image.shape[1]), 1
    opened = images.open_file(image)
    turn = images.orientation(opened)
    return images.turned_size(images.upright_size(opened), turn), turn


def _moved(
    stored: Mapping[str, Any],
    name: str,
    feature: Feature,
    own: tuple[int, int],
    turn: int,
    size: tuple[int, int] | None,
) -> Any:
    """Returns the values of a feature on an image of the size `own` that is turned and resized."""
    upright = images.turned_size(own, turn)
    size = size or upright
    if name == MASK:
        return _mask(stored[name], own, turn, size)
    annotation.of_record(stored, name, feature, own)  # raises for impossible values
    is_relative = feature.convention.startswith(RELATIVE)
    if name == BOX_LABELS or (turn == 1 and (is_relative or size == own)):
        return stored[name]
    numbers = np.asarray(stored[name], np.float64).reshape(-1, len(CONVENTIONS[name][feature.convention]))
    corners = annotation.in_order(numbers, name, feature.convention, lambda parts: np.stack(parts, axis=-1))
    places = images.upright_places(corners.reshape(-1, 2), turn, (1.0, 1.0) if is_relative else own)
    places *= 1.0 if is_relative else np.array(size) / upright
    places = places.reshape(corners.shape)
    if name == BOXES:
        pair = places.reshape(-1, 2, 2)
        places = np.concatenate([pair.min(axis=1), pair.max(axis=1)], axis=1)
    return annotation.in_convention(places, name, feature.convention).astype(np.float32).ravel()


def _mask(data: bytes, own: tuple[int, int], turn: int, size: tuple[int, int]) -> bytes:
    """Returns the file of a mask on an image of the size `own` that is turned and resized."""
    try:
        classes = images.classes_of(data)
    except BadImageError as error:
        raise ValueError(f"its mask: {error}") from None
    if classes.shape[:2] != own:
        turned = f" (of its file; EXIF data turn it to {shape_of(images.turned_size(own, turn))})" if turn != 1 else ""
        raise ValueError(
            f"its mask has {shape_of(classes.shape[:2])}, and its image {shape_of(own)}{turned}; a mask must have its "
            "image's size"
        )
    made = images.nearest(images.turned(classes, turn), size)
    is_kept = turn == 1 and size == own and images.open_file(data).mode == _GREY
    return data if is_kept else images.encoded(made, "png")
