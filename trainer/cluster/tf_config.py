"""TF_CONFIG: the processes of a job, which one this is, and its port. Without TensorFlow, to report mistakes early."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.commands.text import count_of
from pipeline.errors import UsageError, reason_of
from trainer.config.meaning import MULTIWORKER, PARAMETER_SERVER
from trainer.config.run import ClusterFlags

VARIABLE = "TF_CONFIG"
HOSTS_FLAG = "--worker_hosts"  # replaces the variable
_MAX_PORT = 65535
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?")
_FLAGS = {"chief": "--chief_host", "worker": "--worker_hosts", "ps": "--ps_hosts"}
_EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


CHIEF, WORKER, PS = "chief", "worker", "ps"
JOBS = {MULTIWORKER: (CHIEF, WORKER), PARAMETER_SERVER: (CHIEF, WORKER, PS)}  # by strategy


@dataclasses.dataclass(frozen=True)
class Task:
    """A process of the job, such as (`worker`, 1)."""

    job: str
    index: int = 0

    @property
    def file(self) -> str:
        """Its name in file names: `worker-1`, `chief`."""
        return f"{self.job}-{self.index}" if self.job in (WORKER, PS) else self.job

    @property
    def name(self) -> str:
        """Its name without its address: `worker 1`, `chief`."""
        return self.file.replace("-", " ")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a job, and which one this is.

    Attributes:
      workers: `host:port` of each worker.
      rank: rank of this process; rank 0 is the chief, which writes checkpoints, logs and lines.
      ps: `host:port` of each parameter server.
      chief_address: address of a chief that is not a worker; None if worker 0's process is the chief.
      source: origin of the cluster: TF_CONFIG, or a flag.
    """

    workers: tuple[str, ...] = ("localhost",)
    rank: int = 0
    ps: tuple[str, ...] = ()
    chief_address: str | None = None
    source: str = VARIABLE

    @property
    def chief_works(self) -> bool:
        """Whether the chief's process is also worker 0."""
        return self.chief_address is None

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief's."""
        return self.rank == 0

    @property
    def others(self) -> list[Task]:
        """All processes except the chief's, by rank."""
        workers = range(1 if self.chief_works else 0, len(self.workers))
        return [*(Task(WORKER, i) for i in workers), *(Task(PS, i) for i in range(len(self.ps)))]

    @property
    def tasks(self) -> list[Task]:
        """All processes, by rank."""
        return [Task(CHIEF), *self.others]

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.tasks)

    @property
    def mine(self) -> Task:
        """This process."""
        return self.tasks[self.rank]

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of all processes, by rank."""
        return tuple(map(self.address, self.tasks))

    @property
    def names(self) -> list[str]:
        """Names of all processes for messages, by rank."""
        return list(map(self.name, self.tasks))

    @property
    def file(self) -> str:
        """Name of this process in file names, as in TF_CONFIG: `worker-1`, `chief`."""
        is_worker = self.is_chief and self.chief_works and not self.ps
        return (Task(WORKER) if is_worker else self.mine).file

    def address(self, task: Task) -> str:
        """Returns the `host:port` of a process."""
        if task.job == CHIEF:
            return self.chief_address or self.workers[0]
        return (self.workers if task.job == WORKER else self.ps)[task.index]

    def name(self, task: Task) -> str:
        """Returns the name of a process in messages: `worker 1 (host1:2222)`, with its index in TF_CONFIG."""
        return f"{'the ' if task.job == CHIEF else ''}{task.name} ({self.address(task)})"

    def source_of(self, task: Task) -> str:
        """Returns the source of a process's address: `--ps_hosts` or TF_CONFIG."""
        return _source_of(WORKER if task.job == CHIEF and self.chief_works else task.job, self.source)

    def __str__(self) -> str:
        """All processes, for messages."""
        chief = f"chief {self.chief_address}, " if self.chief_address else ""
        workers = f"{count_of(len(self.workers), 'worker')} {', '.join(self.workers)}"
        return f"{chief}{workers}, {len(self.ps)} ps {', '.join(self.ps)}"


ALONE = Cluster()


def of(flags: ClusterFlags, strategy: str) -> Cluster | None:
    """Returns the cluster given by flags, or by TF_CONFIG in the environment; None if neither gives one.

    Args:
      flags: flags that may name the cluster.
      strategy: multiworker or parameter_server.

    Raises:
      UsageError: both give one, or it cannot be used; or parameter servers lack one.
    """
    if flags.given:
        return parse(of_flags(flags, strategy), strategy, HOSTS_FLAG)
    if text := os.environ.get(VARIABLE, "").strip():
        return parse(text, strategy)
    if strategy == PARAMETER_SERVER:
        raise UsageError(
            f"--strategy={strategy}: needs {VARIABLE} with jobs chief, worker and ps, or --worker_hosts=..., "
            "--ps_hosts=..., --job_name=... and --task_index=..."
        )
    return None


