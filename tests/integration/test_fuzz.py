"""Mutated inputs: every outcome is the right data or one line, never a traceback, a hang or a wrong record."""

import dataclasses
import gzip
import io
import json
import pathlib
import pickle
import random
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import convert
from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.errors import PipelineError
from pipeline.manifest.splits import select
from pipeline.read.corruption import Corruption
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shards import Shards
from tests.helpers import forked
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.foreign import png

pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A split's examples: uint8 (n, height, width, channels), int64 (n,), n keys."""

    images: np.ndarray
    labels: np.ndarray
    keys: list[bytes]


def load(data_dir: pathlib.Path, split: str) -> Loaded:
    """Returns a split of raw images that are not compressed, after checking that all readers agree on it.

    Raises:
      PipelineError: of the first reader that refuses.
    """
    examples = RandomAccess(data_dir, split)[:]
    loaded = Loaded(
        np.stack([example["image"] for example in examples]),
        np.array([example["label"] for example in examples]),
        [example["key"] for example in examples],
    )
    manifest = manifests.load(data_dir)
    selection = select(manifest, split)
    shards = Shards.found(data_dir, selection.segments, Corruption(str(data_dir)))
    records = RecordsReader(shards).read(all_pieces(selection)).as_bytes()
    assert all(key in record for key, record in zip(loaded.keys, records, strict=True))
    reader = RowsReader.fit(manifest, shards, with_keys=True)
    if reader is not None:
        rows = reader.read(all_pieces(selection))
        assert np.array_equal(rows.images.reshape(loaded.images.shape), loaded.images)
        assert rows.labels.tolist() == loaded.labels.tolist()
        assert rows.keys.tolist() == loaded.keys
    return loaded


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


def archive_of(folder, batches):
    """Returns a tar, not compressed, of a folder with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in batches.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def cifar_archive():
    """Returns CIFAR-10's binary archive, with six images a batch."""
    draw, batches = np.random.default_rng(0), {}
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = draw.integers(0, 256, (6, 3073), np.uint8)
        records[:, 0] %= 10
        batches[name] = records.tobytes()
    return archive_of("cifar-10-batches-bin", batches)


def python_archive(fine):
    """Returns CIFAR-10's Python archive, or CIFAR-100's if `fine`, with six images a batch, pickled as by Python 2."""
    draw = np.random.default_rng(0)
    names = ["train", "test"] if fine else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    labels = {b"labels": [1, 2, 3, 4, 5, 6]}
    if fine:
        labels = {b"fine_labels": [1, 20, 30, 40, 50, 99], b"coarse_labels": [1, 2, 3, 4, 5, 19]}
    batches = {}
    for name in names:
        images = draw.integers(0, 256, (6, 3072), np.uint8)
        batch = {b"batch_label": b"batch", b"data": images, **labels, b"filenames": [b"%d.png" % i for i in range(6)]}
        batches[name] = pickle.dumps(batch, protocol=2)
    return archive_of("cifar-100-python" if fine else "cifar-10-batches-py", batches)


def convert_quietly(capfd, *flags):
    """Converts in this process; returns the error, if any, after checking that nothing half-written is left."""
    _, error = outcome(lambda: convert.main([str(f) for f in flags]))
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return error


@pytest.mark.parametrize("seed", range(400))
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


@pytest.mark.parametrize("seed", range(400))
@pytest.mark.parametrize("kind", ["binary", "python"])
def test_mutated_cifar_archive(tmp_path, capfd, kind, seed):
    archive, draw, odd = tmp_path / "archive.tar.gz", random.Random(seed), seed % 2 == 1
    data = cifar_archive() if kind == "binary" else python_archive(fine=odd)
    if kind == "python" or odd:  # inside the compression, so that the tar itself is hit
        archive.write_bytes(gzip.compress(mutate(data, draw), mtime=0))
    else:
        archive.write_bytes(mutate(gzip.compress(data, mtime=0), draw))
    before, target = set(tmp_path.rglob("*")), tmp_path / "data"
    fine = kind == "python" and odd
    dataset = "cifar100" if fine else "cifar10"
    error = convert_quietly(capfd, f"--dataset={dataset}", f"--source={archive}", f"--data_dir={target}")
    check_published_or_refused(target, error, [6, 6] if fine else [30, 6], classes=100 if fine else 10)
    outside = {p for p in tmp_path.rglob("*") if target not in (p, *p.parents)}
    assert outside == before, "a file outside the folder"


def pixels_of(row):
    return np.random.default_rng(row).integers(0, 256, (5, 4, 3), np.uint8)


