"""Draws a batch: each image as stored and, below it, as a model gets it."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pipeline.files.paths import PathLike
from pipeline.input import input_fn
from pipeline.inspect.pixels import as_rgb
from pipeline.manifest import Manifest

_TILE = 96  # pixels on a side of a drawn image
_CAPTION = 16
_GAP = 6
_COLUMNS = 8
_IMAGES = 32
_TINY = 4  # pixels on a side: pad_crop_flip would leave nothing of such images
_INK = (40, 40, 40)


def default_recipe(manifest: Manifest) -> str:
    """Returns the recipe that fits the data: `shift` for grey images (digits), else `cifar10_tutorial`.

    Images that differ in size are cropped to one size; tiny ones are left as they are.
    """
    if None in manifest.features["image"].shape:
        return f"random_resized_crop(size={_TILE})"
    height, width, channels = manifest.image_shape
    if min(height, width) <= _TINY:
        return "none"
    if channels == 1:
        return "shift"
    return "cifar10_tutorial" if min(height, width) >= 24 else "pad_crop_flip"


def draw_contact_sheet(data_dir: PathLike, manifest: Manifest, split: str, distort: str, seed: int) -> Image.Image:
    """Returns the first training batch: pairs of stored and distorted images with their class.

    Raises:
      DataError, UsageError: as `input_fn`.
    """
    size = (_TILE, _TILE) if None in manifest.features["image"].shape else None
    batches = functools.partial(input_fn, data_dir, split, global_batch_size=_IMAGES, training=True, seed=seed)
    raw, labels, weights = next(batches(distort="none", resize=size).as_numpy_iterator())
    distorted, _, _ = next(batches(distort=distort).as_numpy_iterator())
    shown = int((weights > 0).sum())
    rows = -(-shown // _COLUMNS)
    pair = 2 * _TILE + _GAP // 2 + _CAPTION + 2 * _GAP
    sheet = Image.new("RGB", (_COLUMNS * (_TILE + _GAP) + _GAP, rows * pair + 3 * _CAPTION), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    title = f"{manifest.dataset} {split}, step 0, seed {seed}: above as stored, below {distort}"
    pen.text((_GAP, _CAPTION // 2), f"{title} (floats stretched to black..white)", _INK, font)
    for i in range(shown):
        left = _GAP + i % _COLUMNS * (_TILE + _GAP)
        top = 2 * _CAPTION + i // _COLUMNS * pair
        sheet.paste(_tile(raw[i]), (left, top))
        sheet.paste(_tile(distorted[i]), (left, top + _TILE + _GAP // 2))
        pen.text((left, top + 2 * _TILE + _GAP // 2), _class_name(manifest, int(labels[i])), _INK, font)
    return sheet


def _class_name(manifest: Manifest, label: int) -> str:
    return manifest.class_names[label] if label < len(manifest.class_names) else str(label)


def _tile(image: NDArray[np.generic]) -> Image.Image:
    """Returns one image (height, width, 1 or 3), uint8 or float, scaled to a tile."""
    return Image.fromarray(as_rgb(image)).resize((_TILE, _TILE), Image.Resampling.NEAREST)
