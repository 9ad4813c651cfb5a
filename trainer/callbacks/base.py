"""`Callback`: is told what happens in a run; `Callbacks`: all of one run. Without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, TypeAlias

from trainer.loop import Action, Progress

if TYPE_CHECKING:
    from trainer.task import Evaluation

Expected: TypeAlias = Literal["steps", "end", "nothing"]


@dataclasses.dataclass(frozen=True)
class Phase:
    """Something that a process does from now on, and that may take long.

    Attributes:
      name: such as `compiling the step`.
      expects: what will show progress: `steps` (or batches) soon, only the `end` of the phase, or `nothing`, since the
        process serves others.
      quiet: seconds for which no other thread may run, since the interpreter's lock is held.
      shown: text for the terminal; None: the name.
    """

    name: str
    expects: Expected = "end"
    quiet: float = 0.0
    shown: str | None = None


class Callback:
    """Base of what prints, writes or reports during a run. Each method does nothing until it is overridden."""

    def on_phase(self, phase: Phase) -> None:
        """Called when something begins that may take long."""

    def on_devices(self, devices: Sequence[str]) -> None:
        """Called once with the names of the devices that this process computes on: `CPU:0`."""

    def on_loop(self, progress: Progress) -> None:
        """Called after every inner loop, before the actions."""

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Called with the numbers of a global step by their tags for TensorBoard, such as `train/loss`."""

    def on_evaluation_loop(self) -> None:
        """Called before each loop over batches of an evaluation."""

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Called with the evaluation of a global step; by default passes its numbers to `on_metrics`."""
        self.on_metrics(step, evaluation.scalars())

    def saving(self) -> AbstractContextManager[None]:
        """Returns a context that is entered while the state is saved."""
        return contextlib.nullcontext()

    def on_train_end(self) -> None:
        """Called after the last inner loop, or after the error that ended training."""

    def on_end(self, step: int) -> None:
        """Called with the global step when the last evaluation is done."""

    def on_lost(self, names: Sequence[str]) -> None:
        """Called when this process ends at once because others of its job, with these names, are lost."""

    def actions(self) -> list[Action]:
        """Returns what is to be done between inner loops; every worker must return as many, due at the same steps."""
        return []


class Callbacks(Callback):
    """Tells all callbacks of a run, in their order.

    Attributes:
      callbacks: more may be added.
    """

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = list(callbacks)

    def phase(self, name: str, *, quiet: float = 0.0, shown: str | None = None) -> None:
        """Begins a phase that makes no progress before its end; see `Phase`."""
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
        """Context of all inner loops, at whose end `on_train_end` is called."""
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
        # In the order of the callbacks: what a checkpoint stores must be done before it is saved.
        return [action for each in self.callbacks for action in each.actions()]
