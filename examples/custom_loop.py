"""A custom training loop under a strategy; it can be killed at any moment and resumes exactly.

`distribute` gives each replica its rows of every global batch; with weights="mean" the losses of the replicas, each
divided by G, add up to the mean over the real rows. `start_step` resumes it; on CPUs the weights end bit-identical.

    python examples/custom_loop.py --data_dir=demo/digits --model_dir=demo/custom --steps=300 --replicas=2
"""

import argparse
import json
import sys

from pipeline import manifest, order_spec
from pipeline.errors import PipelineError, UsageError

parser = argparse.ArgumentParser(description="A custom loop under tf.distribute with exact resume.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--model_dir", required=True, help="the checkpoints")
parser.add_argument("--steps", type=int, default=300, help="where training ends")
parser.add_argument("--global_batch_size", type=int, default=64)
parser.add_argument("--replicas", type=int, default=1, choices=(1, 2, 4, 8), help="on GPUs, or on logical CPUs")
args = parser.parse_args()

import keras  # after parsing, so that --help is fast
import tensorflow as tf

from pipeline import InputMeter, distribute


def make_strategy() -> tf.distribute.Strategy:
    """Returns a MirroredStrategy on GPUs, or on logical CPUs if there are too few."""
    if len(tf.config.list_physical_devices("GPU")) >= args.replicas:
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(args.replicas)])
    logical = [tf.config.LogicalDeviceConfiguration()] * args.replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(args.replicas)])


def make_model() -> keras.Model:
    """Returns a small model for the data's images and classes."""
    data = manifest.load(args.data_dir)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(len(data.class_names))]
    return keras.Sequential([keras.Input(data.image_shape), *layers])


def restore(manager: tf.train.CheckpointManager, spec_now) -> None:
    """Restores the newest checkpoint, if any; another order of examples is an error."""
    newest = manager.latest_checkpoint
    if newest:
        saved = tf.train.Checkpoint(spec=tf.Variable(""))
        saved.restore(newest).expect_partial()
        changed = spec_now.differences(json.loads(saved.spec.numpy()))
        if changed:  # resuming in another order would repeat some records and skip others
            raise UsageError(f"{newest}: saved with another order of examples, as (now, saved): {changed}")
        manager.checkpoint.restore(newest).assert_existing_objects_matched()


def main() -> None:
    """Trains up to --steps, resuming from --model_dir."""
    what = {"data_dir": args.data_dir, "global_batch_size": args.global_batch_size, "training": True}
    spec, strategy = order_spec(**what), make_strategy()
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    step, text = tf.Variable(0, dtype=tf.int64), tf.Variable(spec.to_json())
    state = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, spec=text)
    manager = tf.train.CheckpointManager(state, args.model_dir, max_to_keep=2)
    restore(manager, spec)

    def update(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(losses * weights) / args.global_batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))  # sums over the replicas
        return loss

    @tf.function
    def train_step(batch: tuple) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(update, batch), axis=None)

    batches = InputMeter(distribute(strategy, **what, start_step=int(step), augment="shift", weights="mean"))
    for number, batch in zip(range(int(step), args.steps), batches, strict=False):
        print(f"step {number}: loss {train_step(batch):.9g}", flush=True)
        step.assign(number + 1)
        if (number + 1) % 10 == 0 or number + 1 == args.steps:
            manager.save(checkpoint_number=number + 1)
    print(batches)  # how much of the time the loop waited for its input


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"custom_loop: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
