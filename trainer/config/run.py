"""Flags that determine where a run computes and writes: strategy, processes, folder."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar

from pipeline.commands.flags import check, check_all, check_needs
from pipeline.errors import UsageError, name_of
from trainer.config.meaning import MULTIWORKER, PARAMETER_SERVER, flag
from trainer.run_folder import RunFolder

STRATEGIES = ("one_device", "mirrored", MULTIWORKER, "central_storage", PARAMETER_SERVER)
OF_ONE_PROCESS = tuple(one for one in STRATEGIES if one not in (MULTIWORKER, PARAMETER_SERVER))
JOBS = ("ps", "worker", "chief")
# Ways to sum gradients over replicas, with the strategies that support them.
ALL_REDUCE = {
    "auto": STRATEGIES,
    "nccl": ("mirrored", MULTIWORKER),
    "ring": (MULTIWORKER,),
    "hierarchical_copy": ("mirrored",),
}
_SECONDS = 10**9  # 31 years; larger values overflow the clocks of TensorFlow and of threads


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Where a run computes, and where it writes."""

    shapes_training: ClassVar[bool] = False

    model_dir: str = flag(
        text="folder of checkpoints and logs; a run resumes from the newest checkpoint in it (default: DATA-run, "
        "beside the data set)",
        writes="folder",
        first=True,
    )
    fresh: bool = flag(
        False,
        "start over: remove the run in --model_dir; refused if other files are there, too",
        replay=False,
    )
    strategy: str = flag(
        "one_device",
        "one_device, mirrored, central_storage; multiworker, parameter_server: processes of TF_CONFIG or "
        "--worker_hosts",
        known=STRATEGIES,
        of_topology=True,
        first=True,
    )
    num_replicas: int | None = flag(
        None, "the first N GPUs, or N logical CPUs (None: all GPUs, or one CPU)", least=1, most=1024, of_topology=True
    )
    all_reduce: str = flag(
        "auto",
        "how gradients are summed over replicas: auto lets TensorFlow choose; nccl needs GPUs; ring, between workers; "
        "hierarchical_copy, between the GPUs of a machine",
        known=tuple(ALL_REDUCE),
        of_topology=True,
    )
    join_timeout: float = flag(600.0, "seconds that a worker waits for all others at the start", above=0, most=_SECONDS)
    collective_timeout: float = flag(
        120.0, "seconds at most until a worker that does not respond counts as lost", above=0, most=_SECONDS
    )
    deterministic: bool = flag(
        False,
        "TensorFlow's op determinism: the same bits from run to run, also on GPUs; may be slower",
        parameter_server="the order in which workers' gradients are applied is not determined",
    )
    log_keys: str | None = flag(
        None,
        f"folder for the keys of every row trained on, for {name_of('pipeline.audit')} --observed; slower",
        writes="folder",
        logs_rows=True,
        replay=None,
        parameter_server="is not supported; the ledger at the end of the run says which steps were applied",
    )
    log_losses: str | None = flag(
        None,
        "folder for the loss of every row trained on, by record id; slower: another forward pass per step",
        writes="folder",
        logs_rows=True,
        replay=None,
        parameter_server="is not supported: workers send sums over their rows",
    )

    @property
    def folder(self) -> RunFolder:
        """The layout of --model_dir."""
        return RunFolder(pathlib.Path(self.model_dir))

    def __post_init__(self) -> None:
        check_all(lambda: check(self), self._check_replicas, self._check_all_reduce)

    def _check_all_reduce(self) -> None:
        strategies = ALL_REDUCE.get(self.all_reduce, STRATEGIES)
        if self.strategy not in strategies:
            raise UsageError(
                f"--all_reduce={self.all_reduce} with --strategy={self.strategy}: is for {' and '.join(strategies)}; "
                "use auto"
            )

    def _check_replicas(self) -> None:
        if self.num_replicas is not None and self.strategy not in OF_ONE_PROCESS:
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy={self.strategy}: the replicas are the workers of "
                "TF_CONFIG and their GPUs; leave --num_replicas out"
            )
        if (self.num_replicas or 1) > 1 and self.strategy == "one_device":
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy=one_device: more than 1 needs --strategy=mirrored"
            )


@dataclasses.dataclass(frozen=True)
class ClusterFlags:
    """The processes of a job, instead of TF_CONFIG."""

    shapes_training: ClassVar[bool] = False
    of_topology: ClassVar[bool] = True

    worker_hosts: str | None = flag(None, "host:port of each worker, separated by commas", per_process=True)
    ps_hosts: str | None = flag(
        None,
        "host:port of each parameter server, likewise; implies --strategy=parameter_server",
        per_process=True,
        needs="worker_hosts",
    )
    chief_host: str | None = flag(
        None,
        "host:port of a chief that is not a worker (None: the process of worker 0 is the chief)",
        per_process=True,
        needs="worker_hosts",
    )
    job_name: str | None = flag(
        None, "job of this process: ps, worker or chief", known=JOBS, per_process=True, needs="worker_hosts"
    )
    task_index: int | None = flag(
        None,
        "number of this process in its job, 0 and up; --task_id is the same",
        least=0,
        per_process=True,
        needs="worker_hosts",
    )

    def __post_init__(self) -> None:
        why = "needs --worker_hosts=host:port,... as well"
        check_all(lambda: check(self), lambda: check_needs(self, worker_hosts=why))

    @property
    def given(self) -> bool:
        """Whether the flags name a cluster."""
        return self.worker_hosts is not None

    @staticmethod
    def hosts(text: str | None) -> list[str]:
        """Returns the addresses in a flag."""
        return [host.strip() for host in text.split(",")] if text else []


@dataclasses.dataclass(frozen=True)
class AggregationFlags:
    """How workers' gradients are combined with --strategy=parameter_server."""

    of_topology: ClassVar[bool] = True

    sync: bool = flag(False, "a step is the mean of several workers' gradients; otherwise each one is its own step")
    replicas_to_aggregate: int | None = flag(
        None,
        "M: a step takes the first M of the workers' gradients and drops late ones (None: all workers' gradients)",
        least=1,
        needs="sync",
    )
    max_staleness: int = flag(0, "how many steps old a gradient may be and still count", least=0, needs="sync")

    def __post_init__(self) -> None:
        why = "needs --sync; without it, each gradient is a step by itself"
        check_all(lambda: check(self), lambda: check_needs(self, sync=why))
