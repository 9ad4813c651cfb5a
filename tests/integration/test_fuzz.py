"""Mutated inputs: every outcome is the right data or one line, never a traceback, a hang or a wrong record."""

import gzip
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from beam_jobs import convert
from pipeline import manifest as manifests
from pipeline.errors import PipelineError
from pipeline.splits import select
from pipeline.window import load_window
from tests.datasets import write_dataset

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Returns the bytes with one change: bits flipped, a piece cut out, doubled, zeroed or replaced."""
    out = bytearray(data)
    start = draw.randrange(len(out)) if draw.random() < 0.5 else draw.randrange(min(64, len(out)))
    stop = min(len(out), start + draw.choice([1, 1, 2, 4, 8, 100]))
    kind = draw.randrange(6)
    if kind == 0:
        out[start] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del out[start:stop]
    elif kind == 2:
        out[start:start] = out[start:stop]
    elif kind == 3:
        out[start:stop] = bytes(stop - start)
    elif kind == 4:
        out[start:stop] = draw.randbytes(stop - start)
    else:
        del out[start:]
    return bytes(out)


def outcome(function):
    """Returns (result, None) or (None, the one-line error); any other exception is the test's failure."""
    try:
        return function(), None
    except PipelineError as error:
        message = str(error)
    assert "\n" not in message
    return None, message


def mnist_files(rows=20):
    draw = np.random.default_rng(0)
    files = {}
    for prefix in ("train", "t10k"):
        header = np.array([2051, rows, 28, 28], ">u4").tobytes()
        files[f"{prefix}-images-idx3-ubyte"] = header + draw.integers(0, 256, (rows, 784), np.uint8).tobytes()
        labels = draw.integers(0, 10, rows, np.uint8).tobytes()
        files[f"{prefix}-labels-idx1-ubyte"] = np.array([2049, rows], ">u4").tobytes() + labels
    return files


def cifar_tar():
    draw, buffer = np.random.default_rng(0), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
            records = draw.integers(0, 256, (6, 3073), np.uint8)
            records[:, 0] %= 10
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = records.nbytes
            archive.addfile(member, io.BytesIO(records.tobytes()))
    return buffer.getvalue()


def convert_quietly(capfd, *flags):
    """Converts in this process; returns the error, if any, after checking that nothing half-written is left."""
    _, error = outcome(lambda: convert.main([str(f) for f in flags]))
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return error


@pytest.mark.parametrize("seed", range(150))
def test_mutated_mnist(tmp_path, capfd, seed):
    draw, source, target = random.Random(seed), tmp_path / "source", tmp_path / "data"
    source.mkdir()
    files = mnist_files()
    victim = draw.choice(sorted(files))
    compressed = seed % 3 == 0
    for name, data in files.items():
        stored = gzip.compress(data, mtime=0) if compressed else data
        (source / (name + ".gz" * compressed)).write_bytes(mutate(stored, draw) if name == victim else stored)
    error = convert_quietly(capfd, "--dataset=mnist", f"--source={source}", f"--data_dir={target}")
    check_published_or_refused(target, error, [20, 20])


@pytest.mark.parametrize("seed", range(100))
def test_mutated_cifar_archive(tmp_path, capfd, seed):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    draw, data = random.Random(seed), cifar_tar()
    inside = seed % 2  # of the compression, so that the tar itself is hit
    archive.write_bytes(gzip.compress(mutate(gzip.decompress(data), draw), mtime=0) if inside else mutate(data, draw))
    before = set(tmp_path.rglob("*"))
    error = convert_quietly(capfd, "--dataset=cifar10", f"--source={archive}", f"--data_dir={tmp_path / 'data'}")
    check_published_or_refused(tmp_path / "data", error, [30, 6])
    outside = {p for p in tmp_path.rglob("*") if tmp_path / "data" not in (p, *p.parents)}
    assert outside == before, "a file outside the folder"


def check_published_or_refused(target, error, counts):
    if error is not None:
        assert not (target / "manifest.json").exists()
        return
    manifest = manifests.load(target)
    assert sorted(s.num_examples for s in manifest.splits.values()) == sorted(counts)
    for split in manifest.splits:
        examples = load_window(target, select(manifest, split), manifest.image_shape)
        assert examples.labels.min() >= 0
        assert examples.labels.max() <= 9
        assert len(set(examples.keys)) == len(examples.keys)


@pytest.mark.parametrize("seed", range(10))
def test_mutated_manifests_and_shards_are_refused_or_read_right(tmp_path, seed):
    write_dataset(tmp_path, (5, 0, 4, 3))
    draw = random.Random(seed)
    whole = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    manifest = manifests.load(tmp_path)
    expected = load_window(tmp_path, select(manifest, "train"), manifest.image_shape)
    for _ in range(100):
        victim = draw.choice(sorted(name for name in whole if whole[name]))
        changed = mutate(whole[victim], draw)
        (tmp_path / victim).write_bytes(changed)

        def read():
            content = manifests.load(tmp_path)
            return load_window(tmp_path, select(content, "train"), content.image_shape)

        examples, _ = outcome(read)
        if examples is not None:  # the change was harmless: another split's file, or a statistic in the manifest
            assert np.array_equal(examples.images, expected.images), (victim, changed)
            assert np.array_equal(examples.labels, expected.labels)
        (tmp_path / victim).write_bytes(whole[victim])


@pytest.mark.parametrize("command", ["trainer.run", "pipeline.inspect"])
def test_damaged_json_as_a_command_sees_it(tmp_path, command):
    write_dataset(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    content["splits"]["train"]["shards"][0]["num_bytes"] += 1
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    flags = (
        [f"--data_dir={tmp_path}", f"--model_dir={tmp_path / 'run'}"] if command == "trainer.run" else [str(tmp_path)]
    )
    done = subprocess.run(
        [sys.executable, "-m", command, *flags],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
