"""What is written of a step while training, by tag."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.actions.events import EventFile
from trainer.loop import Progress
from trainer.step.train_step import AVERAGED, TrainStep

Write = Callable[[int, dict[str, float]], None]  # global step, values by tag


class TrainScalars:
    """Gives the values of a step, and the speed since the last time, as in `LogLine`, to `write`."""

    def __init__(self, global_batch_size: int, rate: Callable[[tf.Tensor], tf.Tensor], write: Write) -> None:
        self._rows, self._rate, self._write = global_batch_size, rate, write
        self._earlier: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Writes the scalars of a step; needs its NORM."""
        (steps, seconds), waited = progress.since(self._earlier), progress.waited_since(self._earlier)
        self._earlier = progress
        averages = zip(AVERAGED, progress.result.averages.numpy().tolist(), strict=True)
        values = {
            **{f"train/{name}": value for name, value in progress.values.items()},  # of the last batch alone
            **{f"train/epoch_{name}": value for name, value in progress.means.items()},
            **{f"train/{name}_average": value for name, value in averages},
            "train/learning_rate": float(self._rate(tf.constant(progress.step - 1, tf.int64))),
            "train/gradient_norm": float(progress.result.norm),
            "train/examples_per_second": steps * self._rows / seconds,
            "train/input_wait": waited / seconds,
        }
        self._write(progress.step, values)


def write_graph(stepper: TrainStep, file: EventFile) -> Callable[[Progress], None]:
    """Returns an action that writes the graph of an update, once in a folder."""

    def write(progress: Progress) -> None:
        if file.is_first and stepper.graph is not None:
            file.graph(stepper.graph)

    return write


def write_histograms(stepper: TrainStep, file: EventFile) -> Callable[[Progress], None]:
    """Returns an action that writes the histograms of all weights and their gradients; needs HISTOGRAMS."""
    paths = [variable.path for variable in stepper.state.model.trainable_variables]
    tags = [*(f"weights/{path}" for path in paths), *(f"gradients/{path}" for path in paths)]

    def write(progress: Progress) -> None:
        if file.writes:
            rows = progress.result.histograms.numpy().tolist()
            file.histograms(progress.step, dict(zip(tags, rows, strict=True)))

    return write


def write_images(file: EventFile) -> Callable[[Progress], None]:
    """Returns an action that writes the first images of the last batch; needs IMAGES."""

    def write(progress: Progress) -> None:
        if file.writes:
            images = progress.result.images.numpy()
            file.images(progress.step, {f"images/{i}": image for i, image in enumerate(images)})

    return write
