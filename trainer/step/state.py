"""What training changes and a checkpoint holds: model, optimizer, global step."""

from __future__ import annotations

import dataclasses

import keras
import tensorflow as tf

from pipeline.distort.base import output_spec
from pipeline.distort.cropping import CroppingRecipe
from pipeline.distort.recipes import make_recipe
from trainer import models
from trainer.config import TrainConfig
from trainer.plan import Plan
from trainer.step import optimizers


@dataclasses.dataclass(frozen=True, eq=False)
class TrainState:
    """The variables of a run.

    Attributes:
      model: images -> logits.
      optimizer: built, so that a checkpoint finds its variables.
      global_step: int64 variable, updates so far.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    global_step: tf.Variable

    @property
    def step(self) -> int:
        """The global step as a number."""
        return int(self.global_step.numpy())

    def has_finite_weights(self) -> tf.Tensor:
        """Returns whether the sum of all squared weights is finite, bool scalar; cheap enough for every step."""
        return tf.math.is_finite(tf.add_n([tf.nn.l2_loss(v.value) for v in self.model.trainable_variables]))

    @tf.function(autograph=False)
    def is_finite(self) -> tf.Tensor:
        """Returns whether no weight, moment or velocity is NaN or infinite, bool scalar."""
        variables = [v.value for v in (*self.model.variables, *self.optimizer.variables) if v.dtype.startswith("float")]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in variables])


def create(strategy: tf.distribute.Strategy, config: TrainConfig, plan: Plan) -> TrainState:
    """Returns the state at step 0, its variables on the strategy's devices.

    Args:
      strategy: in whose scope the variables are made.
      config: of the run.
      plan: for the shape of the data.

    Raises:
      UsageError: the model or the distortion cannot take such images.
    """
    images = _image_spec(config, plan)
    _, height, width, channels = images.shape
    dropout = config.learning.dropout
    classes, seed = len(plan.training.manifest.class_names), config.order.seed
    with strategy.scope():
        model = models.build(
            config.learning.model, (height, width, channels), images.dtype.name, classes, seed, dropout
        )
        optimizer = optimizers.create(config.learning)
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="global_step")
    return TrainState(model, optimizer, step)


def _image_spec(config: TrainConfig, plan: Plan) -> tf.TensorSpec:
    """Returns the shape (1, height, width, channels) and dtype of the images that the model gets."""
    recipe = make_recipe(config.data.distort, "--distort")
    shape = plan.training.image_shape
    if isinstance(recipe, CroppingRecipe):
        shape = (*recipe.crop(training=True).size, plan.training.manifest.features["image"].shape[2] or 3)
    assert shape is not None
    return output_spec(recipe, shape)
