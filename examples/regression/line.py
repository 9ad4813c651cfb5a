"""Linear regression with a parameter server and two workers: `python line.py` writes the data, --task=line:Line trains.

In three terminals of this folder, as the Supervisor tutorials of TensorFlow 1 had it:

    FLAGS="--strategy=parameter_server --data_dir=line --model_dir=line-run --task=line:Line --eval_split=none
        --optimizer=sgd --learning_rate=0.1 --schedule=constant --global_batch_size=10 --train_steps=1000
        --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224"
    python -m trainer.run $FLAGS --job_name=ps --task_id=0
    python -m trainer.run $FLAGS --job_name=worker --task_id=0
    python -m trainer.run $FLAGS --job_name=worker --task_id=1
"""

import keras
import numpy as np
import tensorflow as tf

from trainer import Task

WEIGHT, BIAS = 2.0, 10.0


class Line(Task):
    """Fits a line to noisy points."""

    @staticmethod
    def parse(records):
        spec = {name: tf.io.FixedLenFeature([1], tf.float32) for name in "xy"}
        row = tf.io.parse_example(records, spec)
        return row["x"], row["y"][:, 0]

    def build_model(self):
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    def loss(self, labels, outputs):
        return tf.square(outputs[:, 0] - labels)

    def metrics(self, labels, outputs):
        return {}

    def after_train(self, model, evaluation):
        (weight,), (bias,) = (variable.numpy().reshape(-1) for variable in model.trainable_variables)
        print(f"weight {weight:.3f}, bias {bias:.3f}", flush=True)


if __name__ == "__main__":
    from pipeline.index.__main__ import main

    tf.io.gfile.makedirs("line")
    draw = np.random.default_rng(0)
    with tf.io.TFRecordWriter("line/train.tfrecord") as writer:
        for x in np.linspace(-1, 1, 1000):
            y = WEIGHT * x + BIAS + 0.1 * draw.standard_normal()
            values = {
                name: tf.train.Feature(float_list={"value": [value]}) for name, value in zip("xy", (x, y), strict=True)
            }
            writer.write(tf.train.Example(features={"feature": values}).SerializeToString())
    main(["line", "--split=train:train.tfrecord"])
