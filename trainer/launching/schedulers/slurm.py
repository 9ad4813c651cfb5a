"""`--target=slurm`: a job as a script for sbatch."""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
import re
import shlex

from pipeline.commands.flags import check, check_all, fields_with, flag
from pipeline.errors import UsageError, to_run
from trainer.checkpoint import fresh
from trainer.config.meaning import PARAMETER_SERVER
from trainer.launching.flags import SCHEDULERS, LaunchFlags, check_local_only
from trainer.launching.job import Job

# The reasons for the script's design, from Slurm's sources and manuals:
# - SIGTERM to srun kills the tasks immediately ("forcing job termination"), so scancel passes the warning on.
# - The warning is SIGUSR1, and goes only to this script: scancel and preemption send SIGTERM, which should end the job.
# - srun returns the highest exit code of all tasks: one task's 1 or 2 would be lost among the 75 of the others.
# - srun returns 127 if a command is not found, as `wait` does for a child that was already waited for.
# - --kill-on-bad-exit would kill tasks while they save, and after a 75, too. So after a final failure scancel asks the
#   others to save and end, as the local launcher does; once, since a second SIGTERM ends a task without saving.
# - scontrol requeue keeps the job id, so the restarts are counted in a file named after it, which also has the newest
#   checkpoint at that time: a newer one resets the count. The file exists only after the first step.
# - Task 0, the chief, runs on this script's node; its heartbeat tells whether it has made a step.
_SCRIPT = "slurm.sh"  # template with @NAMES@ as placeholders
_OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm")
_MOST_WARNING = 65535  # maximum seconds in sbatch's --signal
_MOST_PORT = 65535
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?")
_NAMES = re.compile(r"[A-Za-z0-9_.,+@/-]+")
# Options of sbatch that the script sets itself, by long and short name, with our flag for each.
_SET_HERE = {
    **dict.fromkeys(("--job-name", "-J"), "--name"),
    **dict.fromkeys(("--nodes", "-N", "--ntasks", "-n"), "--num_workers, --num_ps and --tasks_per_node"),
    "--ntasks-per-node": "--tasks_per_node",
    **dict.fromkeys(("--cpus-per-task", "-c"), "--cpus"),
    "--mem": "--memory",
    "--gpus-per-task": "--gpus_per_worker",
    **dict.fromkeys(("--time", "-t"), "--time_limit"),
    **dict.fromkeys(("--partition", "-p"), "--partition"),
    **dict.fromkeys(("--account", "-A"), "--account"),
    "--signal": "--stop_timeout",
    **dict.fromkeys(("--requeue", "--no-requeue"), "--max_restarts"),
}


@dataclasses.dataclass(frozen=True)
class SlurmFlags:
    """What --target=slurm prints."""

    time_limit: str | None = flag(None, "12:00:00 or 2-00:00:00, for example; the run is saved and requeued before it")
    tasks_per_node: int | None = flag(None, "processes on each node (None: 1)", least=1)
    partition: str | None = flag(None, "partition to run in", meaning={"is_name": True})
    account: str | None = flag(None, "account to charge", meaning={"is_name": True})
    sbatch: str | None = flag(
        None,
        "further sbatch options, separated by semicolons: '--qos=high; --exclude=n[1-4]'",
        meaning={"is_line": True},
    )
    setup: str | None = flag(
        None,
        "shell commands before the processes start: 'module load cuda; . venv/bin/activate'",
        meaning={"is_line": True},
    )

    def __post_init__(self) -> None:
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
        for field in fields_with(self, "is_line"):
            if "\n" in (getattr(self, field.name) or ""):
                raise UsageError(f"--{field.name}: must be one line")

    def _check_names(self) -> None:
        for field in fields_with(self, "is_name"):
            value = getattr(self, field.name)
            if value is not None and not _NAMES.fullmatch(value):
                raise UsageError(f"--{field.name}={value}: must be a name valid for sbatch, without spaces or quotes")

    @property
    def options(self) -> tuple[str, ...]:
        """The options in --sbatch."""
        return tuple(option.strip() for option in (self.sbatch or "").split(";") if option.strip())

    @property
    def limit_seconds(self) -> float | None:
        """The seconds in --time_limit as Slurm reads it: a single number means minutes, or hours after days."""
        match = _TIME.fullmatch(self.time_limit or "")
        if not match:
            return None
        days, first, second, third = (None if part is None else int(part) for part in match.groups())
        if days is not None:
            return 86400 * days + 3600 * (first or 0) + 60 * (second or 0) + (third or 0)
        if third is not None:
            return 3600 * (first or 0) + 60 * (second or 0) + third
        return 60 * (first or 0) + (second or 0)


def _check_only_here(launch: LaunchFlags, flags: SlurmFlags) -> None:
    del flags
    if launch.job.page is not None:
        raise UsageError(
            f"--page={launch.job.page} with --target=slurm: is for --target=local and kubernetes; where the run's "
            f"folder is mounted, run {to_run('trainer.watch')} FOLDER"
        )
    check_local_only(launch.restarts, "needs_beats", "slurm")


