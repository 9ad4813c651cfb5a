"""Every topology gets the same global batches, each replica exactly its rows: real processes, row by row.

There is one table of topologies; each one's rows are logged once, and all tests check the logs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.audit.contract import Contract
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers import forked
from tests.helpers.datasets import Kind, image_of, key_of, write_dataset
from tests.helpers.forked import free_ports
from tests.integration.topology_worker import num_cases

WORKER = pathlib.Path(__file__).with_name("topology_worker.py")
SHAPE = (8, 6, 3)
RECORD = 8 * 6 * 3  # bytes, decoded
G = 24


@dataclasses.dataclass(frozen=True)
class Case:
    """A data set and its input.

    Attributes:
      counts: number of records in each shard of `train`.
      arguments: arguments of `input_fn`.
      atol: maximum difference of augmented images from those on one device; 0 for identical bytes.
      damaged: shard to damage before it is read.
    """

    counts: tuple[int, ...]
    arguments: dict[str, Any]
    kind: Kind = Kind()  # noqa: RUF009, frozen
    atol: float = 0.0
    damaged: str | None = None

    @property
    def all_arguments(self) -> dict[str, Any]:
        defaults = {"global_batch_size": G, "training": True, "seed": 5, "record_ids": True, "features": ("key",)}
        defaults |= {"epochs": 2} if self.arguments.get("training", True) else {}
        return defaults | self.arguments


def windows(streams: int, records: int) -> dict[str, int]:
    return {"streams": streams, "shuffle_bytes": streams * records * RECORD}


# 2, 3, 4 and 8 replicas get 12, 8, 6 and 3 of the 24 rows.
CASES = {
    # 37 records: 13 real rows in an epoch's last step, so that the last replicas have padding only. 3 streams of 8
    # rows: none of 2, 4 and 8 replicas gets whole streams.
    "padded, 3 streams": Case((20, 0, 9, 8), {"streams": 3}),
    "one record": Case((1,), {}),
    # 8 streams of 3 rows: replicas 0, 1 and 2 of 3 need 3, 4 and 3 of them.
    "8 streams, windows, draws": Case((20, 0, 9, 8), windows(8, 2) | {"augment": "draws"}),
    "one shard, shifted, from step 3": Case((37,), {"start_step": 3, "augment": "shift"}, atol=2e-5),
    "PNG, windows, augmented": Case(
        (30, 7, 20, 3),
        windows(3, 9) | {"augment": "cifar10_tutorial(crop=5)"},
        Kind("png", unequal_keys=True),
        atol=2e-3,
    ),
    "GZIP, dropped": Case(
        (30, 7, 20, 3), windows(2, 9) | {"remainder": "drop", "start_step": 1}, Kind(compression="GZIP")
    ),
    "evaluation": Case((9, 20), {"training": False}),
}
SHARD = "train-00001-of-00002.tfrecord"
FAILING = {
    "skip": Case((20, 0, 9, 8), {"on_corrupt": "skip"}),
    "rows": Case((20, 0, 9, 8), {"global_batch_size": 25}),
    "corrupt": Case((5, 21), {}, damaged=SHARD),
    "corrupt GZIP": Case((5, 21), {}, Kind(compression="GZIP"), damaged=f"{SHARD}.gz"),
}
slow = pytest.mark.slow
QUICK = ("padded, 3 streams", "one record", "8 streams, windows, draws")  # others: row by row in test_rows_agree.py
TOPOLOGIES = {  # name: replicas
    "one_device": 1,
    **{f"mirrored x{count}": count for count in (2, 4, 8)},
    "central_storage x2": 2,
    **{f"multiworker x{count}": count for count in (2, 3)},
    **{f"parameter_server x{count}": count for count in (2, 3)},
}
FED = [
    pytest.param(
        topology,
        case,
        marks=[slow]
        if case not in QUICK or topology in ("one_device", "multiworker x3", "parameter_server x3")
        else [],
    )
    for topology in TOPOLOGIES
    for case in list(CASES)[: num_cases(topology)]
]
WAYS = {"mirrored x4": 4, "central_storage x2": 4, "multiworker x2": 4, "parameter_server x2": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("topologies")
    for name, case in (CASES | FAILING).items():
        write_dataset(path / name, case.counts, SHAPE, kind=case.kind)
    return path


@pytest.fixture(scope="module")
def cases(request):
    """The cases up to the last that a selected test needs."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    needed = {"one record", *(one.get("name") for one in params)}
    return dict(list(CASES.items())[: max(number for number, name in enumerate(CASES, 1) if name in needed)])


