import numpy as np

from pipeline.inspect.pixels import as_pixels, as_rgb


def test_bytes_stay_and_floats_are_stretched():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(as_pixels(pixels), pixels)
    np.testing.assert_array_equal(as_pixels(np.array([[[-2.0], [0.0], [2.0]]])), [[[0], [128], [255]]])
    np.testing.assert_array_equal(as_pixels(np.ones((1, 2, 1))), 0)


def test_grey_becomes_rgb():
    assert as_rgb(np.full((2, 3, 1), 7, np.uint8)).tolist() == [[[7, 7, 7]] * 3] * 2
