"""The launcher's own flags, one group per concern; those of trainer.run follow after `--`."""

from __future__ import annotations

import dataclasses

from pipeline.commands.flags import check, check_all, check_most, flag
from pipeline.errors import UsageError, to_run
from trainer.launching.target_flags import (
    MOST_NUMBER,
    KubernetesFlags,
    ProcessFlags,
    SlurmFlags,
    check_local_only,
    check_no_variable_twice,
    check_not_given,
)

_MOST_PROCESSES = 10_000  # of a kind: more is a typing error
PAGE_PORT = 8420  # of a job's page, unless it is taken
TARGETS = ("local", "kubernetes", "slurm")


@dataclasses.dataclass(frozen=True)
class JobFlags:
    """What is started, and where."""

    num_workers: int | None = flag(
        None, "processes that train (None: the most of --elastic, else 1)", least=1, most=_MOST_PROCESSES
    )
    num_ps: int = flag(
        0,
        "parameter servers; 1 or more: --strategy=parameter_server, with a chief besides the workers",
        least=0,
        most=_MOST_PROCESSES,
    )
    gpus_per_worker: int | None = flag(
        None,
        "(None: here, all GPUs divided among the workers; elsewhere, none)",
        least=0,
        most=_MOST_PROCESSES,
    )
    page: int | None = flag(
        None,
        f"port at which to serve a page about the job, too, as trainer.watch does; without a value: {PAGE_PORT}, or if "
        "that is taken any free one",
        least=0,
        below=1 << 16,
        bare=0,
    )
    target: str = flag(
        "local", "local: starts the job here; kubernetes, slurm: prints what starts it there", known=TARGETS
    )

    def __post_init__(self) -> None:
        """Checks the values."""
        check_all(lambda: check(self), lambda: check_most(self))


@dataclasses.dataclass(frozen=True)
class RestartFlags:
    """What happens when a process fails."""

    max_restarts: int = flag(10, "of the group, or of each asynchronous worker; 0: none", least=0, most=MOST_NUMBER)
    restart_delay: float = flag(
        1.0,
        "seconds before the first restart; doubles with each one that made no progress",
        least=0,
        most=MOST_NUMBER,
    )
    silent_timeout: float = flag(
        120.0,
        "seconds without a sign of life, or of steps, after which a process is killed",
        above=0,
        most=MOST_NUMBER,
    )
    stop_timeout: float = flag(
        120.0, "seconds that processes have to save and end before they are killed", above=0, most=MOST_NUMBER
    )
    regrow_delay: float = flag(
        60.0,
        "seconds before a lost worker is tried again; doubles with each time it is lost",
        least=0,
        most=MOST_NUMBER,
    )
    elastic: str | None = flag(None, "MIN:MAX workers, such as 1:4: goes on with fewer when one cannot be restarted")

    def __post_init__(self) -> None:
        """Checks the values."""
        check_all(lambda: check(self), lambda: check_most(self), lambda: self.elastic_range)

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
        check_all(lambda: check_no_variable_twice(self.processes, self.kubernetes), self._check_target)

    def _check_target(self) -> None:
        if self.job.target == "local":
            check_not_given(self.processes, "local", "kubernetes or --target=slurm")
        for name, flags in (("kubernetes", self.kubernetes), ("slurm", self.slurm)):
            if name != self.job.target:
                check_not_given(flags, self.job.target, name)
        if self.job.target != "local":
            check_local_only(self.restarts, ("restart_delay", "regrow_delay", "elastic"), self.job.target)
        if self.job.target == "slurm" and self.job.page is not None:
            raise UsageError(
                f"--page={self.job.page} with --target=slurm: is for --target=local and kubernetes; where the run's "
                f"folder is mounted, run {to_run('trainer.watch')} FOLDER"
            )
        if self.job.target == "slurm":
            check_local_only(self.restarts, ("silent_timeout",), self.job.target)
