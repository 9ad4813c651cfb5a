"""What a run prints at its beginning and its end."""

from __future__ import annotations

import importlib.util

from pipeline.read.shard_cache import cache_counts
from trainer.callbacks.terminal import Output
from trainer.checkpoint.manager import CheckpointManager, Restored
from trainer.config import TrainConfig
from trainer.plan import Plan
from trainer.step.state import TrainState


class RunSummary:
    """The first and the last lines of a run."""

    def __init__(self, output: Output, config: TrainConfig, plan: Plan, state: TrainState) -> None:
        self._output, self._config, self._plan, self._state = output, config, plan, state
        self._cached = cache_counts()  # by earlier runs of this process

    def start(self, where: str, here: str, restored: Restored | None, epoch_steps: int) -> None:
        """Prints where the run computes, what it trains, from which step to which, and what has changed.

        Args:
          where: the devices of the run, in words.
          here: those of this process.
          restored: the checkpoint that the run resumes from; None: it is a new run.
          epoch_steps: how many steps of this epoch have been summed.
        """
        config, training, line = self._config, self._plan.training, self._output.line
        step, last = self._state.step, self._plan.last_step
        part = f"step {step} to {last}" if step < last else f"already at step {step} of {last}"
        rows, steps = training.request.global_batch_size, training.steps_per_epoch
        size = f" of {rows} examples, {steps} per epoch" if step < last else ""
        origin = f"resumed from {restored.path}" if restored else "a new run"
        name = config.model.task or config.model.model
        model = f"{name} with {self._state.model.count_params():,} parameters"
        how = "; ".join([self._optimizer(), *self._distortion()])
        line(f"{config.run.strategy}: {where}; {model}; {how}; {part}{size}; {origin}")
        self._output.other_line(f"{here}; {part}; {origin}")
        if restored and restored.changes:
            line(f"changed since {restored.name}: {'; '.join(restored.changes)}")
        for note in self._plan.notes:
            line(f"note: {note}")
        if step < last and (note := epoch_note(step, steps, epoch_steps)):
            line(f"note: {note}")

    def _optimizer(self) -> str:
        state = self._state
        if state.schedule:
            return str(self._config.optimizer)
        rate = float(state.rate(state.global_step.read_value()))
        return f"{state.optimizer.name} {rate:g} as compiled"

    def _distortion(self) -> list[str]:
        if self._config.data.distort != "none":
            return [f"distort {self._config.data.distort}"]
        return [] if self._plan.training.request.parse else ["no distortion"]  # `parse` need not give images

    def end(self, checkpoints: CheckpointManager) -> None:
        """Prints why the run ended early, if it did, what its cache did, and where its files are."""
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


def epoch_note(step: int, steps_per_epoch: int, steps: int) -> str:
    """Returns a note if the means of the current epoch will not cover its first steps; otherwise an empty text.

    Args:
      step: global step that training goes on from.
      steps_per_epoch: T.
      steps: how many steps of this epoch have been summed.
    """
    done = step % steps_per_epoch
    if steps == done or not done:
        return ""
    return (
        f"the checkpoint has no loss and metrics of its epoch so far; those shown until step "
        f"{step - done + steps_per_epoch} are means from step {step + 1} on"
    )
