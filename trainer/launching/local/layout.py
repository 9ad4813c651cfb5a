"""Who is where: the tasks of a group, their addresses on the loopback interface, their GPUs and variables."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from trainer.cluster import tf_config
from trainer.launching.job import CLUSTERS, PARAMETER_SERVER, Job
from trainer.launching.job import tf_config as text_of
from trainer.launching.local import gpus
from trainer.launching.local.process import Task

HOST = "localhost"
FOLDER = "launch"  # in model_dir


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the processes of a job run.

    Attributes:
      job: of which they are.
      command: that each runs.
      shares: the GPUs of each worker's slot.
      has_gpus: whether there are any, so that the others must be kept from them.
      folder: for logs, heartbeats and the status.
    """

    job: Job
    command: tuple[str, ...]
    shares: tuple[tuple[str, ...], ...]
    has_gpus: bool
    folder: pathlib.Path

    def tasks(self, slots: Sequence[int]) -> list[Task]:
        """Returns the tasks of a group whose workers have these slots."""
        workers = [Task("worker", index, slot) for index, slot in enumerate(slots)]
        if self.job.strategy != PARAMETER_SERVER:
            return workers
        servers = [Task("ps", index, index) for index in range(self.job.num_ps)]
        return [Task("chief", 0, 0), *workers, *servers]

    def gpus_of(self, task: Task) -> tuple[str, ...]:
        """Returns the GPUs of a task."""
        return self.shares[task.slot] if task.role == "worker" else ()

    def environments(self, tasks: Sequence[Task], ports: Sequence[int]) -> list[dict[str, str]]:
        """Returns the variables of each task."""
        addresses: dict[str, list[str]] = {}
        for task, port in zip(tasks, ports, strict=True):
            addresses.setdefault(task.role, []).append(f"{HOST}:{port}")
        return [self._variables(task, addresses) for task in tasks]

    def _variables(self, task: Task, addresses: dict[str, list[str]]) -> dict[str, str]:
        variables = {}
        if self.job.strategy in CLUSTERS:
            variables[tf_config.VARIABLE] = text_of(addresses, task.role, task.index)
        if self.has_gpus:
            variables[gpus.VARIABLE] = ",".join(self.gpus_of(task)) or gpus.NONE
        return variables
