"""Turns errors of TensorFlow and the system into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from pipeline.errors import (
    DataError,
    PipelineError,
    UsageError,
    place_of,
    reason_of,
    root_cause,
    said_by,
    with_limit,
)
from pipeline.graph_calls import message_of_input
from trainer.cluster.rendezvous import SOMEBODY, LostError

# Errors of this worker itself. The others mean a lost peer: Unavailable, DeadlineExceeded (the collective timeout),
# Cancelled, Aborted, Internal, FailedPrecondition, Unknown.
OWN = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)
_OWN_FRAMES = 2  # `in_one_line`, and the block inside it, which is the trainer's
_OTHER_SHAPE = re.compile(r"expected shape (\[[\d,]*\]) but another member in the group expected shape (\[[\d,]*\])")
_PORT_TAKEN = "Could not start gRPC server"  # tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc
_ABORTED = "Collective ops is aborted by: "  # before the reason: common_runtime/base_collective_executor.cc
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


def is_of_xla(error: tf.errors.OpError) -> bool:
    """Returns whether XLA could not compile a function: it names itself in whatever it says of that."""
    return isinstance(error, OWN) and "xla" in error.message.lower()


def said_by_xla(error: tf.errors.OpError) -> str:
    """Returns in one line what XLA cannot compile."""
    return first_line(error).partition("The op is created at")[0].strip()


@contextlib.contextmanager
def in_one_line(num_workers: int) -> Iterator[None]:
    """Context in which errors of TensorFlow, the system and the user's code become PipelineErrors.

    Raises:
      UsageError: an error in the user's code, with its file and line.
      LostError: in a job of several workers, one was lost.
      DataError: any other error of an op, or of the system, such as a folder that is gone.
      BrokenPipeError: as it is: the reader of the output (head) is gone, which the command handles.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise_if_other_model(error)
        if is_own(error) and (place := place_of(error, _OWN_FRAMES)):
            raise UsageError(f"{place}: {said_by(error)}") from error
        raise translate(error, num_workers) from None
    except (PipelineError, BrokenPipeError):
        raise
    except Exception as error:
        if place := place_of(error, _OWN_FRAMES):
            raise UsageError(f"{place}: {said_by(error)}") from error
        if not isinstance(error, OSError):
            raise
        reason = f"{error.filename}: {reason_of(error)}" if error.filename else with_limit(str(error))
        raise _disk_full(reason) if error.strerror in _FULL else DataError(reason) from None


def translate(error: tf.errors.OpError, num_workers: int) -> PipelineError:
    """Returns the error that the user sees."""
    reason = first_line(error)
    if any(words in error.message for words in _FULL):
        return _disk_full(reason)
    if num_workers > 1 and not is_own(error):
        return LostError(
            f"lost {SOMEBODY} ({reason}); rerun the same commands on all {num_workers} to resume from the last "
            "checkpoint",
            lost=[SOMEBODY],
        )
    if (limited := with_limit(reason)) != reason:
        return DataError(limited)
    if issubclass(kind(error), tf.errors.ResourceExhaustedError):
        return DataError(f"out of memory ({reason}); try a smaller --global_batch_size")
    return DataError(reason)


def raise_if_of_others(error: Exception) -> None:
    """Raises an error in the user's function if another worker caused it: one that is lost, or builds another model."""
    if isinstance(error, tf.errors.OpError):
        if not is_own(error):
            raise error
        raise_if_other_model(error)


def raise_if_other_model(error: tf.errors.OpError) -> None:
    """Raises UsageError if the error is that a variable has another shape on another worker, where it was sent."""
    if shapes := _OTHER_SHAPE.search(error.message):
        raise UsageError(
            f"the workers build different models: a variable has shape {shapes[1]} on one and {shapes[2]} on another; "
            "start all workers with the same flags, data, code and versions"
        ) from error


def is_port_taken(error: tf.errors.OpError) -> bool:
    """Returns whether TensorFlow's server could not get its port."""
    return _PORT_TAKEN in error.message


def _disk_full(reason: str) -> DataError:
    return DataError(f"the disk is full ({reason}); make room and rerun the same command")


def is_own(error: tf.errors.OpError) -> bool:
    """Returns whether an error is this worker's own; in a job of several workers, others mean a lost peer."""
    return issubclass(kind(error), OWN)


def kind(error: tf.errors.OpError) -> type[tf.errors.OpError]:
    """Returns the class of an error; if it lists several, that of the root cause."""
    code = getattr(tf.errors, root_cause(error.message)[0] or "", None)
    return type(error) if code is None else tf.compat.v1.errors.exception_type_from_error_code(code)


def first_line(error: tf.errors.OpError) -> str:
    """Returns what an error says happened, in one line, without its place in the graph and the Python code."""
    if said := message_of_input(error.message):
        return " ".join(said.split("] ["))  # tf.debugging.assert_* adds values to its message
    said = root_cause(error.message)[1].removeprefix(_ABORTED)
    return said or kind(error).__name__
