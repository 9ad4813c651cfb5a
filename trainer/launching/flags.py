"""The launcher's own flags, one group per concern; those of trainer.run follow after `--`."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Sequence
from typing import Any

from pipeline.commands.flags import check, check_all, check_most, flag
from pipeline.errors import UsageError, name_of, to_run

KINDS = ("jobset", "trainjob", "tfjob")
# Sizes as Slurm's users and Kubernetes' write them. 1500M is by 1024 in Slurm and by 1000 in Kubernetes.
_MEMORY = re.compile(r"(?=.*[1-9])(\d+)([KMGT])(i?)", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?")
# Names as Kubernetes checks them (apimachinery/pkg/util/validation). A job's name is also that of a service: RFC 1035.
_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NAMESPACE = re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_SECRET_KEY = re.compile(r"(?!\.\.?$)[-._a-zA-Z0-9]{1,253}")
_LABEL_NAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# An image as registries name it (github.com/distribution/reference).
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_WORD = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_WORD}(?:\.{_WORD})*|\[[0-9a-fA-F:]+\])(?::\d+)?"
_IMAGE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MOST_NUMBER = 2**31 - 1  # in Kubernetes: seconds, counts, users and groups
# What the launcher sets itself for each process.
_SET_HERE = ("TF_CONFIG", "TASK_INDEX", "PYTHONUNBUFFERED", "STEPFEED_HEARTBEAT", "STEPFEED_FRESH")
_SLURM_NAMES = re.compile(r"[A-Za-z0-9_.,+@/-]+")
_LONGEST_IMAGE = 255


@dataclasses.dataclass(frozen=True)
class Memory:
    """A size as a user wrote it.

    Attributes:
      amount: number of units.
      unit: K, M, G or T.
      is_binary: whether an i follows the unit, which is then 1024 times the one before; else it is the scheduler's.
    """

    amount: int
    unit: str
    is_binary: bool


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """The job's name on another scheduler, and what each of its processes gets there."""

    name: str | None = flag(None, "of the job, in lower-case letters, digits and hyphens (None: train)")
    cpus: int | None = flag(None, "of each process", least=1, most=_MOST_NUMBER)
    memory: str | None = flag(
        None, "of each process, such as 16Gi; or as the scheduler's users write it, such as 1500M"
    )
    port: int | None = flag(
        None, "that processes listen on (None: 2222; slurm: follows from the job's number)", least=1, most=65535
    )
    env: list[str] | None = flag(None, "variable of each process", metavar="NAME=VALUE", repeated=True)

    def __post_init__(self) -> None:
        """Checks the values."""
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
        """The values of --env by their names."""
        return _pairs("env", self.env, "NAME=VALUE, such as TF_CPP_MIN_LOG_LEVEL=1", _check_variable)

    @property
    def job_name(self) -> str:
        """The name of the job."""
        return self.name or "train"

    @property
    def memory_of(self) -> Memory | None:
        """The size that --memory gives."""
        match = _MEMORY.fullmatch(self.memory or "")
        return Memory(int(match[1]), match[2].upper(), bool(match[3])) if match else None


@dataclasses.dataclass(frozen=True)
class Mount:
    """A claim of storage in a cluster, and where pods see it."""

    claim: str
    path: str
    is_read_only: bool = False


