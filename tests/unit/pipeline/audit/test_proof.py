"""The proof holds of the order, and finds every bug that is put into it."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

from pipeline.audit.claims import Fault, check_tiling
from pipeline.audit.exhaustive import count_epoch
from pipeline.audit.proof import Proof
from pipeline.audit.topology import Topology
from pipeline.errors import UsageError
from pipeline.order import hashing
from pipeline.order import order as orders
from pipeline.order.order import Order
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.datasets import write_dataset

SHAPE = (2, 3, 1)  # 6 bytes


def split_of(folder, counts=(30, 0, 25, 44), **changes):
    write_dataset(folder, counts, SHAPE)
    arguments = {"global_batch_size": 12, "training": True, "streams": 4, "shuffle_bytes": 240, "seed": 3}
    return resolve(Request.of(folder, "train", **(arguments | changes)))


def broken(source, **methods):
    """Returns the split with an order whose methods are others; each is given the order and its arguments."""
    bad = type("Broken", (Order,), methods)
    fields = {field.name: getattr(source.order, field.name) for field in dataclasses.fields(Order)}
    return dataclasses.replace(source, order=bad(**fields))


def fault_of(claims):
    assert not claims[-1].holds
    assert all(claim.holds for claim in claims[:-1])
    return f"{claims[-1].text}: {claims[-1].evidence}"


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("counts", [(99,), (30, 0, 25, 44), (1,) * 40, (5, 80), (12,), (96,)])
def test_the_proof_and_the_count_hold_of_every_order(tmp_path, counts, remainder):
    write_dataset(tmp_path, counts, SHAPE)
    for streams, shuffle_bytes, training in itertools.product((1, 2, 4, 12), (120, 240, 1 << 30), (True, False)):
        source = resolve(
            Request.of(
                tmp_path,
                "train",
                global_batch_size=12,
                training=training,
                streams=streams,
                shuffle_bytes=shuffle_bytes,
                remainder=remainder,
            )
        )
        for epoch in (0, 7):
            claims = Proof(source, epoch).claims()
            assert all(claim.holds for claim in claims), claims[-1]
            assert len(claims) == 7
            (count,) = count_epoch(source, epoch, Topology(2, 4, 12))
            assert count.holds, count
            seen = sum(counts) if remainder == "pad" else sum(counts) // 12 * 12
            assert count.evidence.startswith(f"{seen} records once")


def test_the_proof_says_what_it_looked_at(tmp_path):
    evidence = [claim.evidence for claim in Proof(split_of(tmp_path), 0).claims()]
    assert evidence == [
        "3 shards, 99 records, manifest and order agree",
        "4 streams of 24 to 25 positions",
        "3 windows a stream, of 8 to 9 records",
        "at most 54 of 60 decoded bytes",
        "65,536 hashes turned back, 12 of 12 windows looked at",
        "9 steps of 12 rows, 3 a stream: 99 real, 9 padding",
        "9 of 9 steps looked at row by row, the first and the last too",
    ]


def shifted(index, by):
    def change(bounds):
        bounds = bounds.copy()
        bounds[index] += by
        return bounds

    return change


def of_streams(change):
    return {"stream_bounds": lambda self: change(Order.stream_bounds(self))}


def of_windows(stream, change):
    def window_bounds(self, k):
        bounds = Order.window_bounds(self, k)
        return change(bounds) if k == stream else bounds

    return {"window_bounds": window_bounds}


def of_permutation(change):
    def window_permutation(self, epoch, stream, window, size):
        found = Order.window_permutation(self, epoch, stream, window, size)
        return change(found) if (stream, window) == (2, 1) else found

    return {"window_permutation": window_permutation}


def of_spans(stop=0, first=0):
    def spans(self, steps):
        begin, end = Order.spans(self, steps)
        late = (np.asarray(steps) == 4)[:, None] & (np.arange(self.streams) == 2)
        return begin + first * late, end + stop * late

    return {"spans": spans}


def of_positions(change, at=5):
    def positions(self, step):
        found, real = (array.copy() for array in Order.positions(self, step))
        if step == at:
            change(found, real)
        return found, real

    return {"positions": positions}


def swap_rows(positions, real):
    del real
    positions[[3, 4]] = positions[[4, 3]]


def pad_row(positions, real):
    del positions
    real[7] = False


def unpad_last(positions, real):
    del positions
    real[-1] = True


def pad_from_first_window(positions, real):
    positions[~real] = 0


def laid(change):
    return {"shard_order": lambda self, epoch: change(Order.shard_order(self, epoch))}


def steps(by):
    correct = Order.steps_per_epoch.fget
    return {"steps_per_epoch": property(lambda self: correct(self) + by)}


BUGS = {
    "a shard twice": (
        laid(lambda s: np.array([0, 2, 2])),
        "train-00002-of-00004.tfrecord, from record 30 of the split",
    ),
    "a shard that is none": (laid(lambda s: s + 1), "shard 3 is laid, of shards 0 to 2"),
    "a shard not": (laid(lambda s: s[s != 0]), "train-00000-of-00004.tfrecord, from record 0 .* is laid 0 times"),
    "first position in no stream": (of_streams(shifted(0, 2)), "position 0 .* to 1: 2 in no interval; .* stream 0"),
    "last position in no stream": (of_streams(shifted(4, -1)), "position 98 .* to 98: 1 in no interval; .* stream 3"),
    "a stream beyond the end": (of_streams(shifted(4, 3)), r"position 99 \(outside the epoch\) to 101: 3 outside"),
    "a stream that ends before it begins": (of_streams(shifted(2, -30)), "stream 1 ends at 19, before it begins at 24"),
    "a bound too few": (of_streams(lambda bounds: bounds[:-1]), "4 bounds of 4 streams"),
    "windows of two streams overlap": (
        of_windows(1, shifted(0, -2)),
        "position 22 .*: record .* to 23: 2 in both: window 2 of stream 0 and window 0 of stream 1",
    ),
    "a gap between windows of two streams": (
        of_windows(2, shifted(3, -1)),
        "position 73 .* to 73: 1 in no interval; beside it: window 2 of stream 2 and window 0 of stream 3",
    ),
    "windows across a stream's end": (
        {"window_bounds": lambda self, k: Order.window_bounds(self, k) + np.array([k == 1, 0, 0, k == 0])},
        "position 25 .*: window 0 of stream 1 begins there, the stream at 24",
    ),
    "a window that does not fit": (
        of_windows(3, shifted(1, 3)),
        "a window fits its part of shuffle_bytes: window 0 of stream 3, position 74 .* to 84: 66 decoded bytes",
    ),
    "a permutation that is none": (of_permutation(np.zeros_like), r"position 57 .*: window 1 of stream 2 gives .* 8 t"),
    "a permutation out of its window": (
        of_permutation(lambda p: p + 1),
        r"window 1 of stream 2: .* \[8\] outside its 8",
    ),
    "a permutation of fewer": (
        of_permutation(lambda p: p[:-1]),
        "window 1 of stream 2: its permutation gives 7 places",
    ),
    "a short epoch": (steps(-1), "position 48 .*: stream 1 has steps up to 48, and ends at 49; T = 8"),
    "a long epoch": (steps(1), "position 24 .*: stream 0 has 0 real rows of 3 at step 8"),
    "no epoch": (steps(-9), "stream 0 has steps up to 0, and ends at 24; T = 0"),
    "a step leaves out a row": (of_spans(stop=-1), "position 63 .* to 63: come at no step: stream 2 beg"),
    "a gap between steps": (of_spans(first=1, stop=1), "position 61 .* to 61: come at no step: stream 2 begins step 4"),
    "steps overlap": (of_spans(first=-1, stop=-1), "position 60 .* to 60: come again: stream 2 begins step 4 at 60"),
    "rows swapped": (of_positions(swap_rows), "step 5, row 3: real, position 40 .*; must be position 39"),
    "padding inside an epoch": (of_positions(pad_row), "step 5, row 7: padding, position 65 .*; must be position 65"),
    "padding with weight": (of_positions(unpad_last, at=8), "step 8, row 11: real, position .*; must be padding"),
    "padding of another window": (
        of_positions(pad_from_first_window, at=8),
        "step 8, row 0: padding, position 0 .*; must be padding from its stream's last window",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_every_bug_is_found_and_named(tmp_path, bug):
    methods, message = BUGS[bug]
    claims = Proof(broken(split_of(tmp_path), **methods), 0).claims()
    assert re.search(message, fault_of(claims)), claims[-1]


def test_an_order_of_other_counts_is_found(tmp_path):
    source = split_of(tmp_path)
    source = dataclasses.replace(source, order=dataclasses.replace(source.order, counts=(30, 24, 45)))
    assert "shard 1: the order has 24 records of it, the manifest 25" in fault_of(Proof(source, 0).claims())


def test_evaluation_that_is_shuffled_is_found(tmp_path):
    source = broken(split_of(tmp_path, training=False), **laid(lambda s: s[::-1]))
    assert "evaluation lays shard 2 at place 0" in fault_of(Proof(source, 0).claims())


def test_a_hash_that_is_no_bijection_is_found(tmp_path, monkeypatch):
    source, real = split_of(tmp_path), hashing.splitmix64
    monkeypatch.setattr(hashing, "splitmix64", lambda x: real(x) & ~np.uint64(1))
    assert "cannot be turned back: it is no bijection" in fault_of(Proof(source, 0).claims())


def test_splitmix64_is_turned_back():
    states = np.concatenate([np.arange(1000, dtype=np.uint64), hashing.splitmix64(np.arange(1000, dtype=np.uint64))])
    assert np.array_equal(hashing.inverse_splitmix64(hashing.splitmix64(states)), states)
    assert int(hashing.inverse_splitmix64(hashing.splitmix64(7))) == 7


@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_a_short_epoch_is_found_with_either_remainder(tmp_path, remainder):
    for by in (-1, -2, 1, 2):
        source = broken(split_of(tmp_path, remainder=remainder), **steps(by))
        assert "position" in fault_of(Proof(source, 0).claims())


def test_a_wrong_bound_anywhere_is_found_or_harms_nothing(tmp_path):
    """A stream's bound that is moved is another order, which the proof may allow: then the count allows it too."""
    found = 0
    for index, by in itertools.product(range(5), (-40, -4, -1, 1, 4, 40)):
        source = broken(split_of(tmp_path), **of_streams(shifted(index, by)))
        if all(claim.holds for claim in Proof(source, 0).claims()):
            assert count_epoch(source, 0, Topology(1, 1, 12))[0].holds
        else:
            found += 1
    assert found >= 20