@pytest.fixture(scope="module")
def fed(folder, cases):
    """Returns a function from a topology to {case: {way: [step: [replica: {component: rows}]]}}."""

    @functools.cache
    def of_kind(kind: str, count: int) -> dict[str, Any]:
        if kind == "parameter_server":
            return run_servers(count, folder)
        workers = [out[f"multiworker x{count}"] for out in run(kind, count, folder, cases)]
        return side_by_side(workers)

    @functools.cache
    def local() -> dict[str, Any]:
        return run("local", 1, folder, cases)[0]

    def of(topology: str) -> dict[str, Any]:
        kind, _, count = topology.partition(" x")
        return of_kind(kind, int(count)) if kind in ("multiworker", "parameter_server") else local()[topology]

    return of


@pytest.fixture(scope="module")
def ordinary(folder):
    """Returns a function from a case to the images of each step in one process without a strategy."""

    @functools.cache
    def of(name: str) -> list[np.ndarray]:
        dataset = pipeline.input_fn(folder / name, **CASES[name].all_arguments)
        return [x["image"] for x, *_ in dataset.as_numpy_iterator()]

    return of


def write_cases(folder: pathlib.Path, cases: dict[str, Case]) -> pathlib.Path:
    path = folder / f"{'+'.join(cases)}.pickle"
    path.write_bytes(
        pickle.dumps({name: (str(folder / name), case.all_arguments, case.damaged) for name, case in cases.items()})
    )
    return path


def run(kind: str, count: int, folder: pathlib.Path, cases: dict[str, Case]) -> list[dict[str, Any]]:
    """Returns the output of each process of a topology."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    outs = [folder / f"{kind}{count}-{index}.out" for index in range(count)]
    written = write_cases(folder, cases)
    with contextlib.ExitStack() as stack:
        running = []
        for index, out in enumerate(outs):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            variables = {"TF_CONFIG": json.dumps(config) if kind == "multiworker" else None}
            running.append(forked.Process([WORKER, kind, out, written], variables))
            stack.callback(running[-1].kill)
        errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * count, "\n".join(errors)
    return [pickle.loads(out.read_bytes()) for out in outs]


def run_servers(count: int, folder: pathlib.Path) -> dict[str, Any]:
    """Returns the output of the coordinator of a cluster with a parameter server, including the failing cases."""
    addresses = [f"localhost:{port}" for port in free_ports(count + 1)]
    cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
    names = [*list(CASES)[: num_cases(f"parameter_server x{count}")], *FAILING]
    out, cases = folder / f"chief{count}.out", write_cases(folder, {name: (CASES | FAILING)[name] for name in names})
    with contextlib.ExitStack() as stack:
        for job, index in [("ps", 0), *(("worker", index) for index in range(count))]:
            server = forked.Process([WORKER, job, index, cluster], {"TF_CONFIG": None})
            stack.callback(server.wait)
            stack.callback(server.kill)
        chief = forked.run([WORKER, "chief", out, cases, cluster], {"TF_CONFIG": None})
    assert chief.returncode == 0, chief.stderr
    return pickle.loads(out.read_bytes())[f"parameter_server x{count}"]


def side_by_side(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the steps with the replicas of all workers, in the workers' order."""
    joined: dict[str, Any] = {}
    for case, by_way in workers[0].items():
        joined[case] = {}
        for way in by_way:
            steps = zip(*(worker[case][way] for worker in workers), strict=True)
            joined[case][way] = [list(itertools.chain(*replicas)) for replicas in steps]
    return joined


