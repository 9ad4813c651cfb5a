"""--profile=START:STOP: TensorFlow's profiler, for TensorBoard's Profile tab."""

from __future__ import annotations

import pathlib

import tensorflow as tf

from trainer.loop import Action, Progress


class Profiler:
    """Records the steps after START, up to STOP; a context manager that ends the recording where training ends first.

    A run that begins between the two records nothing.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path, writes: bool) -> None:
        """Records nothing yet.

        Args:
          steps: START and STOP; None: nothing is recorded.
          folder: TensorBoard's.
          writes: whether this worker records.
        """
        self._steps, self._folder, self._writes, self._records = steps, folder, writes, False

    def actions(self) -> list[Action]:
        """Returns the actions that begin and end it, of which all workers know."""
        return [Action(0, self._switch, at=self._steps)] if self._steps else []

    def _switch(self, progress: Progress) -> None:
        assert self._steps is not None
        if progress.step == self._steps[1]:
            self._stop()
        elif self._writes:
            tf.profiler.experimental.start(str(self._folder))
            self._records = True

    def _stop(self) -> None:
        if self._records:
            self._records = False
            tf.profiler.experimental.stop()

    def __enter__(self) -> Profiler:
        """Returns itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the recording."""
        self._stop()