@SCHEDULERS.named("slurm", flags=SlurmFlags, check=_check_only_here)
def render(job: Job) -> str:
    """Returns the script.

    Raises:
      UsageError: a flag is missing, or cannot be used with Slurm.
    """
    flags: SlurmFlags = job.launch.own
    _check(job, flags)
    per_node = flags.tasks_per_node or 1
    roles = [role for role, count in job.roles.items() for _ in range(count)]
    port = job.launch.processes.port
    parts = {
        "OPTIONS": "\n".join(f"#SBATCH {option}" for option in _options(job, flags, len(roles), per_node)),
        "VARIABLES": "\n".join(
            [f"export {name}={shlex.quote(value)}" for name, value in job.launch.processes.variables.items()]
            # Stays the same after a requeue, but changes if the script is submitted again.
            + ([f'export {fresh.VARIABLE}="$SLURM_JOB_ID"'] if job.config.run.fresh else [])
        ),
        "SETUP": _setup(flags.setup) if flags.setup else "",
        "MODEL_DIR": shlex.quote(str(job.folder.path)),
        "COMMAND": shlex.join(job.command),
        "ROLES": " ".join(roles),
        "TASKS": str(len(roles)),
        "PORT": str(port) if port else f"$((10000 + SLURM_JOB_ID * {per_node} % 20000))",
        "PER_NODE": str(per_node),
        "RESTARTS": str(job.restarts.max_restarts),
        "ALONE": "yes" if job.strategy == PARAMETER_SERVER else "no",
        "SRUN": _srun_options(job, len(roles), per_node),
        "NAME": job.launch.processes.job_name,
    }
    script = importlib.resources.files(__package__).joinpath(_SCRIPT).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: parts[match[1]], script)


def _options(job: Job, flags: SlurmFlags, tasks: int, per_node: int) -> list[str]:
    processes, memory = job.launch.processes, job.launch.processes.memory_of
    given = {
        "job-name": processes.job_name,
        "nodes": tasks // per_node,
        "ntasks-per-node": per_node,
        "cpus-per-task": processes.cpus,
        "mem": f"{memory.amount * per_node}{memory.unit}" if memory else None,  # Slurm's units are powers of 1024
        "gpus-per-task": job.launch.job.gpus_per_worker or None,
        "time": flags.time_limit,
        "partition": flags.partition,
        "account": flags.account,
        "signal": f"B:USR1@{math.ceil(job.restarts.stop_timeout)}",
        "output": f"{processes.job_name}-%j.log",
        "open-mode": "append",
    }
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*options, "--requeue", *flags.options]


def _setup(line: str) -> str:
    """Returns the lines that prepare the job, and end it on failure; not in braces, so that `set -e` works."""
    failed = 'echo "--setup failed with code $code; the job is not requeued" >&2; exit "$code"'
    return f'{line}\ncode=$?\nif [ "$code" -ne 0 ]; then {failed}; fi'


def _srun_options(job: Job, tasks: int, per_node: int) -> str:
    cpus = job.launch.processes.cpus
    return " ".join(
        [
            f"--ntasks={tasks} --ntasks-per-node={per_node} --distribution=block",
            *([f"--cpus-per-task={cpus}"] if cpus else []),  # srun does not inherit it from sbatch
            "--kill-on-bad-exit=0 --wait=0",
        ]
    )


def _check(job: Job, flags: SlurmFlags) -> None:
    tasks, per_node = sum(job.roles.values()), flags.tasks_per_node or 1
    for option in flags.options:
        name = re.split(r"[=\s]", option, maxsplit=1)[0]
        name = name if name.startswith("--") else name[:2]  # -N4 means -N 4
        if name in _SET_HERE:
            raise UsageError(f"--sbatch: {option!r}: the launcher sets {name} itself; give {_SET_HERE[name]}")
    port = job.launch.processes.port
    if port and port + per_node - 1 > _MOST_PORT:
        raise UsageError(
            f"--port={port} with --tasks_per_node={per_node}: a node's processes listen on ports from this one on; "
            f"must be {_MOST_PORT - per_node + 1} or less"
        )
    if tasks % per_node:
        kinds = ", ".join(f"{count} {role}" for role, count in job.roles.items())
        raise UsageError(f"--tasks_per_node={per_node}: must divide the {tasks} processes of the job ({kinds})")
    if tasks > per_node and f"{job.folder.path}/".startswith(tuple(f"{folder}/" for folder in _OF_ONE_NODE)):
        raise UsageError(
            f"{job.folder}: is local to each node; with {tasks // per_node} nodes it must be "
            "on a file system that they share"
        )
    if job.restarts.stop_timeout > _MOST_WARNING:
        raise UsageError(
            f"--stop_timeout={job.restarts.stop_timeout:g}: must be {_MOST_WARNING} or less with --target=slurm"
        )
    seconds = flags.limit_seconds
    if seconds is not None and seconds <= job.restarts.stop_timeout:
        raise UsageError(
            f"--time_limit={flags.time_limit}: must be more than the {job.restarts.stop_timeout:g} s (--stop_timeout) "
            "that are kept for saving"
        )
