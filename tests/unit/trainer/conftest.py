"""Small data sets and states of the trainer."""

import numpy as np
import pytest

from pipeline.order.order import OrderSpec
from trainer.cluster import ALONE
from trainer.config import TrainConfig

IMAGE_SHAPE = (4, 3, 1)
CLASSES = 5


@pytest.fixture
def config(tmp_path):
    return TrainConfig.for_model("mlp", data_dir="data", model_dir=str(tmp_path))


@pytest.fixture
def spec():
    return OrderSpec("d" * 64, "train", 0, 8, 1, 1 << 20, "pad", True)


@pytest.fixture
def said():
    return []


@pytest.fixture
def make_state():
    """Returns a function that makes a small mlp's state on a strategy."""

    def make(strategy, optimizer="sgd", seed=0):
        import tensorflow as tf

        from trainer import models, optimizers
        from trainer.state import TrainState

        with strategy.scope():
            model = models.build("mlp", IMAGE_SHAPE, "float32", CLASSES, seed)
            chosen = optimizers.create(optimizer, 0.9)
            chosen.build(model.trainable_variables)
            step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        return TrainState(model, chosen, step)

    return make


@pytest.fixture
def make_checkpoints(config, spec, said):
    """Returns a function that makes the Checkpoints of a state, with changes to the config or the order."""
    import dataclasses

    from trainer.checkpoints import Checkpoints

    def make(state, cluster=ALONE, order=None, **changes):
        return Checkpoints(
            state,
            dataclasses.replace(spec, **(order or {})),
            dataclasses.replace(config, **changes),
            cluster,
            said.append,
        )

    return make


@pytest.fixture
def batch():
    """A global batch of 8 whose rows 4 to 7, all that the second of two replicas gets, are padding."""
    draw = np.random.default_rng(0)
    images = draw.normal(size=(8, *IMAGE_SHAPE)).astype(np.float32)
    labels = draw.integers(0, CLASSES, 8)
    weights = np.array([1, 1, 1, 0, 0, 0, 0, 0], np.float32)
    return images, labels, weights
