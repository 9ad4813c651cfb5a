"""`Task`: the parts of a training job that users write, the data passed to it, and the resulting means."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf

from pipeline.augmentation.base import Recipe, output_spec
from pipeline.augmentation.composed import cropping_of
from pipeline.augmentation.libraries import user_recipe
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.user import Supervised
from pipeline.errors import UsageError
from pipeline.graph_calls import UserFunction
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, BOXES, MASK
from pipeline.order.views import LABEL
from pipeline.records.annotation import WEIGHT
from pipeline.resolved import ResolvedRequest
from trainer import models
from trainer.config import TrainConfig
from trainer.config.model import FirstWeights, is_weight_file
from trainer.models import weight_files

Model = Callable[..., Any]  # features, training=bool -> outputs
Rows = tuple[tf.Tensor, dict[str, tf.Tensor]]  # loss and metrics of each row: float (rows,)
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Means over the examples of a split.

    Attributes:
      split: name of the split.
      num_examples: number of examples in the means: all except skipped corrupt ones and those with sample weight 0.
      num_skipped: number of corrupt examples that were skipped.
      loss: mean loss without regularisation.
      metrics: values by name, such as `accuracy`.
      averaged: whether the weights were averages over the steps (--ema).
      parts: evaluations of the sources, if there are several.
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
        """Returns the means by their TensorBoard tags, including each source's."""
        own = {f"eval/{self.split}/{name}": value for name, value in {LOSS: self.loss, **self.metrics}.items()}
        return own | {name: value for part in self.parts for name, value in part.scalars().items()}

    @property
    def lines(self) -> list[str]:
        """A line for each source if there are several, then the line for the end of a run."""
        return [str(each) for each in (*self.parts, self)]

    @property
    def accuracy(self) -> float:
        """The accuracy of a classification."""
        return self.metrics["accuracy"]

    @property
    def values(self) -> dict[str, float]:
        """The metrics, followed by the loss."""
        return {**self.metrics, LOSS: self.loss}

    def __str__(self) -> str:
        """The line for the end of a run."""
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
      features: TensorSpec of the images after augmentation, (None, height, width, channels), or of the features from
        `Task.parse`.
      labels: TensorSpec of class labels, int64 (None,), or float32 (None, classes), also in evaluation, if --augment
        mixes rows; of other labels in the manifest, such as float32 (None,) or (None, n); of the labels from
        `Task.parse`; or of the feature named by `Task.label`: uint8 (None, height, width, 1) for masks, a dict for
        boxes or points.
      class_names: class names by label; empty if the data set has none.
      has_sample_weights: whether `Task.parse` also returns sample weights.
      are_classes: whether each row has one class, or shares of several that add up to 1; false if labels are numbers or
        may contain several classes. Labels from `Task.parse` are assumed to be classes.
    """

    features: Any
    labels: Any
    class_names: tuple[str, ...]
    has_sample_weights: bool = False
    are_classes: bool = True

    @property
    def num_outputs(self) -> int:
        """Number of model outputs: one per class, or per number in a label; 0 if classes have no names."""
        if self.class_names or self.are_classes or not isinstance(self.labels, tf.TensorSpec):
            return len(self.class_names)
        return math.prod(self.labels.shape[1:].as_list())


class Task:
    """Image classification with the model that --model names. Subclass it and override what differs.

    Losses and metrics are per row, so a task need not care about replicas, padding or virtual replicas: the trainer
    computes weighted means over all rows of the global batch.

    Attributes:
      parse: static method `parse(records)` for data that are not images: turns serialized records, string (rows,), into
        (features, labels) or (features, labels, sample weights (rows,)), like `parse` of `pipeline.input_fn`, which
        also passes `keys` and `training` if it has arguments with these names; None for the data set's images and
        labels.
      augment: static method `augment(images, keys, training)` for images, used instead of a recipe, like a function
        given as `augment` to `pipeline.input_fn`; may also be a result of `pipeline.augment`. None to use --augment.
      label: name of the feature fed as labels: `label`, or `mask`, `boxes` or `points`, which recipes transform along
        with the images.
      config: flags of the run.
      data: shapes and dtypes of the batches that the model gets.
      first_weights: file of Keras weights that the run began with; None if it began with others.
      left_out: line about the weights that were not loaded from that file; empty if all were.
    """

    parse: ClassVar[Callable[..., Any] | None] = None
    augment: ClassVar[Callable[..., Any] | None] = None
    label: ClassVar[str] = LABEL
    left_out: str = ""
    first_weights: FirstWeights | None = None

    def __init__(self, config: TrainConfig, data: DataSpec) -> None:
        self.config, self.data = config, data

    def build_model(self) -> keras.Model:
        """Returns the model. Called once, in the strategy's scope, after Keras' seed has been set to --seed.

        It is called again for each further image size in --phases, on a task with that size in `data`.

        Raises:
          UsageError: the model cannot take such images.
        """
        return models.build(self.config.model, self.data.features, self.data.num_outputs)

    def initialize(self, model: keras.Model) -> None:
        """Sets the initial weights of a new run, if they should differ from those that the model was built with.

        Called on every worker, in the strategy's scope, but not when a run resumes. Loads --initialize_from by default.
        """
        source = self.config.model.initialize_from
        if source and is_weight_file(source):
            self.first_weights, self.left_out = weight_files.load(model, source)
        elif source:
            from trainer.checkpoint import reader  # noqa: PLC0415, of another run, which few begin with

            reader.load_first_weights(model, source)

    def train_step(self, model: Model, features: Any, labels: Any) -> Rows:
        """Returns the losses and metrics of a replica's rows; the trainer differentiates the mean loss.

        Args:
          model: model, to be called as `model(features, training=True)`; it has the variables of this step.
          features, labels: rows of the batch on this replica, as in `DataSpec`.
        """
        outputs = model(features, training=True)
        return self.loss(labels, outputs), self.metrics(labels, outputs)

    def evaluate(self, model: Model, features: Any, labels: Any) -> Rows:
        """Returns the losses and metrics of rows in an evaluation; the trainer averages them over the whole split."""
        outputs = model(features, training=False)
        return self.loss(labels, outputs), self.metrics(labels, outputs)

    def loss(self, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns the loss of each row, float (rows,), without regularisation: the cross-entropy of logits.

        Labels are classes (rows,) or probabilities of all classes (rows, classes), smoothed according to
        --label_smoothing.

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
        """Returns metrics of each row by name, float (rows,): `accuracy`, 1 if the most likely class is right.

        The right class of a mixed row is the one with the largest share.

        Raises:
          UsageError: the labels are not classes.
        """
        self._check_classes()
        expected = labels if labels.shape.rank == 1 else tf.argmax(labels, axis=-1)
        return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, axis=-1), expected), tf.float32)}

    def _check_classes(self) -> None:
        if not self.data.are_classes:
            labels = self.data.labels
            if isinstance(labels, dict):
                kind = " and ".join(labels)
            else:
                kind = f"{labels.dtype.name} (rows, {', '.join(map(str, labels.shape[1:]))})"
            raise UsageError(
                f"the labels are {kind}, not a class per image, which is what this loss is for: give a Task with loss "
                "and metrics of its own (--task=MODULE:CLASS), or a compiled model (--model=MODULE:FUNCTION)"
            )

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Called on the chief with the values that TensorBoard gets, by tag: a hook for other trackers."""

    def after_train(self, model: keras.Model, evaluation: Evaluation | None) -> None:
        """Called on the chief after training has ended and the last checkpoint is saved.

        Args:
          model: model with the weights of the last step, or their average if there is one.
          evaluation: last evaluation; None if there was none.
        """


