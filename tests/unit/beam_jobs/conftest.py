"""Small hand-made sources, and the command run as a user runs it."""

import dataclasses
import gzip
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

from beam_jobs import write
from beam_jobs.convert import main
from pipeline.errors import PipelineError
from pipeline.hashing import splitmix64

ROOT = pathlib.Path(__file__).parents[3]
MNIST_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">I{values.ndim}I", 0x0800 | values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def mnist_arrays(counts=(("train", 50), ("test", 20))):
    """Returns {split: (images, labels)}; by a hash, which no release of NumPy changes as it may its generators."""
    return {
        split: (
            (splitmix64(np.arange(n * 784)) >> np.uint64(56)).astype(np.uint8).reshape(n, 28, 28),
            (splitmix64(np.arange(n) + 10**6) % np.uint64(10)).astype(np.uint8),
        )
        for split, n in counts
    }


@pytest.fixture
def mnist_folder(tmp_path):
    """A function that writes the four files of a tiny MNIST, gzip or not, and returns their folder."""

    def make(name="source", packed=False, arrays=None):
        folder = tmp_path / name
        folder.mkdir()
        for split, pair in (arrays or mnist_arrays()).items():
            for file, values in zip(MNIST_NAMES[split], pair, strict=True):
                data = idx_bytes(values)
                path = folder / (f"{file}.gz" if packed else file)
                path.write_bytes(gzip.compress(data) if packed else data)
        return folder

    return make


@pytest.fixture
def cifar_folder(tmp_path):
    """A function that writes a tiny cifar-10-batches-bin and returns it and its records by file."""

    def make(rows=12):
        draw = np.random.default_rng(3)
        folder = tmp_path / "cifar-10-batches-bin"
        folder.mkdir()
        records = {}
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            records[name] = draw.integers(0, 256, (rows, 3073), np.uint8)
            records[name][:, 0] %= 10
            (folder / name).write_bytes(records[name].tobytes())
        return folder, records

    return make


@pytest.fixture(autouse=True)
def _writes_may_begin():
    write.gate.open()  # a conversion that failed in this process has shut it


@pytest.fixture
def convert(capfd):
    """Runs the command in this process: fast, as Beam is imported once."""

    def run(*flags):
        capfd.readouterr()
        code, text = 0, ""
        try:
            main([str(flag) for flag in flags])
        except PipelineError as error:
            code, text = error.exit_code, f"beam_jobs.convert: {error}\n"
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err + text)

    return run


@pytest.fixture
def convert_process():
    """Runs the command in a process of its own."""

    def run(*flags, timeout=120, **options):
        command = [sys.executable, "-m", "beam_jobs.convert", *map(str, flags)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, **options
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def contents():
    """A function that returns {name: bytes} of a folder."""
    return lambda folder: {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}


@pytest.fixture
def refused():
    """A function that checks an outcome: the exit code, one line on stderr with these texts, no data set."""

    def check(outcome, code, *texts, data_dir):
        assert outcome.code == code, outcome
        assert outcome.err.count("\n") == 1, outcome.err
        assert "Traceback" not in outcome.err
        for text in texts:
            assert str(text) in outcome.err
        left = sorted(path.name for path in data_dir.iterdir()) if data_dir.is_dir() else []
        assert "manifest.json" not in left
        assert not [name for name in left if ".tmp-" in name]

    return check
