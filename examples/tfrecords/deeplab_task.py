"""Segmentation as a task of the trainer: masks instead of labels, moved with their images by the recipes."""

import keras
import tensorflow as tf

from trainer import Task


class Segmentation(Task):
    """Predicts the class of each pixel with a small U-Net."""

    label = "mask"

    def build_model(self):
        images = keras.Input(self.data.features.shape[1:], dtype="uint8")
        fine = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(keras.layers.Rescaling(1 / 255)(images))
        coarse = keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(fine)
        both = keras.layers.Concatenate()([fine, keras.layers.UpSampling2D()(coarse)])
        return keras.Model(images, keras.layers.Conv2D(self.data.num_outputs, 1)(both))

    def loss(self, labels, outputs):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels[..., 0], tf.int32), outputs)
        return tf.reduce_mean(losses, axis=[1, 2])

    def metrics(self, labels, outputs):
        true, found = (tf.one_hot(each, outputs.shape[-1]) for each in (labels[..., 0], tf.argmax(outputs, axis=-1)))
        both, either = (tf.reduce_sum(each, axis=[1, 2]) for each in (true * found, tf.maximum(true, found)))
        present = tf.cast(either > 0, tf.float32)  # a class that is neither in the mask nor found does not count
        iou = tf.reduce_sum(tf.math.divide_no_nan(both, either), axis=1) / tf.reduce_sum(present, axis=1)
        return {"accuracy": tf.reduce_mean(tf.reduce_sum(true * found, axis=-1), axis=[1, 2]), "iou": iou}
