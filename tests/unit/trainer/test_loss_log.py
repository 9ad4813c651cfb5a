"""`--log_losses`: the content of the files, after a resume on any number of workers, and which run owns a folder."""

import json

import numpy as np
import pytest

from pipeline.errors import DataError, UsageError
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers.datasets import write_dataset
from trainer import loss_log
from trainer.loss_log import LossLog


def write(folder, steps, worker=0, workers=1):
    """Logs steps of three rows, whose losses tell their step and row; the last row is padding."""
    with LossLog(folder, worker, workers, steps.start) as log:
        for step in steps:
            records = np.array([[10 * step, 10 * step + 1, 10 * step + 2]]) + 5 * worker
            log.append(step, records, records.astype(np.float32) / 4, np.array([[1, 0.5, 0]], np.float32))
        log.flush()


def rows(folder, *bounds):
    return loss_log.read(folder, *bounds).tolist()


def logged(step, worker=0):
    first = 10 * step + 5 * worker
    return [(step, first, first / 4), (step, first + 1, (first + 1) / 4)]


def test_rows_have_step_record_and_loss_and_padding_has_none(tmp_path):
    write(tmp_path, range(3))
    assert rows(tmp_path) == [*logged(0), *logged(1), *logged(2)]
    assert rows(tmp_path, 1, 2) == logged(1)
    assert (tmp_path / "worker-00000.losses").stat().st_size == 6 * 12
    plain = np.fromfile(tmp_path / "worker-00000.losses", [("step", "<u4"), ("record", "<u4"), ("loss", "<f4")])
    assert plain.tolist() == rows(tmp_path)


@pytest.mark.parametrize("cut", [0, 5])
def test_a_run_that_resumes_has_no_step_twice(cut, tmp_path):
    write(tmp_path, range(6))
    path = tmp_path / "worker-00000.losses"
    path.write_bytes(path.read_bytes()[: -cut or None])
    write(tmp_path, range(4, 8))
    assert rows(tmp_path) == [row for step in range(8) for row in logged(step)]
    write(tmp_path, range(0, 2))
    assert rows(tmp_path) == [*logged(0), *logged(1)]


def test_on_other_workers(tmp_path):
    for worker in range(4):
        write(tmp_path, range(6), worker, 4)
    for worker in range(2):
        write(tmp_path, range(4, 7), worker, 2)
    found = rows(tmp_path)
    assert sorted(found) == sorted(
        row for step in range(7) for worker in range(4 if step < 4 else 2) for row in logged(step, worker)
    )
    assert [row[0] for row in found] == sorted(row[0] for row in found)


@pytest.fixture
def training(tmp_path):
    write_dataset(tmp_path / "data", (9,))
    return resolve_all(Request(tmp_path / "data", global_batch_size=4, training=True))


@pytest.fixture
def begin(tmp_path, training, config_of):
    """Returns a function that begins a run in tmp_path/run, which logs to tmp_path/log."""
    (tmp_path / "log").mkdir()

    def begin(run="run", order=training, last_step=100, is_chief=True):
        flags = config_of(model_dir=tmp_path / run, log_losses=tmp_path / "log").run
        loss_log.begin(flags, order, last_step, is_chief)

    return begin


def test_a_folder_belongs_to_one_run_and_order(begin, tmp_path):
    begin()
    assert json.loads((tmp_path / "log" / "losses.json").read_text())["order"]["global_batch_size"] == 4
    begin()
    with pytest.raises(UsageError, match=r"^--log_losses=.*log: .* another model_dir \(.*run\).*name another folder$"):
        begin("other")
    with pytest.raises(UsageError, match="^--log_losses=.*log: has the losses of a run with another order"):
        begin(order=resolve_all(Request(tmp_path / "data", global_batch_size=5, training=True)))
    begin("mounted elsewhere", is_chief=False)


def test_steps_to_skip_may_change(begin, tmp_path):
    begin()
    begin(order=resolve_all(Request(tmp_path / "data", global_batch_size=4, training=True, skip_steps=[(5, 7)])))
    begin()


@pytest.mark.parametrize("text", ["{", "[]", '{"order": 1}', "null"])
def test_a_damaged_header_is_one_line(begin, tmp_path, text):
    begin()
    (tmp_path / "log" / "losses.json").write_text(text)
    with pytest.raises(DataError, match=r"losses.json: does not say whose losses these are; name another folder"):
        begin()


def test_files_without_an_owner_stay(begin, tmp_path):
    write(tmp_path / "log", range(2))
    with pytest.raises(UsageError, match="has worker-00000.losses but no losses.json"):
        begin()
    assert rows(tmp_path / "log") == [*logged(0), *logged(1)]


def test_a_run_too_long_for_the_format_is_refused(begin):
    with pytest.raises(UsageError, match="has room for 4,294,967,296 steps and records"):
        begin(last_step=(1 << 32) + 1)


def test_a_folder_without_losses_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"has no worker-\*.losses"):
        loss_log.read(tmp_path)
