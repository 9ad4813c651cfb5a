"""The sums over rows from which losses and metrics are computed, by a task's functions or as compiled into a model.

Sums are added over replicas and batches; only then are losses and metrics computed from the total.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf
from keras import tree

from pipeline.batch.weights import of_classes, of_rank
from pipeline.commands.text import count_of
from pipeline.errors import DataError, PipelineError, UsageError
from pipeline.resolved import ResolvedRequest
from trainer.runtime import LossFunctionWrapper
from trainer.task import LOSS, DataSpec, Evaluation, Model, Task, shape_of

WEIGHT = "weight"
ROWS = "weighted rows"  # number of rows whose weight is not 0, if a task has sample weights
Sums = dict[str, tf.Tensor]  # sums by name, float32: `weight` (), `loss` (), and what the metrics need
_SEPARATOR = "/"  # between a metric's name and the number of its state
_MOST_CHARACTERS = 300  # characters of Keras' error that are shown


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

    def __init__(self, task: Task, class_losses: ClassLosses | None = None) -> None:
        self._task, self._class_losses = task, class_losses

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns weighted sums of the results of `Task.train_step`."""
        return self._sums("train_step", self._task.train_step(model, features, labels), weights, labels)

    def row_losses(self, model: Model, features: Any, labels: Any) -> tf.Tensor:
        """Returns the losses of `Task.train_step`."""
        losses = tf.cast(self._task.train_step(model, features, labels)[0], tf.float32)
        return self._class_losses(losses, labels) if self._class_losses else losses

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns weighted sums of the results of `Task.evaluate`."""
        return self._sums("evaluate", self._task.evaluate(model, features, labels), weights)

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Divides the sums by the sum of the weights."""
        weight = divisor(sums[WEIGHT])
        return {name: value / weight for name, value in sums.items() if name not in (WEIGHT, ROWS)}

    def _sums(self, method: str, given: Any, weights: tf.Tensor, trained: Any = None) -> Sums:
        values = _checked(f"{type(self._task).__name__}.{method}", given, weights.shape[0])
        if self._class_losses and trained is not None:
            values[LOSS] = self._class_losses(tf.cast(values[LOSS], tf.float32), trained)
        return {
            **_counts(weights, self._task.data),
            **{name: tf.reduce_sum(weights * tf.cast(rows, tf.float32)) for name, rows in values.items()},
        }


