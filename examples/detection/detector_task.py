"""Object detection as a task of the trainer: boxes and their classes instead of labels, moved by the recipes."""

import keras
import tensorflow as tf

from trainer import Task


class Detector(Task):
    """Finds at most one object in each cell of a grid: whether there is one, its box and its class."""

    label = "boxes"

    def build_model(self):
        images = keras.Input(self.data.features.shape[1:], dtype="uint8")
        found = keras.layers.Rescaling(1 / 127.5, -1)(images)
        for filters in (16, 32, 64):
            found = keras.layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(found)
        return keras.Model(images, keras.layers.Conv2D(5 + len(self.data.class_names), 1)(found))

    def loss(self, labels, outputs):
        there, cells, own, is_object = self._matched(labels, outputs)
        count = tf.maximum(1.0, tf.reduce_sum(there, axis=1))
        objects = tf.nn.sigmoid_cross_entropy_with_logits(is_object, cells[..., 0])
        boxes = tf.reduce_sum(tf.abs(own[..., 1:5] - labels["boxes"]), axis=2)
        classes = tf.maximum(labels["box_labels"], 0)  # -1 after the last box, with weight 0
        kinds = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, own[..., 5:])
        return tf.reduce_sum(objects, axis=1) + tf.reduce_sum(there * (5 * boxes + kinds), axis=1) / count

    def metrics(self, labels, outputs):
        there, _, own, _ = self._matched(labels, outputs)
        low, high = (pick(own[..., 1:5], labels["boxes"]) for pick in (tf.maximum, tf.minimum))
        both = tf.reduce_prod(tf.maximum(0.0, high[..., 2:] - low[..., :2]), axis=2)
        sizes = [
            tf.reduce_prod(tf.maximum(0.0, each[..., 2:] - each[..., :2]), axis=2)
            for each in (own[..., 1:5], labels["boxes"])
        ]
        iou = tf.math.divide_no_nan(both, tf.add_n(sizes) - both)
        right = tf.cast(tf.argmax(own[..., 5:], axis=2) == labels["box_labels"], tf.float32)
        count = tf.reduce_sum(there, axis=1)
        every = tf.cast(count == 0, tf.float32)  # an image without boxes has all of them right
        return {
            "iou": every + tf.math.divide_no_nan(tf.reduce_sum(there * iou, axis=1), count),
            "accuracy": every + tf.math.divide_no_nan(tf.reduce_sum(there * right, axis=1), count),
        }

    def _matched(self, labels, outputs):
        """Returns the weights of boxes, all cells, the cell of each box's middle, and which cells have an object."""
        boxes, there, (rows, columns) = labels["boxes"], labels["boxes_weight"], outputs.shape[1:3]
        middles = tf.cast((boxes[..., :2] + boxes[..., 2:]) / 2 * [rows, columns], tf.int32)
        numbers = tf.minimum(middles[..., 0], rows - 1) * columns + tf.minimum(middles[..., 1], columns - 1)
        cells = tf.reshape(outputs, (-1, rows * columns, outputs.shape[-1]))
        is_object = tf.reduce_max(tf.one_hot(numbers, rows * columns) * there[..., None], axis=1)
        return there, cells, tf.gather(cells, numbers, batch_dims=1), is_object
