"""Which processes make up a job, and which of them this one is, as the classic examples say it."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least, check_name

JOBS = ("ps", "worker", "chief")
OF_EACH_PROCESS = ("job_name", "task_index")


@dataclasses.dataclass(frozen=True)
class ClusterFlags:
    """The processes of a job, instead of TF_CONFIG."""

    worker_hosts: str | None = None  # host:port of each worker, separated by commas
    ps_hosts: str | None = None  # host:port of each parameter server, likewise
    chief_host: str | None = None  # host:port of a chief that is no worker (None: the process of worker 0 is the chief)
    job_name: str | None = None  # of this process: ps, worker or chief
    task_index: int | None = None  # of this process in its job, 0 and up; also --task_id

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        if self.job_name is not None:
            check_name("job_name", self.job_name, JOBS)
        check_least(self, 0, "task_index")
        for name in ("ps_hosts", "chief_host", *OF_EACH_PROCESS):
            value = getattr(self, name)
            if value is not None and not self.worker_hosts:
                raise UsageError(f"--{name}={value}: needs --worker_hosts=host:port,... as well")

    @property
    def given(self) -> bool:
        """Whether they name a cluster."""
        return self.worker_hosts is not None

    @staticmethod
    def hosts(text: str | None) -> list[str]:
        """Returns the addresses of a flag."""
        return [host.strip() for host in text.split(",")] if text else []
