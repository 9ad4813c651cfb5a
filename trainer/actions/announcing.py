"""What a run says of itself at its beginning and its end."""

from __future__ import annotations

import importlib.util
import pathlib

from pipeline.commands.text import count_of
from pipeline.read.cache_counts import CacheCounts
from trainer.actions.best import Best
from trainer.actions.checkpoints import Restored
from trainer.actions.output import Output
from trainer.cluster import strategies
from trainer.config import TrainConfig
from trainer.plan import Plan
from trainer.step.state import TrainState
from trainer.step.updates import Stepper


def say_start(output: Output, config: TrainConfig, plan: Plan, stepper: Stepper, restored: Restored | None) -> None:
    """Says where the run computes, what it trains, from which step to which, and what has changed."""
    replicas = count_of(stepper.strategy.num_replicas_in_sync, "replica")
    here = f"here {', '.join(strategies.device_names(stepper.strategy))}"
    say_start_at(output, f"{replicas}, {here}", here, config, plan, stepper.state, restored)


def say_start_at(
    output: Output,
    where: str,
    here: str,
    config: TrainConfig,
    plan: Plan,
    state: TrainState,
    restored: Restored | None,
) -> None:
    """Says what `say_start` says, of a run that computes as `where` says, and `here` in this process."""
    step, last, training = state.step, plan.last_step, plan.training
    part = f"step {step} to {last}" if step < last else f"already at step {step} of {last}"
    rows, steps = training.request.global_batch_size, training.steps_per_epoch
    size = f" of {rows} examples, {steps} per epoch" if step < last else ""
    origin = f"resumed from {restored.path}" if restored else "a new run"
    name = config.model.task or config.model.model
    model = f"{name} with {state.model.count_params():,} parameters"
    how = "; ".join([_optimizer(config, state), *_distortion(config, plan)])
    output.line(f"{config.run.strategy}: {where}; {model}; {how}; {part}{size}; {origin}")
    output.other_line(f"{here}; {part}; {origin}")
    if restored and restored.changes:
        output.line(f"changed since {restored.name}: {'; '.join(restored.changes)}")
    for note in plan.notes:
        output.line(f"note: {note}")


def _optimizer(config: TrainConfig, state: TrainState) -> str:
    if state.schedule:
        return str(config.optimizer)
    rate = float(state.rate(state.global_step.read_value()))
    return f"{state.optimizer.name} {rate:g} as compiled"


def _distortion(config: TrainConfig, plan: Plan) -> list[str]:
    if config.data.distort != "none":
        return [f"distort {config.data.distort}"]
    return [] if plan.training.request.parse else ["no distortion"]  # a task's own parse need not give images


def say_epoch(output: Output, step: int, steps_per_epoch: int, steps: int) -> None:
    """Says from where on the means of an epoch are taken, where that is not its first step.

    Args:
      output: of lines.
      step: global step that training goes on from.
      steps_per_epoch: T.
      steps: of this epoch whose sums are known.
    """
    done = step % steps_per_epoch
    if steps != done and done:
        output.line(
            f"note: the checkpoint has no loss and metrics of its epoch so far; those shown until step "
            f"{step - done + steps_per_epoch} are means from step {step + 1} on"
        )


def say_end(
    output: Output, step: int, cached: CacheCounts, newest: str | None, best: Best | None, logs: pathlib.Path
) -> None:
    """Says what the input's cache did, and where to find what the run has written."""
    if any(cached):
        output.line(str(cached))
    kept = f"; {best}" if best and str(best) else ""
    missing = "" if importlib.util.find_spec("tensorboard") else " (pip install tensorboard)"
    shown = f"; logs: tensorboard --logdir={logs}{missing}" if logs.exists() else ""
    output.line(f"checkpoint: {newest}{kept}{shown}")
    output.other_line(f"done at step {step}")
