"""A job in the form that every scheduler needs: parsed and checked once, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from pipeline.commands import aliases
from pipeline.commands.flags import check_all, check_name, flags_of
from pipeline.errors import UsageError
from pipeline.order.sharding import divisors
from trainer import config as configs
from trainer.cluster import tf_config
from trainer.config import TrainConfig
from trainer.config.data import OrderFlags
from trainer.config.meaning import MULTIWORKER, PARAMETER_SERVER
from trainer.config.run import STRATEGIES, ClusterFlags
from trainer.launching.flags import LaunchFlags, RestartFlags, launch_flags
from trainer.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Job:
    """Several `trainer.run` processes with the same flags.

    Attributes:
      num_workers: number of processes that compute gradients; with --elastic, the largest number that can share a
        batch.
      strategy: value of --strategy for trainer.run.
      flags: flags of trainer.run, including --strategy, the same for each process.
      config: parsed form of these flags.
      launch: flags of the launcher.
    """

    num_workers: int
    strategy: str
    flags: tuple[str, ...]
    config: TrainConfig
    launch: LaunchFlags

    @classmethod
    def of(cls, flags: LaunchFlags, trainer_flags: Sequence[str]) -> Job:
        """Makes a job from the launcher's and trainer.run's flags.

        Raises:
          UsageError: a flag is invalid.
          SystemExit: the flags of trainer.run include --help or --dump_config.
        """
        _check_not_set_here(trainer_flags)
        job, restarts = flags.job, flags.restarts
        num_workers = _num_workers(job.num_workers, restarts.elastic_range)
        given, others = _strategy_given(trainer_flags)
        if given is not None:
            check_name("strategy", given, STRATEGIES)
        strategy = _strategy(num_workers, job.num_ps, given)
        all_flags = (*others, f"--strategy={strategy}")
        config = configs.parse(all_flags)
        if restarts.elastic_range and strategy != MULTIWORKER:
            raise UsageError(f"--elastic={restarts.elastic} with --strategy={strategy}: needs --strategy={MULTIWORKER}")
        if strategy == MULTIWORKER:
            per_worker, counts = job.gpus_per_worker or 1, list[int]()
            if restarts.elastic_range:
                least, most = restarts.elastic_range
                counts = sharing(config.order, range(least, most + 1), per_worker)
            if not counts:
                check_sharing(config.order, num_workers, per_worker)
            num_workers = max(counts, default=num_workers)
        return cls(num_workers, strategy, all_flags, config, flags)

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return self.config.run.folder

    @property
    def restarts(self) -> RestartFlags:
        """Flags for the case that a process fails."""
        return self.launch.restarts

    @property
    def elastic(self) -> tuple[int, int] | None:
        """Smallest and largest number of workers; None if it is always `num_workers`."""
        return self.launch.restarts.elastic_range

    @property
    def roles(self) -> dict[str, int]:
        """Number of processes of each kind: `{"worker": 2}`, or `{"chief": 1, "worker": 2, "ps": 1}`."""
        if self.strategy == PARAMETER_SERVER:
            return {"chief": 1, "worker": self.num_workers, "ps": self.launch.job.num_ps}
        return {"worker": self.num_workers}

    @property
    def command(self) -> tuple[str, ...]:
        """Command of each process; TF_CONFIG determines its role."""
        return ("python", "-m", "trainer.run", *self.flags)


def check_flags(flags: Sequence[str]) -> None:
    """Raises UsageError if flags of trainer.run are invalid regardless of the launcher's flags."""
    places = [field.name for field in dataclasses.fields(ClusterFlags)]
    check_all(lambda: _check_not_set_here(flags), lambda: configs.parse(flags, unsettled=("strategy", *places)))


def _can_share(order: OrderFlags, num_workers: int, per_worker: int) -> bool:
    return shared(order) % (num_workers * per_worker) == 0


def shared(order: OrderFlags) -> int:
    """Returns the number that the replicas must divide."""
    return order.virtual_replicas or order.global_batch_size


def sharing(order: OrderFlags, candidates: Iterable[int], per_worker: int) -> list[int]:
    """Returns the numbers of workers, out of the candidates, that can share a batch."""
    return [count for count in candidates if _can_share(order, count, per_worker)]


def check_sharing(order: OrderFlags, num_workers: int, per_worker: int) -> None:
    """Checks that `num_workers` with `per_worker` replicas each can share a batch.

    Raises:
      UsageError: they cannot; the message names the nearest numbers of workers that can.
    """
    if _can_share(order, num_workers, per_worker):
        return
    counts = sharing(order, divisors(shared(order)), per_worker)
    near = sorted(sorted(counts, key=lambda n: (abs(n - num_workers), n))[:2])
    what = "virtual_replicas" if order.virtual_replicas else "global_batch_size"
    gpus = f" of {per_worker} GPUs each" if per_worker > 1 else ""
    nearest = f"; nearest that work: {' and '.join(map(str, near))}" if near else ""
    raise UsageError(f"--num_workers={num_workers}{gpus}: must divide --{what}={shared(order)}{nearest}")


def _check_not_set_here(flags: Sequence[str]) -> None:
    told = {name for name, flag in flags_of(TrainConfig).items() if flag.field.metadata["per_process"]}
    for token in flags:
        name = token.partition("=")[0].lstrip("-")
        if token.startswith("--") and name in flags_of(launch_flags()):
            raise UsageError(f"{token}: is a flag of the launcher; give it before --")
        if name == tf_config.VARIABLE or aliases.TODAY.get(name, name) in told:
            raise UsageError(f"{token}: the launcher tells each process which one it is; leave {name} out")


def _num_workers(given: int | None, elastic: tuple[int, int] | None) -> int:
    if elastic is None:
        return given or 1
    least, most = elastic
    if given not in (None, most):
        raise UsageError(
            f"--num_workers={given} with --elastic={least}:{most}: it starts with the most workers that it may have; "
            f"leave --num_workers out, or give --elastic={min(least, given)}:{given}"
        )
    return most


def _strategy(num_workers: int, num_ps: int, given: str | None) -> str:
    needed = PARAMETER_SERVER if num_ps else MULTIWORKER
    if given in (None, needed):
        return needed
    if given == PARAMETER_SERVER:
        raise UsageError(f"--strategy={given}: needs a parameter server; give --num_ps=1 or more, before --")
    if num_ps:
        raise UsageError(f"--strategy={given} with --num_ps={num_ps}: parameter servers need --strategy={needed}")
    if num_workers > 1:
        raise UsageError(
            f"--strategy={given} with --num_workers={num_workers}: it supports only one process; leave --strategy out, "
            "or give --num_workers=1"
        )
    return given


def _strategy_given(flags: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the value of --strategy on the command line (it overrides a --config file's), and the other flags."""
    given, others, tokens = None, [], iter(flags)
    for token in tokens:
        if token == "--strategy":
            given = next(tokens, "")
        elif token.startswith("--strategy="):
            given = token.partition("=")[2]
        else:
            others.append(token)
    return given, others
