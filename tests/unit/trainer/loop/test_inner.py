import json

import numpy as np
import pytest
import tensorflow as tf

from pipeline.audit.key_log import Header, KeyLogWriter
from trainer.loop import inner

KEYS = [f"k{i}" for i in range(8)]


def with_keys(batch):
    """Returns the batch as the input gives it with features=("key",)."""
    images, labels, weights = batch
    return {"image": images, "key": np.array(KEYS)}, labels, weights


def iterator_of(stepper, *batches):
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    return iter(stepper.strategy.experimental_distribute_dataset(dataset.repeat(), options))


@pytest.fixture
def log(tmp_path, spec):
    with KeyLogWriter(tmp_path / "log.jsonl", Header.of(spec, 1, 2, 4)) as log:
        yield log


def lines_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()][1:]


@pytest.mark.parametrize("replicas", [1, 2])
def test_logged_or_not_the_updates_are_the_same(replicas, make_stepper, batch, log, tmp_path):
    plain, logged = make_stepper(replicas, "momentum"), make_stepper(replicas, "momentum")
    for stepper in (plain, logged):
        stepper.state.global_step.assign(40)
    expected = plain.train(iterator_of(plain, batch), tf.constant(3, tf.int64))
    result = inner.logged(logged, iterator_of(logged, with_keys(batch)), log, first_replica=2)(3)
    assert [value.numpy() for value in result] == [value.numpy() for value in expected]
    assert (int(result.step), bool(result.finite)) == (43, True)
    for one, other in zip(plain.state.model.variables, logged.state.model.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    rows = 8 // replicas
    weights = [1, 1, 1, 0, 0, 0, 0, 0]
    assert lines_of(tmp_path) == [
        {"step": step, "replica": 2 + r, "keys": KEYS[r * rows :][:rows], "weights": weights[r * rows :][:rows]}
        for step in (40, 41, 42)
        for r in range(replicas)
    ]


def test_a_bad_step_is_the_last(make_stepper, batch, log, tmp_path):
    images, labels, weights = batch
    bad = images.copy()
    bad[1, 0, 0, 0] = np.nan
    stepper = make_stepper(2)
    batches = iterator_of(stepper, with_keys(batch), with_keys((bad, labels, weights)))
    result = inner.logged(stepper, batches, log, 0)(5)
    assert (int(result.step), bool(result.finite)) == (2, False)
    assert [line["step"] for line in lines_of(tmp_path)] == [0, 0, 1, 1]