class ClassLosses:
    """The losses of rows in training, times the factors of their classes (--class_weight).

    The sum of the weights, which divides them, does not change; nor do metrics and evaluations.
    """

    def __init__(self, factors: Mapping[int, float], labels: Any) -> None:
        """Checks the labels.

        Args:
          factors: factors by class number.
          labels: labels as in `DataSpec`.

        Raises:
          UsageError: the labels are neither one class per row nor probabilities of all classes.
        """
        rank = labels.shape.rank if isinstance(labels, tf.TensorSpec) else None
        if rank not in (1, 2) or (rank == 2 and labels.dtype.is_integer and labels.shape[1] != 1):
            raise UsageError(
                "--class_weight: needs labels that are a class per row, (rows,), or probabilities, (rows, classes); "
                f"they are {labels}"
            )
        self._factors = factors

    @classmethod
    def of(cls, task: Task) -> ClassLosses | None:
        """Returns the class losses that a task's flags request; None if they request none."""
        factors = task.config.model.class_weights
        return cls(factors, task.data.labels) if factors else None

    def __call__(self, losses: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the losses, float32 (rows,), times the factors."""
        return losses * of_classes(self._factors, labels, is_image=False)


class _Part(NamedTuple):
    """A compiled loss or metric of one output.

    Attributes:
      name: name of the metric, or of the loss's output.
      path: keys that lead to the output, and to its labels, from all outputs and labels; empty for a single output.
      compute: metric, or function of labels and outputs that returns losses, one or more per row.
      weight: factor of a loss (`loss_weights`).
    """

    name: str
    path: tuple[Any, ...]
    compute: Any
    weight: float = 1.0

    def of(self, labels: Any, outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the labels of the output, and the output.

        If the output is single numbers, the labels get its last axis, as Keras does.
        """
        for key in self.path:
            labels, outputs = labels[key], outputs[key]
        if tf.nest.is_nested(labels) or tf.nest.is_nested(outputs):
            raise TypeError(f"labels and outputs have different structures: {labels} and {outputs}")
        if outputs.shape[-1] == 1 and outputs.shape.rank == labels.shape.rank + 1:
            labels = labels[..., None]
        return labels, outputs


class CompiledMeasure:
    """The losses and the metrics of `model.compile`, summed exactly over all rows.

    The loss is the weighted mean over rows of the sum of the outputs' losses, times `loss_weights`. Keras keeps a
    metric's state as sums over rows, so that AUC, precision and IoU are exact for the whole batch or split, not means
    over replicas.
    """

    def __init__(self, model: keras.Model, data: DataSpec, flag: str, class_losses: ClassLosses | None = None) -> None:
        """Builds the metrics.

        Args:
          model: compiled model.
          data: spec of its features and labels.
          flag: name of the model in messages.
          class_losses: factors in training; None to use the losses as compiled.

        Raises:
          UsageError: it is compiled without a loss, or a loss or a metric does not fit outputs and labels.
        """
        if getattr(model, "_compile_loss", None) is None:  # public nowhere
            raise UsageError(f"{flag}: compiled with loss={model.loss!r}; give compile a loss")
        self._data, self._class_losses = data, class_losses
        outputs = _symbolic(shape_of(model, data))
        labels = tf.nest.map_structure(lambda s: keras.KerasTensor((1, *s.shape[1:]), s.dtype.name), data.labels)
        count, expected = (len(tf.nest.flatten(some)) for some in (outputs, labels))
        if count != expected:
            raise UsageError(
                f"{flag}: compiled, with {count_of(count, 'output')}, but the data have {count_of(expected, 'label')}; "
                "the parse of a task returns labels in the structure of the outputs"
            )
        with _in_one_line(flag):
            self._losses = _losses(model, labels, outputs)
        for loss in self._losses:
            reduction = getattr(getattr(loss.compute, "__self__", None), "reduction", "sum_over_batch_size")
            if reduction != "sum_over_batch_size":
                raise UsageError(f"{flag}: its loss has reduction={reduction!r}; the trainer takes means over rows")
        with _in_one_line(flag):
            self._metrics = _metrics(model, labels, outputs)
            rows = [
                tf.nest.map_structure(lambda one: tf.TensorSpec((2, *one.shape[1:]), one.dtype), some)
                for some in (labels, outputs)
            ]
            tf.function(self._sums, autograph=False).get_concrete_function(*rows, tf.TensorSpec((2,)))
        for name, _, metric, _ in self._metrics:
            if data.has_sample_weights and _is_iou(metric) and tf.as_dtype(metric.total_cm.dtype).is_integer:
                raise UsageError(
                    f"{flag}: its metric {name} counts in integers, which would cut off sample weights; make it with "
                    "dtype='float32'"
                )

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over a replica's rows; `loss` has gradients."""
        return self._sums(labels, model(features, training=True), weights, self._class_losses)

    def row_losses(self, model: Model, features: Any, labels: Any) -> tf.Tensor:
        """Returns the loss of each row in training, float32 (rows,)."""
        losses = self._total(self._of_outputs(labels, model(features, training=True)))
        return self._class_losses(losses, labels) if self._class_losses else losses

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over rows in an evaluation."""
        return self._sums(labels, model(features, training=False), weights)

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the mean loss, for several outputs also each one's, and the metrics from their summed states."""
        weight = divisor(sums[WEIGHT])
        own = [_loss_key(loss) for loss in self._losses if len(self._losses) > 1]
        found = {name: sums[name] / weight for name in (LOSS, *own)}
        for name, _, metric, _ in self._metrics:
            state = [tf.cast(sums[_key(name, i)], v.dtype) for i, v in enumerate(metric.variables)]
            found[name] = tf.cast(metric.stateless_result(state), tf.float32)
        return found

    def _sums(self, labels: Any, outputs: Any, weights: tf.Tensor, class_losses: ClassLosses | None = None) -> Sums:
        each = self._of_outputs(labels, outputs)
        total = self._total(each)
        sums = {**_counts(weights, self._data)}
        sums[LOSS] = tf.reduce_sum(weights * (class_losses(total, labels) if class_losses else total))
        if len(each) > 1:
            sums.update({name: tf.reduce_sum(weights * rows) for name, rows in each.items()})
        for part in self._metrics:
            sums.update(_states(part, *part.of(labels, outputs), weights))
        return sums

    def _of_outputs(self, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """Returns the losses of each output, float32 (rows,)."""
        found = {}
        for loss in self._losses:
            expected, given = loss.of(labels, outputs)
            # Calling the loss would divide by the replica's rows and by the replicas.
            each = tf.cast(loss.compute(expected, given), tf.float32)
            found[_loss_key(loss)] = tf.reduce_mean(tf.reshape(each, [tf.shape(given)[0], -1]), axis=1)
        return found

    def _total(self, of_outputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        scaled = [
            rows if loss.weight == 1.0 else loss.weight * rows
            for loss, rows in zip(self._losses, of_outputs.values(), strict=True)
        ]
        return scaled[0] if len(scaled) == 1 else tf.add_n(scaled)


def divisor(weight: tf.Tensor) -> tf.Tensor:
    """Returns the sum of weights that sums are divided by; 1 if it is 0, as are the sums.

    It is 0 if all rows of a step are skipped corrupt records. Sample weights may add up to less than 1.
    """
    return tf.where(weight > 0, weight, tf.ones_like(weight))


def _counts(weights: tf.Tensor, data: DataSpec | None) -> Sums:
    """Returns the sum of the rows' weights; with sample weights also their number, which does not follow from it."""
    if data is None or not data.has_sample_weights:
        return {WEIGHT: tf.reduce_sum(weights)}
    return {WEIGHT: tf.reduce_sum(weights), ROWS: tf.reduce_sum(tf.cast(tf.not_equal(weights, 0.0), tf.float32))}


def _checked(method: str, given: Any, rows: int) -> dict[str, tf.Tensor]:
    """Returns losses and metrics by name.

    Raises:
      UsageError: they are not (losses, {name: metric}) with one number per row.
    """
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
        raise UsageError(f"{method}: must return losses (rows,) and a dict of metrics (rows,); returned {given!r}")
    losses, metrics = given
    if {WEIGHT, LOSS, ROWS} & set(metrics):
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
    """Returns the means over all examples of some splits, and over each split.

    Args:
      splits: {name: split that was read}.
      totals: {name: sums of the measure over the whole split, float64}.
      measure: measure that computes loss and metrics from the sums.
      may_skip: largest number of examples of a split that may be skipped because their records are corrupt.
      averaged: whether the weights were averages over the steps.

    Raises:
      DataError: no row of a split has a sample weight above 0.
      PipelineError: the weights do not sum to a split's number of examples.
    """
    parts = []
    for name, split in splits.items():
        count, weight = split.order.num_records, float(totals[name][WEIGHT])
        if ROWS in totals[name]:  # rows excluded by the user's weights have weight 0, like padding
            if weight <= 0:
                raise DataError(f"the sample weights of the split {name!r} add up to {weight:g}: must be above 0")
        elif not 0 <= count - int(weight) <= may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {name!r}, which has {count}")
        part = _means(name, count, totals[name], measure, averaged)
        parts.append(dataclasses.replace(part, copies=split.request.images_per_record))
    if len(parts) == 1:
        return parts[0]
    pooled: dict[str, tf.Tensor] = {}
    for sums in totals.values():
        pooled = added(pooled, sums)
    count, text = sum(split.order.num_records for split in splits.values()), next(iter(splits.values())).request.split
    whole = _means(text, count, pooled, measure, averaged)
    return dataclasses.replace(whole, parts=tuple(parts), copies=parts[0].copies)


def _means(name: str, count: int, sums: Mapping[str, tf.Tensor], measure: Measure, averaged: bool) -> Evaluation:
    values = {key: float(value) for key, value in measure.results(sums).items()}
    seen = int(float(sums.get(ROWS, sums[WEIGHT])))
    skipped = 0 if ROWS in sums else count - seen
    return Evaluation(name, seen, skipped, values.pop(LOSS), values, averaged)


@contextlib.contextmanager
def _in_one_line(flag: str) -> Iterator[None]:
    """Context in which Keras' errors about a loss or a metric become a UsageError."""
    try:
        yield
    except (ValueError, TypeError, LookupError, tf.errors.InvalidArgumentError) as error:
        said = error.args[0] if isinstance(error, KeyError) else error  # its text is a repr
        reason = " ".join(str(said).split())[:_MOST_CHARACTERS]
        raise UsageError(f"{flag}: compiled with a loss or a metric that does not work: {reason}") from None


def _is_iou(metric: keras.Metric) -> bool:
    """Returns whether a metric is Keras' IoU or a kind of it: MeanIoU, BinaryIoU, OneHotIoU, OneHotMeanIoU."""
    return isinstance(metric, keras.metrics.IoU)


def _weights_of_labels(metric: keras.metrics.IoU, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weight of each label: Keras' IoU flattens both and broadcasts nothing else.

    Args:
      metric: metric, whose dtype the weights get.
      labels: classes, or a number for each class along the metric's axis.
      weights: sample weights, float32 (rows,).
    """
    classes = labels if metric.sparse_y_true else tf.argmax(labels, axis=metric.axis)
    weights = tf.cast(weights, metric.total_cm.dtype)
    return tf.broadcast_to(of_rank(weights, classes.shape.rank), tf.shape(classes))


def _key(metric: str, number: int) -> str:
    return f"{metric}{_SEPARATOR}{number}"


def _symbolic(shape: Any) -> Any:
    """Returns symbolic outputs, of one row, for a structure of shapes (None, ...)."""
    if isinstance(shape, dict):
        return {name: _symbolic(part) for name, part in shape.items()}
    if all(size is None or isinstance(size, int) for size in shape):
        return keras.KerasTensor((1, *shape[1:]), "float32")
    return tuple(map(_symbolic, shape)) if isinstance(shape, tuple) else [*map(_symbolic, shape)]


def _losses(model: keras.Model, labels: Any, outputs: Any) -> list[_Part]:
    """Returns the compiled losses as Keras resolves them: `crossentropy` becomes the kind that fits."""
    compiled = model._compile_loss  # public nowhere
    if not compiled.built:
        compiled.build(labels, outputs)
    parts: list[_Part] = []
    for path, loss, weight, name in compiled._flat_losses:
        # Keras wraps a plain function to reshape labels, which `_Part.of` does.
        compute = loss.fn if type(loss) is LossFunctionWrapper else loss.call
        again = sum(part.name == name for part in parts)  # losses of one output are added up
        parts.append(
            _Part(f"{name}_{again}" if again else name, path, compute, 1.0 if weight is None else float(weight))
        )
    return parts


def _metrics(model: keras.Model, labels: Any, outputs: Any) -> list[_Part]:
    """Returns the compiled metrics, each once; `accuracy` becomes the kind that fits labels and outputs."""
    compiled = getattr(model, "_compile_metrics", None)  # public nowhere
    if compiled is None:
        return []
    compiled.build(labels, outputs)
    paths = [path for path, _ in tree.flatten_with_path(outputs)] if tree.is_nested(outputs) else [()]
    names = compiled._resolved_output_names
    if names and isinstance(outputs, dict):  # Keras' order of outputs
        paths = [(name,) for name in names]
    found: dict[str, _Part] = {}
    for path, *lists in zip(paths, compiled._flat_metrics, compiled._flat_weighted_metrics, strict=True):
        for group in filter(None, lists):
            for metric in group.metrics:
                name = f"{group.output_name}_{metric.name}" if group.output_name else metric.name
                found[name] = _Part(name, path, metric)
    return [*found.values()]


def _states(part: _Part, labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
    """Returns the state of a metric after these rows, by keys in the sums."""
    metric = part.compute
    # Several numbers per row, as for pixels or tokens, need weights of their rank. Several classes per row, (rows,
    # classes), have one loss, and metrics that only take (rows,).
    if _is_iou(metric):
        weights = _weights_of_labels(metric, labels, weights)
    elif labels.shape.rank > 2 or (labels.shape.rank == 2 and outputs.shape.rank == 3):
        weights = of_rank(weights, labels.shape.rank)
    zeros = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
    state = metric.stateless_update_state(zeros, labels, tf.stop_gradient(outputs), sample_weight=weights)
    return {_key(part.name, i): tf.cast(value, tf.float32) for i, value in enumerate(state)}


def _loss_key(loss: _Part) -> str:
    return f"{loss.name}_{LOSS}"
