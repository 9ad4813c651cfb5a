"""The processes of a job with parameter servers, and which one this is. Without TensorFlow."""

from __future__ import annotations

import dataclasses
import os

from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from trainer.cluster import tf_config
from trainer.config import TrainConfig
from trainer.config.meaning import PARAMETER_SERVER
from trainer.config.run import ClusterFlags

CHIEF, WORKER, PS = "chief", "worker", "ps"
_JOBS = (CHIEF, WORKER, PS)


@dataclasses.dataclass(frozen=True)
class Task:
    """A process of the job, such as (`worker`, 1)."""

    job: str
    index: int = 0


@dataclasses.dataclass(frozen=True)
class Roles:
    """The processes of a job.

    Attributes:
      workers, ps: addresses `host:port` of the workers and parameter servers.
      mine: this process.
      chief_address: address of a chief that is not a worker; None if worker 0's process is also the chief.
      source: source of the cluster: TF_CONFIG or a flag.
    """

    workers: tuple[str, ...]
    ps: tuple[str, ...]
    mine: Task
    chief_address: str | None = None
    source: str = tf_config.VARIABLE

    @property
    def is_chief(self) -> bool:
        """Whether this process schedules the steps, writes checkpoints and evaluates."""
        return self.mine == Task(CHIEF)

    @property
    def chief_works(self) -> bool:
        """Whether the chief's process is also worker 0."""
        return self.chief_address is None

    @property
    def others(self) -> list[Task]:
        """All processes except the chief's."""
        workers = range(1 if self.chief_works else 0, len(self.workers))
        return [*(Task(WORKER, i) for i in workers), *(Task(PS, i) for i in range(len(self.ps)))]

    @property
    def seat(self) -> tf_config.Seat:
        """The place of this process at the rendezvous."""
        rank = 0 if self.is_chief else self.others.index(self.mine) + 1
        chief = Task(CHIEF)
        name, address = self.name(self.mine), self.address(chief)
        return tf_config.Seat(rank, len(self.others) + 1, name, address, self.source_of(chief))

    @property
    def file(self) -> str:
        """The name of this process in file names: `chief`, `worker-1`."""
        return self.mine.job if self.is_chief else f"{self.mine.job}-{self.mine.index}"

    def address(self, task: Task) -> str:
        """Returns the `host:port` of a process."""
        if task.job == CHIEF:
            return self.chief_address or self.workers[0]
        return (self.workers if task.job == WORKER else self.ps)[task.index]

    def name(self, task: Task) -> str:
        """Returns the name of a process in messages: `worker 1 (host1:2222)`."""
        who = "the chief" if task.job == CHIEF else f"{task.job} {task.index}"
        return f"{who} ({self.address(task)})"

    def source_of(self, task: Task) -> str:
        """Returns the source of a process's address: `--ps_hosts` or TF_CONFIG."""
        job = WORKER if task.job == CHIEF and self.chief_works else task.job
        return tf_config.source_of(job, self.source)

    def __str__(self) -> str:
        """All processes, for messages."""
        chief = f"chief {self.chief_address}, " if self.chief_address else ""
        workers = f"{count_of(len(self.workers), 'worker')} {', '.join(self.workers)}"
        return f"{chief}{workers}, {len(self.ps)} ps {', '.join(self.ps)}"


def of(flags: ClusterFlags) -> Roles:
    """Returns the processes given by the flags, or by TF_CONFIG if no flag gives any.

    Raises:
      UsageError: neither gives a cluster, both do, or the cluster is invalid.
    """
    text = os.environ.get(tf_config.VARIABLE, "").strip()
    if flags.given:
        return _parsed(tf_config.of_flags(flags, PARAMETER_SERVER), tf_config.HOSTS_FLAG)
    if not text:
        raise UsageError(
            f"--strategy={PARAMETER_SERVER}: needs {tf_config.VARIABLE} with jobs chief, worker and ps, or "
            "--worker_hosts=..., --ps_hosts=..., --job_name=... and --task_index=..."
        )
    return _parsed(text, tf_config.VARIABLE)


def gradients_of_step(config: TrainConfig, num_workers: int) -> int:
    """Returns the number of gradients in a step.

    Raises:
      UsageError: there are fewer workers than that, or they cannot share the batch equally.
    """
    flags, rows = config.aggregation, config.order.global_batch_size
    if not flags.sync:
        return 1
    needed = flags.replicas_to_aggregate or num_workers
    if needed > num_workers:
        raise UsageError(f"--replicas_to_aggregate={needed}: there are {num_workers} workers; give as many at most")
    if rows % needed:
        raise UsageError(
            f"--global_batch_size={rows} with --sync and {num_workers} workers: each gradient is of an equal part of "
            f"the batch; give a multiple of {needed}, or another --replicas_to_aggregate"
        )
    return needed


def _parsed(text: str, source: str) -> Roles:
    jobs, job, index = tf_config.parse_jobs(text, _JOBS, PARAMETER_SERVER, source)
    for needed in (WORKER, PS):
        if needed not in jobs:
            raise UsageError(
                f"{source}: --strategy={PARAMETER_SERVER} needs a {needed} at least; it has {', '.join(jobs)}"
            )
    chiefs = jobs.get(CHIEF, ())
    mine = Task(CHIEF) if not chiefs and (job, index) == (WORKER, 0) else Task(job, index)
    return Roles(jobs[WORKER], jobs[PS], mine, chiefs[0] if chiefs else None, source)
