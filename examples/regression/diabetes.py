"""Regression on a data set that is no image: `python diabetes.py` writes it, `python -m trainer.run` trains on it."""

import pathlib

import keras
import tensorflow as tf

from trainer import Task

FEATURES = 10


class Diabetes(Task):
    """Predicts the progression of diabetes after a year from ten measurements (Efron et al. 2004)."""

    @staticmethod
    def parse(records):
        spec = {"x": tf.io.FixedLenFeature([FEATURES], tf.float32), "y": tf.io.FixedLenFeature([], tf.float32)}
        row = tf.io.parse_example(records, spec)
        return row["x"], row["y"]

    def build_model(self):
        return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])

    def loss(self, labels, outputs):
        return tf.square(outputs[:, 0] - labels)

    def metrics(self, labels, outputs):
        return {"mean_absolute_error": tf.abs(outputs[:, 0] - labels)}


if __name__ == "__main__":
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    for split, rows in (("train", slice(0, 352)), ("test", slice(352, None))):
        pathlib.Path("diabetes").mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(f"diabetes/{split}.tfrecord") as writer:
            for measurements, progression in zip(20 * x[rows], y[rows] / 100, strict=True):
                values = {"x": measurements, "y": [progression]}
                features = {name: tf.train.Feature(float_list={"value": value}) for name, value in values.items()}
                writer.write(tf.train.Example(features={"feature": features}).SerializeToString())
