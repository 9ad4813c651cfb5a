import json
import pickle
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import InputMeter, StepIterator, distribute, input_fn
from pipeline.errors import UsageError
from pipeline.read import memory
from tests.helpers.datasets import Kind, write_dataset

PAUSE = 0.05  # seconds, against some microseconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 4), (8, 6, 3))  # 13 records: 2 steps of 8 rows, 3 of them padding
    return path


def batch_of(rows, padding):
    weights = np.ones(rows, np.float32)
    weights[rows - padding :] = 0
    return np.zeros((rows, 2, 2, 3), np.uint8), np.zeros(rows, np.int64), weights


def slow(pauses):
    for pause in pauses:
        time.sleep(pause)
        yield batch_of(4, 1)


def exhausted(meter):
    assert list(meter)
    return meter.snapshot()


def test_a_loop_that_only_waits_has_a_share_of_one():
    meter = InputMeter(slow([PAUSE] * 4))
    found = exhausted(meter)
    assert found.waiting_share > 0.9
    assert found.seconds >= 3 * PAUSE  # those after the first
    assert found.start_seconds >= PAUSE


def test_a_loop_that_never_waits_has_a_share_of_zero():
    meter = InputMeter(slow([0.0] * 4))
    for _ in meter:
        time.sleep(PAUSE)
    found = meter.snapshot()
    assert found.waiting_share < 0.1
    assert found.seconds >= 3 * PAUSE


def test_the_start_of_the_input_is_no_waiting():
    meter = InputMeter(slow([4 * PAUSE, 0, 0]))
    for _ in meter:
        time.sleep(PAUSE)
    found = meter.snapshot()
    assert found.start_seconds >= 4 * PAUSE
    assert found.waiting_share < 0.1


def test_time_after_the_last_batch_does_not_count():
    meter = InputMeter(slow([0.0, PAUSE]))
    before = exhausted(meter)
    time.sleep(PAUSE)
    assert meter.snapshot().seconds == before.seconds


def test_rows_padding_and_bytes_are_counted_exactly():
    meter = InputMeter([batch_of(4, 0), batch_of(4, 0), batch_of(4, 3)])
    found = exhausted(meter)
    assert found.total == (3, 12, 3, 3 * 4 * (12 + 8 + 4))
    assert found.first == (1, 4, 0, 4 * (12 + 8 + 4))
    seconds = found.seconds  # rates are of the two that were timed
    assert found.batches_per_second * seconds == pytest.approx(2)
    assert found.rows_per_second * seconds == pytest.approx(8)
    assert found.padding_per_second * seconds == pytest.approx(3)
    assert found.bytes_per_second * seconds == pytest.approx(2 * 4 * 24)


def test_a_dataset_starts_again_in_each_loop(folder):
    dataset = input_fn(folder, global_batch_size=8, training=True, epochs=1)
    meter = InputMeter(dataset)
    for _ in range(2):
        for got, expected in zip(meter, dataset, strict=True):
            for component, same in zip(got, expected, strict=True):
                np.testing.assert_array_equal(component, same)
    assert meter.snapshot().total == (4, 32, 6, 4 * 8 * (8 * 6 * 3 + 8 + 4))
    assert meter.element_spec == dataset.element_spec


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("virtual", [None, 4])
def test_values_of_replicas_are_counted_over_all_of_them(folder, replicas, virtual):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    options = {"global_batch_size": 8, "training": True, "epochs": 1}
    meter = InputMeter(distribute(strategy, folder, virtual_replicas=virtual, **options))
    assert exhausted(meter).total == (2, 16, 3, 2 * 8 * (8 * 6 * 3 + 8 + 4))


def test_structures_ragged_features_and_record_ids(tmp_path):
    write_dataset(tmp_path, (6,), (8, 6, 3), kind=Kind(extra=True))
    options = {"global_batch_size": 4, "training": False, "features": ("scores", "id", "key"), "record_ids": True}
    found = exhausted(InputMeter(input_fn(tmp_path, **options), weights=-2))
    scores = 4 * sum(number % 3 for number in [0, 1, 2, 3, 4, 5, 5, 4])  # the padding copies from the end
    splits = 2 * 5 * 4  # int32, one more than rows
    fixed = 8 * (8 * 6 * 3 + 8 + 8 + 4 + 8)  # image, id, label, weight, record id; no strings
    assert found.total == (2, 8, 2, fixed + scores + splits)


@pytest.mark.parametrize(
    ("batch", "options"),
    [
        ((np.zeros((4, 2), np.float32), np.zeros(4, np.int64)), {}),  # the last component holds no floats
        ((np.zeros((4, 2), np.float32), np.zeros(4, np.float32)), {"weights": None}),
        ({"x": np.zeros((4, 2), np.float32), "y": np.zeros(4, np.int64)}, {}),
        (np.zeros((4, 2), np.float32), {}),
    ],
)
def test_without_weights_padding_is_unknown(batch, options):
    found = exhausted(InputMeter([batch, batch], **options))
    assert found.total[:3] == (2, 8, None)
    assert found.padding_per_second is None
    assert "padding" not in str(found)


