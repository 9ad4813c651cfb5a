"""What is done between inner loops: the log line and scalars, evaluation, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import tensorflow as tf

from pipeline.errors import PipelineError
from trainer.checkpoints import Checkpoints
from trainer.loop import Progress
from trainer.step import Stepper
from trainer.summaries import Scalars


class Report:
    """The tutorials' log line, and the same numbers for TensorBoard."""

    def __init__(
        self,
        every: int,
        global_batch_size: int,
        learning_rate: Callable[[tf.Tensor], tf.Tensor],
        scalars: Scalars,
        say: Callable[[str], None],
    ) -> None:
        self.every = every
        self._rows, self._learning_rate, self._scalars, self._say = global_batch_size, learning_rate, scalars, say
        self._steps, self._seconds = 0, 0.0

    def __call__(self, progress: Progress) -> None:
        """Reports the loss, and the speed since the last report."""
        steps, seconds = progress.steps - self._steps, progress.seconds - self._seconds
        self._steps, self._seconds = progress.steps, progress.seconds
        rate = steps * self._rows / seconds
        self._say(log_line(progress.step, progress.loss, rate, seconds / steps))
        self._scalars.write(
            progress.step,
            {
                "train/loss": progress.loss,
                "train/accuracy": progress.accuracy,
                "train/learning_rate": float(self._learning_rate(tf.constant(progress.step - 1, tf.int64))),
                "train/examples_per_second": rate,
            },
        )


def log_line(step: int, loss: float, examples_per_second: float, seconds_per_batch: float) -> str:
    """Returns the log line of the CIFAR-10 tutorial (cifar10_train.py)."""
    return f"step {step}, loss = {loss:.2f} ({examples_per_second:.1f} examples/sec; {seconds_per_batch:.3f} sec/batch)"


@dataclasses.dataclass(frozen=True)
class Save:
    """A checkpoint."""

    every: int
    checkpoints: Checkpoints

    def __call__(self, progress: Progress) -> None:
        """Saves."""
        self.checkpoints.save()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Accuracy and mean cross-entropy over `num_examples` examples of a split; others are corrupt and left out."""

    split: str
    num_examples: int
    num_skipped: int
    accuracy: float
    loss: float

    def __str__(self) -> str:
        """The line that ends a run."""
        skipped = f"; {self.num_skipped} corrupt left out" if self.num_skipped else ""
        return f"{self.split} accuracy = {self.accuracy:.4f} ({self.num_examples} examples{skipped})"


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluation over exactly the whole split, but for corrupt records where they may be skipped.

    Attributes:
      every: steps.
      last_step: of the run, at which the action does nothing.
      stepper: with the model.
      batches: one pass over the split, padded with weight 0.
      num_batches: of it.
      split: its name.
      num_examples: that the split has.
      may_skip: how many of them may be corrupt and left out.
      chunk: batches between two looks at `stop`.
      stop: whether to give up, the same on all workers.
      scalars: for TensorBoard.
      say: prints a line.
    """

    every: int
    last_step: int
    stepper: Stepper
    batches: Iterable[tuple[tf.Tensor, ...]]
    num_batches: int
    split: str
    num_examples: int
    may_skip: int
    chunk: int
    stop: Callable[[], bool]
    scalars: Scalars
    say: Callable[[str], None]

    def __call__(self, progress: Progress) -> None:
        """Evaluates and prints; not at the end, where the caller does."""
        if progress.step == self.last_step:
            return
        result = self.evaluate(progress.step)
        if result:
            self.say(f"step {progress.step}, {result}")

    def evaluate(self, step: int) -> Evaluation | None:
        """Returns the result, also written as scalars of the step, or None where it was stopped.

        Raises:
          PipelineError: the weights do not sum to the split's number of examples.
        """
        iterator, weight, loss, correct = iter(self.batches), 0.0, 0.0, 0.0
        for begin in range(0, self.num_batches, self.chunk):
            if self.stop():
                return None
            steps = min(self.chunk, self.num_batches - begin)
            sums = self.stepper.evaluate(iterator, tf.constant(steps, tf.int64))
            weight, loss, correct = weight + float(sums.weight), loss + float(sums.loss), correct + float(sums.correct)
        skipped = self.num_examples - int(weight)
        if not 0 <= skipped <= self.may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {self.split!r}, which has {self.num_examples}")
        self.scalars.write(step, {"eval/accuracy": correct / weight, "eval/loss": loss / weight})
        return Evaluation(self.split, int(weight), skipped, correct / weight, loss / weight)