@dataclasses.dataclass(frozen=True)
class KubernetesFlags:
    """What --target=kubernetes prints."""

    kind: str | None = flag(
        None, "jobset, trainjob (Kubeflow Trainer 2) or tfjob (Training Operator 1) (None: jobset)", known=KINDS
    )
    image: str | None = flag(None, "container image with this package; required")
    namespace: str | None = flag(None, "of the job (None: that of kubectl)")
    volume: str | None = flag(
        None, "CLAIM:/FOLDER or CLAIM:/FOLDER:ro, with commas between: claims and where pods see them"
    )
    secret_env: list[str] | None = flag(None, "variable from a secret", metavar="NAME=SECRET:KEY", repeated=True)
    service_account: str | None = flag(None, "that pods run as (None: the namespace's default)")
    node_selector: list[str] | None = flag(None, "of the nodes to run on", metavar="LABEL=VALUE", repeated=True)
    toleration: list[str] | None = flag(None, "of a taint of nodes", metavar="KEY[=VALUE][:EFFECT]", repeated=True)
    priority_class: str | None = flag(None, "of the pods")
    pull_secret: list[str] | None = flag(None, "for the image's registry", metavar="SECRET", repeated=True)
    run_as: str | None = flag(
        None, "UID or UID:GID of the processes; volumes are given to the group (None: the image's)"
    )
    ttl: int | None = flag(
        None, "seconds after its end at which the job is deleted (None: never)", least=0, most=_MOST_NUMBER
    )

    def __post_init__(self) -> None:
        """Checks the values."""
        check_all(
            *(lambda: check(self), lambda: check_most(self)),
            *(self._check_namespace, self._check_image, self._check_objects),
            *(lambda: self.mounts, lambda: self.secrets, lambda: self.node_labels),
            *(lambda: self.tolerations, lambda: self.user),
        )

    def _check_namespace(self) -> None:
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise UsageError(
                f"--namespace={self.namespace}: must be lower-case letters, digits and hyphens, at most 63"
            )

    def _check_image(self) -> None:
        if self.image and not (_IMAGE.fullmatch(self.image) and len(self.image) <= _LONGEST_IMAGE):
            raise UsageError(
                f"--image={self.image}: is not the name of an image, such as registry.example/team/stepfeed:0.2.0"
            )

    def _check_objects(self) -> None:
        for field in ("service_account", "priority_class"):
            if (name := getattr(self, field)) is not None:
                _check_name_of_object(field, name, name)
        for name in self.pull_secret or ():
            _check_name_of_object("pull_secret", name, name)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The claims of --volume."""
        mounts = tuple(self._mount(part) for part in (self.volume or "").split(",") if part)
        paths = [mount.path for mount in mounts]
        for path in paths:
            if paths.count(path) > 1:
                raise UsageError(f"--volume={self.volume}: {path} is there twice; give each claim its own folder")
        return mounts

    @property
    def secrets(self) -> dict[str, tuple[str, str]]:
        """Secret and key of --secret_env by the names of variables."""
        found = {}
        form = "NAME=SECRET:KEY, such as AWS_SECRET_ACCESS_KEY=store:key"
        for name, value in _pairs("secret_env", self.secret_env, form, _check_variable).items():
            secret, colon, key = value.partition(":")
            if not (colon and _SECRET_KEY.fullmatch(key)):
                raise UsageError(f"--secret_env={name}={value}: must be {form}")
            _check_name_of_object("secret_env", secret, f"{name}={value}")
            found[name] = (secret, key)
        return found

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels of --node_selector."""
        found = _pairs("node_selector", self.node_selector, "LABEL=VALUE, such as pool=gpu", _check_label)
        for name, value in found.items():
            _check_label_value("node_selector", value, f"{name}={value}")
        return found

    @property
    def tolerations(self) -> list[dict[str, str]]:
        """The taints of --toleration, as a pod has them."""
        return [_toleration(text) for text in self.toleration or ()]

    @property
    def user(self) -> tuple[int, int] | None:
        """User and group of --run_as; without a group, the one of the user's number."""
        if self.run_as is None:
            return None
        user, colon, group = self.run_as.partition(":")
        ids = (user, group if colon else user)
        if not all(each.isascii() and each.isdecimal() and int(each) <= _MOST_NUMBER for each in ids):
            raise UsageError(
                f"--run_as={self.run_as}: must be UID or UID:GID, numbers up to {_MOST_NUMBER}, such as 1000:100"
            )
        return int(ids[0]), int(ids[1])

    def _mount(self, text: str) -> Mount:
        claim, colon, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        path = path.rstrip("/")
        if not (
            _SUBDOMAIN.fullmatch(claim)
            and colon
            and path.startswith("/")
            and posixpath.normpath(path) == path
            and not path.startswith("//")
            and rest.partition(":")[1:] in (("", ""), (":", "ro"))
        ):
            raise UsageError(
                f"--volume={self.volume}: {text!r} is not CLAIM:/FOLDER or CLAIM:/FOLDER:ro, such as "
                "data:/data:ro,runs:/runs for the claims data and runs; a folder has no colon and no .."
            )
        return Mount(claim, path, mode == "ro")


@dataclasses.dataclass(frozen=True)
class SlurmFlags:
    """What --target=slurm prints."""

    time_limit: str | None = flag(None, "such as 12:00:00 or 2-00:00:00; the run is saved and requeued before it")
    tasks_per_node: int | None = flag(None, "processes on each node (None: 1)", least=1)
    partition: str | None = flag(None, "where to run")
    account: str | None = flag(None, "whose time it is")
    sbatch: str | None = flag(
        None, "further options of sbatch, with semicolons between: '--qos=high; --exclude=n[1-4]'"
    )
    setup: str | None = flag(None, "shell commands before the processes start: 'module load cuda; . venv/bin/activate'")

    def __post_init__(self) -> None:
        """Checks the values."""
        check_all(lambda: check(self), self._check_time, self._check_options, self._check_lines, self._check_names)

    def _check_time(self) -> None:
        if self.time_limit is not None and not _TIME.fullmatch(self.time_limit):
            raise UsageError(
                f"--time_limit={self.time_limit}: must be minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as "
                "12:00:00 or 2-00"
            )

    def _check_options(self) -> None:
        for option in self.options:
            if not option.startswith("-"):
                raise UsageError(f"--sbatch={self.sbatch}: {option!r} is not an option of sbatch, such as --qos=high")

    def _check_lines(self) -> None:
        for name in ("sbatch", "setup"):
            if "\n" in (getattr(self, name) or ""):
                raise UsageError(f"--{name}: must be one line")

    def _check_names(self) -> None:
        for name in ("partition", "account"):
            value = getattr(self, name)
            if value is not None and not _SLURM_NAMES.fullmatch(value):
                raise UsageError(f"--{name}={value}: must be a name that sbatch takes, without spaces or quotes")

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


