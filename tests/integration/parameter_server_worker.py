"""One process of a cluster with a parameter server. Run by test_parameter_server.py.

python parameter_server_worker.py worker|ps INDEX CLUSTER          (waits until it is killed)
python parameter_server_worker.py chief OUT CLUSTER CASES          (writes what the workers were fed, as JSON)

CLUSTER is JSON as in TF_CONFIG, CASES {case: {"data_dir": ..., "arguments": {...}}}.
"""

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf

import pipeline
from pipeline.distribution.parameter_servers import per_worker
from pipeline.distribution.strategies import PREFETCH, copied_ahead
from pipeline.request import Request

CLOSURES = 8  # scheduled together: any worker takes any of them


def serve(job, index, cluster):
    """Is a worker or the parameter server, for ever."""
    server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc")
    server.join()


def ways(strategy, data_dir, arguments):
    """Yields (name, dataset of every worker): what users call, and what it is where the replicas are on GPUs."""
    yield "distribute", pipeline.distribute(strategy, data_dir, **arguments)
    yield "by the way of GPUs", per_worker(strategy, Request.of(data_dir, **arguments), copied_ahead(PREFETCH))


def fed(coordinator, dataset):
    """Returns {worker: [[record ids, keys, weights, sums of the images] of each step]}, until all have run out."""

    @tf.function
    def take(iterator):
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        optional = iterator.get_next_as_optional()
        nothing = tf.zeros([0], tf.int64), tf.fill([0], ""), tf.zeros([0]), tf.zeros([0])
        return index, tf.cond(optional.has_value(), lambda: seen(*optional.get_value()), lambda: nothing)

    steps = {index: [] for index in range(len(coordinator._cluster.workers))}
    running, iterator = set(steps), iter(dataset)
    while running:
        values = [coordinator.schedule(take, args=(iterator,)) for _ in range(CLOSURES)]
        coordinator.join()
        by_worker = {}
        for index, columns in (value.fetch() for value in values):
            by_worker.setdefault(int(index), []).append([column.tolist() for column in columns])
        for index, found in by_worker.items():
            found.sort(key=lambda columns: not columns[0])
            steps[index] += [columns for columns in found if columns[0]]
            running -= {index} if not found[-1][0] else set()
    return steps


def seen(x, labels, weights, records):
    """Returns of each row: record id, key, weight, sum of the image."""
    del labels
    return records, x["key"], weights, tf.reduce_sum(tf.cast(x["image"], tf.float32), axis=[1, 2, 3])


def lead(out, cluster, cases):
    """Is the coordinator: every way of the first case, `distribute` alone of the others; an error is its text."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: where for job, where in cluster.items() if job != "chief"}), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    result = {}
    for number, (case, content) in enumerate(cases.items()):
        result[case] = {}
        print(f"{time.monotonic():.0f} s: {case}", flush=True)  # for the log of a test that fails
        data_dir, spoiled = pathlib.Path(content["data_dir"]), content.get("spoil")
        try:
            for way, dataset in ways(strategy, data_dir, content["arguments"]):
                if spoiled:
                    spoil(data_dir / spoiled)
                result[case][way] = fed(coordinator, dataset)
                if number:
                    break
        except (ValueError, tf.errors.OpError) as error:
            result[case] = {"error": [type(error).__name__, str(error)]}
    pathlib.Path(out).write_text(json.dumps(result, default=bytes.decode), encoding="utf-8")
    os._exit(0)  # the coordinator's threads would wait for the servers


def spoil(path):
    """Turns a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def main(role, argument, cluster, cases="{}"):
    cluster = json.loads(cluster)
    if role == "chief":
        lead(argument, cluster, json.loads(cases))
    else:
        serve(role, int(argument), cluster)


if __name__ == "__main__":
    main(*sys.argv[1:])
