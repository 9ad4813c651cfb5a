"""Crops and flips of a whole batch, as XLA compiles them best on the CPU.

A row of an image is kept as one axis of `width * channels` lanes, so that the loops which follow run over a long
contiguous axis. One gather of slices costs a third of a gather of pixels.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2

from pipeline.distort.base import ImageStatistics
from pipeline.order import hashing_tf


def random_below(bound: tf.Tensor | int, keys: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns int32 of the shape of `keys`, uniform in 0..bound-1."""
    return tf.cast(hashing_tf.uniform(keys, draw) * tf.cast(bound, tf.float32), tf.int32)


def crop(images: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Returns each image's own crop, as rows of lanes. Compiles inside XLA only.

    Args:
      images: (rows, image height, image width, channels), static shape.
      top, left: int32 (rows,), the crops' offsets in pixels.
      height, width: the crops' size in pixels.

    Returns:
      (rows, height, width * channels), `images`' dtype.
    """
    rows, image_height, image_width, channels = images.shape
    lanes = tf.reshape(images, (rows, image_height, image_width * channels))
    numbers = xla_data_pb2.GatherDimensionNumbers(
        offset_dims=[1, 2], collapsed_slice_dims=[0], start_index_map=[0, 1, 2], index_vector_dim=1
    )
    start = tf.stack([tf.range(rows), top, left * channels], axis=1)
    return xla.gather(lanes, start, numbers, [1, height, width * channels])


def central_crop(images: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Returns the middle of the images as rows of lanes, (rows, height, width * channels)."""
    rows, image_height, image_width, channels = images.shape
    top, left = (image_height - height) // 2, (image_width - width) // 2
    return tf.reshape(images[:, top : top + height, left : left + width, :], (rows, height, width * channels))


def flip(lanes: tf.Tensor, flipped: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns (rows, height, width * channels) with the rows where `flipped` (bool (rows,)) mirrored left to right."""
    rows, height, width = lanes.shape
    pixels = tf.reshape(lanes, (rows, height, width // channels, channels))
    mirrored = tf.reshape(tf.reverse(pixels, [2]), lanes.shape)
    return tf.where(flipped[:, None, None], mirrored, lanes)


def to_images(lanes: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns rows of lanes as (rows, height, width, channels)."""
    rows, height, width = lanes.shape
    return tf.reshape(lanes, (rows, height, width // channels, channels))


def normalise(images: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
    """Returns float32 images with the training images' mean and standard deviation taken out, channel by channel."""
    std = tf.maximum(tf.constant(statistics.std, tf.float32), 1e-3)  # a channel that never varies
    return (tf.cast(images, tf.float32) - tf.constant(statistics.mean, tf.float32)) / std
