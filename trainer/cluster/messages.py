"""Messages that a job's processes exchange when they meet, as lines of JSON, and how their runs differ, as text."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from pipeline.errors import DataError, PipelineError, RerunError, UsageError
from trainer.journal import parsed

# One part of a run's description: {name: value as text, such as `--seed=1`, or [digest] if it has no text}. Values that
# follow from a part are in later parts.
Part: TypeAlias = Mapping[str, str | Sequence[str]]
Description: TypeAlias = Sequence[Part]

_MOST_NAMED = 5  # differences, or workers, in one line


def is_description(value: Any) -> TypeGuard[Description]:
    """Returns whether a value received as JSON is a description."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and all(_is_value(words) for words in part.values()) for part in value
    )


def _is_value(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and [type(one) for one in value] == [str])


def difference(chief: Description, others: Mapping[str, Description]) -> str | None:
    """Returns text on which workers differ from the chief, with both values; None if all agree.

    Only each worker's first difference is named, as later ones may follow from it.

    Args:
      chief: the chief's description.
      others: {worker name: its description}.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for worker, theirs in others.items():
        if both := _first(chief, theirs):
            groups.setdefault(both, []).append(worker)
    said: list[str] = []
    for (mine, their), workers in groups.items():
        of_chief = f", the chief has {mine}" if mine else ""
        said.append(f"{shortened(workers)} {'has' if len(workers) == 1 else 'have'} {their}{of_chief}")
    return "; ".join(said) or None


def shortened(names: Sequence[str]) -> str:
    """Returns a list of names as text; a long one is cut to the first names and the number of others."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _first(chief: Description, other: Description) -> tuple[str, str] | None:
    """Returns the chief's and the worker's values in the first part that differs; for digests only the latter's."""
    nothing: Part = {}
    for mine, theirs in itertools.zip_longest(chief, other, fillvalue=nothing):
        names = [name for name in {**mine, **theirs} if _comparable(mine, name) != _comparable(theirs, name)]
        if not names:
            continue
        digests = [name for name in names if not isinstance(mine.get(name, theirs.get(name)), str)]
        if digests:
            return "", shortened([_other(name, mine, theirs) for name in digests])
        return _words(names, mine), _words(names, theirs)
    return None


def _comparable(part: Part, name: str) -> Any:
    value = part.get(name)
    return value if value is None or isinstance(value, str) else list(value)


def _other(name: str, mine: Part, theirs: Part) -> str:
    if name not in theirs:
        return f"no {name}"
    return f"another {name}" if name in mine else f"{name}, which the chief does not have"


def _words(names: Sequence[str], part: Part) -> str:
    return shortened([str(part.get(name, f"no {name}")) for name in names])


MOST_BYTES = 1 << 20  # 1 MiB per message
NOT_OURS = (OSError, TypeError, ValueError, LookupError)  # the other side is gone, or does not speak this protocol
_ERRORS: dict[int, type[PipelineError]] = {error.exit_code: error for error in (DataError, UsageError, RerunError)}
_SILENT_SECONDS, _QUESTIONS = 10, 3  # seconds of silence before TCP probes the other machine, and number of probes

SIGN = {"alive": True}  # sign of life, sent regularly by both sides of a job with parameter servers; never answered


@dataclasses.dataclass(frozen=True)
class Hello:
    """The first message of a worker.

    Attributes:
      rank: rank in the cluster; the chief's is 0.
      name: name in messages.
      description: description of its run.
    """

    rank: int
    name: str
    description: Description


@dataclasses.dataclass(frozen=True)
class Failure:
    """The only message of a process that fails before it meets the others.

    Attributes:
      rank: rank in the cluster; the chief's is 0.
      name: name in messages.
      error: reason why the process cannot begin.
    """

    rank: int
    name: str
    error: PipelineError

    @property
    def told(self) -> PipelineError:
        """Error that ends the other processes."""
        fields = fields_of(self.error)
        return _ERRORS[self.error.exit_code](f"{self.name} cannot begin: {fields['error']}")


