"""`distribute` on real strategies of one process; several processes are in tests/integration."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import distribute, input_fn
from pipeline.errors import UsageError
from tests.helpers.datasets import Kind, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (5, 0, 4, 4), (8, 6, 3))
    return path


@pytest.fixture(scope="module")
def whole(folder):
    """Returns a function from JSON of an input's arguments to its elements."""
    return functools.cache(lambda text: list(input_fn(folder, **json.loads(text)).as_numpy_iterator()))


STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored x2": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "mirrored x4": lambda: tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)]),
    "central_storage x2": lambda: tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "multiworker x1": tf.distribute.MultiWorkerMirroredStrategy,
}


@pytest.mark.parametrize("prefetch", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["default", "mirrored x4", "multiworker x1"])  # others: test_topologies
@pytest.mark.quick(1)
def test_each_replica_gets_exactly_its_rows(folder, whole, name, prefetch):
    strategy = STRATEGIES[name]()
    replicas = strategy.num_replicas_in_sync
    # 13 records in batches of 8: in the last step, replicas 2 and 3 of 4 have nothing but padding or little.
    arguments = {"global_batch_size": 8, "training": True, "seed": 5, "epochs": 2, "record_ids": True}
    arguments["augment"] = "cifar10_tutorial(crop=5)"
    got = list(distribute(strategy, folder, prefetch=prefetch, **arguments))
    assert len(got) == len(whole(json.dumps(arguments))) == 4
    for element, expected in zip(got, whole(json.dumps(arguments)), strict=True):
        for component, whole_component in zip(element, expected, strict=True):
            rows = [value.numpy() for value in strategy.experimental_local_results(component)]
            assert len(rows) == replicas
            assert {len(r) for r in rows} == {8 // replicas}
            np.testing.assert_allclose(np.concatenate(rows), whole_component, atol=2e-5)


@pytest.mark.parametrize("name", ["default", "mirrored x4"])
@pytest.mark.parametrize("what", ["features", "parse"])
@pytest.mark.quick(2)
def test_every_part_of_an_element_is_split(tmp_path, name, what):
    """Dictionaries, strings, and vectors whose length varies, which are ragged."""
    write_dataset(tmp_path, (5, 4), (8, 6, 3), kind=Kind(extra=True))

    def parse(records):
        lengths = tf.strings.length(records)
        return {"records": records, "of parts": (tf.RaggedTensor.from_row_lengths(tf.range(9 * 8), [9] * 8), lengths)}

    wanted = {"parse": parse} if what == "parse" else {"features": ("key", "box", "scores", "tags")}
    arguments = {"global_batch_size": 8, "training": True, "epochs": 1, "record_ids": True} | wanted
    strategy = STRATEGIES[name]()
    replicas = strategy.num_replicas_in_sync

    @tf.function
    def step(element):
        return strategy.run(lambda *values: values, args=element)

    for element, whole in zip(
        distribute(strategy, tmp_path, **arguments), input_fn(tmp_path, **arguments), strict=True
    ):
        for replica in range(replicas):
            rows = slice(replica * 8 // replicas, (replica + 1) * 8 // replicas)
            mine = local_result(strategy, step(element), replica)
            expected = tf.nest.map_structure(lambda value, rows=rows: value[rows], whole)
            tf.nest.assert_same_structure(mine, expected)
            for found, value in zip(tf.nest.flatten(mine), tf.nest.flatten(expected), strict=True):
                assert values_of(found) == values_of(value)


def local_result(strategy, element, replica):
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[replica], element)


def values_of(value):
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def test_experimental_distribute_dataset_takes_the_dataset_as_it_is(folder):
    strategy = STRATEGIES["mirrored x4"]()
    arguments = {"global_batch_size": 8, "training": True, "epochs": 1, "record_ids": True}
    dataset = input_fn(folder, **arguments)
    assert dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA
    whole = list(dataset.as_numpy_iterator())
    for element, expected in zip(strategy.experimental_distribute_dataset(dataset), whole, strict=True):
        assert np.array_equal(np.concatenate([v.numpy() for v in element[3].values]), expected[3])


def test_what_cannot_work_is_one_clear_error(folder, tmp_path):
    strategy = STRATEGIES["mirrored x4"]()
    for wrong, facts in (
        ({"global_batch_size": 10}, "10 .* 4 replicas.* 8 and 12"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"shard": None}, "shard"),
    ):
        with pytest.raises(UsageError, match=facts):
            distribute(strategy, folder, **({"global_batch_size": 8, "training": True} | wrong))
    write_dataset(tmp_path, (5,), (8, 6, 3), test_counts=(0,))
    for name in ("default", "mirrored x4"):
        with pytest.raises(UsageError, match="'test'.* no record") as caught:
            distribute(STRATEGIES[name](), tmp_path, "test", global_batch_size=8, training=False)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["default", "one_device", "mirrored x2", "mirrored x4", "central_storage x2"])
@pytest.mark.quick(2)
def test_an_iterator_is_an_argument_of_a_function_that_is_traced_once(folder, whole, name):
    strategy, traces = STRATEGIES[name](), []
    arguments = {"global_batch_size": 8, "training": True, "epochs": 2}
    expected = sum(weights.sum() for _, _, weights in whole(json.dumps(arguments)))
    with strategy.scope():
        batches = distribute(strategy, folder, **arguments)

    @tf.function
    def real_rows(iterator, steps):
        traces.append(1)
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            _, _, weights = next(iterator)
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, (weights,)), axis=None)
        return total

    assert [float(real_rows(iter(batches), tf.constant(4))) for _ in range(2)] == [expected] * 2 == [26, 26]
    assert len(traces) == 1


def test_a_for_loop_inside_a_function_takes_every_batch(folder):
    strategy = STRATEGIES["mirrored x2"]()
    batches = distribute(strategy, folder, global_batch_size=8, training=True, epochs=2)

    @tf.function
    def real_rows():
        total, steps = tf.constant(0.0), tf.constant(0)
        for _, _, weights in batches:
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, (weights,)), axis=None)
            steps += 1
        return total, steps

    assert [int(value) for value in real_rows()] == [26, 4]
    assert batches.reduce(tf.constant(0), lambda state, _: state + 1) == 4
    assert int(batches.cardinality) == len(batches) == 4
    specs = tf.nest.flatten(batches.element_spec, expand_composites=True)
    assert [spec.shape for spec in specs[:2]] == [(4, 8, 6, 3)] * 2


def test_keras_is_told_what_to_give_to_fit(folder):
    batches = distribute(STRATEGIES["mirrored x2"](), folder, global_batch_size=8, training=True)
    with pytest.raises(ValueError, match="input_fn"):
        keras.Sequential([keras.layers.Flatten()]).predict(batches)


@pytest.mark.gpu
@pytest.mark.parametrize(("prefetch", "memory"), [(2, "GPU:0"), (0, "CPU:0")])
def test_prefetch_puts_batches_on_the_gpu(folder, prefetch, memory):
    """`backing_device` is where the bytes lie, which `device` is not always."""
    for strategy in (tf.distribute.OneDeviceStrategy("GPU:0"), tf.distribute.MirroredStrategy(["GPU:0"])):
        batch = next(iter(distribute(strategy, folder, global_batch_size=4, training=True, prefetch=prefetch)))
        for component in batch:
            (value,) = strategy.experimental_local_results(component)
            assert memory in value.backing_device
