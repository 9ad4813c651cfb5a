"""The global batch is the same on any number of replicas and workers: real processes, compared to the byte."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.datasets import write_dataset
from tests.loopback import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(data_dir, folder, kind, count):
    """Returns {name: (steps, G, ...)}: what all replicas of a topology were fed, side by side."""
    processes = count if kind == "multiworker" else 1
    workers = [f"localhost:{port}" for port in free_ports(processes)]
    running, outs = [], [folder / f"{kind}{count}-{i}.npz" for i in range(processes)]
    for index, out in enumerate(outs):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        if kind == "multiworker":
            environment["TF_CONFIG"] = json.dumps(config)
        command = [
            sys.executable,
            str(ROOT / "tests/integration/feed_worker.py"),
            str(data_dir),
            str(out),
            kind,
            str(count),
        ]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    for process in running:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    parts = [np.load(out) for out in outs]
    fed = {}
    for name in parts[0].files:
        joined = np.concatenate([part[name] for part in parts], axis=1)
        fed[name] = joined.reshape(joined.shape[0], -1, *joined.shape[3:])
    return fed


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path, (70, 0, 90, 41), (32, 32, 3), classes=10)  # 201 records: the last step has 9 of 64
    return path


@pytest.fixture(scope="module")
def alone(data_dir, tmp_path_factory):
    return run(data_dir, tmp_path_factory.mktemp("fed"), "mirrored", 1)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param("mirrored", 2, marks=pytest.mark.slow),
        ("mirrored", 4),
        pytest.param("multiworker", 1, marks=pytest.mark.slow),
        ("multiworker", 2),
    ],
)
def test_every_topology_is_fed_the_same_global_batches(data_dir, alone, tmp_path, kind, count):
    fed = run(data_dir, tmp_path, kind, count)
    assert fed.keys() == alone.keys()
    assert alone["raw images"].shape == (8, 64, 32, 32, 3)
    for name in fed:
        if name in ("shift images", "tutorial images"):
            np.testing.assert_allclose(fed[name], alone[name], atol=2e-5, err_msg=name)
        else:
            assert fed[name].tobytes() == alone[name].tobytes(), name


def test_alone_each_record_comes_once_an_epoch(alone):
    for epoch in range(2):
        steps = slice(4 * epoch, 4 * epoch + 4)
        records, weights = alone["raw records"][steps], alone["raw weights"][steps]
        assert sorted(records[weights > 0]) == list(range(201))
        assert weights[3].sum() == 9
        assert (weights[:3] == 1).all()
