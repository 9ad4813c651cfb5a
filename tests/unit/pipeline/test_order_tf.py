import numpy as np
import pytest
import tensorflow as tf

from pipeline import order_tf
from pipeline.order import Order

CASES = [
    Order((5, 0, 4, 3), 4, 1, 1, "pad", 0, training=True),
    Order((5, 0, 4, 3), 8, 4, 2, "pad", -(2**63), training=True),
    Order((1,), 8, 8, 3, "pad", 1, training=True),
    Order((100, 3, 50), 24, 6, 5, "drop", 2**62, training=True),
    Order((1000, 999, 1), 64, 16, 3, "pad", 9, training=True),
    Order((30_000, 30_000), 128, 1, 1, "pad", 0, training=True),
    Order((7, 6), 4, 1, 1, "pad", 9, training=False),
]


@pytest.mark.parametrize("order", CASES, ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_give_the_order_of_numpy(order, compiled):
    records = tf.function(lambda epoch: order_tf.records_by_position(order, epoch))
    every_row = np.arange(order.global_batch_size)
    positions = tf.function(lambda step, rows: order_tf.positions(order, step, rows), jit_compile=compiled)
    for epoch in (0, 1, 12345678901):
        assert np.array_equal(records(tf.constant(epoch, tf.int64)).numpy(), order.records_by_position(epoch))
    steps = order.steps_per_epoch
    for step in {0, steps // 2, steps - 1}:
        expected, real = order.positions(step)
        got = positions(tf.constant(step, tf.int64), tf.constant(every_row, tf.int64))
        assert np.array_equal(got[0].numpy(), expected)
        assert np.array_equal(got[1].numpy(), real)
        half = positions(tf.constant(step, tf.int64), tf.constant(every_row[1::2], tf.int64))
        assert np.array_equal(half[0].numpy(), expected[1::2])
