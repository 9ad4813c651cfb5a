"""The tf.distribute strategy over devices and workers, TensorFlow settings needed before it, and workers' agreement."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterable, Iterator

import keras
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob

from pipeline.commands.text import count_of, size_of
from pipeline.errors import DataError, UsageError, place_of_call
from pipeline.order import order
from trainer import runtime
from trainer.cluster import algorithms, tf_config
from trainer.cluster.rendezvous import SOMEBODY, LostError
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.config.meaning import MULTIWORKER
from trainer.config.run import RunFlags
from trainer.runtime import context, multi_worker_util

_SMI_SECONDS = 10.0  # if nvidia-smi takes longer, the GPUs' memory is not reported
_first_uses: list[str | None] = []  # places where an import began to use TensorFlow's devices


@contextlib.contextmanager
def noting_first_use() -> Iterator[None]:
    """Context for importing a user's module that notes where code begins to use TensorFlow's devices.

    A tensor, a table or a layer at the top level of a module does so, and a strategy can then no longer be set up.
    """
    begin = context.Context.ensure_initialized

    def noted(self: context.Context) -> None:
        if not self._initialized:
            _first_uses.append(place_of_call())
        begin(self)

    context.Context.ensure_initialized = noted
    try:
        yield
    finally:
        context.Context.ensure_initialized = begin


@contextlib.contextmanager
def _before_devices(flag: str) -> Iterator[None]:
    """Context for settings that TensorFlow refuses once its devices are in use."""
    in_use = context.context()._initialized
    try:
        yield
    except RuntimeError:
        if not in_use:
            raise
        place = next((place for place in _first_uses if place), None)
        raise UsageError(
            f"{place or 'this process'} uses TensorFlow's devices before {flag} has set them up; keep NumPy arrays at "
            "the top of a module, and make tensors, tables and layers in the functions that use them"
        ) from None


def configure(config: TrainConfig, is_chief: bool = False) -> None:
    """Configures determinism, threads and the placement of operations. Call it before XLA compiles anything.

    Virtual replicas need op determinism on GPUs, where many gradients of cuDNN and of TensorFlow's own kernels are
    otherwise summed in the order in which threads finish. Operations that a device lacks are placed on another one
    (soft placement), as in the CIFAR-10 tutorial.

    Args:
      config: flags of the run.
      is_chief: whether this process records XLA's algorithms; see `algorithms`.
    """
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    if config.run.deterministic or (has_gpus and config.repeats_on_gpus):
        keras.utils.set_random_seed(config.order.seed)
        tf.config.experimental.enable_op_determinism()
        if has_gpus:
            algorithms.pin(config.run.folder, is_chief)
    if config.order.virtual_replicas:
        with _before_devices(f"--virtual_replicas={config.order.virtual_replicas}"):
            tf.config.threading.set_intra_op_parallelism_threads(config.order.cpu_threads)
    tf.config.set_soft_device_placement(True)
    tf.debugging.set_log_device_placement(config.output.log_device_placement)


def create(flags: RunFlags, global_batch_size: int, cluster: Cluster) -> tf.distribute.Strategy:
    """Creates the strategy. Call it before anything else uses TensorFlow's devices.

    Args:
      flags: flags of the strategy and its replicas.
      global_batch_size: number of rows that the replicas divide among themselves.
      cluster: workers of a multiworker run; otherwise unused.

    Raises:
      UsageError: there are fewer GPUs than replicas, or the replicas do not divide the global batch.
      RerunError: another worker did not join.
    """
    if flags.all_reduce == "nccl" and not tf.config.list_physical_devices("GPU"):
        raise UsageError("--all_reduce=nccl: sums between GPUs, and this machine has none; use auto")
    if flags.strategy == MULTIWORKER:
        order.check_replicas(global_batch_size, cluster.size * max(1, len(tf.config.list_physical_devices("GPU"))))
        with _before_devices("--strategy=multiworker"):
            return _join(cluster, flags)
    devices = _devices(flags.num_replicas or (1 if flags.strategy == "one_device" else None))
    order.check_replicas(global_batch_size, len(devices))
    if flags.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0])
    if flags.strategy == "mirrored":
        # TensorFlow would choose collectives. Between logical CPUs, summing on one of them is faster (80 rather than
        # 180 ms per step of cifar10_cnn on two), gives the same bits, and allows several strategies in one process,
        # whose collectives would otherwise get mixed up.
        on_one = tf.distribute.ReductionToOneDevice if devices[0].startswith("/cpu") else None
        sums = {
            "nccl": tf.distribute.NcclAllReduce,
            "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        }.get(flags.all_reduce, on_one)
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=sums() if sums else None)
    assert flags.strategy == "central_storage", f"nothing makes --strategy={flags.strategy}"
    return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")


def device_names(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the local devices of a strategy's replicas: `CPU:0`, `GPU:0 (NVIDIA H100 80GB HBM3, 79.6 GiB)`."""
    return _with_models([":".join(name.split(":")[-2:]) for name in strategy.extended.worker_devices])


def first_gpu() -> str | None:
    """Returns the GPU that TensorFlow uses by default; None if there is none."""
    return _with_models(["GPU:0"])[0] if tf.config.list_physical_devices("GPU") else None


