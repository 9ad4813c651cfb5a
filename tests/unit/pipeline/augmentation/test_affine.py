"""`affine` against maps that are multiplied in float64, pixel by pixel."""

import math

import numpy as np
import pytest

from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.reference import symmetric
from tests.unit.pipeline.augmentation.running import compiled, run


def expected(image, key, rotate, scale, shift, shear, fill):
    factor, lean = 1 + scale * symmetric(key, 1), math.tan(math.radians(shear) * symmetric(key, 4))
    down, right = (shift * symmetric(key, d) * n for d, n in ((2, image.shape[0]), (3, image.shape[1])))
    forward = np.diag([factor, factor, 1]) @ np.array([[1, lean, 0], [0, 1, 0], [0, 0, 1.0]])
    forward = reference.moved(right, down) @ reference.about(
        image, reference.turned(rotate * symmetric(key, 0)) @ forward
    )
    return reference.sampled(image, np.linalg.inv(forward), fill)


@pytest.mark.parametrize(
    ("rotate", "scale", "shift", "shear", "fill", "shape"),
    [
        pytest.param(15.0, 0.1, 0.1, 0.0, 0, (32, 32, 3), marks=pytest.mark.slow),
        (180.0, 0.9, 1.0, 60.0, 255, (9, 14, 3)),
        pytest.param(0.0, 0.0, 0.3, 0.0, 128, (7, 5, 1), marks=pytest.mark.slow),
        pytest.param(0.0, 0.0, 0.0, 45.0, 7, (1, 8, 3), marks=pytest.mark.slow),
        (90.0, 0.5, 0.0, 10.0, 0, (11, 1, 1)),
    ],
)
@pytest.mark.quick(1)
def test_affine_is_one_transform_within_a_level(rotate, scale, shift, shear, fill, shape):
    images, keys = reference.images_of(12, *shape), reference.keys_of(12)
    text = f"affine(rotate={rotate}, scale={scale}, shift={shift}, shear={shear}, fill={fill})"
    got = run(text, images, keys)
    assert got.dtype == np.uint8
    for image, key, out in zip(images, keys, got, strict=True):
        wanted = expected(image.astype(float), key, rotate, scale, shift, shear, fill)
        assert np.abs(out - wanted).max() < 1


def test_affine_without_any_range_and_in_an_evaluation_leaves_images_as_they_are():
    images, keys = reference.images_of(8, 9, 7), reference.keys_of(8)
    np.testing.assert_array_equal(run("affine(rotate=0, scale=0, shift=0)", images, keys), images)
    np.testing.assert_array_equal(run("affine", images, keys, training=False), images)


def test_the_same_rows_are_the_same_to_the_byte_in_batches_of_other_sizes():
    images, keys = reference.images_of(24, 32, 32), reference.keys_of(24)
    augment = compiled("affine")
    whole = augment(images, keys)
    for rows in (1, 8):
        parts = [augment(images[i : i + rows], keys[i : i + rows]) for i in range(0, 24, rows)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("rotate=181", "0..180"),
        ("scale=1.0", "0..0.9"),
        ("shift=-0.1", "0..1"),
        ("shear=61", "0..60"),
        ("fill=256", "0..255"),
    ],
)
def test_what_is_out_of_bounds_is_refused(text, bounds):
    with pytest.raises(UsageError, match=rf"^augment: affine\({text}\): .* {bounds}$"):
        make_recipe(f"affine({text})")
