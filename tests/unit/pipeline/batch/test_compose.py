"""What is put together: the memory that all sources need, and how TensorFlow is to run them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, input_fn
from pipeline.batch import compose
from pipeline.batch.plans import RunningWorker
from pipeline.errors import UsageError
from pipeline.read import memory
from pipeline.request import Request
from tests.helpers.datasets import Kind, write_dataset

RECORD, TRAIN = 8 * 6 * 3, {"global_batch_size": 4, "training": True}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path / "a", (20, 20))
    write_dataset(path / "b", (24,))
    return [(path / "a", 1), (path / "b", 1)]


@pytest.mark.slow
def test_the_windows_of_all_sources_have_to_fit_into_memory_together(sources, monkeypatch):
    pool = 2 * 10 * RECORD  # two windows of 10 records for each source, of 40 and 24: 10 and 8 in the largest
    options = {**TRAIN, "shuffle_bytes": pool, "streams": 2}
    needed = 2 * 10 * RECORD + 2 * 8 * RECORD
    monkeypatch.setattr(memory, "available", lambda: needed)
    input_fn(sources, **options)
    monkeypatch.setattr(memory, "available", lambda: needed - 1)
    for path, _ in sources:
        input_fn(path, **{**options, "shuffle_bytes": pool // 2})  # each fits
    words = rf"shuffle_bytes={pool}, .*/a:train 2.8 KiB, 2 of 2 streams; .*/b:train 2.2 KiB, .* 5.1 KiB "
    with pytest.raises(UsageError, match=words):
        input_fn(sources, **options)
    input_fn(sources, **options, shard=Shard(0, 2))  # each of two workers has one of the two streams
    input_fn(sources, **options, epochs=1, portable=True)  # which reads elsewhere


def test_a_split_that_is_kept_has_to_fit_once(sources, monkeypatch):
    folder = sources[0][0]
    monkeypatch.setattr(memory, "available", lambda: 40 * RECORD)
    input_fn(folder, **TRAIN)
    monkeypatch.setattr(memory, "available", lambda: 40 * RECORD - 1)
    with pytest.raises(UsageError, match="^shuffle_bytes=1073741824, 1 of 1 streams: .* 5.6 KiB "):
        input_fn(folder, **TRAIN)


def test_tensorflow_is_told_how_to_run_it(sources):
    for given in (sources, sources[0][0]):
        options = input_fn(given, **TRAIN).options()
        assert options.deterministic
        assert options.experimental_optimization.apply_default_optimizations is False  # it would copy the split
        assert options.autotune.enabled is False
        data = tf.data.experimental
        assert options.experimental_external_state_policy == data.ExternalStatePolicy.IGNORE
        assert options.experimental_distribute.auto_shard_policy == data.AutoShardPolicy.DATA


def test_what_varies_in_length_is_joined_as_everything_else(tmp_path):
    for name, counts in (("a", (9,)), ("b", (7,))):
        write_dataset(tmp_path / name, counts, kind=Kind(extra=True))
    mixture = [(tmp_path / "a", 2), (tmp_path / "b", 1)]
    given = input_fn(mixture, **{**TRAIN, "global_batch_size": 12}, features=("id", "scores", "tags"), record_ids=True)
    features, *_, ids = next(iter(given))
    numbers = np.where(ids < 9, ids, ids - 9)
    assert (ids.numpy().reshape(4, 3) < 9).tolist() == [[True, True, False]] * 4
    assert features["id"].numpy().tolist() == (1000 + numbers).tolist()
    assert features["scores"].to_list() == [[float(number)] * (number % 3) for number in numbers]


def test_a_portable_run_has_an_end_and_rows_that_fit_into_its_graph(sources, monkeypatch):
    folder, options = sources[0][0], {**TRAIN, "portable": True}
    with pytest.raises(UsageError, match="^epochs=None with portable=True: the dataset stores .*; give epochs$"):
        input_fn(folder, **options)
    with pytest.raises(UsageError, match="^epochs=None with portable=True"):
        input_fn(sources, **options)
    made = input_fn(folder, **options, epochs=2, start_step=1)
    rows = 4 * int(made.cardinality())
    monkeypatch.setattr(compose, "_MOST_STORED", rows)
    input_fn(folder, **options, epochs=2, start_step=1)
    with pytest.raises(UsageError, match=f"^epochs=2 .* {rows + 4} rows .* at most {rows}; give fewer"):
        input_fn(folder, **options, epochs=2)
    input_fn(folder, **TRAIN, epochs=2)


def test_rows_handed_out_in_place_follow_a_batch_that_two_windows_share(tmp_path):
    write_dataset(tmp_path, (100, 85))
    window = 100 * RECORD  # two of them, of 92 and 93 records: the second begins within a batch
    options = {"training": True, "augment": "none", "shuffle_bytes": window, "epochs": 1, "record_ids": True}
    fed = [ids[weights > 0] for _, _, weights, ids in input_fn(tmp_path, global_batch_size=3, **options)]
    assert sorted(np.concatenate(fed).tolist()) == list(range(185))


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.quick(1)
def test_the_worker_that_runs_a_graph_with_all_plans_gets_its_own(worker, sources):
    request = Request(sources[0][0], **TRAIN, epochs=2, portable=True, record_ids=True)
    running = RunningWorker(0, 2, 1, number=tf.constant(worker, tf.int64))
    rows = [
        [step[-1].numpy().tolist() for step in compose.make_dataset(dataclasses.replace(request, shard=shard))]
        for shard in (running, Shard(worker, 2))
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 20
