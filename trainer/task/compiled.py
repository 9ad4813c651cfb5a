"""The loss and metrics of a model that its author has compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.task.base import LOSS, WEIGHT, DataSpec, Model, Sums
from trainer.task.data_spec import shape_of

_SEPARATOR = "/"  # between a metric's name and the number of its state
_MOST_CHARACTERS = 300  # of an error of Keras


class CompiledMeasure:
    """The loss and the metrics of `model.compile`, summed exactly over all rows.

    The loss is the weighted mean over rows. Keras keeps a metric's state as sums over rows, so that AUC, precision and
    IoU are exact for the whole batch or split, not means over replicas.
    """

    def __init__(self, model: keras.Model, data: DataSpec, flag: str) -> None:
        """Builds the metrics.

        Args:
          model: compiled.
          data: its features and labels.
          flag: names the model in messages.

        Raises:
          UsageError: it is not compiled with one loss of one output, or the loss or a metric does not fit the labels.
        """
        if not isinstance(model.loss, str | keras.Loss) and not callable(model.loss):
            raise UsageError(f"{flag}: compiled with loss={model.loss!r}; one loss of one output is supported")
        shape = shape_of(model, data)
        if not isinstance(shape, tuple) or any(isinstance(size, tuple) for size in shape):
            raise UsageError(f"{flag}: compiled, with {len(shape)} outputs; one loss of one output is supported")
        with _in_one_line(flag):
            self._loss = keras.losses.get(model.loss)
        reduction = getattr(self._loss, "reduction", "sum_over_batch_size")
        if reduction != "sum_over_batch_size":
            raise UsageError(f"{flag}: its loss has reduction={reduction!r}; the trainer takes means over rows")
        outputs = keras.KerasTensor((1, *shape[1:]), "float32")
        expected = keras.KerasTensor((1, *data.labels.shape[1:]), data.labels.dtype.name)
        with _in_one_line(flag):
            self._metrics = {metric.name: metric for metric in _metrics(model, expected, outputs)}
            rows = [tf.TensorSpec((2, *some.shape[1:]), some.dtype) for some in (expected, outputs)]
            tf.function(self._sums, autograph=False).get_concrete_function(*rows, tf.TensorSpec((2,)))

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over a replica's rows; `loss` has gradients."""
        return self._sums(labels, model(features, training=True), weights)

    def row_losses(self, model: Model, features: Any, labels: Any) -> tf.Tensor:
        """Returns the loss of each row in training, float32 (rows,)."""
        outputs = model(features, training=True)
        return self._losses(self._as_outputs(labels, outputs), outputs)

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over rows in an evaluation."""
        return self._sums(labels, model(features, training=False), weights)

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the mean loss, and the metrics computed from their summed states."""
        found = {LOSS: sums[LOSS] / tf.maximum(sums[WEIGHT], 1.0)}
        for name, metric in self._metrics.items():
            state = [tf.cast(sums[_key(name, i)], v.dtype) for i, v in enumerate(metric.variables)]
            found[name] = tf.cast(metric.stateless_result(state), tf.float32)
        return found

    def _sums(self, labels: Any, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        labels = self._as_outputs(labels, outputs)
        loss = tf.reduce_sum(weights * self._losses(labels, outputs))
        sums = {WEIGHT: tf.reduce_sum(weights), LOSS: loss}
        for name, metric in self._metrics.items():
            zeros = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
            state = metric.stateless_update_state(zeros, labels, tf.stop_gradient(outputs), sample_weight=weights)
            sums.update({_key(name, i): tf.cast(value, tf.float32) for i, value in enumerate(state)})
        return sums

    def _losses(self, labels: Any, outputs: tf.Tensor) -> tf.Tensor:
        # Calling the loss would divide by the replica's rows and by the replicas.
        of_rows = self._loss.call if isinstance(self._loss, keras.Loss) else self._loss
        each = tf.cast(of_rows(labels, outputs), tf.float32)
        return tf.reduce_mean(tf.reshape(each, [tf.shape(outputs)[0], -1]), axis=1)

    @staticmethod
    def _as_outputs(labels: Any, outputs: tf.Tensor) -> Any:
        """Returns labels with the axis that Keras adds if the outputs are single numbers."""
        return labels[..., None] if outputs.shape[-1] == 1 and outputs.shape.rank == labels.shape.rank + 1 else labels


@contextlib.contextmanager
def _in_one_line(flag: str) -> Iterator[None]:
    """Context in which Keras' errors about a loss or a metric become a UsageError."""
    try:
        yield
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        reason = " ".join(str(error).split())[:_MOST_CHARACTERS]
        raise UsageError(f"{flag}: compiled with a loss or a metric that does not work: {reason}") from None


def _key(metric: str, number: int) -> str:
    return f"{metric}{_SEPARATOR}{number}"


def _metrics(model: keras.Model, labels: keras.KerasTensor, outputs: keras.KerasTensor) -> list[keras.Metric]:
    """Returns the compiled metrics; `accuracy` becomes the kind that fits labels and outputs."""
    compiled = getattr(model, "_compile_metrics", None)  # public nowhere
    if compiled is None:
        return []
    compiled.build(labels, outputs)
    return list(compiled.metrics)
