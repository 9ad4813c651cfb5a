"""Where the processes of a job run: their addresses on the loopback interface, their GPUs and variables."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence

from pipeline.commands.text import count_of
from pipeline.errors import RerunError, UsageError
from trainer.cluster import tf_config
from trainer.config.meaning import PARAMETER_SERVER
from trainer.launching.job import Job
from trainer.launching.local.process import Task

_GPUS = "CUDA_VISIBLE_DEVICES"
_NO_GPU = "-1"  # value of CUDA_VISIBLE_DEVICES that hides all GPUs
_GPU = re.compile(r"GPU (\d+):")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_SECONDS = 30  # nvidia-smi is slow if the driver has to initialise first


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (visible := os.environ.get(_GPUS)) is not None:
        names = [name.strip() for name in visible.split(",")]
        end = next((i for i, name in enumerate(names) if name in ("", _NO_GPU)), len(names))  # CUDA stops there, too
        return names[:end]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return _listed_gpus(listed.stdout)


def _listed_gpus(listing: str) -> list[str]:
    """Returns the GPUs in the output of `nvidia-smi -L`; for a GPU divided by MIG, its instances."""
    gpus: list[str] = []
    whole = None
    for line in listing.splitlines():
        if match := _GPU.match(line):
            whole = match[1]
            gpus.append(whole)
        elif match := _PART.match(line):
            if whole is not None:
                gpus.remove(whole)
                whole = None
            gpus.append(match[1])
    return gpus


def divide_gpus(gpus: list[str], num_workers: int, per_worker: int | None) -> list[tuple[str, ...]]:
    """Returns the GPUs of each worker, the same number for all.

    Args:
      gpus: GPUs of this machine.
      num_workers: number of workers that share them.
      per_worker: number of GPUs for each worker; None for as many as possible.

    Raises:
      UsageError: there are too few GPUs.
    """
    if not gpus and not per_worker:
        return [()] * num_workers
    each = len(gpus) // num_workers if per_worker is None else per_worker
    if per_worker is None and each == 0:
        raise UsageError(
            f"--num_workers={num_workers}: this machine has {count_of(len(gpus), 'GPU')}, and each worker needs its "
            "own; start fewer workers, or train on CPUs with --gpus_per_worker=0"
        )
    if num_workers * each > len(gpus):
        raise UsageError(
            f"--gpus_per_worker={each}: {count_of(num_workers, 'worker')} would take "
            f"{count_of(num_workers * each, 'GPU')}, and this machine has {len(gpus)}"
        )
    return [tuple(gpus[i * each : (i + 1) * each]) for i in range(num_workers)]


_LOWEST, _HIGHEST = 10_000, 65_535
_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")  # ports for outgoing connections
_LEAST = 1_000  # the range is avoided only if this many ports lie outside it


class Ports:
    """Reserves ports. A context manager that releases them.

    A trainer listens on its port itself, so no socket here may hold it. Instead, an abstract socket with the port's
    name reserves it: every launcher on this machine sees that socket, and the system removes it with the process. Ports
    that the system gives to outgoing connections are avoided, since another program could get one by chance.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int) -> list[int]:
        """Returns `count` free ports.

        Raises:
          RerunError: fewer ports are free.
        """
        taken: list[int] = []
        for port in _candidates():
            if len(taken) == count:
                return taken
            if port not in self._held and _is_free(port) and (name := _named(port)):
                self._held[port] = name
                taken.append(port)
        raise RerunError(f"{count} free ports are needed on this machine, and {len(taken)} were found; try again later")

    def free(self) -> None:
        """Releases the ports to other launchers."""
        for name in self._held.values():
            name.close()
        self._held.clear()

    def __enter__(self) -> Ports:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()


def _candidates() -> Iterator[int]:
    """Yields all ports to choose from, beginning at a random one."""
    first, last = _outgoing()
    ports = [*range(_LOWEST, min(first, _HIGHEST)), *range(max(last + 1, _LOWEST), _HIGHEST + 1)]
    if len(ports) < _LEAST:
        ports = list(range(_LOWEST, _HIGHEST + 1))
    start = random.randrange(len(ports))
    yield from ports[start:]
    yield from ports[:start]


def _outgoing() -> tuple[int, int]:
    """Returns the first and the last port of outgoing connections."""
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, _RANGE.read_text().split())
        return first, last
    return 32_768, 60_999  # Linux's default


def _is_free(port: int) -> bool:
    """Whether a trainer can listen on a port of all of this machine's addresses, as TensorFlow's server does."""
    try:
        tf_config.bound(port).close()
    except OSError:
        return False
    return True


def _named(port: int) -> socket.socket | None:
    """Returns the socket that holds the port's name; None if another launcher holds it."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0stepfeed-port-{port}")
    except OSError:
        name.close()
        return None
    return name


HOST = "localhost"


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the processes of a job run.

    Attributes:
      job: job that the processes belong to.
      command: program that each runs, with its arguments.
      shares: GPUs of each worker's slot.
      has_gpus: whether this machine has GPUs, which must be hidden from processes without a share.
      folder: folder for logs, heartbeats and the status.
      id: id of the job, which its processes write to their heartbeats.
    """

    job: Job
    command: tuple[str, ...]
    shares: tuple[tuple[str, ...], ...]
    has_gpus: bool
    folder: pathlib.Path
    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

    def tasks(self, slots: Sequence[int]) -> list[Task]:
        """Returns the tasks of a group with workers in these slots."""
        workers = [Task("worker", index, slot) for index, slot in enumerate(slots)]
        if self.job.strategy != PARAMETER_SERVER:
            return workers
        servers = [Task("ps", index, index) for index in range(self.job.launch.job.num_ps)]
        return [Task("chief", 0, 0), *workers, *servers]

    def gpus_of(self, task: Task) -> tuple[str, ...]:
        """Returns the GPUs of a task."""
        return self.shares[task.slot] if task.job == "worker" else ()

    def environments(self, tasks: Sequence[Task], ports: Sequence[int]) -> list[dict[str, str]]:
        """Returns the environment variables of each task."""
        addresses: dict[str, list[str]] = {}
        for task, port in zip(tasks, ports, strict=True):
            addresses.setdefault(task.job, []).append(f"{HOST}:{port}")
        found = []
        for task in tasks:
            variables = {}
            if self.job.strategy in tf_config.JOBS:
                variables[tf_config.VARIABLE] = tf_config.text_of(addresses, task)
            if self.has_gpus:
                variables[_GPUS] = ",".join(self.gpus_of(task)) or _NO_GPU
            found.append(variables)
        return found
