"""Windows read by TensorFlow's own ops, in a `tf.function`: the same records and inputs as by the ordinary ones."""

import gzip
import subprocess
import sys
import zlib

import numpy as np
import pytest
import tensorflow as tf

from pipeline import input_fn
from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.manifest.splits import select
from pipeline.read import graph_reader
from pipeline.read.corruption import Corruption
from pipeline.read.graph_reader import GraphReader, packed, unpacked
from pipeline.read.records_reader import RecordsReader
from pipeline.read.shards import Shards
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.raised import at

COUNTS = (5, 0, 4, 3)
KINDS = {
    "raw": Kind(),
    "unequal keys": Kind(unequal_keys=True),
    "png": Kind("png", extra=True),
    "jpeg": Kind("jpeg", varied=True),
    "gzip": Kind(compression="GZIP"),
    "gzip of png": Kind("png", compression="GZIP"),
    "gzip members": Kind(unequal_keys=True, compression="GZIP", members=2),
}
PIECES = {  # of the segments: the shards that have a record
    "all": [[0, 0, 5], [1, 0, 4], [2, 0, 3]],
    "parts, in any order": [[2, 1, 3], [0, 2, 5], [1, 3, 4], [0, 0, 1]],
    "nothing of a shard": [[1, 4, 4], [2, 2, 3]],
    "none": [],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for name, kind in KINDS.items():
        write_dataset(folder / name, COUNTS, kind=kind)
    (folder / "mixed").mkdir()
    packs = [zlib.compress, bytes, gzip.compress, bytes]
    for path, pack in zip(sorted((folder / "unequal keys").glob("train-*")), packs, strict=True):
        (folder / "mixed" / path.name).write_bytes(pack(path.read_bytes()))
    index.main([str(folder / "mixed"), "--split=train:train-*"])
    return folder


def in_graph(folder, split="train"):
    """Returns the reader as a function of pieces, and the ordinary one, of a split."""
    manifest = manifests.load(folder)
    selection = select(manifest, split)
    reader = GraphReader(folder, selection)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)], autograph=False)
    def read(pieces):
        return reader.read(pieces, tf.zeros([0], tf.int64))["record"]

    ordinary = RecordsReader(Shards.found(folder, selection.segments, Corruption(str(folder))))
    return read, ordinary


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@pytest.mark.quick(3)
def test_records_are_those_of_the_ordinary_reader(folders, kind):
    read, ordinary = in_graph(folders / kind)
    if kind == "mixed":
        plain = in_graph(folders / "unequal keys")[1].read(np.array(PIECES["all"])).as_bytes().tolist()
        assert ordinary.read(np.array(PIECES["all"])).as_bytes().tolist() == plain
    for name, listed in PIECES.items():
        pieces = np.array(listed, np.int64).reshape(-1, 3)
        found = read(pieces).numpy().tolist()
        assert found[-1] == b"", name  # the row that there is of an empty window, too
        count = int((pieces[:, 2] - pieces[:, 1]).sum())
        assert found[:-1] == ordinary.read(pieces).as_bytes().tolist()[:count], name
        assert len(found) == count + 1


@pytest.mark.parametrize("kind", ["raw", "unequal keys", "gzip"])
def test_a_slice_begins_in_the_middle_of_a_shard(folders, kind):
    read, ordinary = in_graph(folders / kind, "train[2:8]")  # records 2, 3, 4 of shard 0; 0, 1, 2 of shard 2
    pieces = np.array([[1, 1, 3], [0, 1, 2]], np.int64)
    found = read(pieces).numpy().tolist()
    assert found[:-1] == ordinary.read(pieces).as_bytes().tolist()
    assert len(found) == 4