def test_weights_on_a_device_are_not_looked_at():
    class OnDevice:
        shape, dtype, device = (4,), np.dtype(np.float32), "/job:localhost/replica:0/task:0/device:GPU:0"

        def __array__(self, *_, **__):
            raise AssertionError("this waits for the device")

    found = exhausted(InputMeter([(np.zeros((4, 2), np.uint8), OnDevice())]))
    assert found.total == (1, 4, None, 8 + 16)


def test_the_state_of_a_wrapped_iterator_is_its_own(folder):
    options = {"global_batch_size": 8, "training": True, "seed": 3, "record_ids": True}
    alone = StepIterator(folder, **options)
    meter = InputMeter(StepIterator(folder, **options), weights=-2)
    records = [next(alone)[-1] for _ in range(6)]
    for _ in range(2):
        next(meter)
    state = json.loads(json.dumps(meter.get_state()))
    copy = pickle.loads(pickle.dumps(meter))
    assert meter.step == state["step"] == 2
    resumed = InputMeter(StepIterator(folder, **options))
    resumed.set_state(state)
    for iterator in (meter, copy, resumed):
        for step in range(2, 6):
            np.testing.assert_array_equal(next(iter(iterator))[-1], records[step])  # `iter` continues
    assert copy.snapshot().total[:3] == (4, 32, 6)


def test_a_checkpoint_of_the_iterator_resumes_behind_the_meter(folder, tmp_path):
    dataset = input_fn(folder, global_batch_size=8, training=True, record_ids=True)
    iterator = iter(dataset)
    meter = InputMeter(iterator, weights=-2)
    next(meter)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "ckpt"))
    expected = [next(meter)[-1].numpy() for _ in range(3)]
    again = iter(dataset)
    tf.train.Checkpoint(iterator=again).restore(path)
    for records, (*_, same) in zip(expected, InputMeter(again), strict=False):
        np.testing.assert_array_equal(records, same)


def test_an_interval_is_the_difference_of_two_snapshots():
    meter = InputMeter(slow([0.0, PAUSE, PAUSE, PAUSE]))
    for _ in range(2):
        next(meter)
        time.sleep(PAUSE)
    earlier = meter.snapshot()
    for _ in range(2):
        next(meter)
    interval = meter.snapshot().since(earlier)
    assert interval.total == (2, 8, 2, 2 * 4 * 24)
    assert interval.rows_per_second * interval.seconds == pytest.approx(8)
    assert 2 * PAUSE <= interval.waiting_seconds < 3 * PAUSE <= interval.seconds


def test_an_error_passes_and_counts_nothing():
    def broken():
        yield batch_of(4, 0)
        raise OSError("cut")

    meter = InputMeter(broken())
    next(meter)
    with pytest.raises(OSError, match="cut"):
        next(meter)
    assert meter.snapshot().total.batches == 1


def test_memory_is_that_of_the_process():
    held = np.ones(256 << 20, np.uint8)
    with_it = InputMeter([]).snapshot()
    assert len(held) < with_it.resident_bytes <= with_it.peak_bytes < 64 << 30
    size = len(held)
    del held
    without = InputMeter([]).snapshot()
    assert without.resident_bytes < with_it.resident_bytes - size // 2
    assert without.peak_bytes > with_it.resident_bytes - size // 2


def test_a_system_without_proc_tells_the_peak(monkeypatch):
    monkeypatch.setattr(memory, "_STATUS", "/nowhere")
    used = memory.used()
    assert used.resident == 0
    assert 1 << 20 < used.peak < 64 << 30


def test_the_line():
    meter = InputMeter(slow([0, PAUSE, PAUSE]))
    assert str(meter) == "no batch yet"
    next(meter)
    assert str(meter).startswith("4 rows, first batch after 0.0")
    exhausted(meter)
    line = str(meter)
    assert line.startswith("waited 9") or line.startswith("waited 100")
    assert " of 0.1" in line
    assert " of them padding, " in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"batches": 3}, "batches=3"),
        ({"batches": [], "weights": "last"}, "weights='last'"),
        ({"batches": [], "weights": True}, "weights=True"),
    ],
)
def test_wrong_arguments_are_one_clear_error(arguments, fact):
    with pytest.raises(UsageError, match=f"^{fact}: "):
        InputMeter(**arguments)


def test_weights_that_are_not_there_are_one_clear_error():
    meter = InputMeter([batch_of(4, 0)], weights=3)
    with pytest.raises(UsageError, match="^weights=3: .* 3 components"):
        next(meter)


def test_keras_fit_takes_a_generator_of_it(folder):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(3)]
    losses = []
    dataset = input_fn(folder, global_batch_size=8, training=True, weights="mean")
    meter = InputMeter(dataset)
    for data in (dataset, (batch for batch in meter)):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8, 6, 3)), *layers])
        model = keras.models.clone_model(model)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append(model.fit(data, steps_per_epoch=2, epochs=2, verbose=0, shuffle=False).history["loss"])
    assert losses[0] == losses[1]
    assert meter.snapshot().total.batches >= 4  # and those that Keras took ahead
