"""TensorFlow's harmless notes while it is loaded, kept off the terminal.

TF_CPP_MIN_LOG_LEVEL works only once TensorFlow has set up its log; what its libraries say while they are loaded goes
straight to file descriptor 2. All else that is said there is passed on.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_HARMLESS = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)"
    rb"|[IWE]\d{4} .*\b(port|cudart_stub|cpu_feature_guard|cuda_platform|cuda_(dnn|fft|blas))\.cc:\d+\]"
    rb"|To enable the following instructions: "
)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Context for the import: holds stderr back, and passes on at its end what is not known as harmless."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in remarkable(held.readlines()):
                os.write(2, line)


def remarkable(lines: list[bytes]) -> list[bytes]:
    """Returns the lines that are not known as harmless."""
    return [line for line in lines if not _HARMLESS.match(line)]
