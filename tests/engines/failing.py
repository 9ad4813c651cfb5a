"""The converter with a source that fails, or hangs, at chosen shards: `failing.main()`, set up by the environment.

FAILING_STATE is a folder that holds a file for each reading of a shard, over all processes. FAILING_HOW: `twice` fails
the first reading of the two shards that come second and third; `always` every reading of the split `test`; `slow`
sleeps for two seconds before each, `hang` for a minute.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs import convert, sources
from beam_jobs.sources.base import Block
from pipeline.errors import DataError

FAILING_STATE, FAILING_HOW = "FAILING_STATE", "FAILING_HOW"
SECONDS = {"slow": 2.0, "hang": 60.0}
MESSAGE = "made.bin: record 3 at byte 123: is broken: 'a' [b]"


@dataclasses.dataclass(frozen=True)
class Failing:
    """A source around another one."""

    inner: Any
    state: str
    how: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Reads, or fails, or hangs."""
        if threading.current_thread() is threading.main_thread():  # the command's own look at the first rows
            return self.inner.read(split, rows)
        shard = f"{split}-{rows[0]}-{len(rows)}"
        seen = {path.name.split(".")[0] for path in pathlib.Path(self.state).iterdir()}
        handle, _ = tempfile.mkstemp(prefix=f"{shard}.{os.getpid()}.", dir=self.state)
        os.close(handle)
        time.sleep(SECONDS.get(self.how, 0.0))
        if self.how == "always" and split == "test":
            raise DataError(MESSAGE)
        if self.how == "twice" and shard not in seen and len(seen) in (1, 2):
            raise RuntimeError("not this time")
        return self.inner.read(split, rows)


def main() -> None:
    """Runs the converter; see the module."""
    open_inner = sources.open_source

    def open_source(*arguments: Any) -> Failing:
        return Failing(open_inner(*arguments), os.environ[FAILING_STATE], os.environ[FAILING_HOW])

    sources.open_source = open_source  # type: ignore[assignment]
    convert.entry_point()
