"""Crops of images: the compiled operation against NumPy, and what it refuses."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from pipeline.batch import resident
from pipeline.batch.resident import is_compiled


def reference(lanes, rows, top, left, height, width):
    """Returns the crops, of images in a frame of zeros that is wide enough for all of them."""
    frame = [(0, 0), *[(int(max(abs(at).max(), 0)) + size,) * 2 for at, size in ((top, height), (left, width))]]
    framed = np.pad(lanes, frame)
    y, x = top + frame[1][0], left + frame[2][0]
    return np.stack([framed[r, t : t + height, f : f + width] for r, t, f in zip(rows, y, x, strict=True)])


@pytest.mark.parametrize(
    ("shape", "size", "beyond"),
    [
        ((50, 32, 96), (24, 72), 0),
        ((7, 5, 9), (5, 9), 0),
        ((7, 5, 9), (1, 1), 0),
        ((9, 32, 96), (32, 96), 4),
        ((4, 6, 5), (6, 5), 40),
        ((4, 3, 4), (8, 11), 9),
    ],
    ids=["cifar10_tutorial", "all of it", "one byte", "over the border", "far outside", "larger than the image"],
)
def test_parts_are_those_of_numpy(compiled_operation, shape, size, beyond):
    random = np.random.default_rng(0)
    lanes, rows = random.integers(1, 256, shape, np.uint8), random.integers(0, shape[0], 300)
    top, left = (
        random.integers(-beyond, max(all_ - crop, 0) + beyond + 1, 300).astype(np.int32)
        for all_, crop in zip(shape[1:], size, strict=True)
    )
    found = resident.gather_crops(tf.constant(lanes), tf.constant(rows), top, left, *size)
    assert (found.dtype, found.shape) == (tf.uint8, (300, *size))
    assert np.array_equal(found, reference(lanes, rows, top, left, *size))


def test_no_parts_are_none(compiled_operation):
    none = tf.zeros([0], tf.int32)
    found = resident.gather_crops(tf.zeros([3, 4, 5], tf.uint8), tf.zeros([0], tf.int64), none, none, 2, 2)
    assert found.shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("rows", "top", "left", "size", "what"),
    [
        ([0, 3], [0, 0], [0, 0], (2, 2), "rows must be those of images"),
        ([-1, 0], [0, 0], [0, 0], (2, 2), "rows must be those of images"),
        ([0, 1], [0], [0, 0], (2, 2), "equally long"),
        ([0, 1], [0, 0], [0, 0, 0], (2, 2), "equally long"),
        ([0, 1], [0, 0], [0, 0], (-1, 2), "size must not be negative"),
        ([[0, 1]], [0, 0], [0, 0], (2, 2), "dimensions"),
    ],
)
def test_what_is_not_in_memory_is_refused(compiled_operation, rows, top, left, size, what):
    arguments = tf.constant(rows, tf.int64), tf.constant(top, tf.int32), tf.constant(left, tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=what):
        resident.gather_crops(tf.zeros([3, 4, 5], tf.uint8), *arguments, *size)


@pytest.mark.parametrize("origin", [None, "text.so"])
def test_without_a_compiler_or_of_another_system_there_is_no_operation(monkeypatch, tmp_path, origin):
    if origin:
        (tmp_path / origin).write_text("not a library")
    spec = origin and importlib.util.spec_from_loader("it", None, origin=str(tmp_path / origin))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    resident._operation.cache_clear()
    try:
        assert not is_compiled()
    finally:
        monkeypatch.undo()
        resident._operation.cache_clear()
