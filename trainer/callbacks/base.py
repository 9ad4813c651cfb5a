"""`Callback`, which is notified of events in a run, and `Callbacks`, the list of a run's. Without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from trainer.journal import Expected
from trainer.loop import Action, Progress

if TYPE_CHECKING:
    from trainer.task import Evaluation


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase that a process has entered, and that may take long.

    Attributes:
      name: name, such as `compiling the step`.
      expects: next sign of progress: `steps` (or batches) soon, only the `end` of the phase, or `nothing` if the
        process serves others.
      quiet: seconds during which the interpreter's lock may keep all other threads from running.
      shown: text for the terminal; None to show the name.
    """

    name: str
    expects: Expected = "end"
    quiet: float = 0.0
    shown: str | None = None


class Callback:
    """Base class of anything that prints, writes or reports during a run. Methods do nothing unless overridden."""

    def on_phase(self, phase: Phase) -> None:
        """Called when a possibly long phase begins."""

    def on_devices(self, devices: Sequence[str]) -> None:
        """Called once with the names of the devices that this process uses: `CPU:0`."""

    def on_loop(self, progress: Progress) -> None:
        """Called after every inner loop, before the actions."""

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Called with the numbers of a global step by TensorBoard tag, such as `train/loss`."""

    def on_evaluation_loop(self) -> None:
        """Called before each loop over batches of an evaluation."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Called with the evaluation at a global step; by default passes its numbers to `on_metrics`."""
        self.on_metrics(step, evaluation.scalars())

    def saving(self) -> AbstractContextManager[None]:
        """Returns a context to enter while the state is saved."""
        return contextlib.nullcontext()

    def on_train_end(self) -> None:
        """Called after the last inner loop, or after the error that ended training."""

    def on_end(self, step: int) -> None:
        """Called with the global step after the last evaluation."""

    def on_lost(self, names: Sequence[str]) -> None:
        """Called when this process exits immediately because the job has lost the processes with these names."""

    def actions(self) -> list[Action]:
        """Returns the actions between inner loops; all workers must return the same number, due at the same steps."""
        return []


class Callbacks(Callback):
    """Passes events on to all callbacks of a run, in order.

    Attributes:
      callbacks: callbacks of the run; more may be added.
    """

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = list(callbacks)

    def phase(self, name: str, *, quiet: float = 0.0, shown: str | None = None) -> None:
        """Begins a phase that shows no progress until it ends; see `Phase`."""
        self.on_phase(Phase(name, quiet=quiet, shown=shown))

    def on_phase(self, phase: Phase) -> None:
        for each in self.callbacks:
            each.on_phase(phase)

    def on_devices(self, devices: Sequence[str]) -> None:
        for each in self.callbacks:
            each.on_devices(devices)

    def on_loop(self, progress: Progress) -> None:
        for each in self.callbacks:
            each.on_loop(progress)

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        for each in self.callbacks:
            each.on_metrics(step, values)

    def on_evaluation_loop(self) -> None:
        for each in self.callbacks:
            each.on_evaluation_loop()

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        for each in self.callbacks:
            each.on_evaluation(step, evaluation)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in self.callbacks:
                stack.enter_context(each.saving())
            yield

    def on_train_end(self) -> None:
        for each in self.callbacks:
            each.on_train_end()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Context for all inner loops; calls `on_train_end` at the end."""
        try:
            yield
        finally:
            self.on_train_end()

    def on_end(self, step: int) -> None:
        for each in self.callbacks:
            each.on_end(step)

    def on_lost(self, names: Sequence[str]) -> None:
        for each in self.callbacks:
            each.on_lost(names)

    def actions(self) -> list[Action]:
        # In the callbacks' order: work whose result a checkpoint stores must come before the save.
        return [action for each in self.callbacks for action in each.actions()]
