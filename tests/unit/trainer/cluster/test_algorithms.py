import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.helpers.datasets import write_dataset
from trainer import description, plan
from trainer.cluster import algorithms
from trainer.cluster.messages import difference
from trainer.run_folder import RunFolder

KEPT = "--xla_gpu_exclude_nondeterministic_ops=true"
CHOSEN = 'version: 3\nresults { device: "CUDA: 9.0" }\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    (tmp_path / "a run").mkdir()
    return RunFolder(tmp_path / "a run")


def flags_of(folder, is_chief=False, given=""):
    os.environ["XLA_FLAGS"] = given
    algorithms.pin(folder, is_chief)
    return os.environ["XLA_FLAGS"]


def dumps(folder):
    return f'--xla_gpu_dump_autotune_results_to="{folder.algorithms_draft}"'


def loads(folder):
    return f'--xla_gpu_load_autotune_results_from="{folder.algorithms}"'


def test_what_the_first_run_has_chosen_is_loaded_by_all_once_a_checkpoint_depends_on_it(folder):
    assert flags_of(folder) == KEPT
    assert flags_of(folder, is_chief=True) == f"{KEPT} {dumps(folder)}"
    folder.algorithms_draft.write_text(CHOSEN)  # as XLA does
    assert flags_of(folder) == KEPT
    algorithms.publish(folder)
    assert not folder.algorithms_draft.exists()
    assert folder.algorithms.read_text() == f"# TensorFlow {tf.__version__}\n{CHOSEN}"
    assert flags_of(folder) == f"{KEPT} {loads(folder)}"
    assert flags_of(folder, is_chief=True) == f"{KEPT} {loads(folder)} {dumps(folder)}"
    algorithms.publish(folder)  # nothing else was compiled
    assert folder.algorithms.read_text().endswith(CHOSEN)


def test_a_run_killed_before_its_first_checkpoint_leaves_nothing_to_load(folder):
    folder.algorithms_draft.write_text(CHOSEN[:20])
    assert flags_of(folder, is_chief=True) == f"{KEPT} {dumps(folder)}"
    algorithms.publish(folder)
    assert not folder.algorithms.exists()


def test_those_of_another_tensorflow_are_left_alone(folder):
    folder.algorithms.write_text(f"# TensorFlow 2.3.0\n{CHOSEN}")
    assert flags_of(folder) == KEPT


def test_a_users_own_flags_come_last_and_so_decide(folder):
    assert flags_of(folder, given="--xla_gpu_autotune_level=0") == f"{KEPT} --xla_gpu_autotune_level=0"


def test_workers_with_other_algorithms_are_told(folder, tmp_path, config_of):
    write_dataset(tmp_path / "data", (11, 9))
    config = config_of(data_dir=tmp_path / "data", model_dir=folder.path, global_batch_size=4, strategy="multiworker")
    planned = plan.make(config, 2)
    without = description.of(config, planned)
    folder.algorithms.write_text(CHOSEN)
    said = difference(description.of(config, planned), {"worker 1": without})
    assert "worker 1 has no XLA algorithms, the chief has XLA's algorithms of digest" in said


@pytest.mark.slow
def test_xla_knows_the_flags_and_reads_them_after_tensorflow_is_loaded(folder):
    """An unknown flag ends the process, which shows that the others were read, and known."""
    code = f"""
import tensorflow as tf
from trainer.cluster import algorithms
from trainer.run_folder import RunFolder
import os, pathlib, sys
folder = RunFolder(pathlib.Path({str(folder.path)!r}))
folder.algorithms.write_bytes(algorithms._stamp())
tf.config.list_physical_devices("GPU")
os.environ["XLA_FLAGS"] = sys.argv[1]
algorithms.pin(folder, is_chief=True)
print(float(tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1.0))))
"""
    command = [sys.executable, "-c", code]
    fine = subprocess.run([*command, ""], capture_output=True, text=True, check=True)
    assert fine.stdout == "2.0\n"
    broken = subprocess.run([*command, "--xla_no_such_flag"], capture_output=True, text=True, check=False)
    assert broken.returncode != 0
    assert "Unknown flag in XLA_FLAGS: --xla_no_such_flag\n" in broken.stderr