def _pairs(flag: str, given: Sequence[str] | None, form: str, check: Any) -> dict[str, str]:
    """Returns the values of a flag that may be given several times, by the names before `=`.

    Raises:
      UsageError: one has no `=`, a name is there twice, or `check` of the flag, the name and the text raises it.
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


def _check_variable(flag: str, name: str, text: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise UsageError(
            f"--{flag}={text}: a variable's name must be letters, digits and _, and not begin with a digit"
        )
    if name in _SET_HERE:
        raise UsageError(f"--{flag}={text}: the launcher sets {name} for each process; leave it out")
    if "\0" in text:
        raise UsageError(f"--{flag}={name}: must not have a zero byte")


def _check_label(flag: str, name: str, text: str) -> None:
    prefix, slash, rest = name.rpartition("/")
    if not ((_SUBDOMAIN.fullmatch(prefix) if slash else True) and _LABEL_NAME.fullmatch(rest)):
        raise UsageError(
            f"--{flag}={text}: {name!r} is not a name of a label, such as pool or cloud.google.com/gke-accelerator"
        )


def _check_label_value(flag: str, value: str, text: str) -> None:
    if value and not _LABEL_NAME.fullmatch(value):
        raise UsageError(
            f"--{flag}={text}: {value!r} must be at most 63 letters, digits, '-', '_' and '.', and begin and end with "
            "a letter or digit"
        )


def _check_name_of_object(flag: str, name: str, text: str) -> None:
    if not _SUBDOMAIN.fullmatch(name):
        raise UsageError(
            f"--{flag}={text}: {name!r} must be lower-case letters, digits, hyphens and dots, and begin and end with a "
            "letter or digit"
        )


def _toleration(text: str) -> dict[str, str]:
    taint, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
    key, equals, value = taint.partition("=")
    _check_label("toleration", key, text)
    _check_label_value("toleration", value, text)
    if colon and effect not in _EFFECTS:
        raise UsageError(f"--toleration={text}: the effect must be one of {', '.join(_EFFECTS)}, or left out for all")
    operator = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **operator, **({"effect": effect} if colon else {})}


def _check_no_variable_twice(processes: ProcessFlags, kubernetes: KubernetesFlags) -> None:
    """Raises UsageError if a variable is given a value and a secret."""
    for name in kubernetes.secrets:
        if name in processes.variables:
            raise UsageError(f"--secret_env: {name} is given by --env, too; leave one out")


def _check_local_only(flags: object, names: Sequence[str], target: str) -> None:
    """Raises UsageError if one of the named flags was given, which only --target=local knows."""
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}  # type: ignore[arg-type]
    for name in names:
        value = getattr(flags, name)
        if value != defaults[name]:
            raise UsageError(
                f"--{name}={value} with --target={target}: is for --target=local; there, the scheduler restarts "
                f"processes by its own rules; leave --{name} out"
            )


def _check_not_given(flags: object, target: str, meant: str) -> None:
    """Raises UsageError if a flag was given that `meant` knows, but `target` does not."""
    for field in dataclasses.fields(flags):  # type: ignore[arg-type]
        value = getattr(flags, field.name)
        if value is not None:
            shown = value[0] if isinstance(value, list) else value
            raise UsageError(
                f"--{field.name}={shown} with --target={target}: is for --target={meant}; leave --{field.name} out"
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
        f"port at which to serve a page about the job, too, as {name_of('trainer.watch')} does; without a value: "
        f"{PAGE_PORT}, or if that is taken any free one",
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

    max_restarts: int = flag(10, "of the group, or of each asynchronous worker; 0: none", least=0, most=_MOST_NUMBER)
    restart_delay: float = flag(
        1.0,
        "seconds before the first restart; doubles with each one that made no progress",
        least=0,
        most=_MOST_NUMBER,
    )
    silent_timeout: float = flag(
        120.0,
        "seconds without a sign of life, or of steps, after which a process is killed",
        above=0,
        most=_MOST_NUMBER,
    )
    stop_timeout: float = flag(
        120.0, "seconds that processes have to save and end before they are killed", above=0, most=_MOST_NUMBER
    )
    regrow_delay: float = flag(
        60.0,
        "seconds before a lost worker is tried again; doubles with each time it is lost",
        least=0,
        most=_MOST_NUMBER,
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
        check_all(lambda: _check_no_variable_twice(self.processes, self.kubernetes), self._check_target)

    def _check_target(self) -> None:
        if self.job.target == "local":
            _check_not_given(self.processes, "local", "kubernetes or --target=slurm")
        for name, flags in (("kubernetes", self.kubernetes), ("slurm", self.slurm)):
            if name != self.job.target:
                _check_not_given(flags, self.job.target, name)
        if self.job.target != "local":
            _check_local_only(self.restarts, ("restart_delay", "regrow_delay", "elastic"), self.job.target)
        if self.job.target == "slurm" and self.job.page is not None:
            raise UsageError(
                f"--page={self.job.page} with --target=slurm: is for --target=local and kubernetes; where the run's "
                f"folder is mounted, run {to_run('trainer.watch')} FOLDER"
            )
        if self.job.target == "slurm":
            _check_local_only(self.restarts, ("silent_timeout",), self.job.target)
