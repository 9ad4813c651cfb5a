"""What a run does between its inner loops, as its flags ask for it; the same list on every worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from trainer.actions import scalars
from trainer.actions.metrics import Metrics
from trainer.actions.output import LogLine, Output
from trainer.actions.scalars import TrainScalars
from trainer.config import TrainConfig
from trainer.loop import Action, Progress
from trainer.step.train_step import HISTOGRAMS, IMAGES, NORM, TrainStep, are_images


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """What the actions of a run work with.

    Attributes:
      config: of the run.
      stepper: whose steps they follow.
      output: of lines.
      metrics: where numbers go.
      evaluate: evaluates; None: the run does not.
      save: saves a checkpoint.
    """

    config: TrainConfig
    stepper: TrainStep
    output: Output
    metrics: Metrics
    evaluate: Callable[[Progress], None] | None
    save: Callable[[], None]


def actions(parts: Parts) -> list[Action]:
    """Returns the actions in the order in which they are done: what a checkpoint remembers comes before it."""
    flags, rows = parts.config.steps, parts.config.order.global_batch_size
    values = TrainScalars(rows, parts.stepper.state.rate, parts.metrics.write)
    return [
        Action(flags.log_every, LogLine(rows, parts.output)),
        Action(flags.summary_every, values, seconds=flags.summary_secs, needs=frozenset({NORM})),
        *_pictures(parts),
        Action(flags.eval_every if parts.evaluate else 0, parts.evaluate or _nothing),
        Action(flags.checkpoint_every, lambda progress: parts.save(), seconds=flags.checkpoint_secs),
    ]


def _pictures(parts: Parts) -> list[Action]:
    """Returns what shows more than numbers; histograms and images also of the first step of a new run."""
    stepper, events, flags = parts.stepper, parts.metrics.events, parts.config.output
    start = stepper.state.step
    found = [Action(0, scalars.write_graph(stepper, events), at=(start + 1,))]
    first = () if start else (1,)
    if flags.histogram_every:
        needs, write = frozenset({HISTOGRAMS}), scalars.write_histograms(stepper, events)
        found.append(Action(flags.histogram_every, write, at=first, needs=needs))
    if flags.image_every and are_images(stepper.state.task.data.features):
        write = scalars.write_images(events)
        found.append(Action(flags.image_every, write, at=first, needs=frozenset({IMAGES})))
    return found


def _nothing(progress: Progress) -> None:
    pass
