"""The model as a pure function of its variables, for one replica or virtual replica."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from pipeline.order import hashing_tf
from pipeline.order.hashing import Domain

_WIDTH = 2  # the axis of a batch of images
_HALF = 32  # bits of a key in each of the two numbers of a Keras seed
_SEED_NAME = "seed_generator_state"  # of Keras' variables


class Forward:
    """Calls a model with given values of its variables, and keeps what the calls change.

    Attributes:
      state: values of `model.non_trainable_variables`, after the last call.
      losses: regularisation terms of the last call.
    """

    def __init__(
        self, model: keras.Model, trainable: list[tf.Tensor], state: list[tf.Tensor], eval_flip: bool = False
    ) -> None:
        self._model, self._trainable, self.state, self._eval_flip = model, trainable, state, eval_flip
        self.losses: list[tf.Tensor] = []

    def __call__(self, features: Any, training: bool = False) -> Any:
        """Returns the model's outputs, float32 where the model computes in less.

        With `eval_flip`, those of an evaluation are the mean over images and their mirror images: a part of the
        multi-crop evaluation of airbench94 (Jordan 2024).
        """
        outputs = self._outputs(features, training)
        if training or not self._eval_flip:
            return outputs
        mirrored = self._outputs(tf.reverse(features, axis=[_WIDTH]), training)
        return tf.nest.map_structure(lambda one, other: (one + other) / 2, outputs, mirrored)

    def _outputs(self, features: Any, training: bool) -> Any:
        mode = {"training": training} if _takes_training(self._model) else {}
        outputs, self.state, self.losses = self._model.stateless_call(
            self._trainable, self.state, _as_input(self._model, features), return_losses=True, **mode
        )
        return tf.nest.map_structure(lambda value: tf.cast(value, tf.float32) if _is_low(value) else value, outputs)


def _takes_training(model: keras.Model) -> bool:
    """Returns whether the model's call has the argument `training`, which that of a subclass may lack."""
    parameters = inspect.signature(model.call).parameters.values()
    return any(one.name == "training" or one.kind is one.VAR_KEYWORD for one in parameters)


def _is_low(value: tf.Tensor) -> bool:
    return value.dtype in (tf.float16, tf.bfloat16)


def _as_input(model: keras.Model, features: Any) -> Any:
    """Returns the features; pixels as the model's floats where it takes no uint8, in 0..255."""
    wanted = model.inputs[0].dtype if getattr(model, "inputs", None) else None
    if not tf.is_tensor(features) or features.dtype != tf.uint8 or wanted in (None, "uint8"):
        return features
    return tf.cast(features, wanted)


def check_state(model: keras.Model) -> None:
    """Raises UsageError where the model keeps a state that could not be resumed or averaged."""
    for variable in model.non_trainable_variables:
        if not variable.dtype.startswith(("float", "bfloat")) and variable.name != _SEED_NAME:
            raise UsageError(
                f"the model's variable {variable.path} is {variable.dtype}: state that is not trained must be "
                "floating-point, which is averaged over the replicas, or the seed of a layer of Keras"
            )


def seeded(model: keras.Model, state: list[tf.Tensor], *key: Any) -> list[tf.Tensor]:
    """Returns the state with seeds that are a hash of integers: no dropout depends on how often it was called."""

    def seed(index: int, value: tf.Tensor) -> tf.Tensor:
        if value.dtype.is_floating:
            return value
        hashed = hashing_tf.derive_key(Domain.MODEL, key[0], index, *key[1:])
        low = tf.bitwise.bitwise_and(hashed, tf.constant((1 << _HALF) - 1, tf.uint64))
        high = tf.bitwise.right_shift(hashed, tf.constant(_HALF, tf.uint64))
        return tf.cast(tf.stack([high, low]), value.dtype)

    return [seed(index, value) for index, value in enumerate(state)]
