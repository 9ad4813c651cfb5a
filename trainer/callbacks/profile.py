"""--profile=START:STOP: TensorFlow's profiler, for TensorBoard's Profile tab."""

from __future__ import annotations

import pathlib

import tensorflow as tf

from trainer.callbacks.base import Callback
from trainer.loop import Action, Progress


class Profiler(Callback):
    """Records the steps after START, up to STOP or the end of training.

    A run that begins between the two records nothing.

    Args:
      steps: START and STOP; None: nothing is recorded.
      folder: TensorBoard's.
      writes: whether this worker records.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path, writes: bool) -> None:
        self._steps, self._folder, self._writes, self._records = steps, folder, writes, False

    def actions(self) -> list[Action]:
        return [Action(0, self._switch, at=self._steps)] if self._steps else []

    def _switch(self, progress: Progress) -> None:
        assert self._steps is not None
        if progress.step == self._steps[1]:
            self.on_train_end()
        elif self._writes:
            tf.profiler.experimental.start(str(self._folder))
            self._records = True

    def on_train_end(self) -> None:
        """Ends the recording."""
        if self._records:
            self._records = False
            tf.profiler.experimental.stop()
