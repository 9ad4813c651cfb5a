"""One process of a topology: writes what its replicas are fed. Run by test_topologies.py.

python topology_worker.py local|multiworker OUT CASES
python topology_worker.py chief OUT CASES CLUSTER     (coordinates the workers of a parameter server's cluster)
python topology_worker.py worker|ps INDEX CLUSTER     (serves until it is killed)

CASES is a pickle of {case: (data_dir, arguments, file to damage or None)}, CLUSTER is JSON as in TF_CONFIG. OUT becomes
a pickle of {topology: {case: {way: [step: [replica: {component: array}]]}}}, or of an error instead of {way: ...}.
"""

import functools
import itertools
import json
import os
import pathlib
import pickle
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf

import pipeline
from pipeline.distribution import PREFETCH, copied_ahead, on_devices, per_worker
from pipeline.request import Request
from tests.helpers.datasets import flip

REPLICAS = 8  # logical CPUs
CLOSURES = 8  # scheduled together: any worker takes any of them
# The first so many of the cases; None is all. A case of one form of data is enough for topologies that differ from
# others in the number of replicas alone.
NUM_CASES = {"one_device": 5, "mirrored x4": 5, "central_storage x2": 3, "multiworker x2": 3}
NUM_CASES |= {"parameter_server x2": 3, "parameter_server x3": None}
FEW = 2
EVERY_WAY = ("mirrored x4", "central_storage x2", "multiworker x2", "parameter_server x2")  # in the first case


def num_cases(topology):
    """Returns how many of the cases a topology is fed; None is all."""
    return NUM_CASES.get(topology, FEW)


def draws(images, keys):
    """Stands for a recipe: the pixels' sums and the draws themselves, so that both can be compared to the bit."""
    sums = tf.reduce_sum(tf.cast(images, tf.float32), [1, 2, 3])
    return tf.stack([sums, *(pipeline.uniform(keys, draw) for draw in range(5))], axis=1)


def components(x, labels, weights, records):
    return {"image": x["image"], "key": x["key"], "label": labels, "weight": weights, "record": records}


def local_strategies():
    yield "one_device", tf.distribute.OneDeviceStrategy("CPU:0")
    for count in (2, 4, 8):
        yield f"mirrored x{count}", tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])
    central = tf.distribute.experimental.CentralStorageStrategy
    yield "central_storage x2", central(["CPU:0", "CPU:1"])


def ways(strategy, data_dir, arguments):
    """Yields (name, the elements fed) of every way to feed a strategy."""

    def dataset(context=None):
        return pipeline.input_fn(data_dir, shard=context, **arguments)

    yield "distribute", in_a_function(strategy, pipeline.distribute(strategy, data_dir, **arguments))
    yield "as to GPUs", on_devices(strategy, Request(data_dir, **arguments), copied_ahead(PREFETCH))
    yield "experimental_distribute_dataset", strategy.experimental_distribute_dataset(dataset())
    yield "distribute_datasets_from_function", strategy.distribute_datasets_from_function(dataset)


def in_a_function(strategy, batches):
    """Yields the replicas' elements of an iterator that is passed to a tf.function."""

    @tf.function
    def step(iterator):
        return strategy.run(lambda *batch: batch, args=next(iterator))

    iterator = iter(batches)
    while True:
        try:
            yield step(iterator)
        except tf.errors.OutOfRangeError:
            return


def steps_of(strategy, elements):
    """Returns the components by step, by local replica."""
    steps = []
    for element in elements:
        by_name = {name: strategy.experimental_local_results(v) for name, v in components(*element).items()}
        replicas = zip(*by_name.values(), strict=True)
        steps.append([dict(zip(by_name, (v.numpy() for v in values), strict=True)) for values in replicas])
    return steps


def server_ways(strategy, data_dir, arguments):
    """Yields (name, dataset of every worker): what users call, and what it is where the replicas are on GPUs."""
    yield "distribute", pipeline.distribute(strategy, data_dir, **arguments)
    yield "as to GPUs", per_worker(strategy, Request(data_dir, **arguments), copied_ahead(PREFETCH))


def steps_of_workers(coordinator, num_workers, dataset):
    """Returns the components by step, by worker, until all have run out."""

    @tf.function
    def take(iterator):
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        optional = iterator.get_next_as_optional()
        present = optional.has_value()
        empty = [tf.zeros([0] * spec.shape.rank, spec.dtype) for spec in specs]
        return index, tf.cond(present, lambda: list(components(*optional.get_value()).values()), lambda: empty)

    names = components(*dataset.element_spec)
    specs = list(names.values())
    steps = [[] for _ in range(num_workers)]
    running, iterator = set(range(num_workers)), iter(dataset)
    while running:
        values = [coordinator.schedule(take, args=(iterator,)) for _ in range(CLOSURES)]
        coordinator.join()
        for index, columns in sorted((value.fetch() for value in values), key=lambda found: not len(found[1][0])):
            if len(columns[0]):
                steps[index].append(dict(zip(names, columns, strict=True)))
            else:
                running.discard(int(index))
    return [list(replicas) for replicas in zip(*steps, strict=True)]


def fed(name, cases, ways_of, steps):
    """Returns {case: {way: steps}} of the topology's cases."""
    result = {}
    for number, (case, (data_dir, arguments, damaged)) in enumerate(cases.items()):
        augment = {"augment": draws} if arguments.get("augment") == "draws" else {}
        result[case] = {}
        try:
            for way, elements in ways_of(data_dir, arguments | augment):
                if damaged:
                    flip(pathlib.Path(data_dir) / damaged, mask=255)
                result[case][way] = steps(elements)
                if number or name not in EVERY_WAY:
                    break
        except (ValueError, tf.errors.OpError) as error:
            result[case] = error.__class__.__name__, str(error)
    return result


def feed_replicas(kind, cases):
    if kind == "multiworker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        strategies = [(f"multiworker x{strategy.num_replicas_in_sync}", strategy)]
    else:
        devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
        strategies = local_strategies()
    found = {}
    for name, strategy in strategies:
        some = dict(itertools.islice(cases.items(), num_cases(name)))
        ways_of, steps = functools.partial(ways, strategy), functools.partial(steps_of, strategy)
        found[name] = fed(name, some, ways_of, steps)
    return found


def feed_workers(cases, cluster):
    jobs = tf.train.ClusterSpec({job: addresses for job, addresses in cluster.items() if job != "chief"})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(jobs, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    count = len(cluster["worker"])
    name = f"parameter_server x{count}"
    ways_of = lambda *case: server_ways(strategy, *case)  # noqa: E731
    return {name: fed(name, cases, ways_of, lambda dataset: steps_of_workers(coordinator, count, dataset))}


def main(role, argument, *more):
    if role in ("worker", "ps"):
        server = tf.distribute.Server(json.loads(more[0]), job_name=role, task_index=int(argument), protocol="grpc")
        server.join()
    cases = pickle.loads(pathlib.Path(more[0]).read_bytes())
    result = feed_workers(cases, json.loads(more[1])) if role == "chief" else feed_replicas(role, cases)
    pathlib.Path(argument).write_bytes(pickle.dumps(result))
    if role == "chief":
        os._exit(0)  # the coordinator's threads would wait for the servers


if __name__ == "__main__":
    main(*sys.argv[1:])
