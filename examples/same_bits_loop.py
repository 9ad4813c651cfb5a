"""A custom training loop that ends with the same weights, to the bit, on any number of replicas.

Each replica gets its virtual replicas stacked and computes their gradients one by one; `sum_gradients` adds up the
gradients of all replicas in fixed point. It prints a digest of the weights: the same for every --replicas.

    python examples/same_bits_loop.py --data_dir=demo/digits --steps=50
    python examples/same_bits_loop.py --data_dir=demo/digits --steps=50 --replicas=3

A model with BatchNorm or dropout needs more: each virtual replica must begin with the same statistics and draw from its
own seed (trainer/step/state.py does so).
"""

import argparse
import hashlib
import sys

from pipeline import manifest
from pipeline.errors import PipelineError

VIRTUAL_REPLICAS = 12  # any number that --replicas divides

parser = argparse.ArgumentParser(description="A custom loop whose weights do not depend on the number of replicas.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--global_batch_size", type=int, default=96)
parser.add_argument("--replicas", type=int, default=1, choices=(1, 2, 3, 4, 6, 12), help="logical CPUs")
args = parser.parse_args()

import keras  # after parsing, so that --help is fast
import tensorflow as tf

from pipeline import distribute
from trainer.topology import sum_gradients, without_all_reduce


def make_model() -> keras.Model:
    """Returns a small model for the data's images and classes."""
    data = manifest.load(args.data_dir)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(len(data.class_names))]
    return keras.Sequential([keras.Input(data.image_shape), *layers])


def main() -> None:
    """Trains for --steps and prints a digest of the weights."""
    tf.config.threading.set_intra_op_parallelism_threads(8)  # kernels split their sums by it
    logical = [tf.config.LogicalDeviceConfiguration()] * args.replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(args.replicas)])
    with strategy.scope():
        model = make_model()
        optimizer = without_all_reduce(keras.optimizers.Adam())
        optimizer.build(model.trainable_variables)

    def gradients_of(rows: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
        images, labels, weights = rows
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(losses * weights) / args.global_batch_size
        return [*tape.gradient(loss, model.trainable_variables), loss]

    def update(*batch: tf.Tensor) -> tf.Tensor:
        specs = [tf.TensorSpec(v.shape) for v in model.trainable_variables] + [tf.TensorSpec(())]
        each = tf.map_fn(gradients_of, batch, fn_output_signature=specs, parallel_iterations=1)
        *gradients, loss = sum_gradients(each, VIRTUAL_REPLICAS)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def train_step(batch: tuple) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(update, batch))[0]

    batches = distribute(
        strategy,
        args.data_dir,
        virtual_replicas=VIRTUAL_REPLICAS,
        global_batch_size=args.global_batch_size,
        training=True,
        augment="shift",
        weights="mean",
    )
    for number, batch in zip(range(args.steps), batches, strict=False):
        print(f"step {number}: loss {train_step(batch):.9g}", flush=True)
    weights = b"".join(v.numpy().tobytes() for v in (*model.variables, *optimizer.variables))
    print(f"weights after {args.steps} steps: {hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"same_bits_loop: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
