"""A run's printed output: first and last lines, the tutorials' log line, a line per epoch, and a progress bar."""

from __future__ import annotations

import collections
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import tqdm

from pipeline.commands.text import count_of
from pipeline.read.shard_cache import cache_counts
from trainer.callbacks.base import Callback
from trainer.callbacks.terminal import LiveLine, Output
from trainer.checkpoint.manager import CheckpointManager, Restored
from trainer.config import TrainConfig
from trainer.config.steps import Period
from trainer.loop import Action, Progress
from trainer.plan import Plan
from trainer.step.state import TrainState
from trainer.step.train_step import REGULARIZATION, TOTAL_LOSS
from trainer.task import LOSS, Task

if TYPE_CHECKING:
    from pipeline.order.views import Intervals
    from trainer.task import Evaluation


class RunSummary:
    """The first and the last lines of a run."""

    def __init__(self, output: Output, config: TrainConfig, plan: Plan, state: TrainState) -> None:
        self._output, self._config, self._plan, self._state = output, config, plan, state
        self._cached = cache_counts()  # counts of earlier runs in this process

    def start(self, where: str, here: str, restored: Restored | None, epoch_steps: int) -> None:
        """Prints the devices, the model, the range of steps, changes since the checkpoint, and when it saves.

        Args:
          where: devices of the run, as text.
          here: devices of this process, as text.
          restored: checkpoint that the run resumes from; None for a new run.
          epoch_steps: number of steps of the current epoch whose metrics have been summed.
        """
        config, training, line = self._config, self._plan.training, self._output.line
        step, last = self._state.step, self._plan.last_step
        part = f"step {step} to {last}" if step < last else f"already at step {step} of {last}"
        rows, steps = training.request.global_batch_size, training.steps_per_epoch
        size = f" of {rows} examples, {steps} per epoch" if step < last else ""
        origin = f"resumed from {restored.path}" if restored else "a new run"
        model = f"{trained(config, self._state.task)} with {self._state.model.count_params():,} parameters"
        compiled = ["compiled by XLA"] if config.model.jit_compile == "on" else []
        how = "; ".join([self._optimizer(), *self._augmentation(), *compiled])
        line(f"{config.run.strategy}: {where}; {model}; {how}; {part}{size}; {origin}")
        self._output.other_line(f"{here}; {part}; {origin}")
        if restored and restored.changes:
            line(f"changed since {restored.name}: {'; '.join(restored.changes)}")
        for note in self._plan.notes:
            line(f"note: {note}")
        if step < last:
            if self._state.phases.are_given:
                line(phase_text(self._state))
            if note := epoch_note(step, steps, epoch_steps):
                line(f"note: {note}")
            line(f"checkpoints: {config.steps.when_saved}")

    def _optimizer(self) -> str:
        state = self._state
        if state.schedule:
            return str(self._config.optimizer)
        rate = float(state.rate(state.global_step.read_value()))
        return f"{state.optimizer.name} {rate:g} as compiled"

    def _augmentation(self) -> list[str]:
        if self._config.data.augment != "none":
            return [f"augment {self._config.data.augment}"]
        if callable(self._plan.training.request.augment):
            return [f"augment by {type(self._state.task).__name__}.augment"]
        return [] if self._plan.training.request.parse else ["no augmentation"]  # `parse` need not return images

    def end(self, checkpoints: CheckpointManager) -> None:
        """Prints why the run ended early, if it did, its cache counts, and where its files are."""
        line, step, best = self._output.line, self._state.step, checkpoints.best
        if best and checkpoints.ends_early and step < self._plan.last_step:
            line(best.why_ended())
        cached = cache_counts().plus(self._cached, -1)
        if any(cached):
            line(str(cached))
        kept = f"; {best}" if best and str(best) else ""
        missing = "" if importlib.util.find_spec("tensorboard") else " (pip install tensorboard)"
        logs = self._config.run.folder.logs
        shown = f"; logs: tensorboard --logdir={logs}{missing}" if logs.exists() else ""
        line(f"checkpoint: {checkpoints.newest}{kept}{shown}")
        self._output.other_line(f"done at step {step}")