def uncalled(task: type[Task]) -> str | None:
    """Returns a line about a task's public methods that override nothing and are never called; None if there are none.

    Args:
      task: class to check; methods inherited from bases that are not tasks are ignored.
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


def data_spec_of(training: ResolvedRequest, no_python: str = "") -> DataSpec:
    """Returns the shapes and dtypes of a request's batches.

    Args:
      training: training request.
      no_python: reason why the task's own functions may not call Python; empty if they may.

    Raises:
      UsageError: the task's `parse` does not return (features, labels), or its `augment` does not return images of a
        single kind.
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
    features = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    placed = training.placed.get(training.request.label)
    if placed is not None:
        own, of_boxes = _placed(training.request.label, placed, images), training.placed.get(BOX_LABELS)
        if of_boxes is not None and training.request.label == BOXES:
            own[BOX_LABELS] = tf.TensorSpec([None, *of_boxes.shape], tf.int64)
            classes = of_boxes.class_names
        classes = placed.class_names or classes
        return DataSpec(features, own, classes, are_classes=False)
    if recipe.mixing:
        labels = tf.TensorSpec([None, len(classes)], tf.float32)
    return DataSpec(features, labels, classes, are_classes=label.is_class)


def _placed(name: str, feature: Feature, images: tf.TensorSpec) -> Any:
    """Returns the spec of labels with positions in images of a given spec."""
    if name == MASK:
        return tf.TensorSpec([None, *images.shape[1:3], 1], tf.uint8)
    shape = [None, *feature.shape]
    return {name: tf.TensorSpec(shape, tf.float32), name + WEIGHT: tf.TensorSpec(shape[:2], tf.float32)}


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

    # Traced but not run, inside a function, which may capture tensors, tables and layers from a module's top level.
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
            f"Task.parse: sample weights must be one number per row, (rows,); they are {shapes}; apply weights "
            "within a row in Task.loss"
        )
    features, labels = tf.nest.map_structure(
        lambda value: tf.TensorSpec([None, *value.shape[1:]], value.dtype), (found.x, found.y)
    )
    return DataSpec(features, labels, classes, own is not None)


