"""`order_tf` against `order`: what windows read, what their steps take, and where a run begins."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipeline.order.order import Order
from pipeline.order.order_tf import Feed

CASES = [
    Order((5, 0, 4, 3), 4, 1, 1, "pad", 0, training=True),
    Order((5, 0, 4, 3), 8, 4, 2, "pad", -(2**63), training=True),
    Order((1,), 8, 8, 3, "pad", 1, training=True),
    Order((100, 3, 50), 24, 6, 5, "drop", 2**62, training=True),
    Order((1000, 999, 1), 64, 16, 3, "pad", 9, training=True),
    Order((30_000, 30_000), 128, 1, 1, "pad", 0, training=True),
    Order((7, 6), 4, 1, 1, "pad", 9, training=False),
    Order((7, 6), 4, 1, 5, "pad", 9, training=False),
    Order((2, 0, 9), 6, 2, 11, "pad", 4, training=True),
]


def fed(feed: Feed, epoch: int, side_by_side: bool = False) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Returns (records, real, real rows) of each element of an epoch, as a reader of the plans gets them."""
    plan = tf.function(lambda *where: feed.plan(*where).side_by_side() if side_by_side else feed.plan(*where))
    first = np.cumsum((0, *feed.order.counts))
    tail, elements = np.array([-1]), []
    for window in range(feed.order.windows):
        got = plan(tf.constant(epoch, tf.int64), tf.constant(window, tf.int64))
        pieces, records = got.pieces.numpy(), got.records.numpy()
        read = np.concatenate([first[s] + np.arange(a, b) for s, a, b in pieces] or [np.zeros(1, int)])
        assert sorted(got.place.numpy()) == list(range(len(records)))
        assert np.array_equal(read, records[got.place.numpy()])
        assert len(records) <= max(1, feed.window_records)

        def taken(rows, records=records, tail=tail):
            return np.where(rows < 0, tail[np.clip(-1 - rows, 0, len(tail) - 1)], records[np.maximum(rows, 0)])

        first_whole, stop = got.whole.numpy()
        plans = got.take.numpy(), got.real.numpy(), got.real_rows.numpy()
        for i, (rows, real, count) in enumerate(zip(*plans, strict=True)):
            elements.append((taken(rows), real, float(count)))
            is_whole = side_by_side and real.all() and (rows >= 0).all()
            if first_whole <= i < stop:
                assert is_whole
                assert np.array_equal(rows, (i - first_whole) * len(rows) + np.arange(len(rows)))
            else:  # another one of the same step, or of the same end of the window, is not whole
                assert not is_whole or feed.local_replicas > 1 or feed.order.streams > 1
        tail = taken(got.keep.numpy())
    return elements


@pytest.mark.parametrize("order", CASES, ids=str)
@pytest.mark.parametrize("epoch", [0, 12345678901])
def test_the_whole_batch_is_that_of_numpy(order, epoch):
    elements = fed(Feed(order, 0, 1, order.global_batch_size), epoch)
    assert len(elements) == order.steps_per_epoch
    by_position = order.records_by_position(epoch)
    for step in range(0, order.steps_per_epoch, 1 + order.steps_per_epoch // 50):
        positions, real = order.positions(step)
        assert np.array_equal(elements[step][0], by_position[positions])
        assert np.array_equal(elements[step][1], real)
        assert elements[step][2] == real.sum()


def some_feeds(count):
    rng = np.random.default_rng(0)
    while count:
        counts = tuple(int(n) for n in rng.integers(0, 9, rng.integers(1, 6)))
        training = bool(rng.integers(0, 2))
        streams = int(rng.integers(1, 5)) if training else 1
        size = streams * int(rng.integers(1, 4))
        remainder = str(rng.choice(["pad", "drop"]))
        order = Order(counts, size, streams, int(rng.integers(1, 6)), remainder, 7, training)
        if sum(counts) == 0 or order.steps_per_epoch == 0:
            continue
        replicas = int(rng.choice([r for r in range(1, size + 1) if size % r == 0]))
        local = int(rng.choice([n for n in range(1, replicas + 1) if replicas % n == 0]))
        rows = size // replicas
        yield Feed(order, int(rng.integers(0, replicas // local)) * local * rows, local, rows)
        count -= 1


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize(
    "feed",
    [pytest.param(feed, marks=pytest.mark.slow if i >= 8 else ()) for i, feed in enumerate(some_feeds(25))],
    ids=str,
)
def test_each_replica_of_a_worker_gets_its_rows(feed, side_by_side):
    elements = fed(feed, 3, side_by_side)
    assert len(elements) == feed.order.steps_per_epoch * feed.local_replicas
    for number, (records, real, _) in enumerate(elements):
        step, local = divmod(number, feed.local_replicas)
        expected, expected_real = feed.order.batch(3 * feed.order.steps_per_epoch + step)
        rows = slice(feed.first_row + local * feed.replica_rows, feed.first_row + (local + 1) * feed.replica_rows)
        assert np.array_equal(records, expected[rows])
        assert np.array_equal(real, expected_real[rows])


@pytest.mark.parametrize("feed", some_feeds(200), ids=str)
def test_a_run_begins_at_the_window_in_which_its_first_row_lies(feed):
    order = feed.order
    for step in range(order.steps_per_epoch):
        windows = []
        for stream in feed.streams:
            bounds = order.window_bounds(stream)
            position = bounds[0] + step * order.rows_per_stream
            inside = [w for w in range(order.windows) if bounds[w] <= position < bounds[w + 1]]
            windows.append(inside[0] if inside else order.windows - 1)
        assert feed.first_window(step) == min(windows)


def test_a_worker_reads_its_streams_only():
    order = Order((400, 400, 400), 64, 16, 3, "pad", 5, training=True)
    for worker in range(4):
        feed = Feed(order, worker * 16, 2, 8)
        assert list(feed.streams) == list(range(4 * worker, 4 * worker + 4))
        read = [feed.plan(tf.constant(0, tf.int64), tf.constant(w, tf.int64)).records.numpy() for w in range(3)]
        assert sum(len(records) for records in read) == 300
        bounds = order.stream_bounds()
        own = dataclasses.replace(order, training=True).records_by_position(0)[
            bounds[4 * worker] : bounds[4 * worker + 4]
        ]
        assert sorted(np.concatenate(read)) == sorted(own)