def expected_steps(folder: pathlib.Path, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (record ids, whether real), (G,) each, for the run's steps: the order in NumPy."""
    arguments = CASES[name].all_arguments
    order = Contract.of(resolve(Request(folder / name, **arguments | {"augment": None})))
    steps = range(arguments.get("start_step", 0), arguments.get("epochs", 1) * order.steps_per_epoch)
    return [order.batch(step) for step in steps]


@pytest.mark.parametrize(("topology", "name"), FED)
@pytest.mark.quick(6)
def test_replicas_get_exactly_their_rows(fed, folder, topology, name):
    expected, kind = expected_steps(folder, name), CASES[name].kind
    by_way = fed(topology)[name]
    assert len(by_way) == (WAYS.get(topology, 1) if name == next(iter(CASES)) else 1)
    for way, steps in by_way.items():
        assert len(steps) == len(expected) > 0, way
        for step, (replicas, (records, real)) in enumerate(zip(steps, expected, strict=True)):
            assert len(replicas) == TOPOLOGIES[topology]
            for replica, rows in enumerate(replicas):
                count = len(records) // len(replicas)
                mine = slice(replica * count, (replica + 1) * count)
                where = f"{way}, step {step}, replica {replica}"
                assert rows["record"].tolist() == records[mine].tolist(), where
                assert rows["key"].tolist() == [key_of("train", number, kind) for number in records[mine]], where
                assert rows["label"].tolist() == (records[mine] % 3).tolist(), where
                assert rows["weight"].tolist() == real[mine].astype(float).tolist(), where
                if "augment" not in CASES[name].arguments:
                    images = [image_of(number, SHAPE, kind) for number in records[mine]]
                    assert np.array_equal(rows["image"], images), where


@pytest.mark.parametrize(("topology", "name"), [case for case in FED if "augment" in CASES[case.values[1]].arguments])
def test_augmentations_are_those_of_the_ordinary_input(fed, ordinary, topology, name):
    case = CASES[name]
    draws = case.arguments["augment"] == "draws"
    expected = [one["image"] for (one,) in fed("one_device")[name]["distribute"]] if draws else ordinary(name)
    found = [np.concatenate([rows["image"] for rows in step]) for step in fed(topology)[name]["distribute"]]
    np.testing.assert_allclose(found, expected, rtol=1e-6 if case.atol else 0, atol=case.atol)


def test_each_record_comes_once_an_epoch_and_padding_is_in_its_last_step(fed):
    steps = [one for (one,) in fed("one_device")["padded, 3 streams"]["distribute"]]
    for epoch in (steps[:2], steps[2:]):
        records, weights = (np.concatenate([rows[name] for rows in epoch]) for name in ("record", "weight"))
        assert sorted(records[weights > 0]) == list(range(37))
        assert [rows["weight"].sum() for rows in epoch] == [24, 13]


@pytest.mark.parametrize("topology", ["mirrored x8", "parameter_server x2"])
def test_one_record_leaves_all_replicas_but_one_with_padding_only(fed, topology):
    for step in fed(topology)["one record"]["distribute"]:
        assert [rows["weight"].sum() for rows in step] == [1, *[0] * (TOPOLOGIES[topology] - 1)]


@pytest.mark.parametrize(("name", "facts"), [("skip", ["on_corrupt='skip'"]), ("rows", ["25", "2 replicas"])])
def test_what_a_parameter_server_cannot_do_is_one_line(fed, name, facts):
    kind, text = fed("parameter_server x2")[name]
    assert kind == "UsageError"
    assert all(fact in text for fact in facts)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "facts"), [("corrupt", [f"{SHARD}, record 10"]), ("corrupt GZIP", [f"{SHARD}.gz, record "])]
)
def test_a_corrupt_record_is_named_at_the_coordinator(fed, name, facts):
    kind, text = fed("parameter_server x2")[name]
    assert kind == "InvalidArgumentError"
    assert all(fact in text for fact in [*facts, "python -m beam_jobs.validate"])