def check_alone(strategy: str) -> None:
    """Refuses a TF_CONFIG with several tasks for a single-process strategy.

    Raises:
      UsageError: there are several tasks, each of which would train the whole job.
    """
    try:
        content = json.loads(os.environ.get(VARIABLE, ""))
    except ValueError:
        return
    jobs = content.get("cluster") if isinstance(content, dict) else None
    tasks = [task for job in jobs.values() if isinstance(job, list) for task in job] if isinstance(jobs, dict) else []
    if len(tasks) > 1:
        raise UsageError(
            f"{VARIABLE} names {len(tasks)} tasks, but with --strategy={strategy} each would train the whole job; "
            f"use --strategy=multiworker or parameter_server, or unset {VARIABLE}"
        )


def parse(text: str, strategy: str = MULTIWORKER, source: str = VARIABLE) -> Cluster:
    """Parses a TF_CONFIG text with the jobs `chief` (one, optional), `worker` and, for parameter servers, `ps`.

    Args:
      text: content of TF_CONFIG.
      strategy: multiworker or parameter_server.
      source: origin of the text, for messages.

    Raises:
      UsageError: the text is not JSON, lacks the cluster, a job or the task, has an unknown task type or an index
        outside the job, or has an address that is not host:port or occurs twice.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{source} is not valid JSON ({error}); it looks like {_EXAMPLE}") from None
    jobs, task = _part(content, "cluster", source), _part(content, "task", source)
    for job, addresses in jobs.items():
        _check_job(job, addresses, strategy, source)
    _check_different(jobs, source)
    kind, index = task.get("type"), _index(task.get("index"), source)
    if not isinstance(kind, str) or kind not in jobs:
        raise UsageError(f"{source}: task type {kind!r}, but cluster has {', '.join(jobs)}")
    if not 0 <= index < len(jobs[kind]):
        raise UsageError(f"{source}: task index {index}, but {kind} has {len(jobs[kind])} (0 and up)")
    for needed in (WORKER, PS) if strategy == PARAMETER_SERVER else ():
        if needed not in jobs:
            raise UsageError(f"{source}: --strategy={strategy} needs a {needed} at least; it has {', '.join(jobs)}")
    workers, servers = (tuple(jobs.get(job, ())) for job in (WORKER, PS))
    chief = jobs[CHIEF][0] if CHIEF in jobs else None
    tasks, mine = Cluster(workers, 0, servers, chief).tasks, Task(kind, index)
    # Worker 0 is not listed if its process is the chief.
    return Cluster(workers, tasks.index(mine) if mine in tasks else 0, servers, chief, source)


def _part(content: Any, name: str, source: str) -> dict[str, Any]:
    part = content.get(name) if isinstance(content, dict) else None
    if not isinstance(part, dict) or not part:
        raise UsageError(f"{source} has no {name!r}; it looks like {_EXAMPLE}")
    return part


def _check_job(job: str, addresses: Any, strategy: str, source: str) -> None:
    known = JOBS[strategy]
    if job not in known:
        raise UsageError(
            f"{source}: job {job!r} in cluster: --strategy={strategy} has only {', '.join(known[:-1])} and {known[-1]}"
        )
    source = _source_of(job, source)
    if not isinstance(addresses, list) or not addresses:
        raise UsageError(f"{source}: {job!r} in cluster must be a list of host:port; it is {addresses!r}")
    for address in addresses:
        _check_address(job, address, source)
    if job == CHIEF and len(addresses) > 1:
        raise UsageError(f"{source}: {len(addresses)} chiefs in cluster; at most one is allowed")


def _source_of(job: str, source: str) -> str:
    """Returns the origin of a job's addresses: its own flag if flags name the cluster, else TF_CONFIG."""
    return _FLAGS.get(job, source) if source in _FLAGS.values() else source


def _check_address(job: str, address: Any, source: str) -> None:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not (port.isascii() and port.isdigit()) or not _is_host(host):
        hint = "; an IPv6 address needs brackets, as in [::1]:2222" if ":" in host and host[:1] != "[" else ""
        raise UsageError(f"{source}: {job} {address!r} is not host:port{hint}")
    if len(port) > len(str(_MAX_PORT)) or not 1 <= int(port) <= _MAX_PORT:
        raise UsageError(f"{source}: {job} {address!r}: the port must be 1 to {_MAX_PORT}")


