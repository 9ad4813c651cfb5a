"""Keras `fit` that can be killed at any moment and resumes exactly, even in the middle of an epoch.

The input's state is the step, and Keras' optimizer counts it: `pipeline.ExactResume` saves model, optimizer and the
arguments of the order together. The rest of an interrupted epoch is fitted as a short one. On CPUs the final weights
are bit-identical.

    python examples/keras_fit.py --data_dir=demo/digits --model_dir=demo/keras
    python examples/keras_fit.py --data_dir=demo/digits --model_dir=demo/keras_mirrored --replicas=2
"""

import argparse
import sys

from pipeline import input_fn, manifest, order_spec, steps_per_epoch
from pipeline.errors import PipelineError

parser = argparse.ArgumentParser(description="Keras fit with exact resume: rerun the command to resume.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--model_dir", required=True, help="the checkpoints")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--global_batch_size", type=int, default=64)
parser.add_argument("--replicas", type=int, default=1, choices=(1, 2, 4, 8), help="above 1: a MirroredStrategy")
args = parser.parse_args()

import keras  # after parsing, so that --help is fast
import tensorflow as tf

from pipeline import ExactResume  # it loads Keras


def make_model() -> keras.Model:
    """Returns a small compiled model for the data's images and classes."""
    data = manifest.load(args.data_dir)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(len(data.class_names))]
    model = keras.Sequential([keras.Input(data.image_shape), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"])
    return model


def strategy() -> tf.distribute.Strategy:
    """Returns the strategy of --replicas: on GPUs, or on logical CPUs if there are too few."""
    if args.replicas == 1:
        return tf.distribute.get_strategy()
    if len(tf.config.list_physical_devices("GPU")) >= args.replicas:
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(args.replicas)])
    logical = [tf.config.LogicalDeviceConfiguration()] * args.replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(args.replicas)])


def main() -> None:
    """Trains up to --epochs, resuming from --model_dir."""
    what = {"data_dir": args.data_dir, "global_batch_size": args.global_batch_size}
    spec, steps = order_spec(**what, training=True), steps_per_epoch(**what)
    with strategy().scope():
        resume = ExactResume(model := make_model(), args.model_dir, spec, every=10)
        epoch, done = divmod(resume.restore(), steps)
    print(f"resumes at step {done} of {steps} of epoch {epoch}", flush=True)
    test = None
    if "test" in manifest.load(args.data_dir).splits:  # weights="none": Keras' val_loss is exact without padding
        test = input_fn(**what, split="test", training=False, augment="shift", weights="none")
    says = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print("step", resume.step, flush=True))
    for step, rest in resume.fits(epochs=args.epochs, steps_per_epoch=steps):
        data = input_fn(**what, training=True, start_step=step, augment="shift", weights="mean")
        model.fit(data, **rest, validation_data=test, callbacks=[says, resume], verbose=2)


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"keras_fit: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
