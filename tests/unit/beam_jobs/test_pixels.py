import numpy as np
import pytest

from beam_jobs import pixels


@pytest.fixture(params=["compiled", "NumPy"])
def code(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(pixels, "_unpack", None)
    elif pixels._unpack is None:
        pytest.skip("not compiled")


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("plane", [1, 15, 16, 17, 1024, 1030])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_planes_become_pixels(plane, before):
    planes = np.random.default_rng(plane).integers(0, 256, (5, before + 3 * plane), np.uint8)
    images = np.full((5, plane, 3), 9, np.uint8)
    pixels.interleave(planes, before, images)
    assert np.array_equal(images, planes[:, before:].reshape(5, 3, plane).transpose(0, 2, 1))


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 28, 28, 1), (40, 32, 32, 3), (5, 3, 7, 4), (2, 5, 5, 5), (2, 200, 300, 3)]
)
@pytest.mark.parametrize("least", [0, 255])
def test_values_of_a_channel_and_their_squares_are_added_up(shape, least):
    images = np.random.default_rng(0).integers(least, 256, shape, np.uint8)
    columns = images.reshape(-1, shape[-1]).astype(np.int64)
    expected = columns.sum(axis=0).tolist(), (columns**2).sum(axis=0).tolist()
    assert pixels.sums_of(images, shape[-1]) == expected


@pytest.mark.usefixtures("code")
def test_images_that_do_not_lie_together_are_added_up():
    images = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8).transpose(0, 2, 3, 1)
    columns = images.reshape(-1, 3).astype(np.int64)
    assert pixels.sums_of(images, 3) == (columns.sum(axis=0).tolist(), (columns**2).sum(axis=0).tolist())
