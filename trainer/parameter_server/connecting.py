"""TensorFlow's cluster as the chief sees it: the strategy, and the parts that give work to the present workers.

TensorFlow waits for every process of the cluster that it knows: when it connects, and when a restarted worker comes
back. So it is told only about processes that are present, and told again whenever a worker comes or is lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef  # type: ignore[import-untyped]

from pipeline.errors import RerunError, UsageError
from trainer.cluster import tf_config
from trainer.cluster.tf_config import CHIEF, PS, WORKER, Cluster, Task
from trainer.parameter_server.coordinator import Coordinator
from trainer.parameter_server.worker_client import start_server
from trainer.runtime import cluster_coordinator, context, remote

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"
_POLL_SECONDS = 0.1
_NOTICE_SECONDS = 0.3  # time for the chief, after an error, to notice that a process's connection has closed
_HANGING_SECONDS = 60.0  # time for a call to a lost worker to fail
_ENVIRONMENT = {  # as set by tf.distribute.ParameterServerStrategy when it connects
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "False",
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY": "True",
}


class Members:
    """The workers that currently take part. TensorFlow has a thread per worker, which asks here whether to continue."""

    def __init__(self, roles: Cluster, coordinator: Coordinator, addresses: dict[str, list[str]]) -> None:
        """Starts without workers; `admit` adds them.

        Args:
          roles: processes of the job.
          coordinator: coordinator, which knows the present processes.
          addresses: addresses of each job's processes, as the chief reaches them.
        """
        self._roles, self._coordinator, self._addresses = roles, coordinator, addresses
        self._admitted: dict[int, int] = {}
        self._peers: dict[int, set[tuple[str, int]]] = {}  # addresses of every worker ever admitted
        self._at_work: set[int] = set()
        self._gone: dict[int, float] = {}  # time since which a busy worker has been gone
        self._lock = threading.Lock()

    def cluster(self, workers: dict[int, int]) -> tf.train.ClusterSpec:
        """Returns the cluster of these workers and all non-worker processes."""
        there = {index: self._addresses[WORKER][index] for index in sorted(workers)}
        return tf.train.ClusterSpec({**self._addresses, WORKER: there})

    @property
    def changed(self) -> bool:
        """Whether a worker has joined or was lost since the last call of `admit`."""
        return self._coordinator.workers != self._admitted

    def close(self) -> dict[int, int]:
        """Stops giving work to lost workers; returns the present ones."""
        workers = self._coordinator.workers
        with self._lock:
            self._admitted = {i: start for i, start in self._admitted.items() if workers.get(i) == start}
        return workers

    @contextlib.contextmanager
    def calls_fail(self, workers: dict[int, int]) -> Iterator[None]:
        """Context in which TensorFlow's calls to all other workers fail, even to stopped ones."""
        lost = {peer for i, peers in self._peers.items() if i not in workers for peer in peers}
        over = threading.Event()

        def disconnect() -> None:
            while not over.wait(_POLL_SECONDS):  # TensorFlow reconnects
                _disconnect(lost)

        _disconnect(lost)
        thread = threading.Thread(target=disconnect, name="disconnecting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def admit(self, workers: dict[int, int]) -> None:
        """Gives work to workers that TensorFlow now knows."""
        self._peers.update({i: _resolved(self._addresses[WORKER][i]) for i in workers})
        with self._lock:
            self._admitted = workers

    def rest(self, worker: int) -> None:
        """Records that a worker is idle."""
        with self._lock:
            self._at_work.discard(worker)

    def takes_part(self, worker: int) -> bool:
        """Returns whether a worker may get work."""
        with self._lock:
            return worker in self._admitted

    def begins(self, worker: int) -> bool:
        """Returns whether a worker may begin its work now; if so, it counts as busy."""
        leaving = worker in self._coordinator.leaving and not self._coordinator.is_ending
        with self._lock:
            if leaving or worker not in self._admitted:
                return False
            self._at_work.add(worker)
            return True

    def tend(self) -> None:
        """Releases idle workers that received a signal. Call it regularly.

        Raises:
          RerunError: a worker is lost, but a call to it does not return, so no other worker can take over its work.
        """
        leaving, there = self._coordinator.leaving, set(self._coordinator.workers)
        with self._lock:  # after `leaving` was read: a leaving worker begins nothing
            at_work = set(self._at_work)
        for worker in leaving - at_work:
            if not self._coordinator.is_ending:  # the chief needs all workers until it has saved
                self._coordinator.release(worker)
        self._gone = {worker: self._gone.get(worker, time.monotonic()) for worker in at_work - there}
        for worker, since in self._gone.items():
            if time.monotonic() - since > _HANGING_SECONDS:
                name = self._roles.name(Task(WORKER, worker))
                raise RerunError(
                    f"lost {name}, but its work does not end, so its steps "
                    "cannot be given to another worker; rerun the same commands to resume from the last checkpoint",
                    lost=[name],
                )


def connect(
    roles: Cluster, coordinator: Coordinator
) -> tuple[tf.distribute.Strategy, tf.distribute.coordinator.ClusterCoordinator, Members, object]:
    """Returns the strategy, TensorFlow's coordinator, the participating workers, and an object to keep alive with them.

    The chief's server, and worker 0's if it runs in this process, listen on ports that the system chooses, because the
    processes meet at the chief's address. The chief tells the others where it listens when it connects to them.

    Args:
      roles: processes of the job.
      coordinator: coordinator, which knows the present processes.

    Raises:
      UsageError: a worker has several GPUs.
    """
    address = roles.addresses[0].rpartition(":")[0]
    workers, server = list(roles.workers), None
    if roles.chief_works:
        workers[0] = f"{address}:{tf_config.free_port()}"
        server = start_server(roles, workers[0])
    addresses = {CHIEF: [f"{address}:{tf_config.free_port()}"], WORKER: workers, PS: list(roles.ps)}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses), task_type=CHIEF, task_id=0, rpc_layer="grpc"
    )
    members = Members(roles, coordinator, addresses)
    strategy = _Strategy(resolver, members)
    if strategy.num_replicas_in_sync > 1:
        raise UsageError(
            f"--strategy=parameter_server: each worker has {strategy.num_replicas_in_sync} GPUs; start one for each "
            "GPU, with CUDA_VISIBLE_DEVICES=0, 1, ..."
        )
    with _coordinated_by(members):
        return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), members, server


