"""The contract of docs/order.md over an exhaustive grid, as properties, and pinned."""

import dataclasses
import itertools
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.contract import Contract
from pipeline.audit.proof import replay
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order import order as orders
from pipeline.order.feed import LaidShards, make_feed
from pipeline.order.order import Order, OrderSpec, make_order
from pipeline.order.sharding import Shard, as_shard, check_pairs, check_replicas, check_virtual_replicas
from tests.helpers.lanes import examples

GOLDEN = pathlib.Path(__file__).parent / "golden" / "order.json"

COUNTS = [
    (1,),
    (2,),
    (7,),
    (16,),
    (23,),  # one shard
    (4, 4, 4, 4),
    (6, 6),  # even
    (5, 3, 9),
    (1, 1, 1, 20),
    (13, 2),  # uneven
    (0, 5, 0, 4, 3),
    (0, 0, 1),
    (8, 0),  # some empty
    (1,) * 17,  # more shards than streams
]
BATCHES = [1, 2, 6, 8, 24]
WORKERS_AND_LOCAL_REPLICAS = [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (3, 1), (3, 2), (6, 1), (8, 1), (4, 3)]


def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def contract_of(order):
    return Contract(*dataclasses.astuple(order))


def records_of(order, epoch):
    """Returns the record at each position of an epoch."""
    contract = contract_of(order)
    bounds = [contract.stream_bounds(k) for k in range(order.streams)]
    return np.concatenate([contract.epoch(epoch).stream(k, 0, b - a)[0] for k, (a, b) in enumerate(bounds)])


def epoch_of(order, epoch, shard=None):
    """Returns the rows fed in an epoch: records (T, rows) and real (T, rows)."""
    steps, feed = order.steps_per_epoch, make_feed(order, shard)
    windows = list(replay(feed, epoch * steps, (epoch + 1) * steps))
    records, real = (np.concatenate([getattr(fed, name) for fed in windows]) for name in ("records", "real"))
    return records.reshape(steps, -1), real.reshape(steps, -1)


