"""`Task`: the parts of a training job that its author writes; and the sums over rows that losses and metrics come from.

Sums are added over replicas and batches; only then are losses and metrics computed from the total.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import keras
import tensorflow as tf

from pipeline.errors import DataError, PipelineError, UsageError, line_of
from pipeline.resolved import ResolvedRequest
from trainer import models
from trainer.checkpoint import files, reader
from trainer.config import TrainConfig

Model = Callable[..., Any]  # features, training=bool -> outputs
Rows = tuple[tf.Tensor, dict[str, tf.Tensor]]  # the loss of each row, and metrics of each row: float (rows,)
WEIGHT, LOSS = "weight", "loss"
Sums = dict[str, tf.Tensor]  # by name, float32: `weight` (), `loss` (), and the sums that the metrics need
_KERAS_FILES = (".weights.h5", ".keras")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Means over the examples of a split.

    Attributes:
      split: its name.
      num_examples: how many the means are over: all but corrupt ones that were skipped.
      num_skipped: corrupt examples that were skipped.
      loss: without regularisation.
      metrics: by name, such as `accuracy`.
      averaged: whether the weights were averages over the steps (--ema).
      parts: the evaluation of each source if there are several.
    """

    split: str
    num_examples: int
    num_skipped: int
    loss: float
    metrics: dict[str, float]
    averaged: bool = False
    parts: tuple[Evaluation, ...] = ()

    def scalars(self) -> dict[str, float]:
        """Returns the means by their tags for TensorBoard, also those of each source."""
        own = {f"eval/{self.split}/{name}": value for name, value in {LOSS: self.loss, **self.metrics}.items()}
        return own | {name: value for part in self.parts for name, value in part.scalars().items()}

    @property
    def lines(self) -> list[str]:
        """A line for each source if there are several, and the line that ends a run."""
        return [str(each) for each in (*self.parts, self)]

    @property
    def accuracy(self) -> float:
        """The accuracy of a classification."""
        return self.metrics["accuracy"]

    @property
    def values(self) -> dict[str, float]:
        """The metrics, and then the loss."""
        return {**self.metrics, LOSS: self.loss}

    def __str__(self) -> str:
        """The line that ends a run."""
        values = ", ".join(f"{name} = {value:.4f}" for name, value in self.values.items())
        skipped = f"; {self.num_skipped} corrupt left out" if self.num_skipped else ""
        averaged = "; averaged weights" if self.averaged else ""
        sources = f" of {len(self.parts)} sources" if self.parts else ""
        return f"{self.split} {values} ({self.num_examples} examples{sources}{skipped}{averaged})"


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The shapes and dtypes of a batch.

    Attributes:
      features: TensorSpec of the images after distortion, (None, height, width, channels); or of what `Task.parse`
        returns.
      labels: TensorSpec, int64 (None,); if --distort mixes rows, float32 (None, classes), also in evaluations; or of
        what `Task.parse` returns.
      class_names: names of the labels; empty if the data set has none.
    """

    features: Any
    labels: Any
    class_names: tuple[str, ...]


class Task:
    """Image classification by the model that --model names. Subclass it and override what differs.

    Losses and metrics are per row, so a task need not know about replicas, padding or virtual replicas: the trainer
    takes weighted means over all rows of the global batch.

    Attributes:
      parse: for data that are not images, a static method `parse(records)` from serialized records, string (rows,), to
        a pair (features, labels), as `parse` of `pipeline.input_fn`; None: the data set's images and labels.
      config: all flags.
      data: the shapes of the batches that the model gets.
    """

    parse: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, config: TrainConfig, data: DataSpec) -> None:
        self.config, self.data = config, data

    def build_model(self) -> keras.Model:
        """Returns the model; called once, in the strategy's scope, after Keras' seed has been set to --seed.

        Raises:
          UsageError: it cannot take such images.
        """
        return models.build(self.config.model, self.data.features, len(self.data.class_names))

    def initialize(self, model: keras.Model) -> None:
        """Sets the first weights of a new run, if they are to differ from those that the model was built with.

        Called on every worker, in the strategy's scope; not when a run resumes. By default loads --initialize_from.
        """
        if self.config.model.initialize_from:
            load_first_weights(model, self.config.model.initialize_from)

    def train_step(self, model: Model, features: Any, labels: Any) -> Rows:
        """Returns losses and metrics of a replica's rows; the trainer differentiates the mean loss.

        Args:
          model: to be called as `model(features, training=True)`; it has the variables of this step.
          features, labels: as in `DataSpec`, of this replica's rows.
        """
        outputs = model(features, training=True)
        return self.loss(labels, outputs), self.metrics(labels, outputs)

    def evaluate(self, model: Model, features: Any, labels: Any) -> Rows:
        """Returns losses and metrics of rows in an evaluation; the trainer averages them over the whole split."""
        outputs = model(features, training=False)
        return self.loss(labels, outputs), self.metrics(labels, outputs)

    def loss(self, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns the loss of each row, float (rows,), without regularisation: the cross-entropy of logits.

        Labels are classes (rows,) or probabilities of all classes (rows, classes), smoothed as --label_smoothing says.
        """
        classes, smoothing = outputs.shape[-1], self.config.model.label_smoothing
        if labels.shape.rank == 1 and not smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        soft = tf.one_hot(labels, classes) if labels.shape.rank == 1 else tf.cast(labels, tf.float32)
        return tf.nn.softmax_cross_entropy_with_logits(soft * (1 - smoothing) + smoothing / classes, outputs)

    def metrics(self, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """Returns metrics of each row by name, float (rows,): `accuracy`, whether the most likely class is right.

        The right class of a mixed row is the one with the largest share.
        """
        expected = labels if labels.shape.rank == 1 else tf.argmax(labels, axis=-1)
        return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, axis=-1), expected), tf.float32)}

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Called on the chief with the numbers that TensorBoard gets, by tag: a hook for other trackers."""

    def after_train(self, model: keras.Model, evaluation: Evaluation | None) -> None:
        """Called on the chief when training has ended and the last checkpoint is saved.

        Args:
          model: with the weights of the last step, or their average if there is one.
          evaluation: the last one; None: there was none.
        """


def load_first_weights(model: keras.Model, path: str) -> None:
    """Loads the weights of a checkpoint (their average if it has one), or of a file that Keras has saved.

    Args:
      model: built.
      path: a --model_dir, for its newest checkpoint; a checkpoint in it, such as run/ckpt-400; or a file.

    Raises:
      UsageError: there is no such checkpoint or file, or it has other variables than the model.
    """
    try:
        if path.endswith(_KERAS_FILES):
            model.load_weights(path)
            return
        stored = reader.read(files.candidates(pathlib.Path(path), None)[0])
        stored.load_weights(model, stored.averaged)
    except (DataError, UsageError, OSError, ValueError) as error:
        raise UsageError(f"--initialize_from={path}: {line_of(error)}") from None


class Measure(Protocol):
    """Computes sums over a replica's rows, and from the sums over all rows the loss and the metrics."""

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over a replica's rows; `loss` has gradients; weights are float32 (rows,)."""

    def row_losses(self, model: Model, features: Any, labels: Any) -> tf.Tensor:
        """Returns the loss of each row in training, float32 (rows,); weighted, they add up to that of `train_sums`."""

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over rows in an evaluation."""

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the mean `loss` and the metrics, float32 scalars, given the sums over all rows."""