def _with_models(names: list[str]) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")
    details = {gpu.name.rpartition("device:")[2]: tf.config.experimental.get_device_details(gpu) for gpu in gpus}
    models = {name: detail.get("device_name") for name, detail in details.items()}
    sizes = _memory_by_model() if models else {}
    return [
        f"{name} ({', '.join([model, *sizes.get(model, [])])})" if (model := models.get(name)) else name
        for name in names
    ]


def _memory_by_model() -> dict[str, list[str]]:
    """Returns the memory per GPU model in this machine, for models whose GPUs all have the same memory.

    It goes by model because TensorFlow and nvidia-smi number GPUs in different orders.
    """
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    sizes: dict[str, set[str]] = {}
    for line in listed.stdout.splitlines():
        model, _, mebibytes = line.rpartition(", ")
        if mebibytes.isdigit():  # GPUs that share the machine's memory have "[N/A]"
            sizes.setdefault(model, set()).add(size_of(int(mebibytes) << 20))
    return {model: list(found) for model, found in sizes.items() if len(found) == 1}


def _devices(count: int | None) -> list[str]:
    """Returns the devices of `count` replicas: GPUs if any, otherwise logical CPUs; None for all GPUs, or one CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if (count or 1) > len(gpus):
            raise UsageError(f"--num_replicas={count}: this machine has {count_of(len(gpus), 'GPU')}")
        return [f"/gpu:{i}" for i in range(count or len(gpus))]
    count = count or 1
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = tf.config.get_logical_device_configuration(cpu)
    if existing is None and count > 1:
        with _before_devices(f"--num_replicas={count}"):
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    elif existing is not None and len(existing) < count:
        raise UsageError(f"--num_replicas={count}: this process has already split its CPU into {len(existing)}")
    return [f"/cpu:{i}" for i in range(count)]


def _join(cluster: Cluster, flags: RunFlags) -> tf.distribute.Strategy:
    """Returns the strategy over all workers, once all have joined; a single worker needs no TF_CONFIG."""
    timeout = flags.collective_timeout  # afterwards a `Watchdog` decides whether a worker is lost
    if cluster.size > 1:
        _bound_joining(timeout)
    how = tf.distribute.experimental.CommunicationImplementation(flags.all_reduce.upper())
    options = tf.distribute.experimental.CommunicationOptions(implementation=how)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError):
        raise LostError(
            f"lost {SOMEBODY}: it was there, but did not join (--collective_timeout={timeout:g}); rerun the same "
            f"commands on all {cluster.size} to resume from the last checkpoint",
            lost=[SOMEBODY],
        ) from None
    except tf.errors.UnknownError as error:
        if runtime.is_port_taken(error):
            address, name = cluster.address(cluster.mine), cluster.name(cluster.mine)
            reason = "was taken by another process; end that process or use another port"
            raise tf_config.unusable_port(address, name, cluster.source, reason) from None
        raise


def _bound_joining(timeout: float) -> None:
    """Configures TensorFlow's coordination service as the strategy would, but limits how long it waits for a worker.

    The registration barrier fails on all workers if one is missing. Without it, each would wait for an hour.
    """
    spec = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        coordinated_jobs=[CoordinatedJob(name=job, num_tasks=spec.num_tasks(job)) for job in spec.jobs],
        cluster_register_timeout_in_ms=int(1000 * timeout),
    )
    context.context().coordination_service.cluster_register_with_barrier = True


_MOST_NUMBERS = 62  # in an int64, summed over local replicas


class Agreement:
    """Small all-reduces between workers; a single worker sends nothing.

    Every worker must make the same calls in the same order.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        self._strategy, self._cluster = strategy, cluster

    def on_any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any worker."""
        return any(self._gather(int(flag)))

    def union(self, numbers: Iterable[int]) -> set[int]:
        """Returns the union of all workers' numbers, 0 to 61."""
        masks = self._gather(sum(1 << number for number in set(numbers)))
        return {number for number in range(_MOST_NUMBERS) if any(mask >> number & 1 for mask in masks)}

    def wait(self) -> None:
        """Waits for all workers: one that leaves early, especially the chief, costs the others seconds."""
        self._gather(0)

    def check_equal(self, what: str, value: Callable[[], int], advice: str) -> None:
        """Checks that all workers have the same value.

        Args:
          what: name of the value, for the error.
          value: function that returns this worker's value, from 0 to 2^48 - 1; not called for a single worker.
          advice: advice on making the values equal, for the error.

        Raises:
          DataError: the workers have different values.
        """
        if self._cluster.size == 1:
            return
        values = self._gather(value())
        if len(set(values)) > 1:
            raise DataError(f"{what} differs between workers: {values}; {advice}")

    def _gather(self, value: int) -> list[int]:
        """Returns every worker's value (>= 0), by rank."""
        if self._cluster.size == 1:
            return [value]
        # Gather by summing: each worker has its own place, to which all its replicas add the value.
        mine = [value if rank == self._cluster.rank else 0 for rank in range(self._cluster.size)]
        sums = self._all_sum(tf.constant(mine, tf.int64)).numpy()
        local_replicas = self._strategy.num_replicas_in_sync // self._cluster.size
        return [int(total) // local_replicas for total in sums]

    @tf.function(autograph=False)
    def _all_sum(self, values: tf.Tensor) -> tf.Tensor:
        def replica_sum() -> tf.Tensor:
            here = tf.identity(values)  # on the replica's device
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)

        return self._strategy.experimental_local_results(self._strategy.run(replica_sum))[0]