# What only a count of every record can find.


def test_the_count_finds_a_record_seen_twice_and_names_both_rows(tmp_path):
    def records_by_position(self, epoch):
        found = Order.records_by_position(self, epoch)
        found[50] = found[2]
        return found

    source = broken(split_of(tmp_path), records_by_position=records_by_position)
    assert all(claim.holds for claim in Proof(source, 0).claims())
    fault = fault_of(count_epoch(source, 0, Topology(3, 6, 12)))
    record = Order.records_by_position(source.order, 0)[2]
    assert f"record {record}: at step 0, row 2, replica 1 (worker 0 of 3), and at step 0, row 7, replica 3" in fault


def test_the_count_finds_a_record_out_of_range_and_one_that_is_missing(tmp_path):
    for value, message in ((99, "record 99 is outside the split"), (-1, "record -1 is outside the split")):

        def records_by_position(self, epoch, value=value):
            found = Order.records_by_position(self, epoch)
            found[98] = value
            return found

        source = broken(split_of(tmp_path), records_by_position=records_by_position)
        assert message in fault_of(count_epoch(source, 0, Topology(1, 1, 12)))
    source = broken(split_of(tmp_path), **of_positions(pad_row))
    fault = fault_of(count_epoch(source, 0, Topology(1, 1, 12)))
    record = source.order.records_by_position(0)[65]
    assert f"record {record} (row" in fault
    assert "at no step, as 1 in all" in fault


