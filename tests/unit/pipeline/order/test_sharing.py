"""How many times the workers of a job read the split, compared with a count of each one's streams."""

import itertools

import pytest

from pipeline.order.feed import make_feed
from pipeline.order.order import OrderSpec, make_order, sharing_note, streams_read_once, times_read
from pipeline.order.sharding import Shard


def order_of(size, streams, records=2000, shuffle_bytes=1 << 20, training=True):
    spec = OrderSpec("0" * 64, "train", 0, size, streams, shuffle_bytes, "pad", training, 1000)
    return spec, make_order(spec, (records,), 1000)


def opened(order, workers):
    return sum(len(make_feed(order, Shard(w, workers)).streams) for w in range(workers))


def test_the_factor_is_that_of_the_streams_that_workers_open():
    for streams, workers in itertools.product((1, 2, 3, 4, 5, 6, 12, 60), (1, 2, 3, 4, 5, 6, 10, 30, 60)):
        _, order = order_of(60, streams)
        assert times_read(streams, workers) == opened(order, workers) / streams


@pytest.mark.parametrize(
    ("size", "streams", "workers", "better"),
    [(16_384, 64, 1024, 1024), (120, 8, 6, 6), (120, 16, 6, 12), (336, 56, 48, 48), (60, 1, 60, 60), (60, 60, 7, None)],
)
def test_the_streams_that_are_named_are_read_once(size, streams, workers, better):
    if better is None:
        size, better = size * 7, 7 * 10
    assert streams_read_once(size, streams, workers) == better
    assert size % better == 0
    assert times_read(better, workers) == 1


def test_the_note_has_the_factor_and_a_flag_that_works():
    note = sharing_note(*order_of(16_384, 64, 10**6), 1024)
    assert "1,024 workers with --streams=64 read the split 16.00 times per epoch" in note
    assert "--streams=1024 (another order)" in note
    note = sharing_note(*order_of(2048, 64, 10**6), 2048)
    assert "--streams=2048 --shuffle_bytes=2048000 (another order)" in note
    order_of(2048, 2048, 10**6, 2_048_000)


@pytest.mark.parametrize(
    ("streams", "workers", "more"),
    [
        (64, 64, {}),
        (64, 16, {}),
        (1, 1, {}),
        (1, 64, {"shuffle_bytes": 1 << 30}),  # kept in memory: read once per run
        (1, 64, {"training": False}),  # always one stream
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_choose(streams, workers, more):
    assert sharing_note(*order_of(1024, streams, 10**5, **more), workers) is None
