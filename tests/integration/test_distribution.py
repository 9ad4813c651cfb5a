"""Every replica of every topology is fed exactly its rows of every global batch: real processes, by record identity."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import pipeline
from pipeline.order.order import make_order
from tests.datasets import write_dataset
from tests.loopback import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = (8, 6, 3)
TRAINING = {"global_batch_size": 24, "training": True, "seed": 5, "epochs": 2}

# name: (records of each shard, arguments). 2, 4 and 8 replicas get 12, 6 and 3 of the 24 rows.
CASES = {
    # 37 records: 13 real rows in an epoch's last step, so that the last replicas have padding only. 3 streams of 8
    # rows: none of 2, 4 and 8 replicas gets whole streams.
    "padded, 3 streams, 4 shards": ((20, 0, 9, 8), TRAINING | {"streams": 3}),
    "one shard, from step 3": ((37,), TRAINING | {"start_step": 3}),
    "one record": ((1,), TRAINING),
}
TOPOLOGIES = {
    **dict.fromkeys(["one_device", "mirrored x1"], 1),
    **{"mirrored x2": 2, "mirrored x4": 4, "mirrored x8": 8, "central_storage x2": 2},
    **{"multiworker x2": 2, "multiworker x3": 3},
}
WAYS = 4


@pytest.fixture(scope="module")
def data_dirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for case, (counts, _) in CASES.items():
        write_dataset(folder / case, counts, SHAPE)
    return {case: folder / case for case in CASES}


@pytest.fixture(scope="module")
def fed(data_dirs, tmp_path_factory):
    """Returns {topology: {case: {way: [step: [replica: [record ids, numbers in the images, weights]]]}}}."""
    cases = {case: {"data_dir": str(data_dirs[case]), "arguments": a} for case, (_, a) in CASES.items()}
    folder = tmp_path_factory.mktemp("fed")
    found = run("local", 1, folder, cases)[0]
    for workers in (2, 3):
        found[f"multiworker x{workers}"] = side_by_side(run("multiworker", workers, folder, cases))
    return found


def run(kind, processes, folder, cases):
    """Returns what each process of a topology writes: to a file, as a full pipe would hold all of them up."""
    addresses = [f"localhost:{port}" for port in free_ports(processes)]
    outs = [folder / f"{kind}{processes}-{index}.json" for index in range(processes)]
    running = []
    for index, out in enumerate(outs):
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        environment["PYTHONPATH"] = str(ROOT)
        if kind == "multiworker":
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment["TF_CONFIG"] = json.dumps(config)
        program = str(ROOT / "tests/integration/distribution_worker.py")
        command = [sys.executable, program, kind, str(out), json.dumps(cases)]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=300)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * processes, "\n".join(errors)
    return [json.loads(out.read_text()) for out in outs]


def side_by_side(workers):
    """Returns the steps with the replicas of all workers, in the workers' order."""
    joined = {}
    for case, by_way in workers[0][""].items():
        joined[case] = {}
        for way in by_way:
            steps = zip(*(worker[""][case][way] for worker in workers), strict=True)
            joined[case][way] = [list(itertools.chain(*replicas)) for replicas in steps]
    return joined


def expected_steps(data_dir, counts, arguments):
    """Returns (record ids, whether real), (G,) each, of the run's steps: the order in NumPy."""
    of_order = {k: v for k, v in arguments.items() if k in ("global_batch_size", "training", "seed", "streams")}
    remainder = arguments.get("remainder", "pad")
    spec = pipeline.order_spec(data_dir, remainder=remainder, **of_order)
    order = make_order(spec, tuple(count for count in counts if count), int(np.prod(SHAPE)))
    steps = range(arguments.get("start_step", 0), arguments["epochs"] * order.steps_per_epoch)
    return [order.batch(step) for step in steps]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("case", CASES)
def test_replicas_get_exactly_their_rows(fed, data_dirs, topology, case):
    expected = expected_steps(data_dirs[case], *CASES[case])
    by_way = fed[topology][case]
    assert len(by_way) == (WAYS if case == next(iter(CASES)) else 1)
    for way, steps in by_way.items():
        assert len(steps) == len(expected) > 0, way
        for step, (replicas, (records, real)) in enumerate(zip(steps, expected, strict=True)):
            assert len(replicas) == TOPOLOGIES[topology]
            for replica, (ids, numbers, weights) in enumerate(replicas):
                rows = len(records) // len(replicas)
                mine = slice(replica * rows, (replica + 1) * rows)
                where = f"{way}, step {step}, replica {replica}"
                assert ids == records[mine].tolist(), where
                assert numbers == ids, where  # record i has the number i in its image
                assert weights == real[mine].astype(float).tolist(), where


def test_the_padded_case_leaves_replicas_with_padding_only(fed):
    last = fed["mirrored x8"]["one record"]["distribute"][-1]
    assert [sum(weights) for _, _, weights in last] == [1, 0, 0, 0, 0, 0, 0, 0]
    last = fed["mirrored x8"]["padded, 3 streams, 4 shards"]["distribute"][1]
    assert sum(sum(weights) for _, _, weights in last) == 13
    assert 0 in [sum(weights) for _, _, weights in last]
