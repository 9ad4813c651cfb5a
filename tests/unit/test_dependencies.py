"""What an installation brings, and that reading and training need no more."""

import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import setuptools

from beam_jobs import convert, validate
from pipeline.errors import UsageError
from tests.helpers.datasets import Kind, write_dataset

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONVERTS = ("pyarrow", "apache_beam", "tensorflow_datasets")  # modules that conversion alone needs


def names(requirements):
    return {re.split(r"[<>=;\[ ]", each)[0].lower().replace("-", "_") for each in requirements}


@pytest.fixture
def found(monkeypatch):
    """What setup.py says."""
    found = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: found.update(arguments))
    runpy.run_path(str(ROOT / "setup.py"))
    return found


def test_what_is_installed_has_one_version(found):
    locked = names((ROOT / "constraints.txt").read_text().splitlines())
    assert names([*found["install_requires"], *found["extras_require"]["all"]]) - locked == set()


def test_what_conversion_alone_needs_comes_with_its_extra(found):
    extras = found["extras_require"]
    assert names(found["install_requires"]) | names(extras["train"]) >= {"numpy", "tensorflow", "crc32c"}
    assert "tensorboard" in names(extras["train"])  # whose command a run prints
    assert not (names(found["install_requires"]) | names(extras["train"])) & set(CONVERTS)
    assert names(extras["convert"]) >= set(CONVERTS)
    assert names(extras["all"]) >= set(CONVERTS)


PROGRAM = """
import sys
for name in sys.argv[3:]:
    sys.modules[name] = None  # Python raises ImportError
data, out = sys.argv[1:3]
import pipeline
import pipeline.audit.__main__ as audit
import pipeline.index.__main__ as index
import trainer.run
arguments = dict(global_batch_size=4, training=True)
for kind in ("raw", "png", "gzip"):
    batches = pipeline.input_fn(f"{data}/{kind}", **arguments, epochs=1, features=("key",))
    assert sum(float(weights.numpy().sum()) for *_, weights in batches) == 12
assert next(pipeline.StepIterator(f"{data}/raw", **arguments))[0].shape == (4, 8, 6, 3)
assert pipeline.RandomAccess(f"{data}/raw", "train")[3]["key"] == b"train#00003"
audit.main([f"{data}/raw", "--global_batch_size=4"])
trainer.run.main([f"--data_dir={data}/raw", f"--model_dir={out}", "--global_batch_size=4", "--train_steps=2"])
(__import__("pathlib").Path(data) / "raw" / "manifest.json").unlink()
for file in __import__("pathlib").Path(data, "raw").glob("sidecars/*"):
    file.unlink()
index.main([f"{data}/raw", "--split=train:train-*.tfrecord"])
"""


@pytest.mark.slow
def test_reading_and_training_work_without_what_conversion_needs(tmp_path):
    for name, kind in (("raw", Kind()), ("png", Kind("png")), ("gzip", Kind(compression="GZIP"))):
        write_dataset(tmp_path / name, kind=kind)
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), str(tmp_path / "model"), *CONVERTS]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "checkpoint: " in done.stdout


@pytest.mark.parametrize(
    ("command", "flags"), [(convert, ["--dataset=digits", "--data_dir=out"]), (validate, ["demo/digits"])]
)
def test_a_conversion_without_pyarrow_is_one_line_with_the_install(command, flags, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"needs pyarrow, which is not installed: pip install 'stepfeed\[convert\]'"):
        command.main(flags)