class _Strategy(tf.distribute.ParameterServerStrategy):  # type: ignore[misc]
    """TensorFlow's strategy, connected only to the present workers."""

    def __init__(self, resolver: tf.distribute.cluster_resolver.ClusterResolver, members: Members) -> None:
        self._members, self._filters = members, _device_filters(resolver.cluster_spec())
        super().__init__(resolver)

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        """Does what TensorFlow's method does, for a part of the cluster."""
        spec = self._cluster_resolver.cluster_spec()
        self._num_workers, self._num_ps = spec.num_tasks(WORKER), spec.num_tasks(PS)
        os.environ.update(_ENVIRONMENT)
        workers = self._members.close()
        remote.connect_to_cluster(
            self._members.cluster(workers),
            job_name=coordinator_name,
            protocol=self._cluster_resolver.rpc_layer,
            cluster_device_filters=self._filters,
        )
        context.ensure_initialized()
        self._members.admit(workers)


def _device_filters(spec: tf.train.ClusterSpec) -> tf.config.experimental.ClusterDeviceFilters:
    """Returns the filters of TensorFlow's strategy: workers see servers and vice versa, but not their own kind."""
    filters = tf.config.experimental.ClusterDeviceFilters()
    for job, other in ((WORKER, PS), (PS, WORKER)):
        for index in range(spec.num_tasks(job)):
            filters.set_device_filters(job, index, [f"/job:{other}", f"/job:{CHIEF}"])
    return filters