def check_epoch(order, records, real):
    total, size = order.num_records, order.global_batch_size
    steps = -(-total // size) if order.remainder == "pad" else total // size
    assert records.shape == real.shape == (steps, size)
    assert real[:-1].all(), "padding before the last step"
    seen = records[real]
    assert len(np.unique(seen)) == len(seen), "a record twice"
    assert len(seen) == (total if order.remainder == "pad" else steps * size)
    assert records.min() >= 0
    assert records.max() < total
    q = size // order.streams
    for block in real[-1].reshape(order.streams, q):  # padding only at the tail of each stream's block
        assert (np.sort(~block) == ~block).all()


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("counts", COUNTS, ids=lambda c: "-".join(map(str, c)))
def test_grid_each_record_once_even_steps_padding_last(counts, remainder):
    cases = 0
    for size in BATCHES:
        if remainder == "drop" and sum(counts) < size:
            continue
        for streams, windows, training in itertools.product(divisors(size), (1, 2, 3, 7), (True, False)):
            if not training and (streams, windows) != (1, 1):
                continue
            order = Order(counts, size, streams, windows, remainder, seed=cases, training=training)
            epoch = (0, 5)[cases % 2]
            records, real = epoch_of(order, epoch)
            check_epoch(order, records, real)
            if not training:
                assert np.array_equal(records[real], np.arange(real.sum()))
            check_layout_and_windows(order, epoch)
            check_streams(order, epoch, records, real)
            wanted = contract_of(order).epoch(epoch).batches(range(order.steps_per_epoch), range(size))
            assert all(np.array_equal(one, two) for one, two in zip((records, real), wanted, strict=True))
            cases += 1
    assert cases >= 1 or sum(counts) < min(BATCHES)


def floor_cuts(start, stop, parts):
    """Where a range is cut into parts, by the floor rule, in plain integers."""
    return [start + i * (stop - start) // parts for i in range(parts + 1)]


def check_layout_and_windows(order, epoch):
    """Points 1 and 2: whole shards in some order; streams and windows by the floor rule, each with its own records."""
    shards = [int(s) for s in contract_of(order).epoch(epoch).shard_order]
    assert sorted(shards) == list(range(len(order.counts)))
    starts = list(itertools.accumulate(order.counts, initial=0))
    laid = [record for s in shards for record in range(starts[s], starts[s + 1])]
    by_position = records_of(order, epoch).tolist()
    total = sum(order.counts)
    for start, stop in itertools.pairwise(floor_cuts(0, total, order.streams)):
        for low, high in itertools.pairwise(floor_cuts(start, stop, order.windows)):
            assert sorted(by_position[low:high]) == sorted(laid[low:high])


def check_streams(order, epoch, records, real):
    """Point 3: stream k fills rows kq..(k+1)q-1 with its positions in turn."""
    q, cuts = order.rows_per_stream, floor_cuts(0, order.num_records, order.streams)
    for stream, (start, stop) in enumerate(itertools.pairwise(cuts)):
        block = np.s_[:, stream * q : (stream + 1) * q]
        assert real[block].sum() == min(stop - start, order.steps_per_epoch * q)
    by_position = records_of(order, epoch)
    expected = [start + np.arange(order.steps_per_epoch * q).reshape(-1, q) for start in cuts[:-1]]
    positions = np.concatenate(expected, axis=1)[real]
    assert np.array_equal(records[real], by_position[positions])


@pytest.mark.parametrize("size", BATCHES)
def test_the_rows_of_the_replicas_are_the_global_batch(size):
    """At every topology the replicas' rows are the global batch: in order, without gap or overlap."""
    for workers, local in WORKERS_AND_LOCAL_REPLICAS:
        if size % (workers * local):
            continue
        rows = [
            range(*Shard(worker, workers, local).replica_rows(replica, size))
            for worker in range(workers)
            for replica in range(local)
        ]
        assert list(itertools.chain(*rows)) == list(range(size))
        assert {len(r) for r in rows} == {size // (workers * local)}


def test_windows_shuffle_only_within_themselves():
    order = Order((100,), 10, 2, 5, "pad", seed=3, training=True)
    by_position = records_of(order, 4)
    for stream in range(2):
        for start, stop in itertools.pairwise(floor_cuts(stream * 50, stream * 50 + 50, 5)):
            assert sorted(by_position[start:stop]) == list(range(start, stop))
    assert not np.array_equal(by_position, np.arange(100))


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any),
    streams=st.integers(1, 9),
    rows=st.integers(1, 7),
    windows=st.integers(1, 9),
    remainder=st.sampled_from(["pad", "drop"]),
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 10**9),
)
@settings(max_examples=examples(400))
def test_property_each_record_once(counts, streams, rows, windows, remainder, seed, epoch):
    order = Order(tuple(counts), streams * rows, streams, windows, remainder, seed, training=True)
    if order.steps_per_epoch:
        check_epoch(order, *epoch_of(order, epoch))


def test_a_run_begins_at_any_step_and_no_batch_crosses_an_epoch():
    order = Order((5, 0, 6), 4, 2, 3, "pad", seed=1, training=True)
    assert order.steps_per_epoch == 3
    records = np.concatenate([epoch_of(order, epoch)[0] for epoch in range(4)])
    for shard, rows in ((None, slice(0, 4)), (Shard(1, 2), slice(2, 4))):
        for first in range(12):
            fed = [fed.records for fed in replay(make_feed(order, shard), first, 12)]
            assert np.array_equal(np.concatenate(fed), records[first:, rows])


