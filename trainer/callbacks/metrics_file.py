"""--metrics_jsonl: a file of metrics, one JSON object per line."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

from pipeline import errors
from pipeline.errors import UsageError, reason_of
from pipeline.files.fields import finite
from pipeline.files.reading import content_of, opened
from pipeline.files.write import replace
from trainer.callbacks.base import Callback
from trainer.run_folder import RunFolder


class MetricsFile(Callback):
    """A file of lines such as `{"step": 100, "time": 1767225600.0, "train/loss": 0.3}`, ordered by step.

    A run that resumes removes the lines of later steps and a line cut short by a kill, so that no step occurs twice and
    the file ends up like an uninterrupted run's. It never touches another run's lines: it recognises its own file by
    the first line, whose time is unique, and which is noted in the run's folder before it is written.
    """

    def __init__(self, path: str, start_step: int, folder: RunFolder) -> None:
        """Opens the file, or creates it.

        Args:
          path: path of the file.
          start_step: global step of the state that training begins with.
          folder: folder of the run.

        Raises:
          UsageError: the file cannot be written to, or holds something else.
        """
        self._path, self._note, self._folder = pathlib.Path(path), folder.metrics_note, folder
        self._at_start: set[tuple[str, ...]] = set()  # names in the lines of the start step
        try:
            if self._path.exists() and not self._path.is_file():
                raise UsageError(
                    f"--metrics_jsonl={path}: is not a regular file, so that a resumed run could not "
                    "remove lines; name a file"
                )
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"--metrics_jsonl={path}: cannot be written to: {reason_of(error)}") from None
        self._start_step = start_step
        end = self._end()
        self._file.truncate(end)
        self._is_begun = end > 0

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Writes a line immediately; NaN and infinity, which JSON lacks, become null.

        Raises:
          DataError: the disk is full.
        """
        if step == self._start_step and tuple(values) in self._at_start:
            return  # a finished run is repeating its evaluation
        line = f"{json.dumps({'step': step, 'time': round(time.time(), 3), **finite(values)})}\n".encode()
        if not self._is_begun:
            self._begin(line)
        with errors.named(str(self._path), "cannot be written to"):
            self._file.write(line)

    def _begin(self, line: bytes) -> None:
        with errors.named(self._note, "cannot be written to"):
            replace(self._note, b"".join([*self._first_lines(), line]))
        self._is_begun = True

    def _first_lines(self) -> list[bytes]:
        return content_of(self._note).splitlines(keepends=True) if self._note.exists() else []

    def _end(self) -> int:
        """Returns the size of the lines to keep, up to the start step."""
        end = 0
        with opened(self._path) as lines:
            for line in lines:
                # A kill may have cut this run's own first line short.
                if end == 0 and not any(own.startswith(line) for own in self._first_lines()):
                    self._content(line)
                    raise UsageError(
                        f"--metrics_jsonl={self._path}: has the metrics of a different run from the one in "
                        f"{self._folder}; name another file, or move this one away"
                    )
                content = self._content(line) if line.endswith(b"\n") else None  # cut short by a kill
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
            raise UsageError(f"--metrics_jsonl={self._path}: is not a metrics file of this trainer; name another")
        return content
