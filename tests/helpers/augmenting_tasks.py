"""Tasks that augment images by functions of their own."""

from __future__ import annotations

import functools
import sys

import keras
import numpy as np
import tensorflow as tf

from pipeline import augment, uniform
from trainer import Task


class Darkens(Task):
    """Scales pixels to [0, 1], and in training by a factor of each row's own."""

    @staticmethod
    def augment(images, keys, training):
        pixels = tf.cast(images, tf.float32) / 255.0
        return pixels * uniform(keys, 0)[:, None, None, None] if training else pixels


@functools.cache
def _layers():
    with tf.init_scope():
        return augment(keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.3, 0.3)]))


class Moves(Task):
    """Flips and moves images by layers of Keras; an evaluation gets them as they are."""

    @staticmethod
    def augment(images, keys, training):
        return _layers()(images, keys, training)


def sums_of(images):
    """Returns a number of each image, int64 (rows,), in which pixels count by their places."""
    flat = tf.cast(tf.reshape(images, [images.shape[0], -1]), tf.int64)
    return tf.reduce_sum(flat * tf.range(1, flat.shape[1] + 1, dtype=tf.int64), axis=1)


class Tells(Moves):
    """Prints a number of each image that it is trained on."""

    def train_step(self, model, features, labels):
        told = tf.strings.reduce_join(tf.strings.as_string(sums_of(features)), separator=",")
        with tf.control_dependencies([tf.print("sums", told, output_stream=sys.stdout)]):
            features = tf.identity(features)
        return super().train_step(model, features, labels)


class InPython(Task):
    """Inverts images by a function of Python, which a graph of another process cannot call."""

    @staticmethod
    def augment(images):
        return tf.ensure_shape(tf.numpy_function(np.invert, [images], images.dtype, stateful=False), images.shape)


class Unlike(Task):
    """Returns images of other kinds in training and in evaluations."""

    @staticmethod
    def augment(images, training):
        return tf.cast(images, tf.float32) if training else images


class OfSelf(Task):
    """Takes a task for its first argument, before there is one."""

    def augment(self, images, keys):
        return images


class Twice(Darkens):
    """Would augment what `parse` returns."""

    parse = staticmethod(lambda records: (records, records))
