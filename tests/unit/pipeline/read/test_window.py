"""Windows in memory: who holds it, and for how long."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn, operations
from pipeline.audit.contract import Contract
from pipeline.graph_calls import message_of_input, release_arrays
from pipeline.read import frames
from pipeline.read.memory import Buffers, aligned_matrix
from pipeline.read.window import as_tensor
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import images_of, write_dataset

SHAPE = (8, 8, 3)  # 8 rows of a batch are a multiple of 64 bytes, as TensorFlow needs it to slice without a copy
RECORDS, ROWS, WINDOWS = 480, 8, 3
LAST = 16  # elements of a window that are copied


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path, (200, 160, 120), SHAPE)
    return tmp_path


@pytest.fixture
def matrices(monkeypatch):
    """Weak references to the windows' memory, in the order in which it was given out."""
    given = []

    class Watched(Buffers):
        def matrix(self, rows, columns):
            matrix = super().matrix(rows, columns)
            given.append(weakref.ref(matrix))
            return matrix

    monkeypatch.setattr("pipeline.read.window.Buffers", Watched)
    return given


def dataset(folder, **arguments):
    window = RECORDS * int(np.prod(SHAPE)) // WINDOWS
    common = {"global_batch_size": ROWS, "training": True, "streams": 1, "shuffle_bytes": window, "seed": 3}
    return input_fn(folder, **common, **arguments)


def test_an_array_is_a_tensor_in_the_same_memory_for_as_long_as_it_is_needed():
    array = aligned_matrix(100, 64)
    array[:] = 7
    address, alive = array.ctypes.data, weakref.ref(array)
    tensor = as_tensor(array)
    del array
    gc.collect()
    assert np.asarray(tensor).ctypes.data == address
    assert alive() is not None
    assert tf.reduce_sum(tf.cast(tensor, tf.int64)) == 7 * 6400
    del tensor
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("augment", [None, lambda images, keys: images], ids=["plain", "own"])
@pytest.mark.parametrize(
    "start_step", [0, pytest.param(7, marks=pytest.mark.slow), 33, pytest.param(60, marks=pytest.mark.slow)]
)
@pytest.mark.quick(1)
def test_batches_that_are_kept_stay_what_they_were(folder, augment, start_step):
    shuffle_bytes = 480 * 192 // WINDOWS
    request = Request(
        folder, "train", global_batch_size=ROWS, training=True, seed=3, streams=1, shuffle_bytes=shuffle_bytes
    )
    order = Contract.of(resolve(request))
    assert order.windows == WINDOWS
    kept = list(dataset(folder, augment=augment, epochs=4, start_step=start_step, record_ids=True))
    assert len(kept) == 4 * order.steps_per_epoch - start_step
    for step, (images, labels, weights, records) in enumerate(kept, start_step):
        expected, _ = order.batch(step)
        assert np.array_equal(records, expected)
        assert np.array_equal(images, np.concatenate([images_of(n, 1, SHAPE) for n in expected]))
        assert np.array_equal(labels, expected % 3)
        assert np.array_equal(weights, np.ones(ROWS, np.float32))


@pytest.mark.parametrize("options", [{}, {"augment": "flip", "augment_on": "device"}], ids=["plain", "device"])
@pytest.mark.parametrize(
    ("number", "holds"), [(0, True), (20 - LAST, False), pytest.param(19, False, marks=pytest.mark.slow)]
)
@pytest.mark.quick(1)
def test_only_the_first_batches_of_a_window_hold_it(folder, matrices, options, number, holds):
    batches = iter(dataset(folder, **options))
    window = [next(batches) for _ in range(RECORDS // ROWS // WINDOWS)]
    kept = window[number]
    del window
    for _ in range(2 * RECORDS // ROWS):
        next(batches)
    gc.collect()
    assert len(matrices) >= 2 * WINDOWS
    assert (matrices[0]() is not None) == holds
    assert (kept[0]["image"] if options else kept[0]).shape == (ROWS, *SHAPE)
    del batches


def test_too_little_memory_is_said_in_one_line(folder, monkeypatch):
    def refuse(self, rows, columns):
        raise MemoryError(f"unable to allocate {rows} x {columns}")

    monkeypatch.setattr(Buffers, "matrix", refuse)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(dataset(folder)))
    said = message_of_input(caught.value.message)
    assert "(unable to allocate 160 x 192)" in said
    assert "shuffle_bytes" in said


def handed_on(folder, **arguments):
    """Batches of the records themselves, most of which span two windows."""
    return dataset(folder, parse=lambda records: records, remainder="drop", **arguments)


def test_serialized_records_are_the_same_without_compiled_code(folder, compiled, compiled_operation, monkeypatch):
    def taken():
        return [[part.numpy().tolist() for part in element] for element in handed_on(folder, epochs=3)]

    expected = taken()
    stored = {record for batch, _ in expected for record in batch}
    assert len(stored) == RECORDS
    for module, name, value in [(frames, "_unpack", None), (operations, "is_compiled", lambda: False)]:
        monkeypatch.setattr(module, name, value)
        assert taken() == expected


def test_a_batch_of_records_does_not_keep_its_window(folder, matrices, compiled_operation):
    batches = iter(handed_on(folder, epochs=2))
    kept = [next(batches)[0] for _ in range(2 * RECORDS // ROWS)]
    before = [batch.numpy().tolist() for batch in kept]
    assert len(matrices) > 2 * WINDOWS
    del batches
    gc.collect()
    release_arrays()
    assert [matrix() for matrix in matrices] == [None] * len(matrices)
    assert [batch.numpy().tolist() for batch in kept] == before