def fields_of(error: PipelineError | None) -> dict[str, Any]:
    """Returns message fields on how a process ended; None if there was no error."""
    if error is None:
        return {"exit_code": 0, "error": ""}
    return {"exit_code": error.exit_code, "error": "; ".join(map(str, error.mistakes)), "lost": error.lost}


def error_of(fields: Mapping[str, Any]) -> PipelineError | None:
    """Returns the error encoded by `fields_of`, or None."""
    if not (code := fields["exit_code"]):
        return None
    return _ERRORS[code](str(fields["error"]), lost=fields.get("lost", ()))


def sign_every(silence: float) -> float:
    """Returns the seconds between signs of life, given the seconds of silence after which a process is lost."""
    return min(5.0, silence / 4)


async def read_first(reader: asyncio.StreamReader) -> Hello | Failure:
    """Returns the first message of a worker. Raises one of NOT_OURS."""
    message = await _read(reader)
    rank, name = message["rank"], message["name"]
    if not (type(rank) is int and rank > 0 and isinstance(name, str)):
        raise ValueError("not from a worker")
    if "exit_code" in message:
        if error := error_of(message):
            return Failure(rank, name, error)
        raise ValueError("not from a worker")
    description = message["description"]
    if not is_description(description):
        raise ValueError("not from a worker")
    return Hello(rank, name, description)


async def read_answer(reader: asyncio.StreamReader, within: float | None = None) -> str | PipelineError | None:
    """Returns the chief's message: whom it waits for, a line to print, or how the meeting or the job ends.

    The end is an error, or None: before the job begins, this process may continue; later, the job has succeeded.

    Args:
      reader: stream from the chief.
      within: seconds within which at least a sign of life must arrive; None if the chief sends none.

    Raises one of NOT_OURS: a TimeoutError if the chief is silent.
    """
    message = await _read(reader, within)
    text = message.get("waiting", message.get("line"))
    return error_of(message) if text is None else str(text)


async def read_news(reader: asyncio.StreamReader, within: float) -> tuple[str, str]:
    """Returns a message to the chief from a worker or a parameter server: ("signal", "SIGTERM") or ("late", "").

    Args:
      reader: stream from the process.
      within: seconds within which at least a sign of life must arrive.

    Raises one of NOT_OURS: a TimeoutError if the process is silent.
    """
    message = await _read(reader, within)
    kind = next(iter(message), "")
    if kind not in ("signal", "late"):
        raise ValueError("not from a worker")
    return kind, str(message[kind])


async def waits_no_longer(reader: asyncio.StreamReader) -> bool:
    """Waits until a worker leaves; returns whether it left because its time ran out. If not, it may come back."""
    try:
        return bool(await reader.read(1))
    except OSError:
        return False


def write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Sends a message, a line of JSON."""
    writer.write(json.dumps(message).encode() + b"\n")


def write_end(writer: asyncio.StreamWriter, error: PipelineError | None) -> None:
    """Tells a worker that all may continue, or the error that ends it."""
    write(writer, fields_of(error))


def expect_signs_of_life(writer: asyncio.StreamWriter) -> None:
    """Makes the system close the connection if the other machine silently disappears."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("KEEPIDLE", _SILENT_SECONDS), ("KEEPINTVL", _SILENT_SECONDS), ("KEEPCNT", _QUESTIONS)):
        with contextlib.suppress(AttributeError, OSError):  # not available on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


async def _read(reader: asyncio.StreamReader, within: float | None = None) -> dict[str, Any]:
    """Returns the next message that is not just a sign of life."""
    while True:
        async with asyncio.timeout(within):
            line = await reader.readline()  # ValueError: the message is too long
        if not line:
            raise ConnectionResetError
        message = parsed(line)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        if message != SIGN:
            return message
