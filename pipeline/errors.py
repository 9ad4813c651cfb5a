"""Errors that a user can cause, with the commands' exit codes; and one-line texts for other libraries' errors."""

from __future__ import annotations

import contextlib
import copy
import difflib
import errno
import os
import re
import resource
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Self

EXIT_DATA = 1
EXIT_USAGE = 2
EXIT_RERUN = 75  # EX_TEMPFAIL of sysexits.h: unfinished; rerun the same command
# {module: name of its command in messages} if the user started it as `stepfeed NAME`, which sets the variable before
# this module is imported, here and in the processes that it starts (workers of a job or of Beam).
_SUBCOMMANDS = (pair.partition("=") for pair in os.environ.get("STEPFEED_COMMANDS", "").split(";") if pair)
SUBCOMMANDS: dict[str, str] = {module: name for module, _, name in _SUBCOMMANDS}
_MOST_LISTED = 20  # most names in one line
_MOST_CHARACTERS = 300  # most characters shown of a TensorFlow message
_MOST_OF_REASON = 400  # most characters of a system or store message: without Java, HDFS lists 100 folders
_TOO_LARGE = os.strerror(errno.EFBIG)
_REMEDIES = {  # {system's reason: what to do}
    os.strerror(errno.ENOSPC): "make room",
    os.strerror(errno.EDQUOT): "make room",
    os.strerror(errno.EROFS): "name another place, or mount it writable",
}
_OF_STORE = re.compile(r"AWS Error|google::cloud::Status")  # in the text of pyarrow errors, which have no errno

# Lines of TensorFlow's error messages that only name a location in the graph, the Python code or the cluster.
_LOCATES = re.compile(
    r"\s*(Graph execution error:|Detected at node|File \"|\[\[|From /job:|<stack traces? unavailable>|"
    r"The op is created at:|Traceback \(most recent call last\)|\d+ root error\(s\) found|\d+ successful operations|"
    r"\d+ derived errors? ignored)"
)
_ROOT = re.compile(r"^[ \t]*\(\d+\)[ \t]+([A-Z_]{2,}):", re.MULTILINE)  # item of a list: `  (0) ABORTED:  text`
_NAMES = re.compile(r"\{\{[^}]*\}\}\s*| ?__inference_\w+(\[[^\]]*\])?| *\[Op:\w*\]")  # nodes and compiled functions
_CONSEQUENCES = ("CANCELLED", "ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED")  # codes of errors caused by other errors
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # in Keras' messages
# Keras' lines before the message itself.
_CALLING = ("Exception encountered when calling ", "Could not automatically infer the ", "Error encountered:")
_SITE = ("site-packages", "dist-packages")  # pip installs into these folders
_OURS = ("pipeline", "trainer", "beam_jobs", "stepfeed")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Flags that replace something or lift a protection: no hint may suggest them to a user.
_NEVER_SUGGESTED = frozenset({"overwrite", "allow_order_change", "allow_model_change", "update", "fresh"})


