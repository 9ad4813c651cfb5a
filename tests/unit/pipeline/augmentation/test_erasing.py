"""`cutout` and `random_erasing` against loops over pixels."""

import math

import numpy as np
import pytest

from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.order import hashing
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.reference import below, draw
from tests.unit.pipeline.augmentation.running import run


def covered(shape, top, left, height, width):
    mask = np.zeros(shape[:2], bool)
    mask[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = True
    return mask


@pytest.mark.parametrize(("size", "shape"), [(8, (32, 32, 3)), (1, (5, 9, 3)), (5, (5, 9, 3))])
def test_cutout_covers_a_square_with_the_mean_colour(size, shape):
    images, keys = reference.images_of(40, *shape), reference.keys_of(40)
    got = run(f"cutout(size={size})", images, keys)
    parts = []
    for image, key, out in zip(images, keys, got, strict=True):
        top, left = (below(shape[d], key, d) - size // 2 for d in (0, 1))
        mask = covered(shape, top, left, size, size)
        parts.append(mask.sum())
        np.testing.assert_array_equal(out, np.where(mask[..., None], (120, 110, 100), image))
    assert max(parts) == size * size
    assert size == 1 or min(parts) < size * size  # some reach beyond the border
    np.testing.assert_array_equal(run(f"cutout(size={size})", images, keys, training=False), images)


def test_cutout_of_normalised_images_is_zero_where_that_of_pixels_is_the_mean():
    images, keys = reference.images_of(16, 12, 12), reference.keys_of(16)
    before = run("flip | cutout(size=4) | normalize", images, keys)
    after = run("normalize | cutout(size=4)", images, keys)
    pixels = run("flip(prob=0) | cutout(size=4) | normalize", images, keys)
    np.testing.assert_allclose(after, pixels, atol=1e-6)
    assert (after == 0).all(axis=-1).any()
    assert not np.array_equal(before, pixels)


@pytest.mark.parametrize(
    ("prob", "least", "most", "shape", "size"),
    [
        (0.5, 0.02, 0.4, 10 / 3, (32, 32, 3)),
        (1.0, 0.0, 1.0, 16.0, (7, 13, 3)),
        (1.0, 1.0, 1.0, 1.0, (6, 6, 1)),
        (0.0, 0.5, 1.0, 2.0, (6, 5, 1)),
    ],
)
@pytest.mark.quick(2)
def test_random_erasing_covers_a_rectangle_with_noise(prob, least, most, shape, size):
    images, keys = reference.images_of(40, *size), reference.keys_of(40)
    text = f"random_erasing(prob={prob}, min_area={least}, max_area={most}, max_shape={shape})"
    got = run(text, images, keys)
    height, width, _ = size
    for image, key, out in zip(images, keys, got, strict=True):
        area = (least + (most - least) * draw(key, 1)) * height * width
        ratio = math.exp(math.log(shape) * (2 * draw(key, 2) - 1))
        tall, wide = (min(round(math.sqrt(a)), n) for a, n in ((area * ratio, height), (area / ratio, width)))
        mask = covered(size, below(height - tall + 1, key, 3), below(width - wide + 1, key, 4), tall, wide)
        mask &= draw(key, 0) < prob
        with np.errstate(over="ignore"):
            seed = hashing.splitmix64(key + np.uint64(5))
            hashes = hashing.splitmix64(seed + np.arange(-(-math.prod(size) // 8), dtype=np.uint64))
        noise = hashes.astype("<u8").view(np.uint8)[: math.prod(size)].reshape(size)
        np.testing.assert_array_equal(out, np.where(mask[..., None], noise, image))
    np.testing.assert_array_equal(run(text, images, keys, training=False), images)


def test_noise_is_uniform():
    images = np.zeros((64, 32, 32, 3), np.uint8)
    got = run("random_erasing(prob=1, min_area=1.0, max_area=1.0, max_shape=1)", images, reference.keys_of(64))
    counts = np.bincount(got.reshape(-1), minlength=256)
    assert np.abs(counts - got.size / 256).max() < 5 * math.sqrt(got.size / 256)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random_erasing(prob=1.5)", r"^augment: random_erasing\(prob=1.5\): .* 0..1$"),
        ("random_erasing(min_area=0.5)", r"^augment: random_erasing\(min_area=0.5\): .* 0..0.4$"),
        ("random_erasing(max_shape=0.5)", r"^augment: random_erasing\(max_shape=0.5\): .* 1..16$"),
    ],
)
def test_what_is_out_of_bounds_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        make_recipe(text)
    with pytest.raises(UsageError, match=r"^augment: cutout\(size=9\): .* 1..8 for images of 8x12$"):
        make_recipe("cutout(size=9)").check((8, 12, 3))
