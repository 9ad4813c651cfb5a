"""Small hand-made sources, and the command run as a user runs it."""

import dataclasses
import gzip
import json
import pathlib
import re
import struct

import numpy as np
import pytest

from beam_jobs import drafts
from beam_jobs.config import ConvertConfig
from beam_jobs.convert import main
from beam_jobs.plan import make_plan
from beam_jobs.sources.base import SOURCES, SourceKind
from pipeline.errors import PipelineError
from pipeline.files.paths import LocalPath
from pipeline.manifest import naming
from pipeline.order.hashing import splitmix64
from tests.helpers import made_source
from tests.helpers.converting import convert_in_process
from tests.helpers.made_source import write_source

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
def tmp_path(tmp_path):
    """The kind of path that --source and --data_dir become."""
    return LocalPath(tmp_path)


@pytest.fixture
def mnist_folder(tmp_path):
    """A function that writes the four files of a tiny MNIST, gzip or not, and returns their folder."""

    return lambda name="source", packed=False, arrays=None: write_mnist(tmp_path / name, packed, arrays)


def write_mnist(folder, packed=False, arrays=None):
    folder.mkdir()
    for split, pair in (arrays or mnist_arrays()).items():
        for file, values in zip(MNIST_NAMES[split], pair, strict=True):
            data = idx_bytes(values)
            path = folder / (f"{file}.gz" if packed else file)
            path.write_bytes(gzip.compress(data) if packed else data)
    return folder


@pytest.fixture(scope="session")
def converted_mnist(tmp_path_factory):
    """A tiny MNIST and its data set of --num_shards=train:3,test:2, converted once: for copies."""
    folder = tmp_path_factory.mktemp("converted")
    source = write_mnist(folder / "source")
    convert_in_process(
        "--dataset=mnist", f"--source={source}", f"--data_dir={folder / 'out'}", "--num_shards=train:3,test:2"
    )
    return folder


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


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that writes a source of given contents, which `--dataset=made` then reads, and returns its path."""
    monkeypatch.setitem(SOURCES._complete(), "made", SourceKind(made_source.open_source))

    def make(splits, name="rows.pickle", **options):
        write_source(tmp_path / name, splits, **options)
        return tmp_path / name

    return make


@pytest.fixture
def plan_of(made, tmp_path):
    """A function that returns the plan of a conversion of given contents, as the command makes it."""

    def plan(splits, out="out", unique_keys=True, features=None, **flags):
        source = made(splits, unique_keys=unique_keys, features=features)
        (tmp_path / out).mkdir(parents=True, exist_ok=True)
        config = ConvertConfig(dataset="made", data_dir=str(tmp_path / out), source=str(source), **flags)
        return make_plan(config, tmp_path / out)

    return plan


@pytest.fixture(autouse=True)
def _writes_may_begin():
    drafts.gate.open()  # a conversion that failed in this process has shut it


@pytest.fixture
def convert(capfd):
    """Runs the command in this process: fast, as Beam is imported once."""
    return lambda *flags: _outcome(capfd, main, [str(flag) for flag in flags])


@pytest.fixture
def convert_without_beam(capfd):
    """Converts in this process without Beam, as `convert_in_process`."""
    return lambda *flags, **options: _outcome(capfd, convert_in_process, *flags, **options)


@pytest.fixture
def converts(tmp_path, convert_without_beam):
    """A function that converts into `out`, which must end with `code`; returns that folder and the outcome."""

    def run(*flags, code=0):
        outcome = convert_without_beam(*flags, f"--data_dir={tmp_path / 'out'}", "--overwrite")
        assert outcome.code == code, outcome
        return tmp_path / "out", outcome

    return run


@pytest.fixture
def only_reject():
    """A function that returns (row, reason) of the one invalid row of a data set."""

    def find(folder):
        (line,) = (folder / naming.REJECTS).read_text().splitlines()
        reject = json.loads(line)
        return reject["row"], reject["reason"]

    return find


def _outcome(capfd, function, *arguments, **options):
    capfd.readouterr()
    code, text = 0, ""
    try:
        function(*arguments, **options)
    except PipelineError as error:
        code, text = error.exit_code, f"beam_jobs.convert: {error}\n"
    captured = capfd.readouterr()
    return Outcome(code, captured.out, captured.err + text)


@pytest.fixture
def contents():
    """A function that returns {name: bytes} of the files of a folder, but for the card: it holds the command."""
    return lambda folder: {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted([*pathlib.Path(folder).iterdir(), *pathlib.Path(folder, naming.SIDECARS).glob("*")])
        if path.is_file() and path.name != naming.CARD
    }


@pytest.fixture
def refused():
    """A function that checks an outcome: the exit code, one line on stderr with these texts, no data set.

    If shards are kept, another line reports that.
    """

    def check(outcome, code, *texts, data_dir):
        assert outcome.code == code, outcome
        kept = len(re.findall(r"^kept \d+ finished shards? in ", outcome.err, re.M))
        assert outcome.err.count("\n") == 1 + kept, outcome.err
        assert kept == len(list(data_dir.glob(".converting.tmp-*")))
        assert "Traceback" not in outcome.err
        for text in texts:
            assert str(text) in outcome.err
        left = sorted(path.name for path in data_dir.iterdir()) if data_dir.is_dir() else []
        assert "manifest.json" not in left
        assert not [path for path in data_dir.rglob(".*.tmp-*") if path.is_file()]

    return check