def trained(config: TrainConfig, task: Task) -> str:
    """Returns the name of the model or, for a user's task, its name and that of the model if --model decides it."""
    if not config.model.task:
        return config.model.model
    has_own = type(task).build_model is not Task.build_model
    return config.model.task if has_own else f"{config.model.task} on --model={config.model.model}"


def epoch_note(step: int, steps_per_epoch: int, steps: int) -> str:
    """Returns a note if the current epoch's means will not cover its first steps, otherwise an empty text.

    Args:
      step: global step that training resumes from.
      steps_per_epoch: T.
      steps: number of steps of this epoch whose metrics have been summed.
    """
    done = step % steps_per_epoch
    if steps == done or not done:
        return ""
    return (
        f"the checkpoint has no loss and metrics of its epoch so far; those shown until step "
        f"{step - done + steps_per_epoch} are means from step {step + 1} on"
    )


_WINDOW = 10.0  # seconds over which speeds are averaged
_MOST_METRICS = 2  # on the bar
_BESIDE = 11  # columns for the percentage and the shortest bar
_FORMAT = "{percentage:3.0f}%|{bar}| {desc}"
_COLOUR = "green"


def phase_text(state: TrainState) -> str:
    """Returns text about the phase of the next update, and how many weights it trains."""
    trained, variables = state.trained[state.phases.number_at(state.step)], state.model.trainable_variables
    sizes = [math.prod(variable.shape) for variable in variables]
    some = sum(sizes[index] for index in trained.weights)
    return f"{state.phases.at(state.step)}; {some:,} of {count_of(sum(sizes), 'weight')} are trained"


class LogLine(Callback):
    """Prints the mean loss of the epoch so far, and the speed since the last line.

    Speeds exclude updates that were traced and compiled, unless there were no others since the last line.

    Args:
      period: period of the lines.
      rows: number of rows per step.
      output: printer of the lines.
      skips: (first, end) of steps that are not trained on; the lines for these steps say so.
    """

    def __init__(self, period: Period, rows: int, output: Output, skips: Intervals = ()) -> None:
        self._period, self._rows, self._output, self._skips = period, rows, output, skips
        self._earlier: Progress | None = None

    def actions(self) -> list[Action]:
        return [Action(self._period, self.print)]

    def print(self, progress: Progress) -> None:
        """Prints the log line of the CIFAR-10 tutorial (cifar10_train.py)."""
        steps, seconds, *_ = progress.since(self._earlier)
        self._earlier = progress
        loss = [f"loss = {progress.means[TOTAL_LOSS]:.2f}"] if progress.means else []
        skipped = ["skipped"] if progress.is_skipped(self._skips) else []
        self._output.line(
            f"{', '.join([f'step {progress.step}', *loss, *skipped])} "
            f"({steps * self._rows / seconds:.1f} examples/sec; {seconds / steps:.3f} sec/batch)"
        )


