"""Errors a user can cause, each with the exit code that the commands end with."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator

EXIT_DATA = 1
EXIT_USAGE = 2
EXIT_RERUN = 75  # EX_TEMPFAIL of sysexits.h: not finished; rerun the same command
_MOST_LISTED = 20  # names in one line


class PipelineError(Exception):
    """Base of the errors below: one line that says what, where, the value, the bound and what to do."""

    exit_code = EXIT_DATA
    ag_pass_through = True  # TensorFlow's autograph raises it as it is, not as a StagingError of many lines


class DataError(PipelineError, OSError):
    """A file is missing, cut, changed or invalid."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TransientError(DataError):
    """The system, a store or a worker failed (disk full, network lost): a rerun may succeed with the same data."""


class UsageError(PipelineError, ValueError):
    """An argument or flag has a value that cannot work."""

    exit_code = EXIT_USAGE


class RerunError(PipelineError):
    """The run stopped before its end with its state saved, or cannot begin yet: rerun the same command."""

    exit_code = EXIT_RERUN


def unknown(what: str, value: str, known: Iterable[str]) -> UsageError:
    """Returns the error for a name that is not one of `known`, with the nearest of them.

    Args:
      what: the flag or argument, as the user wrote it (`--model`).
      value: the unknown name.
      known: the names that work.
    """
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = f"known: {', '.join(names)}" if len(names) <= _MOST_LISTED else "see --help"
    return UsageError(f"{what}: unknown {value!r}; {hint}{listed}")


@contextlib.contextmanager
def named(what: object, problem: str) -> Iterator[None]:
    """Context in which an OSError becomes a DataError: `<what>: <problem>: <the system's reason>`.

    Args:
      what: the file, folder or flag.
      problem: what failed (`cannot be written`).
    """
    try:
        yield
    except PipelineError:
        raise
    except OSError as error:
        raise DataError(f"{what}: {problem}: {error.strerror or error}") from None
