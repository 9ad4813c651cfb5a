"""The flags of other schedulers: what each process gets, and what only one of the schedulers knows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least, check_name

KINDS = ("jobset", "trainjob", "tfjob")
_MEMORY = re.compile(r"([1-9]\d*)([MGT])i")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?")
_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")  # it names the volume, too, where dots are not allowed
_SLURM_NAMES = re.compile(r"[A-Za-z0-9_.,+@/-]+")
_MOST_PORT = 65535


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """What the job is called on another scheduler, and what each of its processes gets there."""

    name: str | None = None  # of the job, in lower-case letters, digits and hyphens (None: train)
    cpus: int | None = None  # of each process
    memory: str | None = None  # of each process, such as 16Gi
    port: int | None = None  # that processes listen on (None: 2222; slurm: follows from the job's number)

    def __post_init__(self) -> None:
        """Checks the values."""
        check_least(self, 1, "cpus", "port")
        if self.port is not None and self.port > _MOST_PORT:
            raise UsageError(f"--port={self.port}: must be {_MOST_PORT} or less")
        if self.name is not None and not _DNS_LABEL.fullmatch(self.name):
            raise UsageError(f"--name={self.name}: must be lower-case letters, digits and hyphens, such as cifar-10")
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise UsageError(
                f"--memory={self.memory}: must be a whole number and Mi, Gi or Ti without a space, such as 16Gi"
            )

    @property
    def job_name(self) -> str:
        """What the job is called."""
        return self.name or "train"

    @property
    def memory_of(self) -> tuple[int, str]:
        """The number of --memory and its unit, M, G or T, each 1024 times the one before."""
        match = _MEMORY.fullmatch(self.memory or "")
        return (int(match[1]), match[2]) if match else (0, "M")


@dataclasses.dataclass(frozen=True)
class Mount:
    """A claim of storage in a cluster, and where pods see it."""

    claim: str
    path: str


@dataclasses.dataclass(frozen=True)
class KubernetesFlags:
    """What --target=kubernetes prints."""

    kind: str | None = None  # jobset, trainjob (Kubeflow Trainer 2) or tfjob (Training Operator 1) (None: jobset)
    image: str | None = None  # container image with this package; required
    namespace: str | None = None  # of the job (None: that of kubectl)
    volume: str | None = None  # CLAIM:/FOLDER, with commas between: persistent volume claims and where pods see them

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.kind is not None:
            check_name("kind", self.kind, KINDS)
        if self.namespace is not None and not _DNS_LABEL.fullmatch(self.namespace):
            raise UsageError(f"--namespace={self.namespace}: must be lower-case letters, digits and hyphens")
        self.mounts  # noqa: B018, it raises

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The claims of --volume."""
        return tuple(self._mount(part) for part in (self.volume or "").split(",") if part)

    def _mount(self, text: str) -> Mount:
        claim, colon, path = text.partition(":")
        if not (_CLAIM.fullmatch(claim) and colon and path.startswith("/") and path.strip("/")):
            raise UsageError(
                f"--volume={self.volume}: {text!r} is not CLAIM:/FOLDER, such as data:/data,runs:/runs for the "
                "persistent volume claims data and runs"
            )
        return Mount(claim, path.rstrip("/"))


@dataclasses.dataclass(frozen=True)
class SlurmFlags:
    """What --target=slurm prints."""

    time_limit: str | None = None  # such as 12:00:00 or 2-00:00:00; the run is saved and requeued before it
    tasks_per_node: int | None = None  # processes on each node (None: 1)
    partition: str | None = None  # where to run
    account: str | None = None  # whose time it is
    sbatch: str | None = None  # further options of sbatch, with semicolons between: '--qos=high; --exclude=n[1-4]'
    setup: str | None = None  # shell commands before the processes start: 'module load cuda; . venv/bin/activate'

    def __post_init__(self) -> None:
        """Checks the values."""
        check_least(self, 1, "tasks_per_node")
        if self.time_limit is not None and not _TIME.fullmatch(self.time_limit):
            raise UsageError(
                f"--time_limit={self.time_limit}: must be minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as "
                "12:00:00 or 2-00"
            )
        for option in self.options:
            if not option.startswith("-"):
                raise UsageError(f"--sbatch={self.sbatch}: {option!r} is not an option of sbatch, such as --qos=high")
        for flag in ("sbatch", "setup"):
            if "\n" in (getattr(self, flag) or ""):
                raise UsageError(f"--{flag}: must be one line")
        for flag in ("partition", "account"):
            value = getattr(self, flag)
            if value is not None and not _SLURM_NAMES.fullmatch(value):
                raise UsageError(f"--{flag}={value}: must be a name that sbatch takes, without spaces or quotes")

    @property
    def options(self) -> tuple[str, ...]:
        """The options of --sbatch."""
        return tuple(option.strip() for option in (self.sbatch or "").split(";") if option.strip())

    @property
    def limit_seconds(self) -> float | None:
        """Seconds of --time_limit, as Slurm reads it: a lone number is minutes, after days it is hours."""
        match = _TIME.fullmatch(self.time_limit or "")
        if not match:
            return None
        days, first, second, third = (None if part is None else int(part) for part in match.groups())
        if days is not None:
            return 86400 * days + 3600 * (first or 0) + 60 * (second or 0) + (third or 0)
        if third is not None:
            return 3600 * (first or 0) + 60 * (second or 0) + third
        return 60 * (first or 0) + (second or 0)


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """What a job needs on another scheduler.

    Attributes:
      processes: what all schedulers know.
      kubernetes: what Kubernetes alone knows.
      slurm: what Slurm alone knows.
    """

    processes: ProcessFlags = ProcessFlags()
    kubernetes: KubernetesFlags = KubernetesFlags()
    slurm: SlurmFlags = SlurmFlags()

    def check_meant_for(self, target: str) -> None:
        """Raises UsageError where a flag was given that `target` does not know."""
        if target == "local":
            _check_not_given(self.processes, target, "kubernetes or --target=slurm")
        for name, flags in (("kubernetes", self.kubernetes), ("slurm", self.slurm)):
            if name != target:
                _check_not_given(flags, target, name)


def check_local_only(flags: object, names: Sequence[str], target: str) -> None:
    """Raises UsageError where a flag was given, of the named ones, that only --target=local knows."""
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}  # type: ignore[arg-type]
    for name in names:
        value = getattr(flags, name)
        if value != defaults[name]:
            raise UsageError(
                f"--{name}={value} with --target={target}: is for --target=local; there, the scheduler restarts "
                f"processes by rules of its own; leave --{name} out"
            )


def _check_not_given(flags: object, target: str, meant: str) -> None:
    for field in dataclasses.fields(flags):  # type: ignore[arg-type]
        value = getattr(flags, field.name)
        if value is not None:
            raise UsageError(
                f"--{field.name}={value} with --target={target}: is for --target={meant}; leave --{field.name} out"
            )