@contextlib.contextmanager
def _coordinated_by(members: Members) -> Iterator[None]:
    """Context in which TensorFlow's coordinator is built with classes that know the present workers."""

    class Queue(cluster_coordinator._CoordinatedClosureQueue):  # type: ignore[misc]
        """Hands functions to present workers, and records which worker an error comes from."""

        def __init__(self) -> None:
            super().__init__()
            self._here = threading.local()

        def mark_failed(self, e: Exception) -> None:
            for error in filter(None, (e, getattr(e, "original_exception", None))):
                error.worker = self._here.worker  # type: ignore[union-attr]
            super().mark_failed(e)

        def get(self, timeout: float | None = None, tag: int | None = None) -> Any:
            """Waits for a function that this worker may begin; returns None at the end."""
            assert tag is not None
            members.rest(tag)
            self._here.worker = tag
            while self._should_process_closures:
                closure = super().get(timeout=_POLL_SECONDS, tag=tag) if members.takes_part(tag) else None
                if closure is None:
                    time.sleep(0 if members.takes_part(tag) else _POLL_SECONDS)
                elif members.begins(tag):
                    return closure
                elif closure.tag is None:  # the worker has just been lost
                    self.put_back(closure)
                else:
                    self.put(closure, tag=tag)
            return None

    class Handler(cluster_coordinator.WorkerPreemptionHandler):  # type: ignore[misc]
        """Tells TensorFlow about the present workers when one fails or joins."""

        def _preemption_handler(self) -> None:
            while self._should_preemption_thread_run:
                if self._cluster_due_for_update_or_finish.wait(_POLL_SECONDS):
                    time.sleep(_NOTICE_SECONDS)
                elif not members.changed:
                    continue
                with self._cluster_update_lock:
                    workers = members.close()
                    try:
                        with members.calls_fail(workers):
                            context.context().update_server_def(_server_def(members.cluster(workers)))
                    except tf.errors.OpError:  # another worker was lost; closed connections reveal which
                        time.sleep(_POLL_SECONDS)
                        continue
                    members.admit(workers)
                    self._worker_up_cond.notify_all()
                    if self._should_preemption_thread_run:
                        self._cluster_due_for_update_or_finish.clear()

    names = {"_CoordinatedClosureQueue": Queue, "WorkerPreemptionHandler": Handler}
    before = {name: getattr(cluster_coordinator, name) for name in names}
    for name, ours in names.items():
        setattr(cluster_coordinator, name, ours)
    try:
        yield
    finally:
        for name, theirs in before.items():
            setattr(cluster_coordinator, name, theirs)


def _resolved(address: str) -> set[tuple[str, int]]:
    """Returns the (IP address, port) pairs of `host:port`."""
    host, port = tf_config.split_address(address)
    with contextlib.suppress(OSError):  # its name has disappeared with its machine
        return {(_plain(found[4][0]), port) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    return set()


def _plain(ip: str | int) -> str:
    return str(ip).removeprefix("::ffff:")


def _disconnect(peers: set[tuple[str, int]]) -> None:
    """Closes this process's connections to a lost worker.

    TensorFlow's calls to a stopped process, or to a machine that is gone, wait forever, and so does a change of the
    cluster. Closing the connection makes them fail, like calls to a process that has ended.
    """
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # not a connection, or closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    ip, port, *_ = one.getpeername()
                    if (_plain(ip), port) in peers:
                        one.shutdown(socket.SHUT_RDWR)


def _server_def(spec: tf.train.ClusterSpec) -> ServerDef:
    """Returns TensorFlow's definition of this process's server, with another cluster."""
    definition = ServerDef()
    definition.CopyFrom(context.get_server_def())
    definition.cluster.CopyFrom(spec.as_cluster_def())
    return definition
