"""Tasks that parse records of `x`, 4 floats, and `label`, an int64."""

import functools

import keras
import numpy as np
import tensorflow as tf

from pipeline import uniform
from trainer import Task

FEATURES = {"x": tf.io.FixedLenFeature([4], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
CLASSES = 3


@functools.cache  # made once, when TensorFlow's devices are set up
def scales():
    with tf.init_scope():
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], [1.0, 2.0, 4.0]), 1.0)


class Classes(Task):
    """Gives one number per class."""

    @staticmethod
    def parse(records):
        found = tf.io.parse_example(records, FEATURES)
        return found["x"], found["label"]

    def build_model(self):
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(CLASSES)]
        return keras.Sequential([keras.Input((4,)), *layers])


class Drawn(Classes):
    """Draws in evaluations, too."""

    @staticmethod
    def parse(records, keys):
        x, label = Classes.parse(records)
        return x + uniform(keys, 0)[:, None], label


@functools.cache
def offset():
    with tf.init_scope():
        return tf.Variable([1.0, 0.0, 0.0, 0.0])


class Several(Classes):
    """Has two features and two outputs, a table and a variable, and parses otherwise in training."""

    @staticmethod
    def parse(records, training):
        x, label = Classes.parse(records)
        x = -x if training else x + offset()
        scale = scales().lookup(tf.cast(tf.math.floormod(x[:, 0], 3.0), tf.int32))
        return {"x": x, "x scale": scale}, {"label": label, "sum": tf.reduce_sum(x, axis=1)}

    def build_model(self):
        x, scale = keras.Input((4,), name="x"), keras.Input((), name="x scale")
        scaled = x * scale[:, None]
        outputs = {"total": keras.layers.Dense(1)(scaled)[:, 0], "a/map": keras.layers.Reshape((2, 2))(scaled)}
        return keras.Model({"x": x, "x scale": scale}, outputs)

    def loss(self, labels, outputs):
        return tf.square(outputs["total"] - labels["sum"])

    def metrics(self, labels, outputs):
        return {"distance": tf.abs(outputs["total"] - labels["sum"])}


class Number(Task):
    """Finds a number of an image."""

    def build_model(self):
        images = keras.Input(self.data.features.shape[1:])
        return keras.Model(images, keras.layers.Dense(1)(keras.layers.Flatten()(images))[:, 0])

    def loss(self, labels, outputs):
        return tf.square(outputs - labels)

    def metrics(self, labels, outputs):
        return {"distance": tf.abs(outputs - labels)}


class Parses(Task):
    """Leaves the model to --model."""

    parse = staticmethod(Classes.parse)


def compiled(features, classes):
    """Returns a compiled model that gives probabilities."""
    del classes  # of records there are no names of classes
    softmax = keras.layers.Dense(CLASSES, activation="softmax")
    model = keras.Sequential([keras.Input(features), softmax])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class OfOneSize(Classes):
    """Takes batches of a known number of rows alone."""

    @staticmethod
    def parse(records):
        x, label = Classes.parse(records)
        return tf.stack(tf.unstack(x)), label


class CallsPython(Classes):
    """Leaves TensorFlow."""

    @staticmethod
    def parse(records):
        x, label = Classes.parse(records)
        doubled = tf.numpy_function(lambda values: np.float32(2) * values, [x], tf.float32, stateful=False)
        return tf.ensure_shape(doubled, [None, 4]), label
