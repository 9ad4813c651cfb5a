"""`Task`: the parts of a training job that its author writes; and the sums over rows that losses and metrics come from.

Sums are added over replicas and batches; only then are losses and metrics computed from the total. A model that its
author has compiled brings its own loss and metrics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import keras
import tensorflow as tf

from pipeline.augmentation.base import Recipe, output_spec
from pipeline.augmentation.composed import cropping_of
from pipeline.augmentation.libraries import user_recipe
from pipeline.augmentation.recipes import make_recipe
from pipeline.batch.weights import of_classes, of_rank
from pipeline.decode import Supervised
from pipeline.errors import DataError, PipelineError, UsageError
from pipeline.graph_calls import UserFunction
from pipeline.resolved import ResolvedRequest
from trainer import models
from trainer.checkpoint import reader
from trainer.config import TrainConfig
from trainer.config.model import FirstWeights, is_weight_file
from trainer.models import weight_files

Model = Callable[..., Any]  # features, training=bool -> outputs
Rows = tuple[tf.Tensor, dict[str, tf.Tensor]]  # the loss of each row, and metrics of each row: float (rows,)
WEIGHT, LOSS = "weight", "loss"
ROWS = "weighted rows"  # whose weight is not 0: how many there are, where a task has sample weights
Sums = dict[str, tf.Tensor]  # by name, float32: `weight` (), `loss` (), and the sums that the metrics need


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Means over the examples of a split.

    Attributes:
      split: its name.
      num_examples: how many the means are over: all but corrupt ones that were skipped, and those of sample weight 0.
      num_skipped: corrupt examples that were skipped.
      loss: without regularisation.
      metrics: values by name, such as `accuracy`.
      averaged: whether the weights were averages over the steps (--ema).
      parts: the evaluation of each source if there are several.
      copies: number of copies of each image over which the model's outputs were averaged (--eval_copies).
    """

    split: str
    num_examples: int
    num_skipped: int
    loss: float
    metrics: dict[str, float]
    averaged: bool = False
    parts: tuple[Evaluation, ...] = ()
    copies: int = 1

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
        averaged += f"; mean over {self.copies} copies of each" if self.copies > 1 else ""
        sources = f" of {len(self.parts)} sources" if self.parts else ""
        return f"{self.split} {values} ({self.num_examples} examples{sources}{skipped}{averaged})"


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The shapes and dtypes of a batch.

    Attributes:
      features: TensorSpec of the images after augmentation, (None, height, width, channels); or of what `Task.parse`
        returns.
      labels: TensorSpec, int64 (None,); if --augment mixes rows, float32 (None, classes), also in evaluations; or as
        the data set's manifest says, such as float32 (None,) or (None, n); or of what `Task.parse` returns.
      class_names: names of the labels; empty if the data set has none.
      has_sample_weights: whether `Task.parse` returns sample weights, too.
      are_classes: whether a row has one class, or parts of several that add up to 1; not if it has a number, or may
        have several classes. What `Task.parse` returns is taken for classes.
    """

    features: Any
    labels: Any
    class_names: tuple[str, ...]
    has_sample_weights: bool = False
    are_classes: bool = True

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model: one per class, or per number in a label; 0 if classes have no names."""
        return len(self.class_names) or (0 if self.are_classes else math.prod(self.labels.shape[1:].as_list()))


