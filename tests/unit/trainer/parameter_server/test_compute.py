import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.parameter_server.compute import check_optimizer, numbered
from trainer.topology import without_all_reduce


def rates():
    return keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.01])


@pytest.mark.parametrize("make", [keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.Lamb])
def test_given_counts_are_those_that_keras_counts(make):
    gradients = [tf.constant([0.3, -0.2]), tf.constant([0.1, 0.4]), tf.constant([-0.5, 0.2])]
    mine, theirs = keras.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    optimizers = [without_all_reduce(make(learning_rate=rates())) for _ in range(2)]
    for optimizer, variable in zip(optimizers, (mine, theirs), strict=True):
        optimizer.build([variable])

    @tf.function(autograph=False)
    def update(gradient, step):
        with numbered(optimizers[0], step, None):
            optimizers[0].apply([gradient], [mine])

    for step, gradient in enumerate(gradients):
        update(gradient, tf.constant(step, tf.int64))
        optimizers[1].apply([gradient], [theirs])
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6)
    assert int(optimizers[0].iterations.numpy()) == 0  # the chief sets it
    assert int(optimizers[1].iterations.numpy()) == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (keras.optimizers.Nadam, "multiplies"),
        (lambda: keras.optimizers.SGD(use_ema=True), "--ema"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "loss scale"),
    ],
)
def test_what_workers_cannot_do_at_once_is_refused(make, said):
    with pytest.raises(UsageError, match=said):
        check_optimizer(make(), "--model=mine:model")
