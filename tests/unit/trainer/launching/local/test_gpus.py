import pytest

from pipeline.errors import UsageError
from trainer.launching.local import gpus

LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)
  MIG 3g.20gb     Device  0: (UUID: MIG-cc)
  MIG 3g.20gb     Device  1: (UUID: MIG-dd)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-ee)
"""


def test_the_listing_of_nvidia_smi():
    assert gpus.parsed(LISTING) == ["0", "MIG-cc", "MIG-dd", "2"]
    assert gpus.parsed("") == []


@pytest.mark.parametrize(
    ("value", "found"), [("0,2", ["0", "2"]), ("GPU-aa, GPU-bb", ["GPU-aa", "GPU-bb"]), ("", []), ("1,-1,2", ["1"])]
)
def test_the_variable_decides_where_it_is_set(value, found, monkeypatch):
    monkeypatch.setenv(gpus.VARIABLE, value)
    assert gpus.found() == found


def test_nvidia_smi_is_asked_where_it_is_not(monkeypatch, tmp_path):
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n[ $1 = -L ] && echo '{LISTING}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert gpus.found() == ["0", "MIG-cc", "MIG-dd", "2"]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho no driver\nexit 9\n")
    assert gpus.found() == []
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert gpus.found() == []


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
    assert gpus.divided(found, num_workers, per_worker) == shares


@pytest.mark.parametrize(
    ("found", "num_workers", "per_worker", "said"),
    [
        (["0"], 2, None, "--num_workers=2: this machine has 1 GPU, and each .* train on CPUs with --gpus_per_worker=0"),
        (["0", "1"], 2, 2, "--gpus_per_worker=2: 2 workers need 4 GPUs, and this machine has 2"),
        ([], 1, 1, "--gpus_per_worker=1: 1 worker need 1 GPUs, and this machine has 0"),
    ],
)
def test_too_few(found, num_workers, per_worker, said):
    with pytest.raises(UsageError, match=said):
        gpus.divided(found, num_workers, per_worker)
