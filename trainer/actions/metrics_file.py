"""--metrics_jsonl: what is written for TensorBoard as one JSON object per line, for any other tool."""

from __future__ import annotations

import json
import math
import pathlib
import time
from typing import Any

from pipeline import errors
from pipeline.errors import UsageError


class MetricsFile:
    """A file of lines such as `{"step": 100, "time": 1767225600.0, "train/loss": 0.3}`, by step.

    A run that resumes removes the lines of later steps than it resumes from, and what a kill left of a line: no step is
    there twice, and the file ends as that of an undisturbed run.
    """

    def __init__(self, path: str, start_step: int) -> None:
        """Opens the file, or makes it.

        Args:
          path: of it.
          start_step: global step of the state that training begins with.

        Raises:
          UsageError: it cannot be written to, or something else is in it.
        """
        self._path = pathlib.Path(path)
        self._at_start: set[tuple[str, ...]] = set()  # names of what is written of the first step already
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"--metrics_jsonl={path}: cannot be written to: {error.strerror}") from None
        self._start_step = start_step
        self._file.truncate(self._end())

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds a line, at once; numbers that JSON does not have (NaN, infinity) are null.

        Raises:
          DataError: the disk is full.
        """
        if step == self._start_step and tuple(values) in self._at_start:
            return  # an evaluation that a finished run makes again
        numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with errors.named(str(self._path), "cannot be written to"):
            self._file.write(f"{json.dumps({'step': step, 'time': round(time.time(), 3), **numbers})}\n".encode())

    def _end(self) -> int:
        """Returns where the lines up to the first step end."""
        end = 0
        with self._path.open("rb") as lines:
            for line in lines:
                content = self._content(line) if line.endswith(b"\n") else None
                if content is None or content["step"] > self._start_step:
                    break
                if content["step"] == self._start_step:
                    self._at_start.add(tuple(name for name in content if name not in ("step", "time")))
                end += len(line)
        return end

    def _content(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
        except ValueError:
            content = None
        if not isinstance(content, dict) or not isinstance(content.get("step"), int):
            raise UsageError(f"--metrics_jsonl={self._path}: is not a file of this trainer's metrics; name another")
        return content