@pytest.fixture(scope="module")
def parquet_bytes():
    """A file with checksums of its pages, so that no change of a value can pass."""
    images = pa.array([{"bytes": png(pixels_of(row)), "path": f"{row}.png"} for row in range(40)])
    table = pa.table({"image": images, "label": pa.array([row % 7 for row in range(40)])})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, row_group_size=16, write_page_checksum=True, compression="zstd")
    return buffer.getvalue().to_pybytes()


@pytest.mark.parametrize("seed", range(500))
def test_mutated_parquet(tmp_path, capfd, seed, parquet_bytes):
    source = tmp_path / "train.parquet"
    draw = random.Random(seed)
    footer = len(parquet_bytes) * 2 // 3 if seed % 2 else 0  # half of them in what describes the columns
    source.write_bytes(parquet_bytes[:footer] + mutate(parquet_bytes[footer:], draw))
    flags = ["--dataset=parquet", f"--source={source}", "--image_encoding=raw", f"--data_dir={tmp_path / 'data'}"]
    error = convert_quietly(capfd, *flags)
    check_published_or_refused(tmp_path / "data", error, [40])
    if error is None:
        examples = load(tmp_path / "data", "train")
        for key, image, label in zip(examples.keys, examples.images, examples.labels.tolist(), strict=True):
            row = int(key.split(b"#")[1])
            assert label == row % 7
            assert np.array_equal(image, pixels_of(row))


@pytest.mark.parametrize("seed", range(300))
def test_mutated_records_as_a_source(tmp_path, capfd, seed):
    source, draw = tmp_path / "source", random.Random(seed)
    made = write_dataset(source, (9, 4), test_counts=(4,))
    expected = {
        key: (image, label)
        for split in made.splits
        for window in [load(source, split)]
        for key, image, label in zip(window.keys, window.images, window.labels.tolist(), strict=True)
    }
    foreign = seed % 2 == 1
    files = [path for path in source.rglob("*") if path.is_file() and (path.suffix == ".tfrecord" or not foreign)]
    victim = draw.choice(sorted(str(path.relative_to(source)) for path in files))
    (source / victim).write_bytes(mutate((source / victim).read_bytes(), draw))
    flags = ["--dataset=tfrecord", f"--source={source}", f"--data_dir={tmp_path / 'data'}", "--num_shards=2"]
    if foreign:
        (source / "manifest.json").unlink()
        flags += ["--feature_map=image:image,label:label,key:key", "--image_shape=8x6x3"]
    if convert_quietly(capfd, *flags) is None:
        manifest = manifests.load(tmp_path / "data")
        for split in manifest.splits:
            window = load(tmp_path / "data", split)
            for key, image, label in zip(window.keys, window.images, window.labels.tolist(), strict=True):
                assert label == expected[key][1]
                assert np.array_equal(image, expected[key][0])
    else:
        assert not (tmp_path / "data" / "manifest.json").exists()


def check_published_or_refused(target, error, counts, classes=10):
    if error is not None:
        assert not (target / "manifest.json").exists()
        return
    manifest = manifests.load(target)
    assert sorted(s.num_examples for s in manifest.splits.values()) == sorted(counts)
    for split in manifest.splits:
        examples = load(target, split)
        assert examples.labels.min() >= 0
        assert examples.labels.max() < classes
        assert len(set(examples.keys)) == len(examples.keys)


@pytest.mark.parametrize("kind", [Kind(), Kind(unequal_keys=True)], ids=["stride", "offsets"])
@pytest.mark.parametrize("seed", range(10))
def test_mutated_manifests_and_shards_are_refused_or_read_right(tmp_path, seed, kind):
    write_dataset(tmp_path, (5, 0, 4, 3), kind=kind)
    draw = random.Random(seed)
    whole = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    expected = load(tmp_path, "train")
    for _ in range(100):
        victim = draw.choice(sorted(name for name in whole if whole[name]))
        changed = mutate(whole[victim], draw)
        (tmp_path / victim).write_bytes(changed)
        examples, _ = outcome(lambda: load(tmp_path, "train"))
        if examples is not None:  # the change was harmless: another split's file, or a statistic in the manifest
            assert np.array_equal(examples.images, expected.images), (victim, changed)
            assert np.array_equal(examples.labels, expected.labels)
        (tmp_path / victim).write_bytes(whole[victim])


@pytest.mark.parametrize("command", ["trainer.run", "pipeline.inspect"])
def test_damaged_json_as_a_command_sees_it(tmp_path, command):
    write_dataset(tmp_path / "data")
    content = json.loads((tmp_path / "data" / "manifest.json").read_text())
    content["splits"]["train"]["shards"][0]["num_bytes"] += 1
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(content))
    data = str(tmp_path / "data")
    flags = [f"--data_dir={data}", f"--model_dir={tmp_path / 'run'}"] if command == "trainer.run" else [data]
    done = forked.run(["-m", command, *flags])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
