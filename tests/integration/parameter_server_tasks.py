"""Tasks for jobs with parameter servers: one tells which rows it got, another waits where it is traced."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import keras
import tensorflow as tf

from benchmarks import straggler
from trainer import Task


class Line(Task):
    """y = 2x + 1, and each row's number."""

    @staticmethod
    def parse(records):
        spec = {"x": tf.io.FixedLenFeature([1], tf.float32), "number": tf.io.FixedLenFeature([], tf.int64)}
        row = tf.io.parse_example(records, spec)
        return {"x": row["x"], "number": row["number"]}, 2.0 * row["x"][:, 0] + 1.0

    def build_model(self):
        x, number = keras.Input((1,), name="x"), keras.Input((), dtype="int64", name="number")
        return keras.Model({"x": x, "number": number}, keras.layers.Dense(1)(x))

    def train_step(self, model, features, labels):
        numbers = tf.strings.reduce_join(tf.strings.as_string(features["number"]), separator=",")
        with tf.control_dependencies([tf.print("rows", numbers, output_stream=sys.stdout), *straggler.pause()]):
            features = {name: tf.identity(value) for name, value in features.items()}
        return super().train_step(model, features, labels)

    def loss(self, labels, outputs):
        return tf.square(outputs[:, 0] - labels)

    def metrics(self, labels, outputs):
        return {"error": tf.abs(outputs[:, 0] - labels)}

    def after_train(self, model, evaluation):
        print("given", [float(variable.numpy().item()) for variable in model.trainable_variables], flush=True)


class Asserting(Line):
    """Fails in the graph of a worker."""

    def loss(self, labels, outputs):
        tf.debugging.Assert(tf.reduce_sum(labels) < 0.0, ["the labels are not what they should be"])
        return super().loss(labels, outputs)


class Traced(Task):
    """Waits, where its step is traced, until a file `go` lies beside the file that it makes, `traced`."""

    def metrics(self, labels, outputs):
        folder = pathlib.Path(os.environ["FOLDER"])
        (folder / "traced").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
        return super().metrics(labels, outputs)


def write(folder, count, num_shards=2):
    """Writes rows 0..count-1 as TFRecords."""
    for shard in range(num_shards):
        with tf.io.TFRecordWriter(str(folder / f"train-{shard}.tfrecord")) as writer:
            for number in range(shard, count, num_shards):
                x = tf.train.Feature(float_list={"value": [number / count]})
                numbered = tf.train.Feature(int64_list={"value": [number]})
                features = {"feature": {"x": x, "number": numbered}}
                writer.write(tf.train.Example(features=features).SerializeToString())