def test_the_count_finds_batches_of_another_epoch(tmp_path):
    source = broken(split_of(tmp_path), batch=lambda self, step: Order.batch(self, step + 9))
    assert "step 0, row 0: batch gives record" in fault_of(count_epoch(source, 1, Topology(1, 1, 12)))


# Topologies.


def test_rows_of_replicas_that_overlap_or_leave_a_gap_are_found(monkeypatch):
    good = orders.replica_rows
    for change, message in [
        ((0, 1), r"row 6 to 6: 1 in both: replica 1 \(worker 0 of 2\) and replica 2 \(worker 1 of 2\)"),
        ((0, -1), "row 5 to 5: 1 in no interval; beside it: replica 1 .* and replica 2"),
        ((1, 1), "row 3 to 3: 1 in no interval; beside it: replica 0"),
    ]:

        def replica_rows(replica, num_replicas, size, change=change):
            first, stop = good(replica, num_replicas, size)
            return (first + change[0], stop + change[1]) if replica == 1 else (first, stop)

        monkeypatch.setattr(orders, "replica_rows", replica_rows)
        claims = Topology(2, 4, 12).claims()
        assert re.search(message, fault_of(claims)), claims


def test_replicas_with_unequal_rows_are_found(monkeypatch):
    bounds = {0: (0, 4), 1: (4, 6), 2: (6, 9), 3: (9, 12)}
    monkeypatch.setattr(orders, "replica_rows", lambda replica, num_replicas, size: bounds[replica])
    assert "row 0: replica 0 (worker 0 of 2) has 4 rows of 12" in fault_of(Topology(2, 4, 12).claims())


