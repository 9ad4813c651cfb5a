import hashlib
import itertools

import numpy as np
import pytest

from beam_jobs import shard_rows as shards
from pipeline.order import hashing


def all_rows(rows, count, chunks=None, seed=3, split="train"):
    chunks = None if chunks is None else np.array(chunks, np.int64)
    return [shards.shard_rows(seed, split, rows, chunks, shard, count) for shard in range(count)]


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (10, 3), (7, 7), (1000, 1), (1000, 64), (999, 10)])
def test_shards_hold_each_row_once_and_differ_by_one_at_most(rows, count):
    parts = all_rows(rows, count)
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


def test_rows_do_not_depend_on_the_number_of_shards():
    whole = all_rows(1000, 1)[0]
    assert (np.concatenate(all_rows(1000, 7)) == whole).all()


@pytest.mark.parametrize("chunks", [None, [100] * 5])
def test_seed_and_split_each_change_the_rows(chunks):
    rows = {all_rows(500, 1, chunks, seed, split)[0].tobytes() for seed in (0, 1) for split in ("train", "test")}
    assert len(rows) == 4


def test_the_permutation_is_pinned():
    rows = shards.shard_rows(0, "train", 60_000, None, 0, 1)
    assert rows[:5].tolist() == [50716, 9180, 35014, 7303, 12520]
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == "216121159b235849"


def test_the_order_of_chunks_is_pinned():
    rows = shards.shard_rows(0, "train", 60_000, np.full(60, 1000), 3, 7)
    assert rows[:5].tolist() == [5425, 25636, 12967, 12589, 5346]
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == "24af8c7a415a7f84"


@pytest.mark.parametrize(
    ("key", "rows"),
    [*((key, rows) for key in (0, 2**64 - 1, 12345) for rows in (1, 2, 1000, 65_537)), (7, (1 << 20) + 3)],
)
def test_a_slice_in_little_memory_is_that_of_the_whole_permutation(rows, key):
    whole = hashing.permutation(np.uint64(key), rows)
    cuts = sorted({0, 1, rows // 3, rows // 2, rows // 2 + 1, rows - 1, rows})
    for start, stop in itertools.pairwise(cuts):
        assert (shards._slice_of_permutation(key, rows, start, stop) == whole[start:stop]).all()
    assert len(shards._slice_of_permutation(key, rows, rows // 2, rows // 2)) == 0
    assert (shards._slice_of_permutation(key, rows, 0, rows) == whole).all()


def test_a_split_too_large_to_be_kept_is_cut_like_any_other():
    shards._permutation.cache_clear()
    rows = shards._KEPT_ROWS + 1
    whole = hashing.permutation(np.uint64(shards._key(3, "train")), rows)
    parts = [shards.shard_rows(3, "train", rows, None, shard, 50) for shard in (0, 49)]
    assert (parts[0] == whole[: rows // 50]).all()
    assert (parts[1] == whole[49 * rows // 50 :]).all()
    assert not shards._permutation.cache_info().currsize  # it was never whole in memory


def random_chunks(seed, count, most):
    return np.random.default_rng(seed).integers(0, most + 1, count).tolist()


GRIDS = [
    [5],
    [1, 1, 1],
    [0, 5],
    [5, 0],
    [0, 0, 7, 0, 0, 3, 0],
    [1, 100, 1],
    [10] * 10,
    [3, 3, 3, 1],
    [0] * 20 + [40] + [0] * 20,
    random_chunks(0, 30, 9),
    random_chunks(1, 100, 3),
]


@pytest.mark.parametrize("chunks", GRIDS, ids=str)
def test_every_row_of_every_chunk_comes_once_for_any_number_of_shards(chunks):
    rows = sum(chunks)
    for count in sorted({1, 2, 3, 7, rows // 2, rows - 1, rows}):
        if not 1 <= count <= rows:
            continue
        parts = all_rows(rows, count, chunks)
        assert sorted(np.concatenate(parts).tolist()) == list(range(rows)), count
        assert [len(part) for part in parts] == [(s + 1) * rows // count - s * rows // count for s in range(count)]
        assert all(part.dtype == np.int64 for part in parts)


def test_a_shard_reads_few_chunks_and_the_one_at_a_boundary_is_read_by_both():
    chunks, bounds = [10] * 100, np.arange(0, 1001, 10)
    parts = all_rows(1000, 8, chunks)  # 125 rows each: 12.5 chunks
    read = [set((np.searchsorted(bounds, part, side="right") - 1).tolist()) for part in parts]
    assert all(13 <= len(chunk) <= 14 for chunk in read)
    shared = [read[i] & read[i + 1] for i in range(7)]
    assert [len(chunk) for chunk in shared] == [1, 0, 1, 0, 1, 0, 1]
    assert sum(len(chunk) for chunk in read) == 104


def test_chunks_come_in_another_order_and_their_rows_too():
    chunks = [50] * 40
    parts = all_rows(2000, 4, chunks)
    order = np.concatenate(parts)
    assert (order != np.arange(2000)).mean() > 0.99
    assert abs(np.corrcoef(order, np.arange(2000))[0, 1]) < 0.3
    for part in parts:
        neighbours = np.abs(np.diff(part)) == 1
        assert neighbours.mean() < 0.05  # the rows of a chunk lie apart
        assert len({row // 50 for row in part[:50].tolist()}) >= 6  # and those of all its chunks are mixed
