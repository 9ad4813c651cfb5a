"""A quiet start: hides TensorFlow's and Beam's harmless startup notes and shows everything else."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

# TF_CPP_MIN_LOG_LEVEL only works once TensorFlow has set up its log; before that, its libraries write straight to
# file descriptor 2.
_HARMLESS = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)"
    rb"|[IWE]\d{4} .*\b(port|cudart_stub|cpu_feature_guard|cuda_platform|cuda_(dnn|fft|blas))\.cc:\d+\]"
    rb"|To enable the following instructions: "
)
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_LOADING = threading.RLock()  # two threads that redirect stderr at the same time would restore each other's file


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Context for imports in a user's process, quiet if they load TensorFlow.

    Hides nothing if TensorFlow is already loaded, TF_CPP_MIN_LOG_LEVEL is set, or the process has no stderr.
    """
    if "tensorflow" in sys.modules or _LEVEL in os.environ or not _has_stderr():
        yield
        return
    with _LOADING, loading():
        yield
    if "tensorflow" not in sys.modules:  # not loaded yet, by us or by the user
        os.environ.pop(_LEVEL, None)


def _has_stderr() -> bool:
    try:
        os.fstat(2)
    except OSError:
        return False
    return sys.stderr is not None


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Context for importing TensorFlow or Beam that drops harmless notes and shows the rest of stderr at the end.

    Beam's notes are warnings about optional cloud libraries. TensorFlow stays quiet after the import as well, unless
    TF_CPP_MIN_LOG_LEVEL is set.
    """
    os.environ.setdefault(_LEVEL, "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held, logs():
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held:
                if not _HARMLESS.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def logs() -> Iterator[None]:
    """Context that drops log entries up to warnings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