class Task:
    """Image classification by the model that --model names. Subclass it and override what differs.

    Losses and metrics are per row, so a task need not know about replicas, padding or virtual replicas: the trainer
    takes weighted means over all rows of the global batch.

    Attributes:
      parse: for data that are not images, a static method `parse(records)` from serialized records, string (rows,), to
        (features, labels) or (features, labels, sample weights (rows,)), as `parse` of `pipeline.input_fn`, which also
        gives it `keys` and `training` if it has arguments of these names; None: the data set's images and labels.
      augment: for images, a static method `augment(images, keys, training)` instead of a recipe, as the function that
        `augment` of `pipeline.input_fn` takes; also what `pipeline.augment` returns. None: --augment augments.
      config: all flags.
      data: the shapes of the batches that the model gets.
      first_weights: the file of Keras' weights that the run began with; None: it began with others.
      left_out: a line about what was not taken from that file; empty: everything was.
    """

    parse: ClassVar[Callable[..., Any] | None] = None
    augment: ClassVar[Callable[..., Any] | None] = None
    left_out: str = ""
    first_weights: FirstWeights | None = None

    def __init__(self, config: TrainConfig, data: DataSpec) -> None:
        self.config, self.data = config, data

    def build_model(self) -> keras.Model:
        """Returns the model; called once, in the strategy's scope, after Keras' seed has been set to --seed.

        Raises:
          UsageError: it cannot take such images.
        """
        return models.build(self.config.model, self.data.features, self.data.num_outputs)

    def initialize(self, model: keras.Model) -> None:
        """Sets the first weights of a new run, if they are to differ from those that the model was built with.

        Called on every worker, in the strategy's scope; not when a run resumes. By default loads --initialize_from.
        """
        source = self.config.model.initialize_from
        if source and is_weight_file(source):
            self.first_weights, self.left_out = weight_files.load(model, source)
        elif source:
            reader.load_first_weights(model, source)

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

        Raises:
          UsageError: the labels are not classes.
        """
        self._check_classes()
        classes, smoothing = outputs.shape[-1], self.config.model.label_smoothing
        if labels.shape.rank == 1 and not smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        soft = tf.one_hot(labels, classes) if labels.shape.rank == 1 else tf.cast(labels, tf.float32)
        return tf.nn.softmax_cross_entropy_with_logits(soft * (1 - smoothing) + smoothing / classes, outputs)

    def metrics(self, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """Returns metrics of each row by name, float (rows,): `accuracy`, whether the most likely class is right.

        The right class of a mixed row is the one with the largest share.

        Raises:
          UsageError: the labels are not classes.
        """
        self._check_classes()
        expected = labels if labels.shape.rank == 1 else tf.argmax(labels, axis=-1)
        return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, axis=-1), expected), tf.float32)}

    def _check_classes(self) -> None:
        if not self.data.are_classes:
            kind = f"{self.data.labels.dtype.name} (rows, {', '.join(map(str, self.data.labels.shape[1:]))})"
            raise UsageError(
                f"the labels are {kind}, not a class per image, which is what this loss is for: give a Task with loss "
                "and metrics of its own (--task=MODULE:CLASS), or a compiled model (--model=MODULE:FUNCTION)"
            )

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Called on the chief with the numbers that TensorBoard gets, by tag: a hook for other trackers."""

    def after_train(self, model: keras.Model, evaluation: Evaluation | None) -> None:
        """Called on the chief when training has ended and the last checkpoint is saved.

        Args:
          model: has the weights of the last step, or their average if there is one.
          evaluation: the last one; None: there was none.
        """