class EpochLine(Callback):
    """Prints a line for each epoch: its mean loss and metrics, and the evaluation at its last step.

    Args:
      steps_per_epoch: T.
      last_step: step at which training ends.
      summed: function that returns the number of steps that the epoch's means cover.
      is_evaluated: function that returns whether an evaluation at a step will follow.
      output: printer of the lines.
    """

    def __init__(
        self,
        steps_per_epoch: int,
        last_step: int,
        summed: Callable[[], int],
        is_evaluated: Callable[[int], bool],
        output: Output,
    ) -> None:
        self._steps_per_epoch, self._last_step = steps_per_epoch, last_step
        self._summed, self._is_evaluated, self._output = summed, is_evaluated, output
        self._held: tuple[int, str] | None = None  # step, and the line that its evaluation will complete

    def actions(self) -> list[Action]:
        return [Action(Period(self._steps_per_epoch), self.print)]

    def print(self, progress: Progress) -> None:
        """Prints the line for the epoch that ends at a step, or leaves that to the step's evaluation."""
        step, means, all_steps = progress.step, progress.means, self._steps_per_epoch
        epochs = self._last_step / all_steps
        values = {LOSS: means[TOTAL_LOSS], **{name: means[name] for name in _metrics(means)}} if means else {}
        steps = self._summed()
        part = "" if steps == all_steps else f" (over {steps} of its {all_steps} steps)"
        self._held = (
            step,
            (
                f"epoch {step // all_steps} of {epochs:{'.0f' if epochs.is_integer() else '.2f'}}, step {step}: "
                f"{_text(values) or 'skipped'}{part}"
            ),
        )
        if not self._is_evaluated(step):
            self.flush()

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Prints the line for the epoch that ended with this step, with its evaluation."""
        if self._held and self._held[0] == step:
            loss = {LOSS: evaluation.loss}
            self.flush(f"; {evaluation.split} {_text(loss | evaluation.metrics)}")

    def on_train_end(self) -> None:
        """Prints the line that waits for an evaluation that was stopped."""
        if self._held and self._held[0] != self._last_step:  # the last step is evaluated after training
            self.flush()

    def flush(self, evaluated: str = "") -> None:
        """Prints the line that waits for its evaluation, if there is one."""
        if self._held:
            self._output.line(f"{self._held[1]}{evaluated}")
            self._held = None


def _text(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:.4f}" for name, value in values.items())


def _metrics(values: Iterable[str]) -> list[str]:
    return [name for name in values if name not in (TOTAL_LOSS, REGULARIZATION, LOSS)]


class _Moment(NamedTuple):
    when: float
    progress: Progress


class ProgressBar(Callback):
    """Shows step, loss, metrics, speed and time left on a live line.

    Args:
      live: live line to draw on.
      last_step: step at which training ends.
      steps_per_epoch: T.
      rows: number of rows per step.
      unit: name of a row, such as `img`.
    """

    def __init__(self, live: LiveLine, last_step: int, steps_per_epoch: int, rows: int, unit: str) -> None:
        self._live, self._last_step, self._steps_per_epoch = live, last_step, steps_per_epoch
        self._rows, self._unit = rows, unit
        self._moments: collections.deque[_Moment] = collections.deque()

    def on_loop(self, progress: Progress) -> None:
        """Shows the progress, unless the line was drawn a moment ago."""
        if self._live.is_due:
            now = _Moment(time.monotonic(), progress)
            self._moments.append(now)
            while len(self._moments) > 2 and now.when - self._moments[1].when > _WINDOW:
                self._moments.popleft()
            self._live.show(self._drawn(progress))

    def text(self, progress: Progress, room: int | None = None) -> str:
        """Returns the text next to the bar; loss and metrics are means over the epoch so far.

        Args:
          progress: progress of the run.
          room: number of columns for the text; metrics are left out first, then the epoch, the loss and the speed, so
            that the wait and the time left stay visible. None for no limit.
        """
        step, means = progress.step, progress.means
        parts = {
            "step": f"step {step:,}/{self._last_step:,}",
            "epoch": f"epoch {step / self._steps_per_epoch:.1f}/{self._last_step / self._steps_per_epoch:.4g}",
            **({"loss": f"loss {means[TOTAL_LOSS]:.2f}"} if means else {}),
            **{f"metric {name}": f"{name} {means[name]:.3f}" for name in _metrics(means)[:_MOST_METRICS]},
            **self._speeds(progress),
        }
        metrics = [name for name in parts if name.startswith("metric ")]
        for name in [*metrics[::-1], "epoch", "loss", "speed"]:
            if room is None or len(", ".join(parts.values())) <= room:
                break
            parts.pop(name, None)
        return ", ".join(parts.values())

    def _speeds(self, progress: Progress) -> dict[str, str]:
        earliest = self._moments[0] if self._moments else None
        if earliest is None or earliest.progress.step == progress.step:
            return {}
        spent = progress.since(earliest.progress)
        passed = self._moments[-1].when - earliest.when  # including evaluations and checkpoints
        left = (self._last_step - progress.step) * passed / spent.steps
        return {
            "speed": f"{spent.rate(self._rows):,.0f} {self._unit}/s",
            "wait": f"input wait {spent.waiting:.0%}",
            "left": f"{tqdm.tqdm.format_interval(left)} left",
        }

    def _drawn(self, progress: Progress) -> str:
        encoding = getattr(sys.stderr, "encoding", None) or ""
        columns = self._live.columns
        return tqdm.tqdm.format_meter(
            progress.step,
            self._last_step,
            elapsed=0,
            ncols=columns,
            prefix=self.text(progress, None if columns is None else columns - _BESIDE),
            ascii=not encoding.lower().startswith("utf"),
            bar_format=_FORMAT,
            colour=None if os.environ.get("NO_COLOR") else _COLOUR,
        )