def shape_of(model: keras.Model, data: DataSpec) -> Any:
    """Returns the shape of a model's outputs, or a structure of shapes if there are several.

    Args:
      model: built model. A subclassed one, whose output shape Keras does not know, is called with symbolic features.
      data: spec of the features.
    """
    known = getattr(model, "output_shape", None)  # a list for several outputs, even if a call returns a dict
    if isinstance(known, tuple) and all(size is None or isinstance(size, int) for size in known):
        return known
    features = tf.nest.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), data.features)
    return tf.nest.map_structure(lambda found: tuple(found.shape), model.compute_output_spec(features))


def classes_of(model: keras.Model, data: DataSpec) -> tuple[str, ...] | None:
    """Returns the class names if the model has one output per class, else None.

    Args:
      model: built model.
      data: spec whose labels are class numbers, or probabilities of all classes if rows are mixed. Unnamed classes are
        named by their numbers.
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


def tags_of(model: keras.Model, data: DataSpec) -> tuple[str, ...]:
    """Returns the class names if labels tell for each class whether a row has it, and the model has an output for each.

    Otherwise, or if the model is compiled with a loss that is not for probabilities, the result is empty.
    """
    labels, names = data.labels, data.class_names
    if data.are_classes or not isinstance(labels, tf.TensorSpec) or shape_of(model, data) != (None, len(names)):
        return ()
    loss = getattr(model, "loss", None) if model.compiled else None
    if labels.shape.as_list() != [None, len(names)] or (loss is not None and "crossentropy" not in _name_of(loss)):
        return ()
    return names


def gives_probabilities(model: keras.Model, activation: Any = keras.activations.softmax) -> bool:
    """Returns whether the outputs are probabilities, not logits, judging by the last layer or the compiled loss.

    Args:
      model: built model.
      activation: function that turns logits into probabilities.
    """
    last = model.layers[-1] if model.layers else None
    own = getattr(last, "activation", None)
    if isinstance(last, keras.layers.Softmax) or own in (keras.activations.softmax, activation):
        return True
    if not model.compiled or isinstance(model.loss, dict | list | tuple):
        return False
    return "crossentropy" in _name_of(model.loss) and not getattr(model.loss, "from_logits", False)


def _name_of(loss: Any) -> str:
    loss = keras.losses.get(loss)
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", ""))
