"""Segmentation as a task of the trainer: an image and its mask are mirrored together."""

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
        shape = tf.TensorSpec([SIZE, SIZE, 4], tf.float32)
        both = tf.map_fn(lambda files: _decoded(*files), (found[IMAGE], found[MASK]), fn_output_signature=shape)
        both = mirrored()(both, keys, training)
        return both[..., :3] / 255, tf.cast(both[..., 3], tf.int64)

    def build_model(self):
        convolutions = [keras.layers.Conv2D(8, 3, padding="same", activation="relu"), keras.layers.Conv2D(CLASSES, 1)]
        return keras.Sequential([keras.Input((SIZE, SIZE, 3)), *convolutions])

    def loss(self, labels, outputs):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs), axis=[1, 2])

    def metrics(self, labels, outputs):
        return {"accuracy": tf.reduce_mean(tf.cast(labels == tf.argmax(outputs, axis=-1), tf.float32), axis=[1, 2])}

    def after_train(self, model, evaluation):
        model.save("voc.keras")


def _decoded(image, mask):
    image = tf.image.resize(tf.io.decode_jpeg(image, channels=3), (SIZE, SIZE))
    mask = tf.image.resize(tf.io.decode_png(mask, channels=1), (SIZE, SIZE), method="nearest")
    return tf.concat([image, tf.cast(mask, tf.float32)], axis=-1)
