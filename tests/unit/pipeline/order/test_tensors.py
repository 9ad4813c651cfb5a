"""Window plans as tensors, in a graph: equal to NumPy's, element by element, in any order of requests."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed
from pipeline.order.order import Order
from pipeline.order.tensors import TENSORS
from pipeline.order.views import View
from tests.unit.pipeline.order.test_views import columns_of

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


def some_feeds(count):
    """Returns the order and the rows of as many random feeds."""
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
        yield order, (int(rng.integers(0, replicas // local)) * local * rows, local, rows)
        count -= 1


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        pytest.param(order, (0, 1, order.global_batch_size), marks=pytest.mark.slow if i % 3 else ())
        for i, order in enumerate(CASES)
    ],
    ids=str,
)
def test_plans_are_those_of_numpy(order, rows):
    check_plans(order, rows, 0, 12345678901)


@pytest.mark.parametrize(
    ("order", "rows"),
    [pytest.param(*case, marks=pytest.mark.slow if i >= 8 else ()) for i, case in enumerate(some_feeds(25))],
    ids=str,
)
@pytest.mark.quick(3)
def test_plans_of_a_part_of_the_rows_are_those_of_numpy(order, rows):
    check_plans(order, rows, 3)


VIEWS = [
    View(where="label != 1 or w > 2"),
    View(balance="label"),
    View(balance="sqrt(label)", limit=30),
    View(where="w > 0.7", weigh="w"),
    View(weigh="w"),
    View(limit="3 per label"),
]


def some_views(count):
    """Returns as many random views, with random orders of random parts of their rows that skip some steps."""
    rng = np.random.default_rng(1)
    for i, (order, rows) in enumerate(some_feeds(count)):
        n, view = order.num_stored, VIEWS[i % len(VIEWS)]
        columns = columns_of(rng.integers(0, 4, n), w=np.float32(rng.random(n) * 3))
        columns.values["w"][0] = 2.5
        times, _ = view.resolve(columns, n, order.seed, "train")
        skips = ((1, 2), (4, 5)) if i % 2 else ()
        yield dataclasses.replace(order, times=times, skip_steps=skips, remainder="pad"), rows, view


@pytest.mark.parametrize(
    ("order", "rows", "view"),
    [pytest.param(*case, marks=pytest.mark.slow if i >= 6 else ()) for i, case in enumerate(some_views(30))],
)
@pytest.mark.quick(2)
def test_plans_of_random_views_are_those_of_numpy(order, rows, view):
    check_plans(order, rows, 0, 12345678901)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.25, 1.0, 1.75, 3.1])), min_size=1, max_size=300),
    st.sampled_from(
        [{"balance": "label"}, {"balance": "sqrt(label)"}, {"weigh": "w"}, {"where": "w > 0", "weigh": "w"}]
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**40),
)
@settings(max_examples=60, deadline=None)
def test_records_of_a_view_end_in_an_epoch_where_they_do_in_numpy(records, view, seed, epoch):
    labels, weights = zip(*[*records, (0, 1.5)], strict=True)
    times, _ = View(**view).resolve(columns_of(labels, w=np.float32(weights)), len(labels), seed, "train")
    found = TENSORS.ends(times, tf.constant(epoch, tf.int64))
    np.testing.assert_array_equal(found, times.ends(epoch))


def check_plans(order, rows, *epochs):
    feed, own = Feed(order, TENSORS, *rows), Feed(order, NumpyArrays(), *rows)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def plans(number):
        plan = feed.plan(*feed.epoch_and_window(number))
        return plan, plan.with_contiguous_elements(TENSORS)

    for epoch, window in itertools.product(epochs, range(order.windows)):
        plan = own.plan(epoch, window)
        wanted = tuple(plan), tuple(plan.with_contiguous_elements(own.arrays))
        for one, other in zip(plans(tf.constant(epoch * order.windows + window, tf.int64)), wanted, strict=True):
            for name, found, want in zip(plan._fields, one, other, strict=True):
                np.testing.assert_array_equal(found, want, err_msg=name, strict=True)


@pytest.mark.parametrize(("order", "rows"), list(some_feeds(40)), ids=str)
def test_runs_begin_where_they_do_in_numpy(order, rows):
    feed, own = Feed(order, TENSORS, *rows), Feed(order, NumpyArrays(), *rows)
    assert feed.window_records == own.window_records
    for step in range(2 * order.steps_per_epoch):
        assert feed.window_numbers(step, 100) == own.window_numbers(step, 100)
        for epoch, window in ((0, 0), (1, order.windows - 1)):
            where = tf.constant(epoch, tf.int64), tf.constant(window, tf.int64)
            assert feed.first_element(step, *where) == own.first_element(step, epoch, window)