def _is_host(host: str) -> bool:
    if not (host.startswith("[") and host.endswith("]")):
        return bool(_HOST_NAME.fullmatch(host))
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def _check_different(jobs: dict[str, list[str]], source: str) -> None:
    """Raises UsageError if two processes have the same address, even under different names of this machine."""
    seen: dict[tuple[str, int], tuple[str, str]] = {}
    for job, addresses in jobs.items():
        for address in addresses:
            host, _, port = address.rpartition(":")
            first_job, first = seen.setdefault((_machine(host), int(port)), ("", address))
            if first_job:
                same = (
                    f"{address!r} is listed 2 times" if first == address else f"{first!r} and {address!r} are the same"
                )
                raise UsageError(f"{_source_of(job, source)}: {same}; each process needs its own host:port")
            seen[_machine(host), int(port)] = job, address


def _machine(host: str) -> str:
    """Returns `localhost` for any name of this machine, an address in its shortest form, and other names unchanged."""
    host = host.strip("[]").rstrip(".").lower()
    own = socket.gethostname().lower()
    if host in ("localhost", "ip6-localhost", own, own.partition(".")[0]):
        return "localhost"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    plain = getattr(address, "ipv4_mapped", None) or address
    return "localhost" if plain.is_loopback or plain.is_unspecified else str(plain)


def _index(value: Any, source: str) -> int:
    if isinstance(value, bool) or not (
        isinstance(value, int) or (isinstance(value, str) and value.isascii() and value.isdigit())
    ):
        raise UsageError(f"{source}: task index is {value!r}, not a whole number")
    return int(value)


def of_flags(flags: ClusterFlags, strategy: str) -> str:
    """Returns the TF_CONFIG text equivalent to flags.

    Args:
      flags: flags with --worker_hosts.
      strategy: value of --strategy; with multiworker, every process is a worker.

    Raises:
      UsageError: the flags do not determine which process this is, or the environment has a different TF_CONFIG.
    """
    hosts = flags.hosts
    lists = {"chief": hosts(flags.chief_host), "worker": hosts(flags.worker_hosts), "ps": hosts(flags.ps_hosts)}
    jobs = {job: addresses for job, addresses in lists.items() if addresses}
    job = flags.job_name or ("worker" if strategy == MULTIWORKER else None)
    if job is None:
        raise UsageError(f"--worker_hosts={flags.worker_hosts}: say which process this is: --job_name=ps or worker")
    if job == "chief" and not flags.chief_host:
        raise UsageError(
            "--job_name=chief: needs --chief_host=host:port, on all processes; without it the process of worker 0 is "
            "the chief"
        )
    if job not in jobs:
        raise UsageError(f"--job_name={job} with --strategy={strategy}: must be {' or '.join(jobs)}")
    index, count = flags.task_index, len(jobs[job])
    if index is None and count > 1:
        raise UsageError(f"--job_name={job}: say which of its {count} processes this is: --task_index=0 and up")
    if index is not None and index >= count:
        raise UsageError(f"--task_index={index}: --job_name={job} has {count}, numbered from 0")
    text = text_of(jobs, Task(job, index or 0))
    if os.environ.get(VARIABLE, "").strip() not in ("", text):  # an equal one was set by an earlier run in this process
        raise UsageError(f"--worker_hosts={flags.worker_hosts} and {VARIABLE}: give one of them")
    return text


def text_of(jobs: Mapping[str, Sequence[str]], task: Task) -> str:
    """Returns the TF_CONFIG of a process, given each process's host:port by job."""
    return json.dumps({"cluster": jobs, "task": {"type": task.job, "index": task.index}})


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port` or `[::1]:port` into host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, name: str, source: str) -> socket.socket:
    """Returns a socket that listens on this process's port on all addresses, as TensorFlow's server will.

    Args:
      address: `host:port` of this process.
      name: name of this process in messages.
      source: origin of the address, for messages.

    Raises:
      UsageError: the port is in use or not permitted.
    """
    try:
        return bound(split_address(address)[1])
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        reason = (
            "is used by another process on this machine; end that process or use another port"
            if is_used
            else f"cannot be used: {reason_of(error)}; use another port"
        )
        raise unusable_port(address, name, source, reason) from None


def bound(port: int) -> socket.socket:
    """Returns a socket that listens on a port on all of this machine's addresses. Raises OSError."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual)


def unusable_port(address: str, name: str, source: str, reason: str) -> UsageError:
    """Returns an error about a process's port; for the arguments see `listen`."""
    return UsageError(f"port {split_address(address)[1]}, which {source} gives to {name}, {reason}")


def free_port() -> int:
    """Returns a port that is currently free on this machine."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port