def damaged(data, damage):
    if damage == "emptied":
        return b""
    if damage == "cut":
        return data[: len(data) // 2]
    place = len(data) - 20 if damage == "a byte of the last record" else 3
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("kind", "damage", "record"),
    [
        ("raw", "a byte of the last record", 3),
        ("raw", "a length", 0),
        ("raw", "cut", 2),
        ("raw", "emptied", 0),
        ("unequal keys", "cut", 2),
        ("gzip", "a length", 0),
        ("gzip", "emptied", 0),
    ],
)
@pytest.mark.quick(3)
def test_the_error_names_shard_and_record(tmp_path, kind, damage, record):
    write_dataset(tmp_path, COUNTS, kind=KINDS[kind])
    read, _ = in_graph(tmp_path)
    (shard,) = tmp_path.glob("train-00002-of-00004.tfrecord" + (".gz" if kind == "gzip" else ""))
    shard.write_bytes(damaged(shard.read_bytes(), damage))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(np.array(PIECES["all"], np.int64))
    wanted = f"{shard}, record {record}: corrupt or cut; to see all that is wrong: "
    assert f"{wanted}python -m beam_jobs.validate {tmp_path}" in str(caught.value)
    assert len(read(np.array([[0, 0, 5]], np.int64))) == 6  # the other shards are read as before


@pytest.mark.parametrize("kind", ["raw", "gzip"])
def test_a_shard_that_is_gone_is_named(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=KINDS[kind])
    read, _ = in_graph(tmp_path)
    (shard,) = tmp_path.glob("train-00002-of-00004.tfrecord" + (".gz" if kind == "gzip" else ""))
    shard.unlink()
    with pytest.raises(tf.errors.NotFoundError, match=f"{shard}; No such file"):
        read(np.array(PIECES["all"], np.int64))


def made_in_a_function(folder, **arguments):
    return tf.function(lambda: input_fn(folder, **arguments))()  # with autograph, which must not convert this library


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("raw", {"streams": 3, "shuffle_bytes": 3 * 2 * 144, "start_step": 1}),
        ("unequal keys", {"weights": "mean"}),
        ("png", {"features": ("key", "box", "scores"), "streams": 2, "shuffle_bytes": 2 * 4 * 144}),
        ("jpeg", {"augment": "random_crop(size=6)"}),
        ("gzip", {"augment": "cifar10_tutorial(crop=5)", "remainder": "drop"}),
    ],
)
def test_an_input_made_in_a_function_gives_the_same_elements(folders, kind, more):
    arguments = {"global_batch_size": 6, "training": True, "epochs": 2, "seed": 3, "record_ids": True} | more
    dataset, ordinary = made_in_a_function(folders / kind, **arguments), input_fn(folders / kind, **arguments)
    assert dataset.element_spec == ordinary.element_spec
    assert int(dataset.cardinality()) == int(ordinary.cardinality()) == 4 - more.get("start_step", 0)
    for element, expected in zip(dataset, ordinary, strict=True):
        tf.nest.assert_same_structure(element, expected)
        parts = (tf.nest.flatten(value, expand_composites=True) for value in (element, expected))
        for part, expected_part in zip(*parts, strict=True):
            assert_equal(part, expected_part)


def assert_equal(found, expected):
    if found.dtype == tf.float32:
        np.testing.assert_allclose(found, expected, atol=2e-5)
    else:
        np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_done_in_a_function_is_one_line(folders, tmp_path):
    with pytest.raises(UsageError, match="^on_corrupt='skip': .*tf.function"):
        made_in_a_function(folders / "raw", global_batch_size=6, training=True, epochs=1, on_corrupt="skip")
    write_dataset(tmp_path, COUNTS)
    (tmp_path / "train-00002-of-00004.tfrecord").unlink()
    with pytest.raises(DataError, check=at("train-00002-of-00004.tfrecord", "the manifest lists this shard")):
        made_in_a_function(tmp_path, global_batch_size=6, training=True, epochs=1)
    with pytest.raises(UsageError, match="^epochs=None with a dataset made inside a tf.function.*: .*needs an end"):
        made_in_a_function(folders / "raw", global_batch_size=6, training=True)


