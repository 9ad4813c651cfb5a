"""Segmentation as a task of the trainer: an image and its mask are mirrored by the same keys, so alike."""

import functools

import keras
import tensorflow as tf

from pipeline import augment
from trainer import Task

SIZE, CLASSES = 32, 4
IMAGE, MASK = "image/encoded", "image/segmentation/class/encoded"


@functools.cache  # made once, when TensorFlow's devices are set up
def mirrored():
    with tf.init_scope():
        return augment(keras.Sequential([keras.layers.RandomFlip("horizontal")]))


class Segmentation(Task):
    """Finds the class of each pixel."""

    @staticmethod
    def parse(records, keys, training):
        found = tf.io.parse_example(records, dict.fromkeys((IMAGE, MASK), tf.io.FixedLenFeature([], tf.string)))
        images = tf.map_fn(_image, found[IMAGE], fn_output_signature=tf.TensorSpec([SIZE, SIZE, 3], tf.float32))
        masks = tf.map_fn(_mask, found[MASK], fn_output_signature=tf.TensorSpec([SIZE, SIZE, 1], tf.uint8))
        images, masks = (mirrored()(each, keys, training) for each in (images, masks))
        return images / 255, tf.cast(masks[..., 0], tf.int64)

    def build_model(self):
        convolutions = [keras.layers.Conv2D(8, 3, padding="same", activation="relu"), keras.layers.Conv2D(CLASSES, 1)]
        return keras.Sequential([keras.Input((SIZE, SIZE, 3)), *convolutions])

    def loss(self, labels, outputs):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs), axis=[1, 2])

    def metrics(self, labels, outputs):
        return {"accuracy": tf.reduce_mean(tf.cast(labels == tf.argmax(outputs, axis=-1), tf.float32), axis=[1, 2])}


def _image(file):
    return tf.image.resize(tf.io.decode_jpeg(file, channels=3), (SIZE, SIZE))


def _mask(file):
    return tf.image.resize(tf.io.decode_png(file, channels=1), (SIZE, SIZE), method="nearest")