class PipelineError(Exception):
    """Base of the errors below. The text is one line: where, what is wrong, the value, the bound, what to do.

    Code reads the fields; the text is for people, and only this class makes it.

    Attributes:
      reason: description of what is wrong.
      path: file, folder or URL; None if the error is not about a file or `reason` names it.
      part: place in that file, in words, such as `line 3`; empty if `record` is set or the whole file is meant.
      record: number of the record in that file, from 0.
      offset: byte offset of the record in the file.
      decompressed: whether the offset counts decompressed bytes.
      advice: advice on what to do; empty if `reason` includes it or there is none.
      lost: names, in the job, of the processes whose end caused this one's; empty if the error is this process's own.
    """

    exit_code = EXIT_DATA
    ag_pass_through = True  # keeps TensorFlow's autograph from wrapping it in a StagingError of many lines

    def __init__(
        self,
        reason: str = "",
        *,
        path: object = None,
        part: str = "",
        record: int | None = None,
        offset: int | None = None,
        decompressed: bool = False,
        advice: str = "",
        lost: Iterable[str] = (),
    ) -> None:
        super().__init__(reason)
        self.reason, self.advice, self.lost = reason, advice, tuple(lost)
        self.path, self.part = None if path is None else str(path), part
        self.record, self.offset, self.decompressed = record, offset, decompressed

    @property
    def mistakes(self) -> tuple[PipelineError, ...]:
        """Errors reported together, one line each: only this one, unless several flags are wrong."""
        return (self,)

    @property
    def where(self) -> str:
        """Faulty place, such as `folder/file, record 3, byte offset 120`; empty if there is none."""
        if self.path is None:
            return ""
        part = f", {self.part}" if self.part else ""
        return location(f"{self.path}{part}", self.record, self.offset, self.decompressed)

    def changed(self, **fields: Any) -> Self:
        """Returns the same error with new values of some fields."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    def advised(self, advice: str) -> Self:
        """Returns the same error with more advice."""
        return self.changed(advice="; ".join(filter(None, (self.advice, advice))))

    def __str__(self) -> str:
        said = f"{self.where}: {self.reason}" if self.where else self.reason
        return f"{said}; {self.advice}" if self.advice else said


def location(path: object, record: int | None, offset: int | None, decompressed: bool = False) -> str:
    """Returns the words for a place in a file: `folder/file, record 3, byte offset 120`."""
    record_said = "" if record is None else f", record {record}"
    offset_said = "" if offset is None else f", byte offset {offset}"
    return f"{path}{record_said}{offset_said}{' of the decompressed bytes' if decompressed else ''}"


class DataError(PipelineError, OSError):
    """A file is missing, cut short, changed or invalid."""

    __str__ = PipelineError.__str__  # not OSError's


class TransientError(DataError):
    """The system, a store or a worker failed (disk full, network lost): a rerun may succeed with the same data."""


class UsageError(PipelineError, ValueError):
    """An argument or flag has a value that cannot work.

    Attributes:
      argument: name of the faulty argument or flag; None if `reason` includes it.
      value: value of that argument; None if `reason` includes it.
    """

    exit_code = EXIT_USAGE

    def __init__(
        self, reason: str = "", *, argument: str | None = None, value: str | None = None, **fields: Any
    ) -> None:
        super().__init__(reason, **fields)
        self.argument, self.value = argument, value

    @property
    def where(self) -> str:
        """The argument with its value, or the place in a file."""
        if self.argument is None:
            return super().where
        return self.argument if self.value is None else f"{self.argument}={self.value!r}"


class MistakesError(UsageError):
    """Several mistakes in flags, one per line.

    Without mistakes it has no message: a check needed the value of a flag that another error already reports.
    """

    def __init__(self, mistakes: Iterable[PipelineError] = ()) -> None:
        super().__init__()
        self._mistakes = tuple(mistakes)

    @property
    def mistakes(self) -> tuple[PipelineError, ...]:
        """Errors that it reports together."""
        return self._mistakes

    def __str__(self) -> str:
        return "\n".join(map(str, self._mistakes))


class RerunError(PipelineError):
    """The run stopped early with its state saved, or cannot start yet: rerun the same command."""

    exit_code = EXIT_RERUN


def name_of(command: str) -> str:
    """Returns the name of a module's command in messages: `trainer.run`, or `stepfeed train` if the user typed that."""
    return SUBCOMMANDS.get(command, command)


def to_run(command: str) -> str:
    """Returns how to start a command: `python -m trainer.run`, or `stepfeed train` if the user typed that form."""
    return SUBCOMMANDS.get(command, f"python -m {command}")


def unknown(what: str, value: str, known: Iterable[str]) -> UsageError:
    """Returns an error about a name that is not in `known`, which suggests the nearest one if that is harmless.

    Args:
      what: flag or argument as the user wrote it, such as `--model`.
      value: the unknown name.
      known: valid names.
    """
    names = sorted(set(known))
    near = nearest(value, names)
    hint = f"did you mean {near!r}? " if near else ""
    return UsageError(f"unknown {value!r}; {hint}{names_that_work(names)}", argument=what)


