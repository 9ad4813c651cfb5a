"""What a failed job on Flink or Spark says: Java's traces of errors, one after the other, in one text."""

from __future__ import annotations

import re

from pipeline import errors

_FRAME = re.compile(r"^\s*(?:at [\w.$/<>]+\(.*\)|\.\.\. \d+ .*)$", re.MULTILINE)
_CAUSE = re.compile(r"^\s*Caused by: (.*\S)", re.MULTILINE)
_PYTHON = re.compile(r"Traceback .*?:$(.*?)^\s+at [\w.$/]+\(", re.MULTILINE | re.DOTALL)  # a worker's own error
_PREAMBLE = re.compile(r"Pipeline \S+ failed in state \w+: ")  # Beam's
_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.){2,}(?=[A-Z])")  # of a class: org.apache.flink.util.
# How the loss of a task manager, an executor or a worker pool reads, besides a lost connection.
_LOST = re.compile(
    r"client cancelled|UNAVAILABLE|ConnectException|RemoteTransportException|TaskManager with id|ExecutorLostFailure|"
    r"ConnectionClosed|NoResourceAvailable"
)


def as_error(text: str) -> errors.DataError | None:
    """Returns what a text with traces says, in one line, and what to do; None if it has none."""
    cause = root_cause(text)
    if not cause:
        return None
    if _LOST.search(cause):
        return errors.TransientError(
            f"the cluster lost a worker ({cause}); run the same command again (docs/clusters.md: when a machine dies)"
        )
    return errors.DataError(f"the job failed on the cluster: {cause}")


def root_cause(text: str) -> str | None:
    """Returns the innermost error of a text that is Java's, without its package; None if the text is not.

    An error of a Python worker is in the middle of such a text: its last line is returned.
    """
    if not _FRAME.search(text):
        return None
    if workers_own := _PYTHON.findall(text):
        return str(workers_own[-1].strip().splitlines()[-1].strip())
    causes = _CAUSE.findall(text) or [_PREAMBLE.sub("", text, count=1).splitlines()[0].strip()]
    message = causes[-1].partition(": ")[2]
    # Netty's errors repeat that of the system, without its address.
    fullest = max((cause for cause in causes if message and message in cause), key=len, default=causes[-1])
    return _PACKAGE.sub("", fullest)
