"""GPUs and placement."""

import json
import socket

import pytest

from pipeline.errors import RerunError, UsageError
from trainer.launching.local import placement
from trainer.launching.local.placement import Ports
from trainer.launching.local.process import Task

LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)
  MIG 3g.20gb     Device  0: (UUID: MIG-cc)
  MIG 3g.20gb     Device  1: (UUID: MIG-dd)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-ee)
"""


def test_the_listing_of_nvidia_smi():
    assert placement._listed_gpus(LISTING) == ["0", "MIG-cc", "MIG-dd", "2"]
    assert placement._listed_gpus("") == []


@pytest.mark.parametrize(
    ("value", "found"), [("0,2", ["0", "2"]), ("GPU-aa, GPU-bb", ["GPU-aa", "GPU-bb"]), ("", []), ("1,-1,2", ["1"])]
)
def test_the_variable_decides_where_it_is_set(value, found, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert placement.visible_gpus() == found


def test_nvidia_smi_is_asked_where_it_is_not(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n[ $1 = -L ] && echo '{LISTING}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert placement.visible_gpus() == ["0", "MIG-cc", "MIG-dd", "2"]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho no driver\nexit 9\n")
    assert placement.visible_gpus() == []
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert placement.visible_gpus() == []


@pytest.mark.parametrize(
    ("found", "num_workers", "per_worker", "shares"),
    [
        ([], 2, None, [(), ()]),
        ([], 2, 0, [(), ()]),
        (["0", "1", "2", "3"], 2, None, [("0", "1"), ("2", "3")]),
        (["0", "1", "2"], 2, None, [("0",), ("1",)]),
        (["0", "1", "2", "3"], 2, 1, [("0",), ("1",)]),
        (["0"], 2, 0, [(), ()]),
    ],
)
def test_workers_get_equal_shares(found, num_workers, per_worker, shares):
    assert placement.divide_gpus(found, num_workers, per_worker) == shares


@pytest.mark.parametrize(
    ("found", "num_workers", "per_worker", "said"),
    [
        (["0"], 2, None, "--num_workers=2: this machine has 1 GPU, and each .* train on CPUs with --gpus_per_worker=0"),
        (["0", "1"], 2, 2, "--gpus_per_worker=2: 2 workers would take 4 GPUs, and this machine has 2"),
        ([], 1, 1, "--gpus_per_worker=1: 1 worker would take 1 GPU, and this machine has 0"),
    ],
)
def test_too_few(found, num_workers, per_worker, said):
    with pytest.raises(UsageError, match=said):
        placement.divide_gpus(found, num_workers, per_worker)


def test_two_launchers_at_once_get_different_ports(monkeypatch):
    monkeypatch.setattr(placement.random, "randrange", lambda count: 0)
    with Ports() as one, Ports() as other:
        first, second = one.take(3), other.take(3)
        assert len({*first, *second}) == 6
    with Ports() as third:
        assert third.take(3) == first


def test_a_port_in_use_and_those_of_outgoing_connections_are_left_out(monkeypatch):
    monkeypatch.setattr(placement.random, "randrange", lambda count: 0)
    with Ports() as one:
        [free] = one.take(1)
    with socket.create_server(("localhost", free)), Ports() as one:
        assert free not in one.take(20)
    low, high = map(int, placement._RANGE.read_text().split())
    with Ports() as one:
        assert not [port for port in one.take(50) if low <= port <= high]


def test_none_left(monkeypatch):
    monkeypatch.setattr(placement, "_candidates", lambda: iter([20_000, 20_001]))
    monkeypatch.setattr(placement, "_is_free", lambda port: port == 20_000)
    with Ports() as one, pytest.raises(RerunError):
        one.take(2)


def test_each_process_is_told_its_place_and_gets_its_gpus_alone(puppets):
    placement = puppets("--num_workers=3", "--num_ps=1", shares=[("0", "1"), ("2", "3"), ("4", "5")]).placement
    tasks = placement.tasks([0, 2])  # slot 1 is lost
    assert tasks == [Task("chief", 0, 0), Task("worker", 0, 0), Task("worker", 1, 2), Task("ps", 0, 0)]
    assert [task.name for task in tasks] == ["chief", "worker 0", "worker 1", "ps 0"]
    found = placement.environments(tasks, [11, 12, 13, 14])
    cluster = {"chief": ["localhost:11"], "worker": ["localhost:12", "localhost:13"], "ps": ["localhost:14"]}
    assert [json.loads(one["TF_CONFIG"])["cluster"] for one in found] == [cluster] * 4
    assert json.loads(found[2]["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["-1", "0,1", "4,5", "-1"]


def test_without_gpus_the_variable_stays_as_it_is(puppets):
    placement = puppets("--num_workers=2").placement
    tasks = placement.tasks([0, 1])
    assert [list(one) for one in placement.environments(tasks, [11, 12])] == [["TF_CONFIG"]] * 2
