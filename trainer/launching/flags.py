"""The launcher's own flags, grouped by concern, and the interface of schedulers; trainer.run's flags follow `--`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from pipeline.commands.flags import check, check_all, check_most, fields_with, flag
from pipeline.errors import UsageError, name_of
from pipeline.registry import Registry

_Flags = TypeVar("_Flags")
# Sizes as written for Slurm and Kubernetes. M in 1500M is 1024^2 in Slurm and 1000^2 in Kubernetes.
_MEMORY = re.compile(r"(?=.*[1-9])(\d+)([KMGT])(i?)", re.IGNORECASE | re.ASCII)
# A job name as Kubernetes checks it; it also names a service: RFC 1035.
_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_NUMBER = 2**31 - 1  # in Kubernetes: seconds, counts, users and groups
# Variables that the launcher itself sets for each process.
_SET_HERE = ("TF_CONFIG", "TASK_INDEX", "PYTHONUNBUFFERED", "STEPFEED_HEARTBEAT", "STEPFEED_FRESH", "STEPFEED_JOB")


@dataclasses.dataclass(frozen=True)
class Memory:
    """A size in a user's notation.

    Attributes:
      amount: number of units.
      unit: K, M, G or T.
      is_binary: whether an i follows the unit, which then means powers of 1024; otherwise its meaning is the
        scheduler's.
    """

    amount: int
    unit: str
    is_binary: bool


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """The job's name and its processes' resources on another scheduler."""

    name: str | None = flag(None, "job name, in lower-case letters, digits and hyphens (None: train)")
    cpus: int | None = flag(None, "CPUs per process", least=1, most=MOST_NUMBER)
    memory: str | None = flag(
        None, "memory per process, such as 16Gi; or in the scheduler's own notation, such as 1500M"
    )
    port: int | None = flag(
        None, "port that processes listen on (None: 2222; slurm: follows from the job's number)", least=1, most=65535
    )
    env: list[str] | None = flag(None, "environment variable for each process", metavar="NAME=VALUE", repeated=True)

    def __post_init__(self) -> None:
        check_all(
            *(lambda: self.variables, lambda: check(self), lambda: check_most(self)),
            *(self._check_name, self._check_memory),
        )

    def _check_name(self) -> None:
        if self.name is not None and not _DNS_LABEL.fullmatch(self.name):
            raise UsageError(f"--name={self.name}: must be lower-case letters, digits and hyphens, such as cifar-10")

    def _check_memory(self) -> None:
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise UsageError(
                f"--memory={self.memory}: must be a whole number and Mi, Gi or Ti, or K, M, G or T, without a space, "
                "such as 16Gi or 1500M"
            )

    @property
    def variables(self) -> dict[str, str]:
        """Values of --env, by name."""
        return pairs("env", self.env, "NAME=VALUE, such as TF_CPP_MIN_LOG_LEVEL=1", check_variable)

    @property
    def job_name(self) -> str:
        """Name of the job."""
        return self.name or "train"

    @property
    def memory_of(self) -> Memory | None:
        """Size in --memory."""
        match = _MEMORY.fullmatch(self.memory or "")
        return Memory(int(match[1]), match[2].upper(), bool(match[3])) if match else None


def pairs(flag: str, given: Sequence[str] | None, form: str, check: Any) -> dict[str, str]:
    """Returns {name before `=`: value} from a repeatable flag.

    Raises:
      UsageError: a value has no `=`, a name occurs twice, or `check`, called with flag, name and text, raises it.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--{flag}={text}: must be {form}")
        check(flag, name, text)
        if name in found:
            raise UsageError(f"--{flag}={text}: {name} is given twice")
        found[name] = value
    return found


def check_variable(flag: str, name: str, text: str) -> None:
    """Raises UsageError if an environment variable cannot have this name; `text` is the flag's value."""
    if not _VARIABLE.fullmatch(name):
        raise UsageError(
            f"--{flag}={text}: a variable's name must be letters, digits and _, and not begin with a digit"
        )
    if name in _SET_HERE:
        raise UsageError(f"--{flag}={text}: the launcher sets {name} for each process; leave it out")
    if "\0" in text:
        raise UsageError(f"--{flag}={name}: must not have a zero byte")


def check_local_only(flags: object, meaning: str, target: str) -> None:
    """Raises UsageError if a flag with `meaning`, which only applies to --target=local, was given."""
    for field in fields_with(flags, meaning):
        value = getattr(flags, field.name)
        if value != field.default:
            raise UsageError(
                f"--{field.name}={value} with --target={target}: is for --target=local; there, the scheduler restarts "
                f"processes by its own rules; leave --{field.name} out"
            )


def _check_not_given(flags: object, target: str, meant: str) -> None:
    """Raises UsageError if a flag was given that is for `meant` rather than `target`."""
    for field in dataclasses.fields(flags):  # type: ignore[arg-type]
        value = getattr(flags, field.name)
        if value is not None:
            shown = value[0] if isinstance(value, list) else value
            raise UsageError(
                f"--{field.name}={shown} with --target={target}: is for --target={meant}; leave --{field.name} out"
            )


