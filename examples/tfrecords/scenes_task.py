"""Images with several classes each as a task of the trainer."""

import functools

import keras
import tensorflow as tf

from pipeline import augment
from trainer import Task

SIZE, CLASSES = 32, 6
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "classes": tf.io.RaggedFeature(tf.int64)}


@functools.cache  # made once, when TensorFlow's devices are set up
def mirrored():
    with tf.init_scope():
        return augment(keras.Sequential([keras.layers.RandomFlip("horizontal")]))


class Scenes(Task):
    """Finds the classes of an image."""

    @staticmethod
    def parse(records, keys, training):
        found = tf.io.parse_example(records, FEATURES)
        shape = tf.TensorSpec([SIZE, SIZE, 3], tf.float32)
        images = tf.map_fn(_decoded, found["image"], fn_output_signature=shape)
        images = mirrored()(images, keys, training)
        return images, tf.reduce_max(tf.one_hot(found["classes"], CLASSES).to_tensor(), axis=1)

    def build_model(self):
        return keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])

    def loss(self, labels, outputs):
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs), axis=-1)

    def metrics(self, labels, outputs):
        return {"accuracy": tf.reduce_mean(tf.cast((labels > 0.5) == (outputs > 0), tf.float32), axis=-1)}


def _decoded(file):
    return tf.image.resize(tf.io.decode_jpeg(file, channels=3), (SIZE, SIZE)) / 255
