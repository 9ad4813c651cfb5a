"""`python -m trainer.launch`: a job of several trainer.run processes, with restarts, here or on another scheduler.

Exit codes: as for trainer.run; a failed job exits with the code of the process that failed first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from pipeline.commands import commandline
from pipeline.commands.flags import Mistakes, flags_of
from pipeline.errors import UsageError, name_of
from trainer.config import TrainConfig
from trainer.launching.flags import SCHEDULERS, launch_flags
from trainer.launching.job import Job, check_flags

COMMAND = "trainer.launch"


def main(argv: Sequence[str] | None = None, program: Sequence[str] | None = None) -> None:
    """Runs the command.

    Args:
      argv: command-line arguments; None for the process's own.
      program: program that runs the trainer here; for tests.

    Raises:
      PipelineError: any error that a user can cause; its exit code is the job's.
    """
    own, trainer_flags = _split(sys.argv[1:] if argv is None else argv)
    with Mistakes() as mistakes:
        with mistakes.noted():
            flags = commandline.parse(COMMAND, _description(), launch_flags(), own, others=_refuse)
        if trainer_flags is None:
            text = f"-- is missing: the flags of {_trainer()} follow it, as in {_example()}"
            mistakes.found.append(UsageError(text))
        elif mistakes.found:
            with mistakes.noted():
                check_flags(trainer_flags)
    job = Job.of(flags, trainer_flags or ())
    if flags.job.target == "local":
        commandline.require("tensorflow")
        from trainer.launching.local import run  # noqa: PLC0415, NumPy and rich, after --help

        run.run(job, program)
        return
    print(SCHEDULERS[flags.job.target].render(job), end="", flush=True)


def _description() -> str:
    return (
        f"Starts a job of several processes of {name_of('trainer.run')}, and starts again what fails: "
        f"{name_of('trainer.launch')} --num_workers=2 -- <flags of {name_of('trainer.run')}>. "
        f"{' and '.join(f'--target={name}' for name in SCHEDULERS)} print what starts the same job there."
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Returns the arguments before and after `--`; None if there is no `--`."""
    if "--" not in arguments:
        return list(arguments), None
    here = list(arguments).index("--")
    return list(arguments[:here]), list(arguments[here + 1 :])


def _refuse(arguments: Sequence[str], known: Sequence[str]) -> None:
    theirs = [token for token in arguments if token.partition("=")[0].removeprefix("--") in flags_of(TrainConfig)]
    with Mistakes() as mistakes:
        mistakes.found += [
            UsageError(f"{token}: is a flag of {_trainer()}; give it after --, as in {_example()}") for token in theirs
        ]
        with mistakes.noted():
            commandline.refuse([token for token in arguments if token not in theirs], known)


def _trainer() -> str:
    return name_of("trainer.run")


def _example() -> str:
    return f"{name_of(COMMAND)} --num_workers=2 -- ..."


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
