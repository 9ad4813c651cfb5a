"""Who reads which shards of an epoch, against a plain count of the rows that the order feeds."""

import numpy as np
import pytest

from pipeline.audit.contract import Contract
from tests.helpers.datasets import write_dataset
from trainer.config import TrainConfig
from trainer.watching import reading
from trainer.watching.reading import Data, data_of

COUNTS = (13, 7, 20, 8)


@pytest.fixture
def config_of(tmp_path):
    write_dataset(tmp_path / "data", COUNTS)

    def config_of(**flags):
        given = {"data_dir": str(tmp_path / "data"), "model_dir": str(tmp_path / "run"), "global_batch_size": 12}
        return TrainConfig.of(**{**given, "epochs": 3, **flags})

    return config_of


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("step", [0, 1, 3, 4, 7])
def test_what_workers_have_used_up_is_what_the_order_has_fed(config_of, workers, step):
    data = Data.of(config_of(streams=6, shuffle_bytes=6 * 8 * 6 * 3))  # windows of one record: no window is half used
    (part,) = data.training.parts
    contract = Contract.of(part)
    assert (data.steps_per_epoch, data.last_step, part.order.windows) == (4, 12, 8)
    names = [f"worker {i}" for i in range(workers)]
    (found,) = data.read_at(step, names, workers)
    epoch, done = divmod(step, 4)
    assert (found.epoch, found.steps, found.seen, found.records) == (epoch, (done, 4), 12 * done, 48)
    of_record = np.repeat(np.arange(len(COUNTS)), COUNTS)
    laid = [part.selection.segments[i].shard.file for i in contract.epoch(epoch).shard_order]
    assert (list(found.shards), found.files, found.group) == (laid, 4, 1)
    for number, worker in enumerate(found.workers):
        rows = slice(12 * number // workers, 12 * (number + 1) // workers)
        assert worker.rows == (rows.start, rows.stop)
        batches = [contract.batch(4 * epoch + s) for s in range(4)]
        fed = [records[rows][real[rows]] for records, real in batches]
        of_epoch, so_far = (
            np.bincount(of_record[np.concatenate([*parts, []]).astype(int)], minlength=4) for parts in (fed, fed[:done])
        )
        order = contract.epoch(epoch).shard_order
        counts = np.array(COUNTS)[order]
        assert [read for read, _ in worker.bins] == pytest.approx((of_epoch[order] / counts).tolist(), abs=1e-3)
        assert [seen for _, seen in worker.bins] == pytest.approx((so_far[order] / counts).tolist(), abs=1e-3)
        assert (worker.records, worker.seen) == (of_epoch.sum(), so_far.sum())
        assert worker.shards == np.count_nonzero(of_epoch)


def test_a_window_in_use_is_used_up_evenly(config_of):
    (found,) = Data.of(config_of()).read_at(1, ["worker 0"], 1)  # one stream, one window: 12 of 48 records
    assert found.workers[0].bins == ((1.0, 0.25),) * 4


def test_at_the_end_no_further_epoch_begins(config_of):
    data = Data.of(config_of())
    assert [(one.epoch, one.steps) for one in data.read_at(12, ["worker 0"], 1)] == [(2, (4, 4))]
    assert [(one.epoch, one.steps) for one in data.read_at(8, ["worker 0"], 1)] == [(2, (0, 4))]


def test_under_a_schedule_each_source_counts_its_units(config_of, tmp_path):
    write_dataset(tmp_path / "more", (30,))
    a, b = tmp_path / "data", tmp_path / "more"
    flags = {"data_dir": f"{a}=1,{b}=1", "train_steps": 12, "epochs": None}
    schedule = f"0:{a}=12,{b}=0;4:{a}=8,{b}=4;9:{a}=0,{b}=12"
    data = Data.of(config_of(**flags, mixture_schedule=schedule))
    found = {step: data.read_at(step, ["worker 0", "worker 1"], 2) for step in (0, 6, 12)}
    # Units of 4 rows: 3 in each of steps 0 to 3, 2 in each of steps 4 to 8; epochs of 12. b: 1 and 3; epochs of 8.
    assert [(one.epoch, one.steps, one.seen, one.unit, one.rows) for one in found[0]] == [
        (0, (0, 12), 0, 4, 12),
        (0, (0, 8), 0, 4, 0),
    ]
    assert [(one.epoch, one.steps, one.seen, one.rows) for one in found[6]] == [(1, (4, 12), 16, 8), (0, (2, 8), 8, 4)]
    assert [(one.epoch, one.steps, one.seen, one.rows) for one in found[12]] == [
        (1, (10, 12), 40, 0),
        (1, (6, 8), 24, 12),
    ]
    assert [worker.rows for worker in found[6][1].workers] == [(0, 2), (2, 4)]
    [plain, _] = Data.of(config_of(**flags)).read_at(6, ["worker 0"], 1)
    assert (plain.steps, plain.unit, plain.rows) == ((6, 8), None, 6)


def test_many_shards_are_drawn_in_groups(config_of, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MOST_BINS", 3)
    (found,) = Data.of(config_of()).read_at(4, ["worker 0"], 1)
    assert (len(found.shards), len(found.workers[0].bins), found.files, found.group) == (2, 2, 4, 2)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"data_dir": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"data_dir": "s3://bucket/data"}, "s3://bucket/data is remote, and a page reads only files"),
        ({"task": "mine:Task"}, "--task=mine:Task may parse its data itself, which a page does not run"),
    ],
)
def test_why_the_data_are_not_known(config_of, flags, said):
    assert said in data_of(config_of(**flags))


def test_the_sources_of_a_mixture_are_told_apart(config_of, tmp_path):
    write_dataset(tmp_path / "more", (9,))
    config = config_of(data_dir=f"{tmp_path / 'data'}=0.5,{tmp_path / 'more'}=0.5")
    first, second = Data.of(config).read_at(2, ["worker 0"], 1)
    assert (first.records, first.seen, second.records, second.epoch) == (48, 12, 9, 1)
