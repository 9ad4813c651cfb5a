"""Layers and terms that the models share."""

from __future__ import annotations

import keras
import tensorflow as tf


class ScalePixels(keras.layers.Layer):
    """uint8 pixels to float32 in [0, 1]; floats, which a distortion has already scaled, as they are."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns float32 images of the same shape."""
        return tf.cast(images, tf.float32) / 255.0 if images.dtype == tf.uint8 else images


class LocalResponseNorm(keras.layers.Layer):
    """Local response normalisation with the CIFAR-10 tutorial's constants (Krizhevsky et al. 2012, 3.3)."""

    def call(self, activations: tf.Tensor) -> tf.Tensor:
        """Returns activations of the same shape and dtype, divided by a term of 9 neighbouring channels.

        It is computed in float32: TensorFlow's kernel has no bfloat16.
        """
        exact = tf.cast(activations, tf.float32)
        return tf.cast(tf.nn.local_response_normalization(exact, 4, 1.0, 0.001 / 9.0, 0.75), activations.dtype)


def l2_loss(scale: float) -> keras.regularizers.Regularizer:
    """Returns scale * tf.nn.l2_loss(w) = scale * sum(w^2) / 2; Keras's own L2 has no half."""
    return keras.regularizers.L2(scale / 2)
