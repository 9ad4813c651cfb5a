"""Where numbers go besides TensorBoard: --metrics_jsonl, one JSON object per line, and the task's own hook."""

from __future__ import annotations

import json
import math
import pathlib
import time
from typing import Any

from pipeline import errors
from pipeline.errors import UsageError, reason_of
from pipeline.files.write import replace
from trainer.callbacks.base import Callback
from trainer.run_folder import RunFolder
from trainer.task.base import Task


class TaskMetrics(Callback):
    """Calls `Task.on_metrics` with the numbers; for the chief alone."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        self._task.on_metrics(step, values)


class MetricsFile(Callback):
    """A file of lines such as `{"step": 100, "time": 1767225600.0, "train/loss": 0.3}`, by step.

    A run that resumes removes the lines of later steps than it resumes from, and what a kill left of a line: no step is
    there twice, and the file ends as that of an undisturbed run. The lines of another run stay: a first line, with its
    time, is like no other, and is noted in the run's folder before it is written.
    """

    def __init__(self, path: str, start_step: int, folder: RunFolder) -> None:
        """Opens the file, or makes it.

        Args:
          path: of it.
          start_step: global step of the state that training begins with.
          folder: of the run.

        Raises:
          UsageError: it cannot be written to, or something else is in it.
        """
        self._path, self._note, self._folder = pathlib.Path(path), folder.metrics_note, folder
        self._at_start: set[tuple[str, ...]] = set()  # names in the lines of the first step
        try:
            if self._path.exists() and not self._path.is_file():
                raise UsageError(
                    f"--metrics_jsonl={path}: is not a regular file, from which a resumed run could remove lines; name "
                    "a file"
                )
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"--metrics_jsonl={path}: cannot be written to: {reason_of(error)}") from None
        self._start_step = start_step
        end = self._end()
        self._file.truncate(end)
        self._is_begun = end > 0

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Adds a line, at once; numbers that JSON does not have (NaN, infinity) are null.

        Raises:
          DataError: the disk is full.
        """
        if step == self._start_step and tuple(values) in self._at_start:
            return  # an evaluation that a finished run repeats
        numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = f"{json.dumps({'step': step, 'time': round(time.time(), 3), **numbers})}\n".encode()
        if not self._is_begun:
            self._begin(line)
        with errors.named(str(self._path), "cannot be written to"):
            self._file.write(line)

    def _begin(self, line: bytes) -> None:
        with errors.named(self._note, "cannot be written to"):
            replace(self._note, b"".join([*self._first_lines(), line]))
        self._is_begun = True

    def _first_lines(self) -> list[bytes]:
        return self._note.read_bytes().splitlines(keepends=True) if self._note.exists() else []

    def _end(self) -> int:
        """Returns the size of the lines up to the first step, which are kept."""
        end = 0
        with self._path.open("rb") as lines:
            for line in lines:
                # A kill may have left a part of this run's own first line.
                if end == 0 and not any(own.startswith(line) for own in self._first_lines()):
                    self._content(line)
                    raise UsageError(
                        f"--metrics_jsonl={self._path}: has the metrics of another run than that in "
                        f"{self._folder}; name another file, or move this one away"
                    )
                content = self._content(line) if line.endswith(b"\n") else None  # what a kill left of a line
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
