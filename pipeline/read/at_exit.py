"""Stops reading ahead before the interpreter exits.

TensorFlow's threads call Python to read a window. A call that begins while the interpreter is being finalized never
returns, and the interpreter waits for it: a script would hang at its end. So reading stops before that.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Iterator

_QUIET_SECONDS = 0.05  # without a call: TensorFlow's buffers are full, or have received the error
_MOST_SECONDS = 10.0

_lock = threading.Lock()
_calls: set[int] = set()
_state = {"ends": False, "last": 0.0}


@contextlib.contextmanager
def reading() -> Iterator[bool]:
    """Marks a read for TensorFlow; the context's value is whether the read may begin."""
    me = threading.get_ident()
    with _lock:
        _calls.add(me)
    try:
        yield not _state["ends"]
    finally:
        with _lock:
            _calls.discard(me)
            _state["last"] = time.monotonic()


@atexit.register
def _end() -> None:
    _state["ends"] = True
    if not _state["last"] and not _calls:
        return
    start = quiet = time.monotonic()
    while time.monotonic() - quiet < _QUIET_SECONDS and time.monotonic() - start < _MOST_SECONDS:
        time.sleep(_QUIET_SECONDS / 10)
        with _lock:
            quiet = time.monotonic() if _calls else max(quiet, _state["last"])
