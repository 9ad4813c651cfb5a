"""What is set for the whole process before TensorFlow's devices are used."""

from __future__ import annotations

import keras
import tensorflow as tf

from trainer.config import TrainConfig


def configure(config: TrainConfig) -> None:
    """Sets up determinism, threads and the placement of operations.

    Operations that a device lacks are placed on another one (soft placement), as in the CIFAR-10 tutorial.
    """
    if config.run.deterministic:
        keras.utils.set_random_seed(config.order.seed)
        tf.config.experimental.enable_op_determinism()
    if config.order.virtual_replicas:
        tf.config.threading.set_intra_op_parallelism_threads(config.order.cpu_threads)
    tf.config.set_soft_device_placement(True)
    tf.debugging.set_log_device_placement(config.output.log_device_placement)
