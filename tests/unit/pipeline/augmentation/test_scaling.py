"""`normalize`, `resize` and `flip`."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation import kernels
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.order import hashing
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.running import run

KEYS = reference.keys_of(6)


@pytest.mark.parametrize("training", [True, False])
def test_normalize_takes_out_mean_and_deviation(training):
    images = reference.images_of(6, 9, 5)
    expected = (images - np.array(reference.STATISTICS.mean)) / reference.STATISTICS.std
    np.testing.assert_allclose(run("normalize", images, KEYS, training), expected, atol=1e-6)


def line(before, after):
    """Returns the weights of one direction, one pixel after another."""
    weights, size = np.zeros((after, before)), max(before / after, 1)
    for i in range(after):
        weights[i] = np.maximum(0, 1 - np.abs(np.arange(before) + 0.5 - (i + 0.5) * before / after) / size)
        weights[i] /= weights[i].sum()
    return weights


@pytest.mark.parametrize(
    ("shape", "size"),
    [((32, 32, 3), (24, 24)), ((9, 14, 3), (14, 9)), ((5, 4, 1), (5, 4)), ((3, 3, 3), (1, 17)), ((100, 7, 3), (4, 7))],
)
@pytest.mark.quick(2)
def test_resize_is_bilinear_and_antialiased_within_rounding(shape, size):
    images = reference.images_of(6, *shape)
    text = f"resize(height={size[0]}, width={size[1]})"
    got = run(text, images, KEYS)
    assert (got.dtype, got.shape) == (np.uint8, (6, *size, shape[2]))
    expected = np.einsum("oh,bhwc,pw->bopc", line(shape[0], size[0]), images, line(shape[1], size[1]))
    # Half a level, and the rounding of the weights and between the passes.
    assert np.abs(got - expected).max() < 0.65
    official = tf.image.resize(images, size, antialias=True).numpy()
    assert np.abs(got - official).max() < 0.65
    np.testing.assert_array_equal(run(text, images, KEYS, training=False), got)


LONG = [(497, 1), (1042, 2), (600, 1), (4000, 1), (8192, 1), (20_000, 32), (20_000, 8), (20_000, 1)]


@pytest.mark.parametrize(("before", "after"), LONG)
def test_no_pixel_of_a_long_line_takes_up_what_the_rounding_of_all_weights_leaves(before, after):
    whole, exact = kernels.whole_weights(before, after), line(before, after) * (1 << kernels.WEIGHT_BITS)
    # The compiled code refuses negative weights.
    assert (whole.min() >= 0, whole.sum(axis=1).tolist()) == (True, [1 << kernels.WEIGHT_BITS] * after)
    assert np.abs(whole - exact).max() < 1
    levels = 255 / (1 << kernels.WEIGHT_BITS)
    assert np.abs(np.cumsum(whole - exact, axis=1)).max() * levels < 0.04  # of a line that is black up to some pixel


@pytest.mark.parametrize(("before", "after"), LONG[:3])
def test_long_lines_are_resized_within_rounding(before, after):
    images = reference.images_of(6, before, 3)
    got = run(f"resize(height={after}, width=3)", images, KEYS)
    assert np.abs(got - np.einsum("oh,bhwc->bowc", line(before, after), images)).max() < 2


@pytest.mark.parametrize(("before", "after"), [(32, 24), (400, 3), (4000, 64), (20_000, 224)])
def test_other_weights_have_what_their_rounding_leaves_on_the_largest(before, after):
    exact = line(before, after) * (1 << kernels.WEIGHT_BITS)
    expected = np.rint(exact)
    expected[np.arange(after), expected.argmax(axis=1)] += (1 << kernels.WEIGHT_BITS) - expected.sum(axis=1)
    np.testing.assert_array_equal(kernels.whole_weights(before, after), expected)


@pytest.mark.parametrize("prob", [0.0, 0.3, 1.0])
def test_flip_mirrors_a_part_of_the_images(prob):
    images, keys = reference.images_of(64, 5, 7), reference.keys_of(64)
    flipped = hashing.uniform(keys, 0) < prob
    assert abs(flipped.mean() - prob) < 0.2
    expected = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    np.testing.assert_array_equal(run(f"flip(prob={prob})", images, keys), expected)
    np.testing.assert_array_equal(run(f"flip(prob={prob})", images, keys, training=False), images)


def test_what_is_out_of_bounds_is_refused():
    with pytest.raises(UsageError, match=r"^augment: resize\(width=0\): .* 1..4096$"):
        make_recipe("resize(width=0)")
