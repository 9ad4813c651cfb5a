"""Runs `trainer.evaluate` with checked flags, on one checkpoint or on each one that a run saves."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipeline.batch.diagnosis import Fed, naming_records
from pipeline.errors import DataError, PipelineError
from pipeline.resolved import resolve_all
from trainer import lazy_imports, plan
from trainer.callbacks.tensorboard import EventFile
from trainer.checkpoint import files, reader
from trainer.checkpoint.reader import Record, UnreadableError
from trainer.cluster import failures
from trainer.config.steps import Every, Period, period_of
from trainer.config.trained import EvaluateConfig
from trainer.evaluation import outputs
from trainer.evaluation.judging import Judge, Judgement
from trainer.inference import Trained, build, build_first
from trainer.run_folder import RunFolder


def run(config: EvaluateConfig, found: Sequence[pathlib.Path]) -> None:
    """Evaluates the first checkpoint that can be read, or with --continuous all of them.

    Args:
      config: flags of the command.
      found: checkpoints to choose from; unused with --continuous.

    Raises:
      PipelineError: any error that a user can cause.
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
        self._made: tuple[Trained, Judge] | None = None
        self._events: EventFile | None = None
        self._last = 0  # step of the newest scalars
        self._missed = 0  # number of checkpoints so far

    def evaluate_first(self, paths: Sequence[pathlib.Path]) -> None:
        self._take(build_first(paths, self._config, self.note))
        self._evaluate()

    def evaluate(self, found: Record, missed: Sequence[int] = ()) -> None:
        """Evaluates a checkpoint; `missed` has the steps of earlier ones that were removed before they were seen.

        Raises:
          UnreadableError: the checkpoint is damaged or was removed.
        """
        if self._made is None:
            self._take(build(found, self._config))
        else:
            self._made[0].take(found, self._config.weights)
        self._missed += len(missed)
        self._evaluate(missed)

    def note(self, text: str) -> None:
        """Prints a line that is not a result, to stderr if results are JSON for another program."""
        print(text, file=sys.stderr if self._config.json else sys.stdout, flush=True)

    def _evaluate(self, missed: Sequence[int] = ()) -> None:
        assert self._made is not None
        trained, judge = self._made
        with naming_records(lambda: (Fed(split.request) for split in trained.splits.values())):
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


