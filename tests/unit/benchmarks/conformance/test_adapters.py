"""Adapters of peers, as far as they can be looked at where the peers are not installed."""

import importlib
import pathlib

import pytest

from benchmarks.conformance import adapters, records
from benchmarks.conformance.adapter import Adapter, Job
from benchmarks.conformance.adapters import tf_data, torchdata_stateful

HELPERS = {"__init__", "tfrecords", "torch_process"}
NAMES = sorted({path.stem for path in pathlib.Path(adapters.__path__[0]).glob("*.py")} - HELPERS)


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_says_all_that_the_table_needs(name):
    module = importlib.import_module(f"{adapters.__name__}.{name}")
    for attribute, kind in Adapter.__annotations__.items():
        if attribute != "Loader":
            assert type(getattr(module, attribute)).__name__ == kind.partition("[")[0], attribute
    assert all(url.startswith("https://") for url in module.DOCS)
    assert callable(module.write)
    assert {"epoch"} | ({"save"} if module.RESUMES else set()) <= set(dir(module.Loader))
    assert module.RESUMES or not module.ELASTIC


def test_records_of_a_map_style_data_set_are_where_their_numbers_say(tmp_path):
    torchdata_stateful.write(str(tmp_path), list(records.shards()))
    found = torchdata_stateful.Records(str(tmp_path))
    assert len(found) == records.COUNT
    assert all(found[number] == records.record(number) for number in (0, 33, 34, 500, records.COUNT - 1))


def test_plain_tf_data_gives_each_record_of_a_rank_once_and_resumes(tmp_path):
    (tmp_path / "data").mkdir()
    tf_data.write(str(tmp_path / "data"), list(records.shards()))
    job = {"folder": str(tmp_path / "data"), "scratch": str(tmp_path), "ranks": 2, "rows": 15}
    seen = []
    for rank in range(2):
        for rows, weights in tf_data.Loader(Job(**job, rank=rank)).epoch(0):
            assert weights is None
            seen += map(records.number_of, map(records.check, rows))
    assert sorted(seen) == list(range(records.COUNT))
    loader, saved = tf_data.Loader(Job(**job, rank=0)), str(tmp_path / "state")
    for step, (rows, _) in enumerate(loader.epoch(1)):
        if step == 3:
            loader.save(saved)
        if step == 4:
            expected = rows
            break
    resumed = tf_data.Loader(Job(**job, rank=0, epoch=1, saved=(saved,)))
    assert next(iter(resumed.epoch(1)))[0] == expected
