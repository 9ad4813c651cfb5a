"""Each operation of `randaugment` against Pillow's, or its definition in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from pipeline.augmentation.randaugment import OPERATIONS, RandAugment
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.reference import GREY, below, draw
from tests.unit.pipeline.augmentation.running import run


def matrix(operation, part, size):
    """Returns the map of an operation that moves an image, from a place in the result to that in the image."""
    shear, degrees = 0.3 * part, 30 * part
    right, down = (int(150 / 331 * n * part) for n in (size[1], size[0]))  # cuts off, towards 0
    if operation == "rotate":
        return np.linalg.inv(reference.about(np.empty(size), reference.turned(degrees)))
    maps = {
        "shear_x": [[1, shear, 0], [0, 1, 0]],
        "shear_y": [[1, 0, 0], [shear, 1, 0]],
        "translate_x": [[1, 0, -right], [0, 1, 0]],
        "translate_y": [[1, 0, 0], [0, 1, -down]],
    }
    return np.array([*maps[operation], [0, 0, 1.0]])


def expected(operation, image, m, sign, fill):
    """Returns the image after an operation, float64, and how far a result may be off."""
    part, factor = m / 30, 1 + 0.9 * m / 30 * sign
    picture = Image.fromarray(image.squeeze())
    exact = {
        "identity": lambda: picture,
        "posterize": lambda: ImageOps.posterize(picture, 8 - round(4 * part)),
        "solarize": lambda: ImageOps.solarize(picture, 255 * (1 - part)),
        "equalize": lambda: ImageOps.equalize(picture),
    }
    if operation in exact:
        return np.asarray(exact[operation]()).reshape(image.shape).astype(float), 0
    within_a_level = {  # Pillow cuts off, or rounds what it blends with
        "auto_contrast": lambda: ImageOps.autocontrast(picture),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
    }
    if operation in within_a_level:
        return np.asarray(within_a_level[operation]()).reshape(image.shape).astype(float), 1.5
    pixels = image.astype(float)
    if operation in ("brightness", "color", "contrast"):
        grey = pixels @ (GREY if image.shape[2] == 3 else np.ones(1))
        towards = {"brightness": 0.0, "color": grey[..., None], "contrast": grey.mean()}[operation]
        return np.clip(towards + (pixels - towards) * factor, 0, 255), 0.51
    return reference.sampled(pixels, matrix(operation, part * sign, image.shape), fill), 0.999


@pytest.mark.parametrize(
    ("m", "sign", "shape"),
    [
        pytest.param(30, -1, (8, 9, 3), marks=pytest.mark.slow),
        pytest.param(17, 1, (3, 7, 1), marks=pytest.mark.slow),
        pytest.param(0, 1, (2, 2, 3), marks=pytest.mark.slow),
        (9, 1, (23, 27, 3)),
    ],
    ids=str,  # equalize changes an image from 256 pixels on
)
def test_each_operation_is_its_definition(m, sign, shape):
    images = np.repeat(reference.images_of(7, *shape), len(OPERATIONS), axis=0)
    operations = np.tile(np.arange(len(OPERATIONS), dtype=np.int32), 7)
    apply = tf.function(RandAugment(m=m, fill=99).apply, autograph=False)
    got = apply(images, operations, np.full(len(images), float(sign))).numpy()
    for image, number, out in zip(images, operations, got, strict=True):
        wanted, atol = expected(OPERATIONS[number], image, m, sign, 99)
        assert np.abs(out - wanted).max() <= atol, OPERATIONS[number]


@pytest.mark.slow
def test_each_row_gets_the_operations_that_it_draws():
    images, keys = reference.images_of(40, 9, 9), reference.keys_of(40)
    got = run("randaugment(n=2, m=20)", images, keys)
    one = tf.function(RandAugment(n=1, m=20).apply, autograph=False)
    wanted = images
    for layer in range(2):
        operations = np.array([below(14, key, 2 * layer) for key in keys], np.int32)
        signs = np.array([-1.0 if draw(key, 2 * layer + 1) < 0.5 else 1.0 for key in keys])
        wanted = one(wanted, operations, signs).numpy()
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(run("randaugment", images, keys, training=False), images)


def test_operations_and_directions_are_drawn_alike():
    many = reference.keys_of(28_000)
    counts = np.bincount([below(14, key, 0) for key in many], minlength=14)
    assert np.abs(counts - 2000).max() < 5 * math.sqrt(2000)


def test_what_is_out_of_bounds_is_refused():
    with pytest.raises(UsageError, match=r"^augment: randaugment\(m=31\): .* 0..30$"):
        make_recipe("randaugment(m=31)")
    with pytest.raises(UsageError, match=r"^augment: randaugment\(n=0\): .* 1..14$"):
        make_recipe("randaugment(n=0)")
    with pytest.raises(UsageError, match="^augment: randaugment: .* 4$"):
        make_recipe("randaugment").check((8, 8, 4))
