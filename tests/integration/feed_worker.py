"""One process of a topology: writes what its replicas are fed. Run by test_topologies.py."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import pipeline

GLOBAL_BATCH_SIZE, EPOCHS = 64, 2


def draws(images, keys):
    """Stands for a recipe: the pixels' sums and the draws themselves, so that both can be compared to the bit."""
    sums = tf.reduce_sum(tf.cast(images, tf.float32), [1, 2, 3])
    return tf.stack([sums, *(pipeline.uniform(keys, draw) for draw in range(5))], axis=1)


def make_strategy(kind: str, replicas: int) -> tf.distribute.Strategy:
    if kind == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def main(data_dir: str, out: str, kind: str, replicas: str) -> None:
    strategy = make_strategy(kind, int(replicas))
    arguments = {"global_batch_size": GLOBAL_BATCH_SIZE, "training": True, "seed": 3, "epochs": EPOCHS}
    fed: dict[str, list] = {}
    for name, distort in (("raw", None), ("draws", draws), ("shift", "shift"), ("tutorial", "cifar10_tutorial")):
        for element in pipeline.distribute(strategy, data_dir, distort=distort, record_ids=True, **arguments):
            for component, value in zip(("images", "labels", "weights", "records"), element, strict=True):
                rows = [v.numpy() for v in strategy.experimental_local_results(value)]
                fed.setdefault(f"{name} {component}", []).append(np.stack(rows))
    np.savez(out, **{name: np.stack(steps) for name, steps in fed.items()})  # (steps, local replicas, rows, ...)


if __name__ == "__main__":
    main(*sys.argv[1:])