@pytest.mark.parametrize(("size", "workers", "local"), [(24, 3, 2), (24, 2, 1), (12, 4, 3), (8, 8, 1)])
def test_workers_feed_the_rows_of_their_replicas(size, workers, local):
    for counts, streams, windows in itertools.product(((5, 3, 9), (1, 1, 1, 20), (2,)), (1, 2, 4), (1, 2, 7)):
        order = Order(counts, size, streams, windows, "pad", seed=2, training=True)
        whole, is_real = epoch_of(order, 3)
        for worker in range(workers):
            records, real = epoch_of(order, 3, Shard(worker, workers, local))
            rows = slice(worker * size // workers, (worker + 1) * size // workers)
            assert np.array_equal(records, whole[:, rows])
            assert np.array_equal(real, is_real[:, rows])


def spec(**changes):
    fields = {
        "manifest_digest": "0" * 64,
        "split": "train",
        "seed": 7,
        "global_batch_size": 8,
        "streams": 2,
        "shuffle_bytes": 400,
        "remainder": "pad",
        "training": True,
    }
    return OrderSpec(**(fields | changes))


def test_make_order_fits_windows_into_shuffle_bytes():
    # 2 streams of 25 records; 400 bytes / 2 streams / 10 bytes a record = 20 records a window: 2 windows.
    assert make_order(spec(), (50,), 10).windows == 2
    assert make_order(spec(shuffle_bytes=500), (50,), 10).windows == 1
    assert make_order(spec(shuffle_bytes=499), (50,), 10).windows == 2
    assert make_order(spec(shuffle_bytes=20), (50,), 10).windows == 25
    assert make_order(spec(training=False, streams=1, shuffle_bytes=20), (50,), 10).windows == 25


@pytest.mark.parametrize(
    ("changes", "counts", "message"),
    [
        ({"shuffle_bytes": 19}, (50,), "^shuffle_bytes=19: 2 streams .* 10 .* 20$"),
        ({"streams": 3}, (50,), "^streams=3 .*=8; .*: 2 and 4$"),
        ({"streams": 0}, (50,), "^streams=0 .*=8; .*: 1 and 2$"),
        ({"global_batch_size": 0}, (50,), "^global_batch_size=0: "),
        ({"remainder": "drop", "streams": 1, "global_batch_size": 64}, (50,), "^split 'train': .* 50 .* 64 "),
        ({}, (0, 0), "^split 'train': "),
    ],
)
def test_make_order_refuses_what_cannot_work(changes, counts, message):
    with pytest.raises(UsageError, match=message):
        make_order(spec(**changes), counts, 10)


@pytest.mark.parametrize(
    ("size", "streams", "near"),
    [
        (10, 3, "1 and 2"),
        (10, 4, "2 and 5"),
        (12, 0, "1 and 2"),
        (10**9, 3, "2 and 4"),
        (10**9, 10**10, "500000000 and 1000000000"),
    ],
)
def test_streams_must_divide_the_batch_however_large_it_is(size, streams, near):
    with pytest.raises(UsageError, match=f"^streams={streams} .*={size}; .*: {near}$"):
        orders.check_streams(size, streams)


@pytest.mark.parametrize(("size", "replicas", "near"), [(10, 4, "8 and 12"), (3, 4, "4"), (7, 2, "6 and 8")])
def test_replicas_must_divide_the_batch(size, replicas, near):
    with pytest.raises(UsageError, match=f"={size} .* {replicas} replicas; .*: {near}"):
        orders.check_replicas(size, replicas)


@pytest.mark.parametrize(
    ("size", "streams", "replicas", "said"),
    [
        (12, 4, 1, "streams=4 .* 3 .*=12, .*: 2 and 3$"),
        (12, 1, 4, "4 replicas 3, .*: 8 and 16$"),
        (12, 6, 2, None),
        (12, 3, 3, None),
    ],
)
def test_rows_that_are_mixed_come_in_pairs_of_a_stream_and_of_a_replica(size, streams, replicas, said):
    if said is None:
        check_pairs("mixup", size, streams, replicas)
    else:
        with pytest.raises(UsageError, match=said):
            check_pairs("mixup", size, streams, replicas)


@pytest.mark.parametrize("shards", [1, 10_000])
@pytest.mark.parametrize(
    ("decoded", "size", "shuffle", "streams"),
    [
        (100, 128, 100, 1),
        (101, 128, 100, 64),
        (101, 96, 100, 48),
        (101, 130, 100, 26),
        (101, 67, 100, 1),
        (101, 7, 100, 7),
        ((1 << 30) + 1, 4096, 1 << 30, 64),
        ((1 << 30) + 1, 8192, 1 << 30, 64),
    ],
)
def test_default_streams_follow_from_data_and_batch_only(decoded, size, shuffle, streams, shards):
    assert orders.default_streams(decoded, 1, shards, size, shuffle) == streams


@pytest.mark.parametrize(
    ("record", "shards", "size", "streams"),
    [
        (3072, 10_000, 16_384, 128),
        (3072, 10_000, 65_536, 512),
        (3072, 10_000, 96 * 1000, 750),
        (3072, 10_000, 1 << 20, 1024),  # windows of 1 MiB
        (3072, 200, 65_536, 128),
        (3072, 8, 65_536, 64),
        (8 << 20, 10_000, 65_536, 128),
        (64 << 20, 10_000, 65_536, 64),  # as before, where even one record does not fit
        (3072, 10_000, 16_411, 1),  # a prime
    ],
)
def test_very_large_batches_have_more_streams(record, shards, size, streams):
    assert orders.default_streams(10**9, record, shards, size, shuffle_bytes=1 << 30) == streams


def test_contexts_and_shards_agree():
    class Context:
        input_pipeline_id, num_input_pipelines, num_replicas_in_sync = 1, 2, 6

    assert as_shard(Context()) == Shard(1, 2, 3)
    Context.num_replicas_in_sync = 5
    with pytest.raises(UsageError, match="5 replicas .* 2 input pipelines"):
        as_shard(Context())
    for bad in (
        {"index": 2, "count": 2},
        {"index": -1, "count": 2},
        {"index": 0, "count": 0},
        {"index": 0, "count": 1, "local_replicas": 0},
        {"index": "0", "count": "2"},
        {"index": 0, "count": True},
    ):
        with pytest.raises(UsageError, match="must be"):
            Shard(**bad)


def test_spec_differences_name_the_fields():
    stored = json.loads(spec().to_json())
    assert spec().differences(stored) == {}
    assert spec(seed=8, streams=4).differences(stored) == {"seed": (8, 7), "streams": (4, 2)}
    assert spec().digest != spec(seed=8).digest


# Statistics. Where a bound stands, its comment says where it comes from; the seeds are fixed, so none of them flickers.


@pytest.mark.parametrize("records", [50_000, 65_536])
def test_consecutive_epochs_are_uncorrelated(records):
    order = Order((records // 2, records - records // 2), 128, 1, 1, "pad", seed=0, training=True)
    ranks = [np.argsort(records_of(order, epoch)) for epoch in range(6)]
    for one, other in itertools.combinations(ranks, 2):
        # The correlation of random permutations has standard deviation 1 / sqrt(N) = 0.0045: 5 of them.
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(records)
        assert (one == other).sum() < 8  # fixed points: Poisson with mean 1


def test_neighbouring_seeds_are_uncorrelated():
    ranks = [np.argsort(records_of(Order((10_000,), 100, 1, 1, "pad", seed, training=True), 0)) for seed in range(8)]
    for one, other in itertools.combinations(ranks, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(10_000)


def test_batches_of_a_class_sorted_split_are_mixed():
    # 10 classes of 5,000, sorted, as the worst source has them; composition of 390 full batches of 128.
    order = Order((5_000,) * 10, 128, 1, 1, "drop", seed=0, training=True)
    labels = (records_of(order, 0) // 5_000)[: 390 * 128].reshape(390, 128)
    counts = np.stack([(labels == c).sum(1) for c in range(10)], 1)
    # Multinomial: each count has mean 12.8 and variance 128 * 0.1 * 0.9 = 11.5 (less by N's finiteness).
    assert abs(counts.var() / 11.5 - 1) < 0.1
    assert counts.max() < 12.8 + 6 * np.sqrt(11.5)


def test_batchmates_meet_again_as_rarely_as_by_chance():
    order = Order((20_000,), 100, 1, 1, "drop", seed=0, training=True)
    batch_of = [np.argsort(records_of(order, epoch)) // 100 for epoch in range(5)]
    pairs = np.random.default_rng(0).integers(0, 20_000, (400_000, 2))
    pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & (batch_of[0][pairs[:, 0]] == batch_of[0][pairs[:, 1]])]
    for later in batch_of[1:]:
        again = (later[pairs[:, 0]] == later[pairs[:, 1]]).mean()
        assert again < 0.005 + 5 * np.sqrt(0.005 * 0.995 / len(pairs))  # chance: 99 / 19,999


def test_shards_are_laid_in_another_order_each_epoch():
    order = Order((1,) * 64, 8, 8, 8, "pad", seed=0, training=True)
    laid = {tuple(contract_of(order).epoch(epoch).shard_order) for epoch in range(200)}
    assert len(laid) == 200
    first = np.bincount([contract_of(order).epoch(epoch).shard_order[0] for epoch in range(6400)], minlength=64)
    assert ((first - 100) ** 2 / 100).sum() < 104  # chi-square, 63 degrees of freedom, 99.9%


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000, 16_385, 131_072])
def test_a_permutation_is_the_stable_argsort_of_the_hashes(n):
    for key in (0, 7, 2**64 - 1):
        with np.errstate(over="ignore"):
            hashes = hashing.splitmix64(np.uint64(key) + np.arange(n, dtype=np.uint64))
        expected = np.argsort(hashes.view(np.int64), kind="stable")
        assert np.array_equal(hashing.permutation(key, n), expected)


def test_hashes_with_equal_upper_bits_are_ordered_by_all_bits():
    # 1,000,000 numbers need 20 bits of index; of a hash 44 are left. These keys were searched for: 1 pair agrees in 44.
    for key in (1 << 32, 46 << 32, 48 << 32):
        hashes = hashing.splitmix64(np.arange(key, key + 1_000_000, dtype=np.uint64)).view(np.int64)
        ordered = hashes[hashing.permutation(key, len(hashes))]
        assert (ordered[1:] > ordered[:-1]).all()
        assert (ordered[1:] >> 20 == ordered[:-1] >> 20).sum() == 1


def test_shards_are_laid_and_cut_into_pieces():
    counts = (5, 0, 4, 3, 9)
    order = Order(counts, 3, 3, 2, "pad", seed=5, training=True)
    starts = [0, *itertools.accumulate(counts)]
    for epoch in range(4):
        shards = contract_of(order).epoch(epoch).shard_order.tolist()
        laid = [r for s in shards for r in range(starts[s], starts[s + 1])]
        for start, stop in itertools.combinations(range(22), 2):
            pieces, records, _ = LaidShards.of(order, epoch).between(np.array([start]), np.array([stop]))
            read = [starts[s] + i for s, first, last in pieces.tolist() for i in range(first, last)]
            assert read == records.tolist() == laid[start:stop]
            assert all(0 <= first < last <= counts[s] for s, first, last in pieces.tolist())


def golden_cases():
    """What golden/order.json pins; running this file writes it, on a change of ORDER_VERSION."""
    for counts, size, streams, windows, remainder, seed, training in [
        ((5, 0, 4, 3), 4, 1, 1, "pad", 0, True),
        ((5, 0, 4, 3), 8, 4, 2, "pad", 1, True),
        ((5, 0, 4, 3), 5, 5, 1, "drop", -3, True),
        ((7, 6), 4, 1, 1, "pad", 9, False),
        ((1000, 999, 1), 64, 16, 3, "pad", 2**40, True),
    ]:
        order = Order(counts, size, streams, windows, remainder, seed, training)
        epochs = [divmod(step, order.steps_per_epoch) for step in (0, 1, 2, 40)]
        fed = [[part[step] for part in epoch_of(order, epoch)] for epoch, step in epochs]
        batches = [[int(r) if ok else -1 for r, ok in zip(*batch, strict=True)] for batch in fed]
        yield {"order": [counts, size, streams, windows, remainder, seed, training], "steps 0, 1, 2, 40": batches}


def test_the_order_is_pinned():
    assert json.loads(GOLDEN.read_text()) == json.loads(json.dumps(list(golden_cases())))
    assert orders.ORDER_VERSION == 1


@pytest.mark.parametrize(
    ("size", "virtual", "replicas", "said"),
    [
        (24, 12, 4, None),
        (24, 24, 1, None),
        (24, 6, 4, r"virtual_replicas=6: must divide .*=24 and be a multiple of .*, 4; nearest that work: 4 and 8$"),
        (24, 16, 4, r"virtual_replicas=16: must divide global_batch_size=24 and .*, 4; nearest that work: 8 and 12$"),
        (24, 12, 5, r"virtual_replicas=12: .*replicas, 5, must divide it and .*=24; nearest that work: 4 and 6$"),
        (24, 0, 1, "virtual_replicas=0: must be 1 or more$"),
    ],
)
def test_virtual_replicas_divide_the_batch_and_are_divided_by_the_replicas(size, virtual, replicas, said):
    if said is None:
        check_virtual_replicas(size, virtual, replicas)
    else:
        with pytest.raises(UsageError, match=said):
            check_virtual_replicas(size, virtual, replicas)


def test_a_batch_has_a_row_at_least():
    with pytest.raises(UsageError, match="^global_batch_size=0: must be 1 or more$"):
        check_replicas(0, 1)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(list(golden_cases())) + "\n")
