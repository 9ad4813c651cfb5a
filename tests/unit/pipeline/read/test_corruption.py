"""What is done about corrupt records: named, or skipped within a budget."""

import logging
import pathlib
import threading

import pytest

from pipeline.errors import DataError
from pipeline.read.corruption import Corruption, CorruptRecord, skipped_records
from tests.helpers.raised import at


def record(number, file="d/train-00000-of-00001.tfrecord"):
    return CorruptRecord(file, number, 10 * number, "the record's CRC is wrong")


def test_raise_names_the_record_and_what_to_do(tmp_path):
    corruption = Corruption(str(tmp_path))
    assert not corruption.skips
    with pytest.raises(DataError, check=at(record(3).file, record(3).problem, record=3, offset=30)) as caught:
        corruption.found(record(3))
    assert caught.value.advice.endswith(f"python -m beam_jobs.validate {tmp_path}")
    assert skipped_records(tmp_path) == ()


def test_skip_logs_each_record_once_and_lists_them_in_order(tmp_path, caplog):
    corruption = Corruption(str(tmp_path), "skip", 3)
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        for number in (2, 0, 2, 2, 0, 1, 1):
            corruption.found(record(number))
    assert [line.split(":")[0] for line in caplog.messages] == [
        f"skipped d/train-00000-of-00001.tfrecord, record {number}, byte offset {10 * number}" for number in (2, 0, 1)
    ]
    assert caplog.messages[2].endswith("(3 of at most 3)")
    assert skipped_records(tmp_path) == (record(0), record(1), record(2))


def test_one_more_than_the_budget_is_an_error_as_often_as_it_is_met(tmp_path):
    corruption = Corruption(str(tmp_path), "skip", 2)
    corruption.found(record(0))
    corruption.found(record(1))
    for _ in range(3):
        with pytest.raises(DataError, match="; 2 others .*max_corrupt; ", check=at(record(2).file, record=2)):
            corruption.found(record(2))
    corruption.found(record(0))
    assert skipped_records(tmp_path) == (record(0), record(1))
    with pytest.raises(DataError, match="; 0 others ", check=at(record(0).file, record=0)):
        Corruption(str(tmp_path), "skip", 0).found(record(0))


def test_inputs_have_budgets_of_their_own_and_one_list(tmp_path):
    for _ in range(3):
        Corruption(str(tmp_path), "skip", 1).found(record(5))
    Corruption(str(tmp_path), "skip", 1).found(record(6))
    assert skipped_records(tmp_path) == (record(5), record(6))


def test_a_folder_is_known_by_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Corruption("data/", "skip", 9).found(record(1))
    for name in ("data", "./data", pathlib.Path("data"), tmp_path / "data", f"{tmp_path}/data/"):
        assert skipped_records(name) == (record(1),)
    assert skipped_records("data2") == ()
    Corruption("gs://bucket/data", "skip", 9).found(record(2))
    assert skipped_records("gs://bucket/data/") == (record(2),)


def test_threads_share_a_budget(tmp_path):
    corruption, failed = Corruption(str(tmp_path), "skip", 50), []

    def work():
        for number in range(60):
            try:
                corruption.found(record(number))
            except DataError:
                failed.append(number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(skipped_records(tmp_path)) == 50
    assert len(failed) == 8 * 10
