import math

import numpy as np
import pytest

from pipeline.read import statistics
from pipeline.read.statistics import PixelSums

SHAPES = [(1, 1, 1), (28, 28, 1), (32, 32, 3), (1, 500, 3), (500, 1, 3), (7, 5, 3), (3, 4, 4), (65, 2, 1)]


def added(channels, *arrays):
    sums = PixelSums(channels)
    for array in arrays:
        sums.add(array)
    return sums


def exact(pixels):
    columns = pixels.reshape(-1, pixels.shape[-1]).astype(object)
    return columns.sum(axis=0).tolist(), (columns**2).sum(axis=0).tolist()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_exact_integers(shape, count, pixels):
    images = pixels(count, shape)
    together, one_by_one = added(shape[2], images), added(shape[2], *images)
    assert (together.sums, together.squares) == exact(images)
    assert together == one_by_one
    assert together.pixels == count * shape[0] * shape[1]
    assert all(type(value) is int for value in together.sums + together.squares)


@pytest.mark.parametrize("shape", SHAPES)
def test_moments_are_those_of_numpy_in_float64(shape, pixels):
    images = pixels(100, shape)
    columns = images.reshape(-1, shape[2]).astype(np.float64)
    mean, std = statistics.moments([added(shape[2], images)])
    np.testing.assert_allclose(mean, columns.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(std, columns.std(axis=0), rtol=1e-12)


def test_the_largest_values_do_not_overflow():
    found = added(3, np.full((200, 64, 64, 3), 255, np.uint8))
    assert found.sums == [255 * 200 * 64 * 64] * 3
    assert found.squares == [255 * 255 * 200 * 64 * 64] * 3


def test_moments_do_not_depend_on_how_pixels_are_divided(pixels):
    images = pixels(1000, (2, 3, 3))
    whole = statistics.moments([added(3, images)])
    assert statistics.moments([added(3, images[:17]), added(3, images[17:600]), added(3, images[600:])]) == whole
    assert statistics.moments([added(3, images[600:]), added(3, images[:600])]) == whole


def test_moments_of_one_colour_have_no_rounding():
    colour = PixelSums(1, 10**9, [255 * 10**9], [255 * 255 * 10**9])
    assert statistics.moments([colour] * 1000) == ((255.0,), (0.0,))


@pytest.mark.parametrize(
    ("histogram", "bits"),
    [
        ((), None),
        ((0, 0), None),
        ((7,), 0.0),
        ((0, 9, 0), 0.0),
        ((1, 1), 1.0),
        ((5, 5, 5, 5), 2.0),
        ((1, 3), 0.8113),
        ((100,) * 1000, 9.9658),
        ((10**12, 1), 0.0),
    ],
)
def test_entropy(histogram, bits):
    assert statistics.entropy(histogram) == bits
    if bits == 0.0:
        assert math.copysign(1, statistics.entropy(histogram)) == 1  # no minus sign in the manifest


@pytest.fixture(params=["compiled", "NumPy"])
def code(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(statistics, "_unpack", None)
    elif statistics._unpack is None:
        pytest.skip("not compiled")


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 28, 28, 1), (40, 32, 32, 3), (5, 3, 7, 4), (2, 5, 5, 5), (2, 200, 300, 3)]
)
@pytest.mark.parametrize("least", [0, 255])
def test_values_of_a_channel_and_their_squares_are_added_up(shape, least):
    images = np.random.default_rng(0).integers(least, 256, shape, np.uint8)
    columns = images.reshape(-1, shape[-1]).astype(np.int64)
    expected = columns.sum(axis=0).tolist(), (columns**2).sum(axis=0).tolist()
    assert statistics.sums_of(images, shape[-1]) == expected


@pytest.mark.usefixtures("code")
def test_images_that_do_not_lie_together_are_added_up():
    images = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8).transpose(0, 2, 3, 1)
    columns = images.reshape(-1, 3).astype(np.int64)
    assert statistics.sums_of(images, 3) == (columns.sum(axis=0).tolist(), (columns**2).sum(axis=0).tolist())


def test_the_spread_of_numbers_leaves_out_missing_ones(monkeypatch):
    monkeypatch.setattr(statistics, "_AT_ONCE", 4)
    values = np.float32([1, 2, np.nan, 3, 4, np.inf, 5, 1e6])
    found = statistics.spread(values)
    kept = np.float64([1, 2, 3, 4, 5, 1e6])
    assert (found.count, found.missing, found.least, found.most) == (6, 2, 1.0, 1e6)
    assert (found.mean, found.std) == (pytest.approx(kept.mean()), pytest.approx(kept.std()))
    assert statistics.spread(np.float32([np.nan])) == statistics.Spread(0, 0, 1, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_few_different_numbers_are_counted_one_by_one(monkeypatch):
    monkeypatch.setattr(statistics, "_AT_ONCE", 2)
    splits = {"train": np.float32([0.5, 2, 2, np.nan, 0.5, 2]), "test": np.float32([1e10, 2])}
    assert statistics.number_bars(splits) == [
        ("0.5", {"train": 2, "test": 0}),
        ("2", {"train": 3, "test": 1}),
        ("1e+10", {"train": 0, "test": 1}),
    ]
    assert statistics.number_bars({"train": np.float32([np.nan])}) == []


def test_many_different_numbers_are_counted_in_ranges(monkeypatch):
    monkeypatch.setattr(statistics, "_AT_ONCE", 7)
    bars = statistics.number_bars({"train": np.arange(41, dtype=np.float32), "test": np.float32([40, 0.5])})
    assert len(bars) == 20
    assert bars[0] == ("0 to 2", {"train": 2, "test": 1})
    assert bars[-1] == ("38 to 40", {"train": 3, "test": 1})  # the last range has its upper bound, too
    assert sum(counts["train"] for _, counts in bars) == 41
