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
        model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
        # The mean over the classes of the area under precision and recall: the mean average precision.
        precision = keras.metrics.AUC(curve="PR", multi_label=True, num_labels=CLASSES, from_logits=True, name="mAP")
        model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True), weighted_metrics=[precision])
        return model


def _decoded(file):
    return tf.image.resize(tf.io.decode_jpeg(file, channels=3), (SIZE, SIZE)) / 255