class RowMeasure:
    """Weighted means of a task's losses and metrics."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns weighted sums of what `Task.train_step` returns."""
        return self._sums("train_step", self._task.train_step(model, features, labels), weights)

    def row_losses(self, model: Model, features: Any, labels: Any) -> tf.Tensor:
        """Returns the losses of `Task.train_step`."""
        return tf.cast(self._task.train_step(model, features, labels)[0], tf.float32)

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns weighted sums of what `Task.evaluate` returns."""
        return self._sums("evaluate", self._task.evaluate(model, features, labels), weights)

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Divides the sums by the sum of the weights."""
        weight = tf.maximum(sums[WEIGHT], 1.0)  # it is 0 if all rows of a step are skipped corrupt records
        return {name: value / weight for name, value in sums.items() if name != WEIGHT}

    def _sums(self, method: str, given: Any, weights: tf.Tensor) -> Sums:
        values = _checked(f"{type(self._task).__name__}.{method}", given, weights.shape[0])
        return {
            WEIGHT: tf.reduce_sum(weights),
            **{name: tf.reduce_sum(weights * tf.cast(rows, tf.float32)) for name, rows in values.items()},
        }


def _checked(method: str, given: Any, rows: int) -> dict[str, tf.Tensor]:
    """Returns losses and metrics by name.

    Raises:
      UsageError: they are not (losses, {name: metric}) with one number per row.
    """
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
        raise UsageError(f"{method}: must return losses (rows,) and a dict of metrics (rows,); returned {given!r}")
    losses, metrics = given
    if {WEIGHT, LOSS} & set(metrics):
        raise UsageError(f"{method}: a metric is called weight or loss, which are the trainer's own names")
    values = {LOSS: losses, **metrics}
    for name, value in values.items():
        if not tf.is_tensor(value) or not value.shape.is_compatible_with([rows]):
            got = f"shape {tuple(value.shape)}" if tf.is_tensor(value) else repr(value)
            raise UsageError(
                f"{method}: {name} must have one number for each of {rows} rows, shape ({rows},); got {got}"
            )
    return values


def added(totals: Mapping[str, tf.Tensor], sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns totals plus further sums, float64; if there are no totals yet, the sums."""
    return {name: tf.cast(value, tf.float64) + totals.get(name, 0.0) for name, value in sums.items()}


def result_of(
    splits: Mapping[str, ResolvedRequest],
    totals: Mapping[str, Mapping[str, tf.Tensor]],
    measure: Measure,
    may_skip: int,
    averaged: bool,
) -> Evaluation:
    """Returns the means over all examples of some splits, and those of each split.

    Args:
      splits: {name: what was read}.
      totals: {name: the measure's sums over the whole split, float64}.
      measure: computes loss and metrics from the sums.
      may_skip: most examples of a split that may be skipped because their records are corrupt.
      averaged: whether the weights were averages over the steps.

    Raises:
      PipelineError: the weights do not sum to a split's number of examples.
    """
    parts = []
    for name, split in splits.items():
        count, weight = split.order.num_records, float(totals[name][WEIGHT])
        if not 0 <= count - int(weight) <= may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {name!r}, which has {count}")
        parts.append(_means(name, count, totals[name], measure, averaged))
    if len(parts) == 1:
        return parts[0]
    pooled: dict[str, tf.Tensor] = {}
    for sums in totals.values():
        pooled = added(pooled, sums)
    count, text = sum(split.order.num_records for split in splits.values()), next(iter(splits.values())).request.split
    return dataclasses.replace(_means(text, count, pooled, measure, averaged), parts=tuple(parts))


def _means(name: str, count: int, sums: Mapping[str, tf.Tensor], measure: Measure, averaged: bool) -> Evaluation:
    values, weight = {key: float(value) for key, value in measure.results(sums).items()}, int(float(sums[WEIGHT]))
    return Evaluation(name, weight, count - weight, values.pop(LOSS), values, averaged)
