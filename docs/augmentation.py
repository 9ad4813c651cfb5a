"""Draws docs/augmentation.png: what each augmentation makes of four parts of photographs.

And docs/masks.png: masks, boxes and points that recipes move with them.

    python docs/augmentation.py

The photographs come with scikit-learn (the extra `demo`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from sklearn.datasets import load_sample_images

from pipeline.augmentation.base import ImageStatistics
from pipeline.augmentation.composed import cropping_of, moves_of
from pipeline.augmentation.mixing import mix
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.annotation import Annotations
from pipeline.decode.images import ImageDecoder, InStrings
from pipeline.inspect.marks import marked
from pipeline.manifest import Feature
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.records import tf_example

PICTURE = pathlib.Path(__file__).with_name("augmentation.png")
SIDE = 96  # pixels of an image
PARTS = ((0, 60, 150), (1, 60, 200), (0, 200, 330), (1, 120, 90))  # photograph, top, left
EPOCHS = 2  # shown of each image
MOVED = (  # in both pictures
    "none",
    "flip",
    "shift(pixels=16)",
    "pad_crop_flip(pad=16)",
    "cifar10_tutorial(crop=72)",
    "random_crop(size=72)",
    "random_resized_crop(size=72)",
    "resize(height=32, width=80)",
)
LINES = (
    *MOVED,
    "normalize",
    "affine(rotate=25, scale=0.2, shear=10)",
    "color_jitter",
    "cutout(size=32)",
    "random_erasing(prob=1)",
    "randaugment(n=2, m=14)",
    "mixup(alpha=1.0)",
    "cutmix",
    "mixup_or_cutmix(mixup_alpha=1.0)",
    "randaugment | pad_crop_flip(pad=12) | cutout(size=32) | mixup(alpha=1.0)",
)
PICTURE_OF_MASKS = PICTURE.with_name("masks.png")
MOVING = (
    *MOVED,
    "affine(rotate=25, scale=0.2, shear=10)",
    "affine(rotate=180, scale=0.5, shift=0.4)",
    "randaugment(n=3, m=20)",
    "random_resized_crop(size=72) | flip | cutout(size=24)",
)
FEATURES = {
    "mask": Feature("uint8", (SIDE, SIDE, 1), "png", convention="classes"),
    "boxes": Feature("float32", (1, 4), convention="rel_yxyx"),
    "points": Feature("float32", (1, 2), convention="rel_yx"),
}
CAPTION, GAP = 16, 6  # pixels
INK = (40, 40, 40)


def photographs() -> NDArray[np.uint8]:
    """Returns the parts, uint8 (4, SIDE, SIDE, 3), at half their size."""
    whole = load_sample_images().images
    parts = [whole[which][top : top + 2 * SIDE, left : left + 2 * SIDE] for which, top, left in PARTS]
    return np.stack([np.asarray(Image.fromarray(part).resize((SIDE, SIDE), Image.Resampling.BOX)) for part in parts])


def keys_of(epoch: int, rows: int) -> NDArray[np.uint64]:
    """Returns the keys of an epoch, uint64 (rows,)."""
    return hashing.derive_key(Domain.AUGMENT, 1, epoch, np.arange(rows))


def augmented(text: str, images: NDArray[np.uint8], epoch: int) -> NDArray[np.generic]:
    """Returns the images of an epoch, as a recipe gives them."""
    recipe, rows = make_recipe(text), len(images)
    recipe.check(images.shape[1:])
    flat = images.reshape(-1, 3)
    statistics = ImageStatistics(tuple(flat.mean(axis=0)), tuple(flat.std(axis=0)))

    def augment(pixels: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        pixels = recipe.augment(pixels, keys, statistics)
        if recipe.mixing is None:
            return pixels
        labels, real = tf.eye(rows), tf.ones(rows, tf.bool)
        return mix(recipe.mixing, pixels, labels, keys, tf.constant(epoch, tf.int64), real)[0]

    compiled = tf.function(augment, jit_compile=True, autograph=False)
    keys = keys_of(epoch, rows)
    if cropping := cropping_of(recipe):
        files = tf.stack([tf.io.encode_png(image) for image in images])
        decoder = ImageDecoder("png", (SIDE, SIDE, 3), cropping.crop(training=True))
        images = decoder.decode(InStrings(files), lambda: tf.constant(keys)).numpy()
    return compiled(tf.constant(images), tf.constant(keys)).numpy()


def tile(image: NDArray[np.generic]) -> Image.Image:
    """Returns an image, uint8 or float, as pixels; floats stretched from black to white."""
    if image.dtype != np.uint8:
        low, high = image.min(), image.max()
        image = ((image - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
    return Image.fromarray(image)


def placed(text: str, images: NDArray[np.uint8], epoch: int) -> dict[str, NDArray[np.generic]]:
    """Returns the masks, boxes and points of images of an epoch: a flower or what is dark, its box, its middle."""
    records, files, recipe = [], [], make_recipe(text)
    for image, (photograph, _, _) in zip(images, PARTS, strict=True):
        grey = np.asarray(Image.fromarray(image).convert("L").filter(ImageFilter.GaussianBlur(3)))
        mask = (grey > grey.mean()) == (photograph == 1)
        down, across = mask.nonzero()
        corners = np.float32([down.min(), across.min(), down.max() + 1, across.max() + 1]) / SIDE
        middle = np.float32([down.mean() + 0.5, across.mean() + 0.5]) / SIDE
        file = tf.io.encode_png(mask[..., None].astype(np.uint8)).numpy()
        files.append(tf.io.encode_png(image).numpy())
        records.append(tf_example.encode({"mask": file, "boxes": corners, "points": middle}))
    cropping = cropping_of(recipe)
    decoder = ImageDecoder("png", images.shape[1:], cropping.crop(training=True) if cropping else None)
    moves = moves_of(recipe, decoder.image_shape[:2], True, "masks")
    keys = tf.constant(keys_of(epoch, len(images)))
    annotations = Annotations(FEATURES, decoder, moves)
    decoded = annotations.decoded(tf.constant(records), InStrings(tf.constant(files)), lambda: keys, None)
    return {name: column.numpy() for name, column in annotations.moved(decoded, keys).items()}


def with_marks(text: str, images: NDArray[np.uint8], epoch: int) -> list[Image.Image]:
    """Returns the images of an epoch with all that lies on them."""
    found = placed(text, images, epoch)
    each = ({name: column[row] for name, column in found.items()} for row in range(len(images)))
    return [
        Image.fromarray(marked(image, row)) for image, row in zip(augmented(text, images, epoch), each, strict=True)
    ]


def draw(lines: Sequence[str], of_epoch: Callable[..., Sequence[Any]]) -> Image.Image:
    """Returns a picture: two columns of lines, the images of two epochs in each.

    Args:
      lines: texts of recipes.
      of_epoch: function of a text, images and the epoch that returns the images to show.
    """
    images = photographs()
    wide = len(images) * EPOCHS * (SIDE + GAP) // 2 * 2 + GAP
    tall = SIDE + CAPTION + GAP
    rows = -(-len(lines) // 2)
    sheet = Image.new("RGB", (2 * wide + GAP, rows * tall + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for i, text in enumerate(lines):
        left, top = GAP + i // rows * (wide + GAP), GAP + i % rows * tall
        pen.text((left, top), text, INK, font)
        shown = [image for epoch in range(EPOCHS) for image in of_epoch(text, images, epoch)]
        for j, image in enumerate(shown):
            sheet.paste(image, (left + j * (SIDE + GAP), top + CAPTION))
    return sheet


def pictures() -> dict[pathlib.Path, Image.Image]:
    """Returns the pictures by their files."""
    made = {
        PICTURE: draw(LINES, lambda *of: [tile(image) for image in augmented(*of)]),
        PICTURE_OF_MASKS: draw(MOVING, with_marks),
    }
    return {path: picture.quantize(256) for path, picture in made.items()}


if __name__ == "__main__":
    for path, picture in pictures().items():
        picture.save(path, optimize=True)
