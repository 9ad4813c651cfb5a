import dataclasses
import re

import pytest
import tensorflow as tf

from tests.datasets import write_dataset
from trainer import description, plan
from trainer.cluster.difference import difference
from trainer.cluster.tf_config import Cluster

TWO = Cluster(("a:1", "b:2"))


@pytest.fixture
def described(tmp_path, config_of):
    write_dataset(tmp_path / "data", (11, 9))

    def described(data_dir=tmp_path / "data", **flags):
        flags = {"global_batch_size": 4, "strategy": "multiworker", **flags}
        config = config_of(data_dir=data_dir, **flags)
        return description.of(config, plan.make(config, TWO))

    return described


def compared(described, **flags):
    return difference(described(), {"worker 1": described(**flags)})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"seed": 1}, "--seed=1, the chief has --seed=0"),
        ({"streams": 2}, "--streams=2, the chief has no --streams"),
        ({"distort": "shift"}, "--distort=shift, the chief has --distort=none"),
        ({"global_batch_size": 2, "learning_rate": 0.1}, "--learning_rate=0.1, --global_batch_size=2, the chief has"),
        ({"log_keys": "somewhere"}, "--log_keys, the chief has no --log_keys"),
    ],
)
def test_flags(described, flags, said):
    assert f"worker 1 has {said}" in compared(described, **flags)


def test_folders_may_have_other_paths(described, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert compared(described, model_dir="elsewhere", data_dir=tmp_path / "link") is None
    assert difference(described(log_keys="a"), {"worker 1": described(log_keys="b")}) is None


def test_every_flag_is_compared(described, config_of):
    """Those that are added later, too."""
    flags = {f"--{name}" for group in dataclasses.asdict(config_of()).values() for name in group}
    found = {name for name in described()[1] if name.startswith("--")}
    of_a_process = {f"--{name}" for name in ("worker_hosts", "ps_hosts", "chief_host", "job_name", "task_index")}
    of_a_machine = {"--data_dir", "--model_dir", "--metrics_jsonl", "--cache_dir", "--cache_bytes"}
    assert flags - of_a_machine - of_a_process == found


def test_other_data(described, tmp_path):
    write_dataset(tmp_path / "other", (11, 10))
    assert " a data set of digest " in compared(described, data_dir=tmp_path / "other")


def test_another_mixture(described, tmp_path):
    write_dataset(tmp_path / "other", (11, 10))
    own, other = tmp_path / "data", tmp_path / "other"
    chief = described(f"{own}=3,{other}=1", global_batch_size=8)
    same = described(f"{tmp_path}/./data=30,{other}=10", global_batch_size=8)
    assert difference(chief, {"worker 1": same}) is None
    for data_dir, said in [
        (f"{own}=2,{other}=2", "a mixture of 4 rows of train of digest .*, the chief has a mixture of 6 rows of train"),
        (f"{own}=3,{other}:train[:9]=1", r"and 2 rows of train\[:9\] of digest .* and 2 rows of train of digest"),
        (own, "a data set of digest .*, the chief has a mixture of"),
    ]:
        assert re.search(said, difference(chief, {"worker 1": described(data_dir, global_batch_size=8)}))


def test_other_versions(described, monkeypatch):
    chief = described()
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    said = difference(chief, {"worker 1": described(seed=1)})
    assert said.startswith("worker 1 has TensorFlow 2.99.0, the chief has TensorFlow 2.")
    assert "seed" not in said