def uncalled(task: type[Task]) -> str | None:
    """Returns a line about public methods of a task that override nothing, since the trainer calls none of them.

    Args:
      task: the class; methods that it has from bases of another kind are not looked at. None: it has no such methods.
    """
    own = [name for base in task.__mro__ if issubclass(base, Task) for name in vars(base)]
    known = {name for base in task.__mro__ if base is Task or not issubclass(base, Task) for name in vars(base)}
    odd = [
        name for name in dict.fromkeys(own) if name[0] != "_" and name not in known and callable(getattr(task, name))
    ]
    if not odd:
        return None
    methods = [name for name in vars(Task) if name[0] != "_"]
    near = {name: difflib.get_close_matches(name, methods, n=1) for name in odd}
    hints = [f"{name} (did you mean {like[0]}?)" if like else name for name, like in near.items()]
    return (
        f"{task.__name__}: the trainer does not call {', '.join(hints)}: no method of Task has "
        f"{'this name' if len(odd) == 1 else 'these names'}; a _ in front of a name says that it is your own"
    )


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
        """Returns weighted sums of what `Task.train_step` returns."""
        return self._sums("train_step", self._task.train_step(model, features, labels), weights, labels)

    def row_losses(self, model: Model, features: Any, labels: Any) -> tf.Tensor:
        """Returns the losses of `Task.train_step`."""
        losses = tf.cast(self._task.train_step(model, features, labels)[0], tf.float32)
        return self._class_losses(losses, labels) if self._class_losses else losses

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns weighted sums of what `Task.evaluate` returns."""
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
          labels: as in `DataSpec`.

        Raises:
          UsageError: they are not one class per row, or probabilities of all classes.
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
        """Returns those that a task's flags ask for; None: they ask for none."""
        factors = task.config.model.class_weights
        return cls(factors, task.data.labels) if factors else None

    def __call__(self, losses: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the losses, float32 (rows,), times the factors."""
        return losses * of_classes(self._factors, labels, is_image=False)


def divisor(weight: tf.Tensor) -> tf.Tensor:
    """Returns the sum of weights that sums are divided by; 1 if it is 0, as are the sums.

    It is 0 if all rows of a step are skipped corrupt records. Sample weights may add up to less than 1.
    """
    return tf.where(weight > 0, weight, tf.ones_like(weight))


def _counts(weights: tf.Tensor, data: DataSpec | None) -> Sums:
    """Returns the sum of the weights of rows; with sample weights, from which it does not follow, their number, too."""
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
    """Returns the means over all examples of some splits, and those of each split.

    Args:
      splits: {name: what was read}.
      totals: {name: the measure's sums over the whole split, float64}.
      measure: computes loss and metrics from the sums.
      may_skip: most examples of a split that may be skipped because their records are corrupt.
      averaged: whether the weights were averages over the steps.

    Raises:
      DataError: no row of a split has a sample weight above 0.
      PipelineError: the weights do not sum to a split's number of examples.
    """
    parts = []
    for name, split in splits.items():
        count, weight = split.order.num_records, float(totals[name][WEIGHT])
        if ROWS in totals[name]:  # of weight 0 are rows that the user's weights leave out, beside padding
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


def data_spec_of(training: ResolvedRequest, no_python: str = "") -> DataSpec:
    """Returns the shapes and dtypes of a request's batches.

    Args:
      training: the request.
      no_python: reason why the task's own functions may not call Python; "": they may.

    Raises:
      UsageError: the task's `parse` does not return (features, labels), or its `augment` no images of one kind.
    """
    classes = tuple(training.class_names)
    parse, augment = training.request.parse, training.request.augment
    if parse is not None:
        return _parsed(parse, classes, no_python)
    label = training.manifest.features["label"]
    labels = tf.TensorSpec([None, *label.shape], label.dtype)
    if callable(augment):
        return DataSpec(_augmented(training, augment, no_python), labels, classes, are_classes=label.is_class)
    recipe = make_recipe("none" if augment is None else str(augment), "--augment")
    images = _images(training, recipe)
    if recipe.mixing:
        labels = tf.TensorSpec([None, len(classes)], tf.float32)
    features = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    return DataSpec(features, labels, classes, are_classes=label.is_class)


def _images(training: ResolvedRequest, recipe: Recipe) -> tf.TensorSpec:
    shape = training.image_shape
    if cropping := cropping_of(recipe):
        shape = (*cropping.crop(training=True).size, training.manifest.features["image"].shape[2] or 3)
    assert shape is not None
    return output_spec(recipe, shape)


def _augmented(training: ResolvedRequest, augment: Any, no_python: str) -> tf.TensorSpec:
    recipe, shape = user_recipe(augment, "Task.augment", no_python), training.image_shape
    assert shape is not None
    train, evaluation = (output_spec(recipe, shape, is_training) for is_training in (True, False))
    if train != evaluation:
        kinds = [f"{spec.dtype.name} {spec.shape[1:]}" for spec in (train, evaluation)]
        raise UsageError(
            f"Task.augment: returns images of {kinds[0]} in training, and of {kinds[1]} in evaluations; the model "
            "takes both, so they must be alike"
        )
    return tf.TensorSpec([None, *train.shape[1:]], train.dtype)


def _parsed(parse: Any, classes: tuple[str, ...], no_python: str) -> DataSpec:
    returned: list[Any] = []

    def call(records: tf.Tensor) -> None:
        keys = lambda: tf.zeros(tf.shape(records), tf.uint64)  # noqa: E731
        returned.append(UserFunction.of("Task.parse", parse, no_python=no_python)(records, keys, training=True))

    # Traced, not run; and by a function, which may take tensors, tables and layers that a module has at its top.
    tf.function(call, autograph=False).get_concrete_function(tf.TensorSpec([1], tf.string))
    given = returned[-1]
    found = Supervised.of(given, "Task.parse")
    if found is None:
        raise UsageError(
            f"Task.parse: must return (features, labels) or (features, labels, sample weights), returned {given!r}"
        )
    own = found.sample_weight
    if own is not None and not (isinstance(own, tf.Tensor) and own.shape.rank == 1):
        shapes = tf.nest.map_structure(lambda leaf: f"(rows, {', '.join(map(str, leaf.shape[1:]))})", own)
        raise UsageError(
            f"Task.parse: sample weights must be one number per row, (rows,); they are {shapes}; multiply what lies "
            "within a row by weights in Task.loss"
        )
    features, labels = tf.nest.map_structure(
        lambda value: tf.TensorSpec([None, *value.shape[1:]], value.dtype), (found.x, found.y)
    )
    return DataSpec(features, labels, classes, own is not None)


def shape_of(model: keras.Model, data: DataSpec) -> Any:
    """Returns the shape of a model's outputs; a structure of shapes if there are several.

    Args:
      model: built. A subclassed one, whose output shape Keras does not know, is called with symbolic features.
      data: its features.
    """
    known = getattr(model, "output_shape", None)
    if known is not None:
        return known
    features = tf.nest.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), data.features)
    return tf.nest.map_structure(lambda found: tuple(found.shape), model.compute_output_spec(features))


def classes_of(model: keras.Model, data: DataSpec) -> tuple[str, ...] | None:
    """Returns the class names if the outputs are one number per class, else None.

    Args:
      model: built.
      data: its labels are class numbers, or probabilities of all classes if rows are mixed. Classes without names are
        called by their numbers.
    """
    shape, labels = shape_of(model, data), data.labels
    if not isinstance(labels, tf.TensorSpec) or not data.are_classes:
        return None
    numbers = labels.dtype.is_integer and labels.shape.rank == 1
    mixed = labels.dtype.is_floating and labels.shape.as_list() == [None, len(data.class_names) or -1]
    if not (numbers or mixed) or not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(shape[1], int):
        return None
    names = data.class_names or tuple(map(str, range(shape[1])))
    return names if 2 <= shape[1] == len(names) else None


def gives_probabilities(model: keras.Model) -> bool:
    """Returns whether the outputs are probabilities, not logits, judging by the last layer or the compiled loss."""
    last = model.layers[-1] if model.layers else None
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax:
        return True
    if not model.compiled:
        return False
    loss = keras.losses.get(model.loss)
    name = str(getattr(loss, "name", None) or getattr(loss, "__name__", ""))
    return "crossentropy" in name and not getattr(loss, "from_logits", False)


_SEPARATOR = "/"  # between a metric's name and the number of its state
_MOST_CHARACTERS = 300  # of an error of Keras


class CompiledMeasure:
    """The loss and the metrics of `model.compile`, summed exactly over all rows.

    The loss is the weighted mean over rows. Keras keeps a metric's state as sums over rows, so that AUC, precision and
    IoU are exact for the whole batch or split, not means over replicas.
    """

    def __init__(self, model: keras.Model, data: DataSpec, flag: str, class_losses: ClassLosses | None = None) -> None:
        """Builds the metrics.

        Args:
          model: compiled.
          data: its features and labels.
          flag: names the model in messages.
          class_losses: those in training; None: as the compiled loss gives them.

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
        self._data, self._class_losses = data, class_losses
        reduction = getattr(self._loss, "reduction", "sum_over_batch_size")
        if reduction != "sum_over_batch_size":
            raise UsageError(f"{flag}: its loss has reduction={reduction!r}; the trainer takes means over rows")
        outputs = keras.KerasTensor((1, *shape[1:]), "float32")
        expected = keras.KerasTensor((1, *data.labels.shape[1:]), data.labels.dtype.name)
        with _in_one_line(flag):
            self._metrics = {metric.name: metric for metric in _metrics(model, expected, outputs)}
            rows = [tf.TensorSpec((2, *some.shape[1:]), some.dtype) for some in (expected, outputs)]
            tf.function(self._sums, autograph=False).get_concrete_function(*rows, tf.TensorSpec((2,)))
        for name, metric in self._metrics.items():
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
        outputs = model(features, training=True)
        losses = self._losses(self._as_outputs(labels, outputs), outputs)
        return self._class_losses(losses, labels) if self._class_losses else losses

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over rows in an evaluation."""
        return self._sums(labels, model(features, training=False), weights)

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the mean loss, and the metrics computed from their summed states."""
        found = {LOSS: sums[LOSS] / divisor(sums[WEIGHT])}
        for name, metric in self._metrics.items():
            state = [tf.cast(sums[_key(name, i)], v.dtype) for i, v in enumerate(metric.variables)]
            found[name] = tf.cast(metric.stateless_result(state), tf.float32)
        return found

    def _sums(
        self, labels: Any, outputs: tf.Tensor, weights: tf.Tensor, class_losses: ClassLosses | None = None
    ) -> Sums:
        labels = self._as_outputs(labels, outputs)
        losses = self._losses(labels, outputs)
        loss = tf.reduce_sum(weights * (class_losses(losses, labels) if class_losses else losses))
        sums = {**_counts(weights, self._data), LOSS: loss}
        row_weights = weights
        # Several numbers per row, as of pixels or tokens, need weights of their rank. Several classes of a row (rows,
        # classes) have one loss, and metrics that take (rows,) alone.
        if labels.shape.rank > 2 or (labels.shape.rank == 2 and outputs.shape.rank == 3):
            weights = of_rank(weights, labels.shape.rank)
        for name, metric in self._metrics.items():
            zeros = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
            own = _weights_of_labels(metric, labels, row_weights) if _is_iou(metric) else weights
            state = metric.stateless_update_state(zeros, labels, tf.stop_gradient(outputs), sample_weight=own)
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


def _is_iou(metric: keras.Metric) -> bool:
    """Returns whether a metric is Keras' IoU or a kind of it: MeanIoU, BinaryIoU, OneHotIoU, OneHotMeanIoU."""
    return isinstance(metric, keras.metrics.IoU)


def _weights_of_labels(metric: keras.metrics.IoU, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weight of each label: Keras' IoU flattens both and broadcasts nothing else.

    Args:
      metric: gives the weights its dtype.
      labels: classes, or a number for each class along the metric's axis.
      weights: sample weights, float32 (rows,).
    """
    classes = labels if metric.sparse_y_true else tf.argmax(labels, axis=metric.axis)
    weights = tf.cast(weights, metric.total_cm.dtype)
    return tf.broadcast_to(of_rank(weights, classes.shape.rank), tf.shape(classes))


def _key(metric: str, number: int) -> str:
    return f"{metric}{_SEPARATOR}{number}"


def _metrics(model: keras.Model, labels: keras.KerasTensor, outputs: keras.KerasTensor) -> list[keras.Metric]:
    """Returns the compiled metrics; `accuracy` becomes the kind that fits labels and outputs."""
    compiled = getattr(model, "_compile_metrics", None)  # public nowhere
    if compiled is None:
        return []
    compiled.build(labels, outputs)
    return list(compiled.metrics)
