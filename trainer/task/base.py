"""`Task`: the parts of a training job that its author writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import tensorflow as tf

from trainer import models
from trainer.config import TrainConfig
from trainer.task import warm_start

if TYPE_CHECKING:
    import keras

    from trainer.actions.evaluation import Evaluation

Model = Callable[..., Any]  # features, training=bool -> outputs
Rows = tuple[tf.Tensor, dict[str, tf.Tensor]]  # the loss of each row, and metrics of each row: float (rows,)


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """What the rows of a batch are.

    Attributes:
      features: TensorSpec of the images, (None, height, width, channels) after distortion; or what `Task.parse` gives.
      labels: TensorSpec, int64 (None,) of images; float32 (None, classes) where --distort mixes rows, in evaluations,
        too; or what `Task.parse` gives.
      class_names: of the labels; empty where the data set has none.
    """

    features: Any
    labels: Any
    class_names: tuple[str, ...]


class Task:
    """Image classification by the model that --model names. Subclass it and override what differs.

    All that a task computes of a row depends on that row alone, so that replicas, padding and virtual replicas need
    none of its attention: the trainer takes weighted means over all rows of the global batch.

    Attributes:
      parse: None: the data set's images and labels. A static method `parse(records)`: from serialized records, string
        (rows,), to a pair (features, labels), for data that are not images. It is `parse` of `pipeline.input_fn`: the
        batches are (features, labels, weights).
      config: all flags.
      data: the rows that the model gets.
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
        """Gives the model of a new run its first weights, where they are not those that it was built with.

        Called on every worker, in the strategy's scope; not when a run resumes. By default those of --initialize_from.
        """
        if self.config.model.initialize_from:
            warm_start.load(model, self.config.model.initialize_from)

    def train_step(self, model: Model, features: Any, labels: Any) -> Rows:
        """Returns losses and metrics of a replica's rows; the trainer differentiates the mean loss.

        Args:
          model: call it as `model(features, training=True)`; it has the variables of this step.
          features, labels: as in `DataSpec`, of this replica's rows.
        """
        outputs = model(features, training=True)
        return self.loss(labels, outputs), self.metrics(labels, outputs)

    def evaluate(self, model: Model, features: Any, labels: Any) -> Rows:
        """Returns losses and metrics of rows in an evaluation, which averages them over the whole split."""
        outputs = model(features, training=False)
        return self.loss(labels, outputs), self.metrics(labels, outputs)

    def loss(self, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns the loss of each row, float (rows,), without regularisation: the cross-entropy of logits.

        Labels are classes (rows,), or probabilities of all classes (rows, classes); see --label_smoothing.
        """
        classes, smoothing = outputs.shape[-1], self.config.model.label_smoothing
        if labels.shape.rank == 1 and not smoothing:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        soft = tf.one_hot(labels, classes) if labels.shape.rank == 1 else tf.cast(labels, tf.float32)
        return tf.nn.softmax_cross_entropy_with_logits(soft * (1 - smoothing) + smoothing / classes, outputs)

    def metrics(self, labels: Any, outputs: Any) -> dict[str, tf.Tensor]:
        """Returns metrics of each row by name, float (rows,): whether the most likely class is right, as `accuracy`.

        Of mixed rows the right class is the one with the largest share.
        """
        expected = labels if labels.shape.rank == 1 else tf.argmax(labels, axis=-1)
        return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, axis=-1), expected), tf.float32)}

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Called on the chief with what is written for TensorBoard, by tag: a hook for other trackers."""

    def after_train(self, model: keras.Model, evaluation: Evaluation | None) -> None:
        """Called on the chief when training has ended and the last checkpoint is saved.

        Args:
          model: with the weights of the last step; with their average, where there is one.
          evaluation: the last one; None where there was none.
        """
