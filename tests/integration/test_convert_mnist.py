"""The converter on all 70,000 digits of MNIST, as a user runs it."""

import gzip

import numpy as np
import pytest

from pipeline import manifest
from tests.helpers import forked
from tests.helpers.datasets import files_of
from tests.helpers.forked import ROOT

DATA = ROOT.parent / "shared" / "data"
MNIST = DATA / "mnist"
PREFIXES = {"train": "train", "test": "t10k"}

needs_mnist = pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST's files are not in {MNIST}")


def convert(dataset, source, out, *flags):
    flags = [f"--dataset={dataset}", f"--source={source}", f"--data_dir={out}", *flags]
    done = forked.run(["-m", "beam_jobs.convert", *flags])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def idx(name, offset):
    return np.frombuffer(gzip.decompress((MNIST / f"{name}.gz").read_bytes()), np.uint8, offset=offset)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """MNIST converted by one worker in memory."""
    out = tmp_path_factory.mktemp("mnist")
    convert("mnist", MNIST, out)
    return out


@pytest.mark.slow  # test_engines has it of the digits
@needs_mnist
def test_two_worker_processes_write_the_same_bytes(mnist, tmp_path):
    convert("mnist", MNIST, tmp_path / "out", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    assert len(list(mnist.glob("*.tfrecord"))) == 5
    assert files_of(tmp_path / "out") == files_of(mnist)


@needs_mnist
def test_plain_tf_data_reads_every_original_once(mnist):
    tf = pytest.importorskip("tensorflow")
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "key": tf.io.FixedLenFeature([], tf.string),
    }
    for split, prefix in PREFIXES.items():
        files = sorted(map(str, mnist.glob(f"{split}-*.tfrecord")))
        records = tf.data.TFRecordDataset(files).batch(1 << 20).get_single_element()
        parsed = tf.io.parse_example(records, features)
        images = tf.io.decode_raw(parsed["image"], tf.uint8).numpy()
        keys = parsed["key"].numpy().tolist()
        rows = np.array([int(key.rpartition(b"#")[2]) for key in keys])
        assert keys == [b"%s-images-idx3-ubyte#%0*d" % (prefix.encode(), len(str(len(keys) - 1)), row) for row in rows]
        assert sorted(rows.tolist()) == list(range(len(keys)))
        assert (rows != np.arange(len(rows))).mean() > 0.99  # shuffled
        assert (images == idx(f"{prefix}-images-idx3-ubyte", 16).reshape(-1, 784)[rows]).all()
        assert (parsed["label"].numpy() == idx(f"{prefix}-labels-idx1-ubyte", 8)[rows]).all()


@needs_mnist
def test_the_manifest_is_true_of_the_files(mnist):
    made = manifest.load(mnist)
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 60_000, "test": 10_000}
    for split in made.splits.values():
        for shard in split.shards:
            assert (mnist / shard.file).stat().st_size == shard.num_bytes == shard.stride * shard.num_examples
    for split, prefix in PREFIXES.items():
        labels = idx(f"{prefix}-labels-idx1-ubyte", 8)
        assert made.splits[split].label_histogram == tuple(np.bincount(labels).tolist())
    pixels = idx("train-images-idx3-ubyte", 16)
    np.testing.assert_allclose(made.image_mean, pixels.mean(), rtol=1e-12)  # 33.318, as published
    np.testing.assert_allclose(made.image_std, pixels.std(), rtol=1e-12)  # 78.567
    assert {file.file: file.num_bytes for file in made.source} == {
        "train-images-idx3-ubyte": 47_040_016,
        "train-labels-idx1-ubyte": 60_008,
        "t10k-images-idx3-ubyte": 7_840_016,
        "t10k-labels-idx1-ubyte": 10_008,
    }