def read_chosen(reader, pieces, *times):
    pieces, filled = map(tf.constant, reader.joined(pieces, *times))
    return reader.read(pieces, tf.constant([], tf.int64), filled)["record"].numpy().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_chosen_records_that_lie_close_are_read_at_once_and_no_others(tmp_path, monkeypatch, compression):
    made = write_dataset(tmp_path, (40, 30), kind=Kind(compression=compression, unequal_keys=True))
    selection, shard = select(made, "train"), made.splits["train"].shards[0]
    monkeypatch.setattr(graph_reader, "_BUFFER", 5 * shard.num_bytes // shard.num_examples)  # a gap of 4 or 5 records
    pieces = np.array([(0, 3, 5), (0, 8, 9), (0, 20, 21), (1, 20, 23), (1, 2, 3), (0, 38, 40)])
    reader, every = (GraphReader(tmp_path, selection, is_chosen) for is_chosen in (True, False))
    assert every.joined(pieces)[0] is pieces
    plainly = every.read(tf.constant(pieces), tf.constant([], tf.int64))["record"].numpy().tolist()
    assert read_chosen(reader, pieces) == plainly
    assert len(plainly) == 10 + 1
    joined, filled = reader.joined(pieces)
    first = [[0, 3, 21]] if compression else [[0, 3, 9], [0, 20, 21]]  # a compressed shard is read from its beginning
    assert joined.tolist() == [*first, [1, 20, 23], [1, 2, 3], [0, 38, 40]]
    assert (filled.sum(), filled.tolist()[:6]) == (10, [1, 1, 0, 0, 0, 1])
    times = [1, 2, 1, 1, 3, 1, 1, 1, 1, 2]
    copies = [one for one, n in zip(plainly, [*times, 1], strict=True) for _ in range(n)]
    assert read_chosen(reader, pieces, np.array(times)) == copies


def test_an_error_among_chosen_records_names_the_record(tmp_path):
    made = write_dataset(tmp_path, (40,), kind=KINDS["raw"])
    (shard,) = tmp_path.glob("train-00000-of-00001.tfrecord")
    data = bytearray(shard.read_bytes())
    data[len(data) * 5 // 40 + 20] ^= 255
    shard.write_bytes(data)
    reader = GraphReader(tmp_path, select(made, "train"), is_chosen=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{shard}, record 5: corrupt or cut"):
        read_chosen(reader, np.array([(0, 3, 4), (0, 8, 9)]))


PEAK = """
import sys
import numpy as np, tensorflow as tf
from pipeline import manifest
from pipeline.manifest.splits import select
from pipeline.read.graph_reader import GraphReader
made = manifest.load(sys.argv[1])
reader = GraphReader(sys.argv[1], select(made, "train"), is_chosen=True)
def read(first, step, last):
    pieces, times = reader.joined(np.array([(0, number, number + 1) for number in range(first, last, step)]))
    return reader.read(tf.constant(pieces), tf.constant([], tf.int64), tf.constant(times))["record"]
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
read(0, 1, 3)
before = peak()
assert len(read(0, 20, 1500)) == 76
print(peak() - before)
"""


def test_numbers_are_a_few_bytes_each_in_a_graph():
    rng = np.random.default_rng(0)
    pieces, turns = rng.integers(-(2**63), 2**63 - 1, (7, 3)), rng.permutation(60_000)
    texts = packed([pieces, turns, np.zeros(0)])
    specs = [tf.TensorSpec(shape, tf.int64) for shape in ([None, 3], [None], [None])]
    found = tf.function(lambda: unpacked(tf.constant(texts), specs), autograph=False)()
    for mine, wanted in zip(found, (pieces, turns, []), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert len(texts[1]) < 2.1 * len(turns)
    assert len(packed([np.arange(60_000)])[0]) < 60_000 / 15
    (mask,) = unpacked(tf.constant(packed([turns < 9])), [tf.TensorSpec([None], tf.bool)])
    np.testing.assert_array_equal(mask, turns < 9)


@pytest.mark.slow
def test_what_lies_between_chosen_records_takes_no_memory(tmp_path):
    write_dataset(tmp_path, (1500,), shape=(64, 64, 3))  # 18 MiB, of which every 20th record is chosen
    found = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(found.stdout) < 9 << 10  # KiB
