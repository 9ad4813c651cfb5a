"""SageMaker's channels as a task of the trainer."""

import functools

import keras
import tensorflow as tf

from pipeline import augment
from trainer import Task

FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


@functools.cache  # made once, when TensorFlow's devices are set up
def layers():
    with tf.init_scope():
        made = [keras.layers.RandomFlip("horizontal"), keras.layers.RandomTranslation(0.1, 0.1)]
        return augment(keras.Sequential(made))


class Channels(Task):
    """Classifies raw pixels that are stored channel by channel."""

    @staticmethod
    def parse(records, keys, training):
        found = tf.io.parse_example(records, FEATURES)
        planes = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), [-1, 3, 32, 32])
        images = tf.cast(tf.transpose(planes, [0, 2, 3, 1]), tf.float32) / 255
        return layers()(images, keys, training), found["label"]

    def build_model(self):
        return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])
