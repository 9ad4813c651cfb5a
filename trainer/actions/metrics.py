"""Where the numbers of a run go: TensorBoard's file, a file of JSON lines, the task's own hook."""

from __future__ import annotations

import pathlib

from trainer.actions.events import LOGS, EventFile
from trainer.actions.metrics_file import MetricsFile
from trainer.config import TrainConfig
from trainer.task.base import Task


class Metrics:
    """The chief's outputs; those of other workers write nothing.

    Attributes:
      events: for TensorBoard.
    """

    def __init__(self, config: TrainConfig, task: Task, start_step: int, is_chief: bool) -> None:
        """Opens what is written to.

        Raises:
          UsageError: --metrics_jsonl cannot be written to, or has something else in it.
        """
        steps, path = config.steps, config.output.metrics_jsonl
        shows = bool(steps.summary_every or steps.summary_secs)
        model_dir = pathlib.Path(config.run.model_dir)
        self.events = EventFile(model_dir / LOGS, start_step, is_chief and shows)
        self._lines = MetricsFile(path, start_step, model_dir) if path and is_chief else None
        self._task, self._is_chief = task, is_chief

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes numbers by tag, as of a global step."""
        self.events.scalars(step, values)
        if self._lines:
            self._lines.write(step, values)
        if self._is_chief:
            self._task.on_metrics(step, values)