_MOST_PROCESSES = 10_000  # processes per kind; more is a typo
PAGE_PORT = 8420  # default port of a job's page


@dataclasses.dataclass(frozen=True)
class JobFlags:
    """What to start, and where."""

    num_workers: int | None = flag(
        None, "processes that train (None: the maximum in --elastic, otherwise 1)", least=1, most=_MOST_PROCESSES
    )
    num_ps: int = flag(
        0,
        "parameter servers; 1 or more: --strategy=parameter_server, with a chief in addition to the workers",
        least=0,
        most=_MOST_PROCESSES,
    )
    gpus_per_worker: int | None = flag(
        None, "number per worker (None: here, all GPUs are divided; elsewhere, none)", least=0, most=_MOST_PROCESSES
    )
    page: int | None = flag(
        None,
        f"port at which to serve a page about the job, as {name_of('trainer.watch')} does; without a value: "
        f"{PAGE_PORT}, or any free one if that is taken",
        least=0,
        below=1 << 16,
        bare=0,
    )
    target: str = flag("local")  # help text in `launch_flags`

    def __post_init__(self) -> None:
        check_all(lambda: check(self), lambda: check_most(self))


@dataclasses.dataclass(frozen=True)
class RestartFlags:
    """What to do when a process fails.

    Metadata: `local_only` for flags without meaning for schedulers, `needs_beats` if one must read heartbeats.
    """

    max_restarts: int = flag(10, "per group, or per asynchronous worker; 0: none", least=0, most=MOST_NUMBER)
    restart_delay: float = flag(
        1.0,
        "seconds before the first restart; doubles with each one that brought no progress",
        least=0,
        most=MOST_NUMBER,
        meaning={"local_only": True},
    )
    silent_timeout: float = flag(
        120.0,
        "seconds without a sign of life, or of steps, after which a process is killed",
        above=0,
        most=MOST_NUMBER,
        meaning={"needs_beats": True},
    )
    stop_timeout: float = flag(
        120.0, "seconds that processes have to save and end before they are killed", above=0, most=MOST_NUMBER
    )
    regrow_delay: float = flag(
        60.0,
        "seconds before a lost worker is tried again; doubles each time it is lost",
        least=0,
        most=MOST_NUMBER,
        meaning={"local_only": True},
    )
    elastic: str | None = flag(
        None,
        "MIN:MAX workers, such as 1:4: continues with fewer when one cannot be restarted",
        meaning={"local_only": True},
    )

    def __post_init__(self) -> None:
        check_all(lambda: check(self), lambda: check_most(self), lambda: self.elastic_range)

    @property
    def elastic_range(self) -> tuple[int, int] | None:
        """MIN and MAX in --elastic."""
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

    # `launch_flags` adds a group for each scheduler.

    job: JobFlags
    restarts: RestartFlags
    processes: ProcessFlags

    @property
    def own(self) -> Any:
        """Flags of the scheduler named by --target."""
        return getattr(self, self.job.target)

    def __post_init__(self) -> None:
        check = SCHEDULERS[self.job.target].check if self.job.target in SCHEDULERS else None
        check_all(lambda: check and check(self, self.own), self._check_target)

    def _check_target(self) -> None:
        if self.job.target == "local":
            _check_not_given(self.processes, "local", " or --target=".join(SCHEDULERS))
        for name in SCHEDULERS:
            if name != self.job.target:
                _check_not_given(getattr(self, name), self.job.target, name)
        if self.job.target != "local":
            check_local_only(self.restarts, "local_only", self.job.target)


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """A scheduler that starts jobs elsewhere; its name is a value of --target.

    Attributes:
      render: function that returns the text to submit to the scheduler for a `trainer.launching.job.Job`.
      flags: class of the scheduler's own flags, each None by default.
      check: function of all flags and its own that raises UsageError if they are incompatible.
    """

    render: Callable[[Any], str]
    flags: type
    check: Callable[[LaunchFlags, Any], None]


SCHEDULERS: Registry[Scheduler] = Registry("trainer.launching.schedulers", Scheduler)


@functools.cache
def launch_flags() -> type[LaunchFlags]:
    """Returns the class of all launcher flags: `LaunchFlags` with a group of flags for each scheduler."""
    text = f"local: starts the job here; {', '.join(SCHEDULERS)}: prints what starts it there"
    target = ("target", str, flag("local", text, known=("local", *SCHEDULERS)))
    groups = [("job", _with(JobFlags, [target])), *((name, known.flags) for name, known in SCHEDULERS.items())]
    return _with(LaunchFlags, groups)


def _with(kind: type[_Flags], fields: Sequence[Any]) -> type[_Flags]:
    described = {"__doc__": kind.__doc__, "__module__": kind.__module__}  # --help shows the docstring
    made = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True, namespace=described)
    return cast("type[_Flags]", made)