def nearest(value: str, known: Iterable[str]) -> str | None:
    """Returns the known name most similar to a value; None if there is none, or the hint could do harm."""
    near = difflib.get_close_matches(value, list(known), n=1, cutoff=0.5)
    is_harmless = near and near[0].removeprefix("--").removeprefix("no") not in _NEVER_SUGGESTED
    return near[0] if is_harmless else None


def names_that_work(known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the known names, or where to find them if there are many."""
    names = sorted(set(known))
    return f"known: {', '.join(names)}" if len(names) <= _MOST_LISTED else "see --help"


def root_cause(message: str) -> tuple[str | None, str]:
    """Returns the code and the line of a TensorFlow message that describe what happened.

    An error in a compiled function lists where its node was created. If several operations failed, as on several
    replicas, the message is `2 root error(s) found.` and a list. The result is the first error that is not a
    consequence of another one, as a cancelled operation is.

    Args:
      message: message of a `tf.errors.OpError`; this function does not load TensorFlow.

    Returns:
      The code, such as INVALID_ARGUMENT, or None if the message lists no errors (the error's class then determines it);
      and a line of at most 300 characters, empty if the message has no content.
    """
    before, *listed = _ROOT.split(_NAMES.sub("", message))
    if not listed:
        return None, _first_line(before)
    roots = [(code, line) for code, body in zip(listed[::2], listed[1::2], strict=True) if (line := _first_line(body))]
    if not roots:
        return listed[0], ""
    return min(roots, key=lambda root: _CONSEQUENCES[::-1].index(root[0]) + 1 if root[0] in _CONSEQUENCES else 0)


def message_of(error: Exception) -> str:
    """Returns the message of a TensorFlow error.

    A message that contains bytes of a record arrives as a UnicodeDecodeError, whose `object` is the message.
    """
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="backslashreplace")
    return str(getattr(error, "message", error))


def _first_line(text: str) -> str:
    """Returns the first line with more than a location, and the next one if the first ends with a colon."""
    lines = (line.strip() for line in text.splitlines() if line.strip() and not _LOCATES.match(line))
    said = next(lines, "")
    if said.endswith(":"):  # such as `The following tasks are unhealthy (stopped sending heartbeats):` before the tasks
        said = f"{said} {next(lines, '')}".rstrip(": ")
    return said[:_MOST_CHARACTERS]


def of_user(error: BaseException) -> str:
    """Returns one line about an error in user code: `my_models.py:12: ValueError: text`.

    The place is the innermost line in a file that is not Python's, ours or installed by pip, if there is one.
    """
    place = place_of(error)
    return f"{place}: {said_by(error)}" if place else said_by(error)


def said_by(error: BaseException) -> str:
    """Returns the class of an error and the line of its message that describes what happened, `ValueError: text`."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{kind}: {error.msg}"
    lines = [line.strip() for line in _NAMES.sub("", _COLOURS.sub("", str(error))).splitlines() if line.strip()]
    if hasattr(error, "ag_error_metadata"):  # autograph puts the user's code before the message
        lines = lines[-1:]
    said = next((line for line in lines if not line.startswith(_CALLING)), "")[:_MOST_CHARACTERS]
    return said if said.startswith(f"{kind}: ") else f"{kind}: {said}" if said else kind


def place_of(error: BaseException, skipped: int = 0) -> str | None:
    """Returns the file and line in user code where an error was raised; None if it was raised elsewhere.

    Args:
      error: error that was raised.
      skipped: number of outermost frames that are not the user's, regardless of their files.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[skipped:]]
    if metadata := getattr(error, "ag_error_metadata", None):  # lines of the user's file rather than autograph's copy
        frames += [(frame.filename, frame.lineno) for frame in reversed(metadata.translated_stack)]
    places = [f"{_shown(file)}:{line}" for file, line in frames if _is_of_user(file)]
    return places[-1] if places else None


def place_of_call() -> str | None:
    """Returns the file and line of the innermost running call in user code; None if there is none."""
    frames = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None))
    return next((f"{_shown(file)}:{line}" for file, line in frames if _is_of_user(file)), None)


def _is_of_user(file: str) -> bool:
    if file.startswith("<") or "__autograph_generated_file" in file:
        return False
    path = os.path.abspath(file)
    library = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    ours = tuple(os.path.join(_HERE, name, "") for name in _OURS)
    return not (path.startswith((*library, *ours)) or set(_SITE) & set(path.split(os.sep)))


def _shown(file: str) -> str:
    """Returns a path, relative to the working directory if it is inside."""
    shown = os.path.relpath(file)
    return os.path.abspath(file) if shown.startswith(os.pardir) else shown


def reason_of(error: BaseException, is_advised: bool = False) -> str:
    """Returns one line on why the system or a store failed, without the file's name if that is known already.

    Args:
      error: the error.
      is_advised: whether advice follows, so that no remedy is added.
    """
    if isinstance(error, PipelineError):
        return str(error)
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    text = " ".join(str(text).split())
    text = (text if len(text) <= _MOST_OF_REASON else f"{text[:_MOST_OF_REASON]}...") or type(error).__name__
    return text if is_advised and text in _REMEDIES else with_remedy(text)


def with_remedy(reason: str) -> str:
    """Returns a reason, with a remedy for a full disk, a mount or a limit.

    For a file that is too large, the remedy follows the largest size that this process may write.
    """
    for text, remedy in _REMEDIES.items():
        if reason.endswith(text):
            return f"{reason}; {remedy}"
    if not reason.endswith(_TOO_LARGE):
        return reason
    most_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most_bytes == resource.RLIM_INFINITY:
        return f"{reason} for this file system; use another one, or smaller files"
    why = f"this process may write files of {most_bytes:,} bytes at most"
    return f"{reason}: {why}; raise ulimit -f and rerun the command"


def line_of(error: BaseException) -> str:
    """Returns the first line of a library's error, or the error's class if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def named(what: object, problem: str, advice: str = "") -> Iterator[None]:
    """Turns an OSError in the block into a DataError: `<what>: <problem>: <the system's reason>; <advice>`.

    Args:
      what: file, folder or flag.
      problem: description of what failed (`cannot be written`).
      advice: advice on what to do.
    """
    try:
        yield
    except PipelineError:
        raise
    except OSError as error:
        raise DataError(f"{problem}: {reason_of(error, bool(advice))}", path=what, advice=advice) from None


@contextlib.contextmanager
def as_flag(argument: str, flag: str) -> Iterator[None]:
    """Turns a UsageError in the block about a function's argument into an error about the flag for it."""
    try:
        yield
    except UsageError as error:
        raise error.changed(argument=flag) if error.argument == argument else error from None


@contextlib.contextmanager
def one_line(path: object, done: str, missing: bool = False) -> Iterator[None]:
    """Turns a system or pyarrow error in the block into a DataError: `<path>: cannot be <done>: <reason>`.

    It becomes a `TransientError` if the system or a store failed.

    Args:
      path: file or folder.
      done: participle for what the block does with it: "read", "written".
      missing: whether a missing file stays a `FileNotFoundError`.
    """
    try:
        yield
    except DataError:  # is already one line
        raise
    # pyarrow's own errors are only known if it is loaded, and this module never loads it.
    except (OSError, getattr(sys.modules.get("pyarrow"), "ArrowException", OSError)) as error:
        if missing and isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such file", str(path)) from None
        raise kind_of(error)(f"cannot be {done}: {reason_of(error)}", path=path) from None


def kind_of(error: Exception) -> type[DataError]:
    """Returns our error class for a system or pyarrow error: `TransientError` if the system or a store failed.

    pyarrow also raises an `OSError` for the content of a file; that is a `DataError`.
    """
    of_system = isinstance(error, OSError) and (error.errno is not None or _OF_STORE.search(str(error)))
    return TransientError if of_system else DataError
