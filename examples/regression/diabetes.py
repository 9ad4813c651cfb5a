"""Regression on data that are not images: `python diabetes.py` writes them, `--task=diabetes:Diabetes` trains."""

import keras
import tensorflow as tf

from trainer import Task


class Diabetes(Task):
    """Predicts the progression of diabetes after a year from ten measurements (Efron et al. 2004)."""

    @staticmethod
    def parse(records):
        spec = {"x": tf.io.FixedLenFeature([10], tf.float32), "y": tf.io.FixedLenFeature([], tf.float32)}
        row = tf.io.parse_example(records, spec)
        return row["x"], row["y"]

    def build_model(self):
        return keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])

    def loss(self, labels, outputs):
        return tf.square(outputs[:, 0] - labels)

    def metrics(self, labels, outputs):
        return {"mean_absolute_error": tf.abs(outputs[:, 0] - labels)}


if __name__ == "__main__":
    from sklearn.datasets import load_diabetes

    tf.io.gfile.makedirs("diabetes")
    x, y = load_diabetes(return_X_y=True)
    for split, rows in (("train", slice(0, 352)), ("test", slice(352, None))):
        with tf.io.TFRecordWriter(f"diabetes/{split}.tfrecord") as writer:
            for values in zip(20 * x[rows], y[rows, None] / 100, strict=True):
                lists = [tf.train.Feature(float_list={"value": value}) for value in values]
                features = {"feature": dict(zip("xy", lists, strict=True))}
                writer.write(tf.train.Example(features=features).SerializeToString())
