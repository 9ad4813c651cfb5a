"""One process of a topology: writes, as JSON, the records that its replicas are fed. Run by test_distribution.py.

python distribution_worker.py local|multiworker OUT CASES    (JSON: {case: {"data_dir": ..., "arguments": {...}}})
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import pipeline
from pipeline.distribution.strategies import PREFETCH, copied_ahead, on_devices
from pipeline.request import Request

REPLICAS = 8  # logical CPUs


def local_strategies():
    central = tf.distribute.experimental.CentralStorageStrategy
    yield "one_device", tf.distribute.OneDeviceStrategy("CPU:0")
    for count in (1, 2, 4, 8):
        yield f"mirrored x{count}", tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    yield "central_storage x2", central(["CPU:0", "CPU:1"])


def ways(strategy, data_dir, arguments):
    """Yields (name, the elements fed) of every way to feed a strategy."""

    def dataset(context=None):
        return pipeline.input_fn(data_dir, shard=context, record_ids=True, **arguments)

    request = Request.of(data_dir, record_ids=True, **arguments)
    yield "distribute", in_a_function(strategy, pipeline.distribute(strategy, data_dir, record_ids=True, **arguments))
    yield "by the way of GPUs", on_devices(strategy, request, copied_ahead(PREFETCH))
    yield "experimental_distribute_dataset", strategy.experimental_distribute_dataset(dataset())
    yield "distribute_datasets_from_function", strategy.distribute_datasets_from_function(dataset)


def in_a_function(strategy, batches):
    """Yields what the replicas see of an iterator that a tf.function is given."""

    @tf.function
    def step(iterator):
        return strategy.run(lambda *batch: batch, args=next(iterator))

    iterator = iter(batches)
    while True:
        try:
            yield step(iterator)
        except tf.errors.OutOfRangeError:
            return


def seen(strategy, elements):
    """Returns by step, by local replica: the record ids, the numbers in the images, and the weights."""
    steps = []
    for element in elements:
        images, _, weights, records = (strategy.experimental_local_results(component) for component in element)
        numbers = [pixels.numpy().reshape(len(pixels), -1)[:, :2].astype(int) @ [1, 256] for pixels in images]
        columns = zip(records, numbers, weights, strict=True)
        steps.append([[r.numpy().tolist(), n.tolist(), w.numpy().tolist()] for r, n, w in columns])
    return steps


def fed(strategy, cases):
    """Returns {case: {way: steps}}; every way of the first case, `distribute` alone of the others."""
    result = {}
    for number, (case, content) in enumerate(cases.items()):
        result[case] = {}
        for way, elements in ways(strategy, content["data_dir"], content["arguments"]):
            result[case][way] = seen(strategy, elements)
            if number:
                break
    return result


def main(kind, out, cases):
    if kind == "multiworker":
        strategies = [("", tf.distribute.MultiWorkerMirroredStrategy())]
    else:
        devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
        strategies = local_strategies()
    result = {name: fed(strategy, json.loads(cases)) for name, strategy in strategies}
    pathlib.Path(out).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
