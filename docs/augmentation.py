"""Draws docs/augmentation.png: what each augmentation makes of four parts of photographs.

    python docs/augmentation.py

The photographs come with scikit-learn (the extra `demo`).
"""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images

from pipeline.augmentation.base import ImageStatistics
from pipeline.augmentation.composed import cropping_of
from pipeline.augmentation.mixing import mix
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.images import ImageDecoder, InStrings
from pipeline.order import hashing
from pipeline.order.hashing import Domain

PICTURE = pathlib.Path(__file__).with_name("augmentation.png")
SIDE = 96  # pixels of an image
PARTS = ((0, 60, 150), (1, 60, 200), (0, 200, 330), (1, 120, 90))  # photograph, top, left
EPOCHS = 2  # shown of each image
LINES = (
    "none",
    "flip",
    "shift(pixels=16)",
    "pad_crop_flip(pad=16)",
    "cifar10_tutorial(crop=72)",
    "random_crop(size=72)",
    "random_resized_crop(size=72)",
    "resize(height=32, width=80)",
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
CAPTION, GAP = 16, 6  # pixels
INK = (40, 40, 40)


def photographs() -> NDArray[np.uint8]:
    """Returns the parts, uint8 (4, SIDE, SIDE, 3), at half their size."""
    whole = load_sample_images().images
    parts = [whole[which][top : top + 2 * SIDE, left : left + 2 * SIDE] for which, top, left in PARTS]
    return np.stack([np.asarray(Image.fromarray(part).resize((SIDE, SIDE), Image.Resampling.BOX)) for part in parts])


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
    keys = hashing.derive_key(Domain.AUGMENT, 1, epoch, np.arange(rows))
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


def draw() -> Image.Image:
    """Returns the picture: two columns of lines, the images of two epochs in each."""
    images = photographs()
    wide = len(images) * EPOCHS * (SIDE + GAP) // 2 * 2 + GAP
    tall = SIDE + CAPTION + GAP
    rows = -(-len(LINES) // 2)
    sheet = Image.new("RGB", (2 * wide + GAP, rows * tall + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for i, text in enumerate(LINES):
        left, top = GAP + i // rows * (wide + GAP), GAP + i % rows * tall
        pen.text((left, top), text, INK, font)
        shown = np.concatenate([augmented(text, images, epoch) for epoch in range(EPOCHS)])
        for j, image in enumerate(shown):
            sheet.paste(tile(image), (left + j * (SIDE + GAP), top + CAPTION))
    return sheet


if __name__ == "__main__":
    draw().quantize(256).save(PICTURE, optimize=True)
