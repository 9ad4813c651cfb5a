"""Turns TensorFlow and system errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import tensorflow as tf

from pipeline.errors import DataError, PipelineError, UsageError, place_of, reason_of, said_by, with_remedy
from trainer import runtime
from trainer.cluster.rendezvous import SOMEBODY, LostError

_OWN_FRAMES = 2  # `in_one_line` and the block inside it, both our own code
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


@contextlib.contextmanager
def in_one_line(num_workers: int) -> Iterator[None]:
    """Context that turns errors of TensorFlow, the system and the user's code into PipelineErrors.

    Raises:
      UsageError: an error in the user's code, with its file and line.
      LostError: a worker of the job was lost.
      DataError: any other op or system error, such as a folder that is gone.
      BrokenPipeError: unchanged: the reader of the output (such as `head`) is gone, which the command handles.
    """
    try:
        yield
    except tf.errors.OpError as error:
        runtime.raise_if_other_model(error)
        if runtime.is_own(error) and (place := place_of(error, _OWN_FRAMES)):
            raise UsageError(f"{place}: {said_by(error)}") from error
        raise translate(error, num_workers) from None
    except (PipelineError, BrokenPipeError):
        raise
    except Exception as error:
        if place := place_of(error, _OWN_FRAMES):
            raise UsageError(f"{place}: {said_by(error)}") from error
        if not isinstance(error, OSError):
            raise
        if error.strerror in _FULL:
            raise _disk_full(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None
        raise DataError(
            f"{error.filename}: {reason_of(error)}" if error.filename else with_remedy(str(error))
        ) from None


def translate(error: tf.errors.OpError, num_workers: int) -> PipelineError:
    """Returns the error to show the user."""
    reason = runtime.first_line(error)
    if any(words in error.message for words in _FULL):
        return _disk_full(reason)
    if num_workers > 1 and not runtime.is_own(error):
        return LostError(
            f"lost {SOMEBODY} ({reason}); rerun the same commands on all {num_workers} to resume from the last "
            "checkpoint",
            lost=[SOMEBODY],
        )
    if (limited := with_remedy(reason)) != reason:
        return DataError(limited)
    if issubclass(runtime.kind(error), tf.errors.CancelledError):
        # A call that is not inlined, such as a virtual replica's, cancels what its caller waits for before it returns
        # its error; if that is a tensor of another replica, the caller fails with "cancelled" (RunMultiDeviceAsync in
        # tensorflow/core/common_runtime/process_function_library_runtime.cc).
        return DataError(
            f"a step failed, and TensorFlow only says what it then cancelled ({reason}); rerun the same command with "
            "--num_replicas=1 for the reason, or with TF_CPP_MIN_LOG_LEVEL=1 in the environment, which logs it"
        )
    if issubclass(runtime.kind(error), tf.errors.ResourceExhaustedError):
        return DataError(f"out of memory ({reason}); try a smaller --global_batch_size")
    return DataError(reason)


def _disk_full(reason: str) -> DataError:
    return DataError(f"the disk is full ({reason}); make room and rerun the same command")
