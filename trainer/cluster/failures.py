"""Errors of TensorFlow and the system as one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from pipeline.errors import DataError, PipelineError, RerunError
from pipeline.read.numpy_calls import message_of_input

# Errors of this worker's own. In a job of several workers the others mean a lost peer: Unavailable, DeadlineExceeded
# (the collective timeout), Cancelled, Aborted, Internal, FailedPrecondition, Unknown.
OWN = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
_WHERE = re.compile(r"Graph execution error:|Detected at node|\s*File \"|\s*\[\[")


@contextlib.contextmanager
def in_one_line(num_workers: int) -> Iterator[None]:
    """Turns TensorFlow's and the system's errors inside into PipelineErrors.

    Raises:
      RerunError: in a job of several workers, one was lost.
      DataError: all other errors of an op, and of the system, such as a folder that is gone.
      BrokenPipeError: the reader of the output (head) is gone, which the command ends with in its own way.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise translate(error, num_workers) from None
    except (PipelineError, BrokenPipeError):
        raise
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise _disk_full(reason) if error.strerror in _FULL else DataError(reason) from None


def translate(error: tf.errors.OpError, num_workers: int) -> PipelineError:
    """Returns the error that the user sees."""
    reason = first_line(error)
    if any(words in error.message for words in _FULL):
        return _disk_full(reason)
    if num_workers > 1 and not isinstance(error, OWN):
        return RerunError(
            f"lost another worker ({reason}); rerun the same commands on all {num_workers} to resume from the last "
            "checkpoint"
        )
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return DataError(f"out of memory ({reason}); try a smaller --global_batch_size")
    return DataError(reason)


def _disk_full(reason: str) -> DataError:
    return DataError(
        f"the disk is full ({reason}); make room, then rerun the same command to resume from the last checkpoint"
    )


def first_line(error: tf.errors.OpError) -> str:
    """Returns the line of an error's message that says what happened, at most 300 characters of it.

    The lines before it locate it in the graph and the Python code; names of graph nodes are left out.
    """
    if said := message_of_input(error.message):
        return said
    text = re.sub(r"\{\{[^}]*\}\}\s*", "", error.message)
    lines = [line for line in text.splitlines() if line.strip() and not _WHERE.match(line)]
    return lines[0].strip()[:300] if lines else type(error).__name__