def follow(
    folder: RunFolder,
    interval: float,
    evaluate: Callable[[Record, Sequence[int]], object],
    say: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Calls `evaluate` with each checkpoint in step order; returns after the last one of the run.

    The folder is only read, and need not exist yet. Damaged checkpoints are skipped. If the run starts over or goes
    back, checkpoints that it rewrites are evaluated again. Checkpoints removed before they were read are missed: their
    steps follow from the run's --checkpoint_every, and a line names them with a remedy.

    Args:
      folder: folder of the run.
      interval: seconds between checks for new checkpoints.
      evaluate: function called with each checkpoint, and the steps missed since the previous one.
      say: function that prints a line for the user.
      sleep: function that waits for a number of seconds.

    Raises:
      DataError: the folder existed but is gone.
    """
    path, looked_at, latest = folder.path, dict[int, int](), ""
    missed = _Missed(say)
    was_there = waits = False
    while True:
        new = {step: written for step, written in _found(path).items() if looked_at.get(step) != written}
        is_there = path.is_dir()
        if was_there and not is_there:
            raise DataError("was removed or moved while its checkpoints were evaluated", path=path)
        was_there = is_there
        if not new:
            if not waits:
                say(f"waiting for checkpoints in {path}{latest}, looking every {interval:g} s; Ctrl-C ends")
            waits = True
            sleep(interval)
            continue
        waits = False
        for step, written in new.items():
            looked_at[step], latest = written, f" after step {step}"
            if _is_last(files.path_of(path, step), evaluate, missed):
                missed.say_end()
                return


class _Missed:
    """The steps of checkpoints that a run removed before they were evaluated.

    A run that saves by the clock saves at further steps, which are only known if they were seen in the folder.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._latest = 0  # last step evaluated
        self._removed, self._damaged = set[int](), set[int]()  # steps of checkpoints seen since then
        self._count = self._evaluated = 0

    def before(self, found: Record) -> list[int]:
        """Returns the missed steps between a checkpoint and the one evaluated before it."""
        first = min(self._latest, found.step)  # at most this one, if the run started over or went back
        saved = _due(_period(found), first, found.step)
        return sorted(({*saved} - self._damaged | self._removed) - {found.step})

    def left_out(self, error: UnreadableError) -> None:
        """Notes a checkpoint that could not be read, and says why unless it was removed."""
        step = int(str(error.path).rpartition("-")[2])
        (self._removed if error.is_removed else self._damaged).add(step)
        if not error.is_removed:
            self._say(error.skipped)

    def evaluated(self, found: Record, missed: Sequence[int]) -> None:
        """Notes an evaluation, and prints which checkpoints were missed before it."""
        is_first, self._count = not self._count, self._count + len(missed)
        self._latest, self._evaluated = found.step, self._evaluated + 1
        self._removed.clear()
        self._damaged.clear()
        if missed:
            every, kept = _steps_flag(found, "checkpoint_every"), _steps_flag(found, "max_to_keep")
            they = "it before it was" if len(missed) == 1 else "them before they were"
            helps = (
                f"; to miss none, give the run a larger --max_to_keep{_than(kept)}, or a larger --checkpoint_every"
                f"{_than(every)}"
            )
            text = f"missed {_listed(missed, _period(found))}: the run removed {they} evaluated"
            self._say(f"{text}{helps if is_first else ''}")

    def say_end(self) -> None:
        """Prints how many checkpoints were missed, if any."""
        if self._count:
            everything = self._evaluated + self._count
            self._say(f"evaluated {self._evaluated} of {everything} checkpoints; missed {self._count}")


def _steps_flag(found: Record, name: str) -> Any:
    return found.content.get("config", {}).get("steps", {}).get(name)


def _period(found: Record) -> Period:
    """Returns the period of a run's saves; empty if it is in epochs and the checkpoint lacks their length."""
    epoch = found.content.get("remembered", {}).get("epoch") or {}
    return period_of(_steps_flag(found, "checkpoint_every") or 0, epoch.get("steps_per_epoch") or 0)


def _due(period: Period, first: int, end: int) -> Iterator[int]:
    """Yields the steps after `first` and before `end` at which something is due."""
    step = period.next_after(first)
    while step < end:
        yield int(step)
        step = period.next_after(int(step))


def _than(value: Every | None) -> str:
    return f" than {value}" if value else ""


def _listed(steps: Sequence[int], period: Period) -> str:
    """Returns `step 40`, or `steps 40, 80 to 120 (4 checkpoints)`; a range omits no checkpoint that was due."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step == period.next_after(spans[-1][-1]):
            spans[-1].append(step)
        else:
            spans.append([step])
    text = ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return f"steps {text} ({len(steps)} checkpoints)" if len(steps) > 1 else f"step {text}"


def _found(folder: pathlib.Path) -> dict[int, int]:
    """Returns {step: time of writing} of the checkpoints, ascending."""
    found = {}
    for step in files.steps_in(folder):
        path = files.path_of(folder, step)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found[step] = path.with_name(f"{path.name}.index").stat().st_mtime_ns
    return found


def _is_last(path: pathlib.Path, evaluate: Callable[[Record, Sequence[int]], object], missed: _Missed) -> bool:
    """Evaluates a checkpoint if it can be read; returns whether it is the run's last."""
    try:
        found = reader.read(path)
        steps = missed.before(found)
        evaluate(found, steps)
    except UnreadableError as error:
        missed.left_out(error)
        return False
    missed.evaluated(found, steps)
    # With --early_stopping, evaluations may have ended the run before its last step.
    patience = _steps_flag(found, "early_stopping")
    ranking = found.content.get("remembered", {}).get("ranking") or {}
    ended_early = bool(patience) and ranking.get("stale", 0) >= patience
    return ended_early or found.step >= _last_step(found)


def _last_step(found: Record) -> float:
    """Returns the global step at which a run ends; infinity if that depends on missing data."""
    try:
        config = found.config()
        if config.steps.train_steps:
            return config.steps.train_steps
        task = lazy_imports.load_task(config.model.task)
        request = plan.request_of(config, task)
        return config.last_step(resolve_all(request).steps_per_epoch)
    except PipelineError:
        return float("inf")
