"""Finds why a job failed: an error of ours, which runners carry from a worker as text, or one line of Beam's message.

With Flink and Spark, that message is several of Java's stack traces, one after the other.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import re
import urllib.parse
from collections.abc import Iterator

import grpc
import requests

from pipeline import errors

_WORKER_DIED = "Channel closed prematurely"  # all that Beam reports
_CARRIED = re.compile(r"\[pickled: ([A-Za-z0-9+/=]+)\]")
_FRAME = re.compile(r"^\s*(?:at [\w.$/<>]+\(.*\)|\.\.\. \d+ .*)$", re.MULTILINE)
_CAUSE = re.compile(r"^\s*Caused by: (.*\S)", re.MULTILINE)
_PYTHON = re.compile(r"Traceback .*?:$(.*?)^\s+at [\w.$/]+\(", re.MULTILINE | re.DOTALL)  # a worker's own error
_PREAMBLE = re.compile(r"Pipeline \S+ failed in state \w+: ")  # Beam's
_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.){2,}(?=[A-Z])")  # of a class: org.apache.flink.util.
# In messages about a lost task manager, executor or worker pool, or a lost connection.
_LOST = re.compile(
    r"client cancelled|UNAVAILABLE|ConnectException|RemoteTransportException|TaskManager with id|ExecutorLostFailure|"
    r"ConnectionClosed|NoResourceAvailable"
)


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Context of a worker, in which an error of ours becomes one whose text holds it, pickled, for `as_ours`."""
    try:
        yield
    except errors.PipelineError as error:
        packed = base64.b64encode(pickle.dumps(error)).decode()
        raise RuntimeError(f"{type(error).__name__}: {error} [pickled: {packed}]") from error


def as_ours(failure: BaseException) -> errors.PipelineError:
    """Returns the error of ours in `failure` or its causes; if there is none, one with Beam's message."""
    error: BaseException | None = failure
    while error is not None:
        if isinstance(error, errors.PipelineError):
            return error
        if match := _CARRIED.search(str(error)):
            found: errors.PipelineError = pickle.loads(base64.b64decode(match[1]))
            return found
        error = error.__cause__ or error.__context__
    if lost := _what_is_gone(failure):
        return errors.TransientError(lost)
    if on_cluster := _of_cluster(str(failure)):
        return on_cluster
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or ["no message"]
    return errors.DataError(f"Beam: {type(failure).__name__}: {lines[-1]}")


def _what_is_gone(failure: BaseException) -> str | None:
    """Returns the message about a lost process, if that is why a run failed; else None."""
    if _WORKER_DIED in str(failure):
        return "a worker process died (out of memory?); run again with fewer --direct_num_workers"
    if isinstance(failure, grpc.FutureTimeoutError):
        return "the runner's job server does not answer"
    if isinstance(failure, grpc.RpcError):
        reason = failure.details() if isinstance(failure, grpc.Call) else str(failure)
        return f"the runner's job server is gone or failed: {' '.join(str(reason).split())}"
    if isinstance(failure, requests.ConnectionError):  # that is how an uber jar's job is watched
        address = urllib.parse.urlsplit(str(failure.request.url)).netloc if failure.request else "the given address"
        return f"Flink does not answer any more at {address}; run the same command again once it does"
    return None


def _of_cluster(text: str) -> errors.DataError | None:
    """Returns the error for a text with Java's traces, with its cause in one line; None if the text has no traces."""
    cause = _root_cause(text)
    if not cause:
        return None
    if _LOST.search(cause):
        return errors.TransientError(
            f"the cluster lost a worker ({cause}); run the same command again (docs/clusters.md: when a machine dies)"
        )
    return errors.DataError(f"the job failed on the cluster: {cause}")


def _root_cause(text: str) -> str | None:
    """Returns the innermost error in Java's traces, without its package; None if the text has no traces.

    If a Python worker's traceback is among them, its last line is returned.
    """
    if not _FRAME.search(text):
        return None
    if workers_own := _PYTHON.findall(text):
        return str(workers_own[-1].strip().splitlines()[-1].strip())
    causes = _CAUSE.findall(text) or [_PREAMBLE.sub("", text, count=1).splitlines()[0].strip()]
    message = causes[-1].partition(": ")[2]
    # Netty's innermost error repeats the system's message without the address, which an outer one has.
    fullest = max((cause for cause in causes if message and message in cause), key=len, default=causes[-1])
    return _PACKAGE.sub("", fullest)
