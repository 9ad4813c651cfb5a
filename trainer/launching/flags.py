"""The flags of the launcher itself, one group per concern; those of trainer.run follow after `--`."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least, check_most, check_name, check_positive
from trainer.launching.target_flags import (
    MOST_NUMBER,
    Elsewhere,
    KubernetesFlags,
    ProcessFlags,
    SlurmFlags,
    check_local_only,
)

_MOST_PROCESSES = 10_000  # of a kind: more is a typing error
TARGETS = ("local", "kubernetes", "slurm")


@dataclasses.dataclass(frozen=True)
class JobFlags:
    """What is started, and where."""

    num_workers: int | None = None  # processes that train (None: the most of --elastic, else 1)
    num_ps: int = 0  # parameter servers; 1 or more: --strategy=parameter_server, with a chief besides the workers
    gpus_per_worker: int | None = None  # (None: here, all GPUs divided among the workers; elsewhere, none)
    target: str = "local"  # local: starts the job here; kubernetes, slurm: prints what starts it there

    def __post_init__(self) -> None:
        """Checks the values."""
        check_name("target", self.target, TARGETS)
        check_least(self, 1, "num_workers")
        check_least(self, 0, "num_ps", "gpus_per_worker")
        check_most(self, _MOST_PROCESSES, "num_workers", "num_ps", "gpus_per_worker")


@dataclasses.dataclass(frozen=True)
class RestartFlags:
    """What happens when a process fails."""

    max_restarts: int = 10  # of the group, or of each asynchronous worker; 0: none
    restart_delay: float = 1.0  # seconds before the first restart; doubles with each one that made no progress
    silent_timeout: float = 120.0  # seconds without a sign of life, or of steps, after which a process is killed
    stop_timeout: float = 120.0  # seconds that processes have to save and end before they are killed
    regrow_delay: float = 60.0  # seconds before a lost worker is tried again; doubles with each time it is lost
    elastic: str | None = None  # MIN:MAX workers, such as 1:4: goes on with fewer when one cannot be restarted

    def __post_init__(self) -> None:
        """Checks the values."""
        check_least(self, 0, "max_restarts", "restart_delay", "regrow_delay")
        check_positive(self, "silent_timeout", "stop_timeout")
        check_most(self, MOST_NUMBER, "max_restarts", "restart_delay", "regrow_delay", "silent_timeout", "stop_timeout")
        self.elastic_range  # noqa: B018, it raises

    @property
    def elastic_range(self) -> tuple[int, int] | None:
        """MIN and MAX of --elastic."""
        if self.elastic is None:
            return None
        least, _, most = self.elastic.partition(":")
        if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most) <= _MOST_PROCESSES):
            raise UsageError(
                f"--elastic={self.elastic}: must be MIN:MAX workers with 1 <= MIN <= MAX <= {_MOST_PROCESSES}, such as "
                "1:4"
            )
        return int(least), int(most)


@dataclasses.dataclass(frozen=True)
class LaunchFlags:
    """All flags of the launcher."""

    job: JobFlags
    restarts: RestartFlags
    processes: ProcessFlags
    kubernetes: KubernetesFlags
    slurm: SlurmFlags

    def __post_init__(self) -> None:
        """Checks values of several groups together."""
        self.elsewhere.check_meant_for(self.job.target)
        if self.job.target != "local":
            check_local_only(self.restarts, ("restart_delay", "regrow_delay", "elastic"), self.job.target)
        if self.job.target == "slurm":
            check_local_only(self.restarts, ("silent_timeout",), self.job.target)

    @property
    def elsewhere(self) -> Elsewhere:
        """What another scheduler needs to know."""
        return Elsewhere(self.processes, self.kubernetes, self.slurm)
