"""Layers and regularisers that the models share."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.runtime import REGISTERED_OBJS_TO_NAMES, GraphOrParentsInXlaContext, is_op_determinism_enabled

_RANK = 4  # number of axes of an image batch
_RADIUS = 4  # neighbouring channels on either side
_KERNEL_DTYPES = (tf.float32, tf.bfloat16, tf.float16)  # dtypes that FusedBatchNormV3 accepts


class ScalePixels(keras.layers.Layer):
    """Scales uint8 pixels to float32 in [0, 1]; floats, which an augmentation has already scaled, are unchanged."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns float32 images of the same shape."""
        return tf.cast(images, tf.float32) / 255.0 if images.dtype == tf.uint8 else images


class LocalResponseNorm(keras.layers.Layer):
    """Local response normalisation with the constants of the CIFAR-10 tutorial (Krizhevsky et al. 2012, 3.3).

    x / (1 + 0.001 / 9 * sum of x^2 over 9 neighbouring channels)^0.75, in float32. The sum is computed as a product
    with a banded matrix, which takes a third of the time of TensorFlow's own operation, forward and backward: on CPUs
    that operation loops over single numbers.
    """

    def call(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns activations of the same shape and dtype."""
        exact = tf.cast(activations, tf.float32)
        channels = exact.shape[-1]
        near = min(_RADIUS, channels)
        neighbours = tf.linalg.band_part(tf.fill([channels, channels], 0.001 / 9.0), near, near)
        root = tf.math.rsqrt(1.0 + tf.tensordot(exact * exact, neighbours, 1))
        return tf.cast(exact * root * tf.sqrt(root), activations.dtype)


class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer with TensorFlow's fused kernel in training; variables, configuration and files are the same.

    Keras needs some twenty float32 operations, forward and backward. The kernel reads and writes bfloat16 and float16
    directly, with statistics in float32. Keras' own operations remain where they are as good or better: in XLA, which
    fuses them, in inference, and for inputs that are not (rows, height, width, channels).

    Attributes:
      keeps_statistics: whether training also normalises by the moving statistics and leaves them unchanged.
    """

    keeps_statistics = False

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns normalised values of the same shape and dtype; in training, also updates the moving statistics."""
        training = training and not self.keeps_statistics
        takes = inputs.shape.rank == _RANK and inputs.dtype in _KERNEL_DTYPES and mask is None
        if not (training and self.trainable and takes) or _unsupported(self) or in_xla():
            return super().call(inputs, training=training, mask=mask)
        channels = inputs.shape[-1]
        found = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=_float32(self.gamma) if self.scale else tf.ones([channels]),
            offset=_float32(self.beta) if self.center else tf.zeros([channels]),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=self.epsilon,
            is_training=True,
        )
        # Keras averages the biased variance of the batch; the kernel returns the unbiased one, n / (n - 1) times that.
        count = tf.cast(inputs.shape.num_elements() or tf.size(inputs), tf.float32) / channels
        new, share = 1.0 - self.momentum, tf.maximum(count - 1.0, 1.0) / count
        self.moving_mean.assign(_float32(self.moving_mean) * self.momentum + found.batch_mean * new)
        self.moving_variance.assign(
            _float32(self.moving_variance) * self.momentum + found.batch_variance * (new * share)
        )
        return found.y


class MaxPooling2D(keras.layers.MaxPooling2D):
    """Keras' layer in a form that XLA can compile even under op determinism.

    In XLA, TensorFlow has no deterministic gradient for its kernel, and refuses to compile it on any device. Maxima of
    shifted slices have the same values and the same gradient, which goes to the first of equal values.
    """

    def call(self, inputs: Any) -> Any:
        """Returns the maximum of each window."""
        takes = None not in inputs.shape[1:3] and not _unsupported(self)
        if not takes or not in_xla() or not is_op_determinism_enabled():
            return super().call(inputs)
        return shifted_maxima(inputs, self.pool_size, self.strides, self.padding)


def shifted_maxima(inputs: tf.Tensor, pool_size: Sequence[int], strides: Sequence[int], padding: str) -> tf.Tensor:
    """Returns the result of `tf.nn.max_pool2d`, as maxima of one strided slice per position in a window.

    Args:
      inputs: values (rows, height, width, channels) with static height and width.
      pool_size, strides: window size and strides, (height, width) each.
      padding: `same` or `valid`.
    """
    places = list(zip(inputs.shape[1:3], pool_size, strides, strict=True))
    if padding == "same":
        outs = [-(-side // stride) for side, _, stride in places]
        missing = [
            max((out - 1) * stride + size - side, 0) for out, (side, size, stride) in zip(outs, places, strict=True)
        ]
        paddings = [[0, 0], *([number // 2, number - number // 2] for number in missing), [0, 0]]
        inputs = tf.pad(inputs, paddings, constant_values=inputs.dtype.min)
    else:
        outs = [(side - size) // stride + 1 for side, size, stride in places]
    spans = [(out - 1) * stride + 1 for out, (_, _, stride) in zip(outs, places, strict=True)]
    slices = [
        inputs[:, i : i + spans[0] : strides[0], j : j + spans[1] : strides[1]]
        for i in range(pool_size[0])
        for j in range(pool_size[1])
    ]
    return functools.reduce(tf.maximum, slices)


def l2_loss(scale: float) -> keras.regularizers.Regularizer:
    """Returns scale * tf.nn.l2_loss(w) = scale * sum(w^2) / 2; Keras' own L2 lacks the half."""
    return keras.regularizers.L2(scale / 2)


def fuse_layers(model: keras.Model) -> keras.Model:
    """Replaces layers of a built model with faster equivalents, in place, and returns the model.

    `BatchNormalization` of images gets TensorFlow's fused kernel, and `MaxPooling2D` a form that XLA compiles under op
    determinism. Each layer stays the same object with its name, weights and `trainable`, so this works for models of
    any kind: functional, sequential, nested or subclassed. A warning says why a layer cannot be replaced.

    Raises:
      UsageError: the argument is not a Keras model or is not built yet.
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise UsageError(f"fuse_layers: takes a built Keras model, got {model!r}")
    kept = []
    for layer in filter(_is_of_images, _layers(model)):
        if reason := _obstacle(layer):
            kept.append(f"{layer.name} ({reason})")
        elif type(layer) in _OURS:
            # Only `call` differs between the classes. A copy would not be the object that a subclassed model calls.
            object.__setattr__(layer, "__class__", _OURS[type(layer)])
    if kept:
        warnings.warn(f"fuse_layers: stay as they are: {', '.join(kept)}", stacklevel=2)
    # Keras must rebuild its functions: the ones traced earlier would still use the old layers.
    model.train_function = model.test_function = model.predict_function = None
    return model


def keep_statistics(model: keras.Model) -> None:
    """Makes the fused normalisations of a model use their moving statistics in training, without updating them.

    Keras' guide to transfer learning calls the base with `training=False` for this. But in Keras 3.15, a model called
    with `training=True` passes that on to its parts regardless.
    """
    for layer in _layers(model):
        if isinstance(layer, BatchNormalization):
            layer.keeps_statistics = True


def has_unfused(model: keras.Model) -> bool:
    """Returns whether `fuse_layers` would make a model train faster: it has one of Keras' own normalisation layers."""
    norms = [layer for layer in _layers(model) if type(layer) is keras.layers.BatchNormalization]
    return any(_is_of_images(layer) and _obstacle(layer) is None for layer in norms)


def in_xla() -> bool:
    """Returns whether the code being traced will be compiled by XLA, inside a function with `jit_compile=True`."""
    return not tf.executing_eagerly() and bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


_OURS: dict[type[keras.layers.Layer], type[keras.layers.Layer]] = {
    keras.layers.BatchNormalization: BatchNormalization,
    keras.layers.MaxPooling2D: MaxPooling2D,
}
for _own, _ours in _OURS.items():
    REGISTERED_OBJS_TO_NAMES[_ours] = REGISTERED_OBJS_TO_NAMES[_own]  # so that saved models load without our code


def _layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the layers of a model, including nested ones."""
    found: list[keras.layers.Layer] = list(model._flatten_layers(include_self=False))
    return found


def _is_of_images(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer is a pooling or normalisation layer for images."""
    # A normalisation layer knows the rank of its inputs once it is built.
    return getattr(layer.input_spec, "ndim", None) == _RANK and isinstance(layer, tuple(_OURS))


def _obstacle(layer: keras.layers.Layer) -> str | None:
    """Returns why a pooling or normalisation layer for images must stay as it is; None if it can be replaced."""
    is_own = not isinstance(layer, tuple(_OURS.values())) and type(layer) not in _OURS
    return f"a {type(layer).__name__}, which has a class of its own" if is_own else _unsupported(layer)


def _unsupported(layer: keras.layers.Layer) -> str | None:
    """Returns an option of a pooling or normalisation layer that only Keras supports; None if it has none."""
    if isinstance(layer, keras.layers.MaxPooling2D):
        return None if layer.data_format == "channels_last" else f"data_format={layer.data_format}"
    for option in ("renorm", "synchronized"):
        if getattr(layer, option):
            return f"{option}=True"
    return None if layer.axis in (-1, _RANK - 1) else f"axis={layer.axis}"


def _float32(variable: keras.Variable) -> tf.Tensor:
    return tf.cast(variable, tf.float32)
