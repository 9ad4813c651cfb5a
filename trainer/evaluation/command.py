"""What `trainer.evaluate` does once its flags are checked."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.callbacks.tensorboard import EventFile
from trainer.checkpoint.reader import Record
from trainer.cluster import failures
from trainer.evaluation import outputs
from trainer.evaluation.flags import EvaluateConfig
from trainer.evaluation.following import follow
from trainer.evaluation.judging import Judge, Judgement
from trainer.inference import Trained, build, build_first


def run(config: EvaluateConfig, found: Sequence[pathlib.Path]) -> None:
    """Evaluates the first checkpoint that can be read, or with --continuous all of them.

    Args:
      config: the flags.
      found: the checkpoints to choose from; unused with --continuous.

    Raises:
      PipelineError: whatever a user can cause.
    """
    evaluation = _Evaluation(config)
    with failures.in_one_line(1):
        if config.continuous:
            follow(config.folder, config.interval, evaluation.evaluate, evaluation.note)
        else:
            evaluation.evaluate_first(found)


class _Evaluation:
    """Evaluates checkpoints of one run, which share a model."""

    def __init__(self, config: EvaluateConfig) -> None:
        self._config = config
        self._flags: dict[str, Any] = {
            "global_batch_size": config.batch_size,
            "eval_where": config.where,
            "eval_limit": config.limit,
        }
        self._made: tuple[Trained, Judge] | None = None
        self._events: EventFile | None = None
        self._last = 0  # step of the newest scalars
        self._missed = 0  # checkpoints, so far

    def evaluate_first(self, paths: Sequence[pathlib.Path]) -> None:
        """Evaluates the first checkpoint that can be read."""
        self._take(build_first(paths, self._config, self.note, **self._flags))
        self._evaluate()

    def evaluate(self, found: Record, missed: Sequence[int] = ()) -> None:
        """Evaluates a checkpoint; `missed` are the steps of those before it that were removed unseen.

        Raises:
          UnreadableError: it is damaged or was removed.
        """
        if self._made is None:
            self._take(build(found, self._config, **self._flags))
        else:
            self._made[0].take(found, self._config.weights)
        self._missed += len(missed)
        self._evaluate(missed)

    def note(self, text: str) -> None:
        """Prints a line that is not a result: to stderr if the results are JSON for another program."""
        print(text, file=sys.stderr if self._config.json else sys.stdout, flush=True)

    def _evaluate(self, missed: Sequence[int] = ()) -> None:
        """Prints and writes the results of the model as it is now."""
        assert self._made is not None
        trained, judge = self._made
        judgement = judge.judge()
        in_words = outputs.say_line if self._config.continuous else outputs.say
        more = {"missed_steps": list(missed)} if self._config.continuous else {}
        if self._config.json:
            outputs.say_json(trained, judgement, more)
        else:
            in_words(trained, judgement)
        if self._config.output is not None:
            self.note(f"written: {', '.join(outputs.write(trained, judgement, self._config.output, more))}")
        if self._config.continuous:
            self._write_events(trained, judgement)

    def _write_events(self, trained: Trained, judgement: Judgement) -> None:
        step, split = trained.record.step, judgement.evaluation.split
        if self._events is None or step <= self._last:  # the run started over or went back
            self._events = EventFile(self._config.folder.evaluation_logs, step - 1)
        self._last = step
        missed = {"eval/missed_checkpoints": float(self._missed)} if self._missed else {}
        self._events.scalars(step, {**judgement.evaluation.scalars(), **missed})
        drawn = outputs.pictures(trained, judgement)
        self._events.images(step, {f"eval/{split}/{name}": np.asarray(image) for name, image in drawn.items()})

    def _take(self, trained: Trained) -> None:
        self._made = trained, Judge(trained, self._config.mistakes)
