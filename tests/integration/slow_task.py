"""A task that is slow on worker 1 of a synchronous job: where `SLOW` says, while reading or while computing."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import tensorflow as tf

from tests.integration import parameter_server_tasks

READING, COMPUTING = "reading", "computing"
SECONDS = 0.05  # per step


class Slow(parameter_server_tasks.Line):
    """y = 2x + 1."""

    @staticmethod
    def parse(records):
        return parameter_server_tasks.Line.parse(_late(READING, records))

    def train_step(self, model, features, labels):
        return super().train_step(model, _late(COMPUTING, features), labels)


def _late(where, values):
    """Returns tensors as they are; on worker 1, if it is slow there, after a while."""
    if os.environ["SLOW"] != where or json.loads(os.environ["TF_CONFIG"])["task"]["index"] != 1:
        return values
    slept = tf.numpy_function(lambda: np.float32(time.sleep(SECONDS) or 0.0), [], tf.float32)
    with tf.control_dependencies([slept]):
        return tf.nest.map_structure(tf.identity, values)
