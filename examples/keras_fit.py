"""Keras `fit` that can be killed at any moment and resumes exactly, even in the middle of an epoch.

The input's state is the step, and Keras' optimizer counts it: `ExactResume` saves model, optimizer and the arguments of
the order together. The rest of an interrupted epoch is fitted as a short one. On CPUs the final weights are
bit-identical.

    python examples/keras_fit.py --data_dir=demo/digits --model_dir=demo/keras
    python examples/keras_fit.py --data_dir=demo/digits --model_dir=demo/keras_mirrored --replicas=2
"""

import argparse
import json
import sys

from pipeline import input_fn, manifest, order_spec, steps_per_epoch
from pipeline.errors import PipelineError, UsageError
from pipeline.order import order

parser = argparse.ArgumentParser(description="Keras fit with exact resume: rerun the command to resume.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--model_dir", required=True, help="the checkpoints")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--global_batch_size", type=int, default=64)
parser.add_argument("--replicas", type=int, default=1, choices=(1, 2, 4, 8), help="above 1: a MirroredStrategy")
args = parser.parse_args()

import keras  # after parsing, so that --help answers at once
import tensorflow as tf


class ExactResume(keras.callbacks.Callback):
    """Saves every `every` steps; an interrupted save does not count."""

    def __init__(self, model: keras.Model, folder: str, spec: order.OrderSpec, every: int) -> None:
        super().__init__()
        model.optimizer.build(model.trainable_variables)  # its slots, so that they can be restored
        self.iterations, self.spec, self.every = model.optimizer.iterations, spec, every
        self.order = tf.train.Checkpoint(spec=tf.Variable(spec.to_json()))
        self.state = tf.train.Checkpoint(model=model, optimizer=model.optimizer, order=self.order)
        self.manager = tf.train.CheckpointManager(self.state, folder, max_to_keep=2)

    def restore(self) -> int:
        """Restores the newest checkpoint, if any, and returns the step to resume at."""
        newest = self.manager.latest_checkpoint
        if newest:
            tf.train.Checkpoint(order=self.order).restore(newest).expect_partial()
            changed = self.spec.differences(json.loads(self.order.spec.numpy()))
            if changed:  # the rest of another order would repeat records and leave others out
                raise UsageError(f"{newest}: saved with another order of examples, as (now, saved): {changed}")
            self.state.restore(newest).assert_existing_objects_matched()
        return self.step

    @property
    def step(self) -> int:
        """Updates so far, over all epochs and fits; the `batch` of Keras' callbacks begins anew in each."""
        return int(self.iterations.numpy())

    def save(self) -> None:
        """Saves all in one checkpoint, named by the step, unless it exists: overwriting it could be interrupted."""
        if self.manager.latest_checkpoint != f"{self.manager.directory}/ckpt-{self.step}":
            self.manager.save(checkpoint_number=self.step)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Saves every `every` updates."""
        print("step", self.step, flush=True)
        if self.step % self.every == 0:
            self.save()


def make_model() -> keras.Model:
    """Returns a small compiled model for the data's images and classes."""
    data = manifest.load(args.data_dir)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(len(data.class_names))]
    model = keras.Sequential([keras.Input(data.image_shape), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"])
    return model


def strategy() -> tf.distribute.Strategy:
    """Returns the strategy of --replicas: on GPUs, or on logical CPUs where there are too few."""
    if args.replicas == 1:
        return tf.distribute.get_strategy()
    if len(tf.config.list_physical_devices("GPU")) >= args.replicas:
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(args.replicas)])
    logical = [tf.config.LogicalDeviceConfiguration()] * args.replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(args.replicas)])


def main() -> None:
    """Trains up to --epochs, from wherever --model_dir is."""
    what = {"data_dir": args.data_dir, "global_batch_size": args.global_batch_size}
    spec, steps = order_spec(**what, training=True), steps_per_epoch(**what)
    order.check_replicas(args.global_batch_size, args.replicas)
    with strategy().scope():
        resume = ExactResume(model := make_model(), args.model_dir, spec, every=10)
        epoch, done = divmod(resume.restore(), steps)
    print(f"resumes at step {done} of {steps} of epoch {epoch}", flush=True)
    test = None
    if "test" in manifest.load(args.data_dir).splits:  # weights="none": Keras' val_loss is exact without padding
        test = input_fn(**what, split="test", training=False, distort="shift", weights="none")
    while epoch < args.epochs:  # the rest of an interrupted epoch, then all others in one fit
        last = epoch + 1 if done else args.epochs
        data = input_fn(**what, training=True, start_step=epoch * steps + done, distort="shift", weights="mean")
        fitted = {"initial_epoch": epoch, "epochs": last, "steps_per_epoch": steps - done, "shuffle": False}
        model.fit(data, **fitted, validation_data=test, callbacks=[resume], verbose=2)
        epoch, done = last, 0
    resume.save()


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"keras_fit: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
