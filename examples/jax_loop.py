"""JAX on this input: arrays in the batches' own memory, a resume by the step, ranks by `Shard`.

On a CPU `from_dlpack` copies nothing but the labels, whose int64 JAX makes int32; a GPU or TPU, or each of several
devices, gets a copy. Each process feeds its rows of one global array; jit adds up gradients, over processes too.

    python examples/jax_loop.py --data_dir=demo/digits --state=demo/jax.npz --steps=100
"""

import argparse
import json
import os
import pathlib
import sys

from pipeline import Shard, input_fn, manifest, order_spec
from pipeline.errors import PipelineError, UsageError

parser = argparse.ArgumentParser(description="A JAX loop with exact resume, in one process or one of several.")
parser.add_argument("--data_dir", required=True, help="made by beam_jobs.convert")
parser.add_argument("--state", required=True, help="the file that holds weights, step and order")
parser.add_argument("--steps", type=int, default=100, help="where training ends")
parser.add_argument("--global_batch_size", type=int, default=64)
parser.add_argument("--coordinator", help="host:port of process 0, where there are several")
parser.add_argument("--rank", type=int, help="of this process, with --coordinator")
parser.add_argument("--size", type=int, help="processes, with --coordinator")
args = parser.parse_args()

import jax  # after parsing, so that --help is fast
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

tf.config.set_visible_devices([], "GPU")  # TensorFlow only feeds: the GPUs are JAX's
MOMENTUM, LEARNING_RATE = 0.9, 0.01


def initial(pixels: int, classes: int) -> dict[str, np.ndarray]:
    """Returns weights and their momenta."""
    draw = np.random.default_rng(0)
    weights = {"hidden": draw.normal(0, 0.05, (pixels, 64)), "top": draw.normal(0, 0.05, (64, classes))}
    everything = weights | {f"{name}_momentum": np.zeros_like(value) for name, value in weights.items()}
    return {name: value.astype(np.float32) for name, value in everything.items()}


def mean_loss(state: dict, images: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns the mean over the real rows of the global batch: weights="mean"."""
    logits = jax.nn.relu(images.reshape(len(images), -1) @ state["hidden"]) @ state["top"]
    losses = -(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, logits.shape[1])).sum(1)
    return (losses * weights).mean()


@jax.jit
def train_step(state: dict, batch: list[jax.Array]) -> tuple[dict, jax.Array]:
    """Returns the state after one update, and the loss before it."""
    loss, gradients = jax.value_and_grad(mean_loss)(state, *batch)
    new = {}
    for name in ("hidden", "top"):
        new[f"{name}_momentum"] = MOMENTUM * state[f"{name}_momentum"] + gradients[name]
        new[name] = state[name] - LEARNING_RATE * new[f"{name}_momentum"]
    return new, loss


def load(path: pathlib.Path, spec) -> tuple[int, dict[str, np.ndarray] | None]:
    """Returns the step to resume at, and the state saved there."""
    if not path.exists():
        return 0, None
    saved = dict(np.load(path))
    changed = spec.differences(json.loads(str(saved.pop("order"))))
    if changed:  # resuming in another order would repeat some records and skip others
        raise UsageError(f"{path}: saved with another order of examples, as (now, saved): {changed}")
    return int(saved.pop("step")), saved


def save(path: pathlib.Path, spec, state: dict, step: int) -> None:
    """Writes the state atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"new-{path.name}")
    with new.open("wb") as file:
        np.savez(file, **state, step=step, order=spec.to_json())
    os.replace(new, path)


def main() -> None:
    """Trains up to --steps, resuming from --state."""
    what = {"data_dir": args.data_dir, "global_batch_size": args.global_batch_size, "training": True}
    spec, data, path = order_spec(**what), manifest.load(args.data_dir), pathlib.Path(args.state)
    if args.coordinator:
        jax.distributed.initialize(args.coordinator, args.size, args.rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    start, saved = load(path, spec)
    state = jax.device_put(saved or initial(int(np.prod(data.image_shape)), len(data.class_names)), everywhere)
    shard = Shard(jax.process_index(), jax.process_count())
    batches = input_fn(**what, start_step=start, shard=shard, augment="shift", weights="mean")
    for step, tensors in zip(range(start, args.steps), batches, strict=False):
        local = [jax.dlpack.from_dlpack(tensor) for tensor in tensors]
        batch = [jax.make_array_from_process_local_data(rows, array) for array in local]
        state, loss = train_step(state, batch)
        shared = [a.unsafe_buffer_pointer() == np.asarray(t).ctypes.data for a, t in zip(local, tensors, strict=True)]
        if jax.process_index() == 0:
            print(f"step {step}: loss {float(loss):.9g}, rank 0 has {len(local[0])} rows, shared {shared}", flush=True)
            if (step + 1) % 10 == 0 or step + 1 == args.steps:
                save(path, spec, state, step + 1)


if __name__ == "__main__":
    try:
        main()
    except PipelineError as error:
        print(f"jax_loop: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