def test_topologies_have_the_same_batches():
    for (w, r), (v, s) in itertools.combinations([(1, 1), (1, 4), (2, 2), (2, 6), (12, 12), (4, 12)], 2):
        assert all(claim.holds for claim in Topology(w, r, 12).same_batches(Topology(v, s, 12)))


def test_a_topology_that_permutes_rows_has_other_batches():
    class Reversed(Topology):
        def replica_rows(self):
            return super().replica_rows()[::-1]

    fault = fault_of(Topology(1, 2, 12).same_batches(Reversed(2, 4, 12)))
    assert "row 0 of the batches put together: row [0] here, [9] there" in fault


@pytest.mark.parametrize(
    ("workers", "replicas", "message"),
    [
        (0, 1, "workers=0, replicas=1: must be 1 or more"),
        (2, 3, "3 replicas on 2 workers"),
        (5, 5, "global_batch_size=12 is not divisible by 5 replicas; nearest that work: 10 and 15"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(workers, replicas, message):
    with pytest.raises(UsageError, match=message):
        Topology(workers, replicas, 12)


@pytest.mark.parametrize("seed", range(20))
def test_tilings_agree_with_counting(seed):
    random = np.random.default_rng(seed)
    for _ in range(50):
        bounds = np.sort(random.integers(0, 8, 4))
        first, stop = bounds[:-1].copy(), bounds[1:].copy()
        if random.random() < 0.7:
            (first if random.random() < 0.5 else stop)[random.integers(3)] += random.integers(-2, 3)
        covered = [n for a, b in zip(first, stop, strict=True) for n in range(a, b)]
        good = covered == list(range(bounds[0], bounds[-1])) and (first <= stop).all()
        try:
            check_tiling(first, stop, int(bounds[0]), int(bounds[-1]), str, str)
            assert good
        except Fault:
            assert not good or (first == stop).any()  # an empty interval elsewhere covers nothing twice
