"""Every worker of a parameter server's cluster is fed exactly its rows: real processes, by record identity."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import pipeline
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.datasets import Kind, key_of, write_dataset
from tests.loopback import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "tests/integration/parameter_server_worker.py")
SHAPE = (8, 6, 3)
RECORD = 8 * 6 * 3
G = 24
TRAINING = {"global_batch_size": G, "training": True, "seed": 5, "epochs": 2}

# name: (records of each shard, kind, arguments). 2 and 3 workers get 12 and 8 of the 24 rows.
CASES = {
    # 8 streams of 3 rows: workers 0, 1 and 2 of 3 need 3, 4 and 3 of them. Windows of 2 records.
    "8 streams, windows": ((20, 0, 9, 8), Kind(), TRAINING | {"streams": 8, "shuffle_bytes": 8 * 2 * RECORD}),
    # 13 real rows in an epoch's last step: the last workers have padding only.
    "1 stream, from step 3": ((37,), Kind(), TRAINING | {"start_step": 3}),
    "one record": ((1,), Kind(), TRAINING),
    "png, distorted": (
        (30, 7, 20, 3),
        Kind("png", unequal_keys=True),
        TRAINING | {"streams": 3, "shuffle_bytes": 3 * 9 * RECORD, "distort": "cifar10_tutorial(crop=5)"},
    ),
    "gzip, dropped": (
        (30, 7, 20, 3),
        Kind(compression="GZIP"),
        TRAINING | {"streams": 2, "shuffle_bytes": 2 * 9 * RECORD, "remainder": "drop", "start_step": 1},
    ),
    "evaluation": ((9, 20), Kind(), {"global_batch_size": G, "training": False}),
}
REFUSED = {
    "skip": ({"on_corrupt": "skip"}, "on_corrupt='skip': not where the dataset is made inside a tf.function"),
    "rows": ({"global_batch_size": 25}, "25 is not divisible by {} replicas; nearest that work: "),
}
CORRUPT = {"raw": (Kind(), "record 10"), "gzip": (Kind(compression="GZIP"), "record ")}


@pytest.fixture(scope="module")
def data_dirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for case, (counts, kind, _) in CASES.items():
        write_dataset(folder / case, counts, SHAPE, kind=kind)
    return folder


@pytest.fixture(scope="module")
def fed(data_dirs, tmp_path_factory):
    """Returns a function of the number of workers, of {case: {way: {worker: [columns of a step]}}}."""
    found = {}

    def of(workers):
        if workers not in found:
            found[workers] = run(workers, tmp_path_factory.mktemp("fed"), cases(data_dirs))
        return found[workers]

    return of


def cases(folder):
    shared = {"record_ids": True, "features": ("key",)}
    first = next(iter(CASES))
    asked = {case: {"data_dir": str(folder / case), "arguments": a | shared} for case, (_, _, a) in CASES.items()}
    for case, (arguments, _) in REFUSED.items():
        asked[case] = {"data_dir": str(folder / first), "arguments": TRAINING | shared | arguments}
    for case, (kind, _) in CORRUPT.items():
        write_dataset(folder / f"corrupt {case}", (5, 21), SHAPE, kind=kind)
        name = "train-00001-of-00002.tfrecord" + (".gz" if kind.compression else "")
        asked[f"corrupt {case}"] = {
            "data_dir": str(folder / f"corrupt {case}"),
            "arguments": TRAINING | shared,
            "spoil": name,
        }
    return asked


def run(workers, folder, asked):
    """Returns what the coordinator writes. All write to files, as a full pipe would hold them up."""
    addresses = [f"localhost:{port}" for port in free_ports(workers + 1)]
    cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environment["PYTHONPATH"] = str(ROOT)
    out = folder / "fed.json"
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            log = stack.enter_context((folder / f"{arguments[0]}-{len(list(folder.iterdir()))}.log").open("w"))
            command = [sys.executable, PROGRAM, *arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        start("ps", "0", cluster)
        for index in range(workers):
            start("worker", str(index), cluster)
        code = start("chief", str(out), cluster, json.dumps(asked)).wait(timeout=900)
    assert code == 0, "\n".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    return json.loads(out.read_text())


def expected_steps(data_dir, arguments):
    """Returns (record ids, whether real), (G,) each, of the run's steps: the order in NumPy."""
    no_order = ("distort", "epochs", "start_step")
    order = resolve(Request.of(data_dir, "train", **{k: v for k, v in arguments.items() if k not in no_order})).order
    steps = range(arguments.get("start_step", 0), arguments.get("epochs", 1) * order.steps_per_epoch)
    return [order.batch(step) for step in steps]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_workers_get_exactly_their_rows(fed, data_dirs, workers, case):
    _, kind, arguments = CASES[case]
    expected = expected_steps(data_dirs / case, arguments)
    by_way = fed(workers)[case]
    assert "error" not in by_way, by_way["error"]
    assert len(by_way) == (2 if case == next(iter(CASES)) else 1)
    for way, by_worker in by_way.items():
        assert sorted(by_worker) == [str(index) for index in range(workers)]
        for index in range(workers):
            mine = slice(index * G // workers, (index + 1) * G // workers)
            steps = by_worker[str(index)]
            assert len(steps) == len(expected) > 0
            for step, ((ids, keys, weights, _), (records, real)) in enumerate(zip(steps, expected, strict=True)):
                where = f"{way}, worker {index}, step {step}"
                assert ids == records[mine].tolist(), where
                assert keys == [key_of("train", number, kind).decode() for number in ids], where
                assert weights == real[mine].astype(float).tolist(), where


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_images_are_those_of_the_ordinary_input(fed, data_dirs, workers, case):
    whole = pipeline.input_fn(data_dirs / case, **CASES[case][2]).as_numpy_iterator()
    for step, (images, *_) in enumerate(whole):
        sums = [fed(workers)[case]["distribute"][str(index)][step][3] for index in range(workers)]
        expected = images.astype(np.float32).sum((1, 2, 3))
        np.testing.assert_allclose(np.concatenate(sums), expected, rtol=1e-6, atol=2e-3)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_one_line(fed, case):
    kind, text = fed(2)[case]["error"]
    assert kind == "UsageError"
    assert REFUSED[case][1].format(2) in text
    assert "\n" not in text


@pytest.mark.parametrize("case", CORRUPT)
def test_a_corrupt_record_is_named_at_the_coordinator(fed, case):
    kind, text = fed(2)[f"corrupt {case}"]["error"]
    assert kind == "InvalidArgumentError"
    assert f"train-00001-of-00002.tfrecord{'.gz' if case == 'gzip' else ''}, {CORRUPT[case][1]}" in text
    assert "corrupt or cut; to see all that is wrong: python -m beam_jobs.validate" in text


def test_one_record_leaves_a_worker_with_padding_only(fed):
    first, second = (fed(2)["one record"]["distribute"][index] for index in "01")
    assert [sum(weights) for _, _, weights, _ in first] == [1, 1]
    assert [sum(weights) for _, _, weights, _ in second] == [0, 0]
