import pytest

from pipeline.manifest import succession
from pipeline.request import Request
from pipeline.resolved import parts_of, resolve_all
from tests.helpers.datasets import write_dataset

OLD, NEW = "a" * 64, "b" * 64


def test_flags_are_a_mixture_in_turns():
    assert succession.flags_of("data", ((0, OLD),)) == {"data_dir": "data@aaaaaaaaaaaa", "mixture_schedule": ""}
    assert succession.flags_of("data", ((0, OLD), (12, NEW))) == {
        "data_dir": "data@aaaaaaaaaaaa=1,data@bbbbbbbbbbbb=1",
        "mixture_schedule": "0:data@aaaaaaaaaaaa=1,data@bbbbbbbbbbbb=0;12:data@aaaaaaaaaaaa=0,data@bbbbbbbbbbbb=1",
    }


def test_versions_of_an_order():
    assert succession.of_order({"manifest_digest": OLD}) == ((0, OLD),)
    digests = {"sources": 2, "source 0: manifest_digest": OLD, "source 1: manifest_digest": NEW}
    assert succession.of_order({**digests, "schedule": [[0, [10, 0]], [12, [0, 10]]]}) == ((0, OLD), (12, NEW))
    assert succession.of_order({**digests, "schedule": [[0, [10, 0]], [12, [5, 5]]]}) is None
    assert succession.of_order({**digests, "schedule": [[0, [0, 10]], [12, [10, 0]]]}) is None
    assert succession.of_order({**digests, "schedule": [[0, [10, 0]]]}) is None
    assert succession.of_order(digests) is None


def test_only_versions_of_one_folder():
    assert succession.are_versions(["data@1", "data@2"])
    assert not succession.are_versions(["data@1"])
    assert not succession.are_versions(["data@1", "other@2"])
    assert not succession.are_versions(["data@1", "data"])


def test_relative_paths_lead_from_where_the_run_began_unless_it_was_moved(tmp_path, monkeypatch):
    began, here = tmp_path / "began", tmp_path / "here"
    digests = [write_dataset(began / name, [count]).digest for name, count in (("a", 5), ("b", 6), ("c", 7))]
    write_dataset(here / "c", [8])  # other data of that name
    (began / "run").mkdir()
    (here / "run").mkdir()
    flags = {
        "data_dir": "a=0.5,b:train[:3]=0.5",
        "eval_data_dir": "c",
        "model_dir": "run",
        "mixture_schedule": "0:a=1,b:train[:3]=0;9:a=0.5,b:train[:3]=0.5",
        "where": "a: label < 2",
        "metrics_jsonl": "m.jsonl",
        "log_keys": f"{tmp_path}/keys",
        "log_losses": None,
        **dict.fromkeys(("classes", "limit", "balance", "weigh")),
    }
    order = {f"source {number}: manifest_digest": digest for number, digest in enumerate(digests[:2])}
    order |= {"sources": 2, succession.STARTED_IN: str(began)}
    written = ("metrics_jsonl", "log_keys", "log_losses")
    a, b = f"{began}/a", f"{began}/b:train[:3]"
    data = {
        "data_dir": f"{a}=0.5,{b}=0.5",
        "mixture_schedule": f"0:{a}:train=1.0,{b}=0.0;9:{a}:train=0.5,{b}=0.5",
        "where": f"{a}:train: label < 2",
    }
    monkeypatch.chdir(here)
    assert succession.pinned(flags, order, "../began/run", written) == {
        **flags,
        **data,
        "eval_data_dir": f"{began}/c",
        "metrics_jsonl": f"{began}/m.jsonl",
    }
    assert succession.pinned(flags, order, "run", written) == {**flags, **data}  # a copy
    monkeypatch.chdir(began)
    assert succession.pinned(flags, order, "run", written) == flags
    monkeypatch.chdir(tmp_path)
    gone = {**order, succession.STARTED_IN: f"{tmp_path}/gone"}
    assert succession.pinned(flags, gone, "began/run", written) == flags


@pytest.fixture
def turns(tmp_path):
    """A function that resolves the sources that take turns from some steps on, and the folders."""
    folders = []
    for name, count in (("a", 30), ("b", 45), ("c", 60)):
        write_dataset(tmp_path / name, [count])
        folders.append(str(tmp_path / name))

    def order(*starts):
        if len(starts) == 1:
            return resolve_all(Request(folders[0], global_batch_size=10, training=True)).spec
        chosen = folders[: len(starts)]
        schedule = [(start, {one: float(one == folders[turn]) for one in chosen}) for turn, start in enumerate(starts)]
        return resolve_all(
            Request([(one, 1.0) for one in chosen], schedule=schedule, global_batch_size=10, training=True)
        ).spec

    return order


def test_a_run_may_move_at_a_step_that_is_ahead(turns):
    alone, moved = turns(0), turns(0, 12)
    assert moved.differences(alone.fields(), 12) == {}
    assert moved.differences(alone.fields(), 9) == {}
    assert moved.differences(alone.fields(), 13).keys() > {"turns"}
    assert moved.differences(alone.fields()).keys() == {"sources"}
    assert alone.differences(moved.fields(), 12) == {}  # taken back before it began
    assert alone.differences(moved.fields(), 13).keys() > {"turns"}
    assert alone.differences(moved.fields()).keys() == {"sources"}


def test_a_run_that_has_moved_keeps_its_step(turns):
    moved, other = turns(0, 12), turns(0, 15)
    assert other.differences(moved.fields(), 12) == {}
    assert other.differences(moved.fields(), 13).keys() >= {"turns"}
    assert moved.differences(moved.fields(), 100) == {}


@pytest.mark.parametrize(("places", "sizes"), [("xx", [1000, 1000]), ("xy", [1000, 500])])
def test_versions_in_turns_shuffle_as_each_would_alone(places, sizes):
    one, other = f"{places[0]}@1", f"{places[1]}@2"
    schedule = [(0, {one: 1.0, other: 0.0}), (12, {one: 0.0, other: 1.0})]
    request = Request(
        [(one, 1.0), (other, 1.0)], schedule=schedule, global_batch_size=10, training=True, shuffle_bytes=1000
    )
    assert [part.shuffle_bytes for part in parts_of(request)] == sizes
