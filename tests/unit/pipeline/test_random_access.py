"""Examples by their number, against the values that were written."""

import concurrent.futures
import io
import multiprocessing
import pathlib
import pickle

import numpy as np
import pytest

import pipeline
from pipeline import RandomAccess
from pipeline.errors import DataError, UsageError
from pipeline.manifest import LABELS_VERSION
from pipeline.records import framing
from tests.helpers.datasets import Kind, edit_manifest, encoded, extra_of, image_of, key_of, to_memory, write_dataset
from tests.helpers.raised import at

COUNTS = (5, 0, 4, 3)
SHAPE = (8, 6, 3)
RAW = Kind()
KINDS = {
    "raw": RAW,
    "raw, unequal": Kind(unequal_keys=True),
    "more features": Kind(extra=True),
    "PNG": Kind("png"),
    "PNG of several sizes": Kind("png", varied=True),
    "raw, GZIP members": Kind(compression="GZIP", members=2),
    "PNG of several sizes, GZIP members": Kind("png", varied=True, compression="GZIP", members=2),
}


@pytest.fixture
def folder(tmp_path):
    write_dataset(tmp_path, COUNTS)
    return tmp_path


def check(example, number, kind=RAW, split="train", shape=SHAPE):
    assert np.array_equal(example["image"], image_of(number, shape, kind))
    assert example["image"].dtype == np.uint8
    assert example["image"].flags.writeable
    assert (example["label"], example["key"]) == (number % 3, key_of(split, number, kind))
    assert (type(example["label"]), type(example["key"])) == (int, bytes)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_example_is_what_was_written(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    examples = RandomAccess(tmp_path)
    assert len(examples) == 12
    for number in np.random.default_rng(0).permutation(12).tolist():
        check(examples[number], number, kind)
        check(examples[number - 12], number, kind)
    for number, example in enumerate(examples):
        check(example, number, kind)
        assert set(example) == set(examples.features)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_files_are_decoded_or_given_as_they_are(tmp_path, encoding, channels):
    shape = (16, 8, channels)
    write_dataset(tmp_path, (3,), shape, kind=Kind(encoding))
    stored = [encoded(image_of(n, shape), encoding) for n in range(3)]
    assert [example["image"] for example in RandomAccess(tmp_path, decode=False)] == stored
    import tensorflow as tf

    for example, data in zip(RandomAccess(tmp_path), stored, strict=True):
        expected = tf.io.decode_image(data, channels).numpy()
        assert example["image"].shape == shape
        # Noise is JPEG's worst case: the decoders' roundings differ.
        bound = 0 if encoding == "png" else 6
        assert np.abs(example["image"].astype(int) - expected).max() <= bound
    raw = tmp_path / "raw"
    write_dataset(raw, (3,))
    assert RandomAccess(raw, decode=False)[1]["image"] == image_of(1, SHAPE).tobytes()


def test_further_features_have_the_manifests_dtypes_and_shapes(tmp_path):
    write_dataset(tmp_path, COUNTS, kind=Kind(extra=True))
    for number, example in enumerate(RandomAccess(tmp_path)):
        expected = extra_of(number)
        for name in ("box", "scores", "tags"):
            assert np.array_equal(example[name], expected[name])
            assert (example[name].dtype, example[name].shape) == (expected[name].dtype, expected[name].shape)
        assert example["id"] == 1000 + number
        assert type(example["id"]) is np.int64


@pytest.mark.parametrize(
    ("split", "numbers"),
    [
        ("train[10:]+test[:1]+train[3:6]", [10, 11, -1, 3, 4, 5]),
        ("test", [-1, -2, -3, -4]),
    ],
)
def test_slices_of_splits(folder, split, numbers):
    """Negative numbers are of the test split: -1 is its first."""
    examples = RandomAccess(folder, split)
    assert len(examples) == len(numbers)
    for example, number in zip(examples, numbers, strict=True):
        check(example, number if number >= 0 else -1 - number, split="train" if number >= 0 else "test")


def test_example_i_is_the_record_id_of_the_input(folder):
    examples = RandomAccess(folder, "train[1:]")
    batch = next(iter(pipeline.input_fn(folder, "train[1:]", global_batch_size=11, training=True, record_ids=True)))
    images, labels, _, ids = (component.numpy() for component in batch)
    for image, label, number in zip(images, labels, ids, strict=True):
        assert np.array_equal(examples[number]["image"], image)
        assert examples[number]["label"] == label


def test_slices_and_sequences_of_numbers_are_lists(folder):
    examples = RandomAccess(folder)
    for index in (slice(2, 5), slice(None), slice(None, None, -3), slice(9, 99), slice(5, 2), slice(-3, -1)):
        found = examples[index]
        assert type(found) is list
        for example, number in zip(found, range(12)[index], strict=True):
            check(example, number)
    for index in ([3, -1, 3], (0,), np.array([5, 1]), range(2, 4), []):
        for example, number in zip(examples[index], index, strict=True):
            check(example, number % 12)
    for example, number in zip(examples.__getitems__([7, 2]), (7, 2), strict=True):
        check(example, number)
    check(examples[np.int32(4)], 4)
    check(examples[np.array(4)], 4)


@pytest.mark.parametrize("index", [12, -13, 10**30, [0, 12], np.array([-13])])
def test_beyond_the_end_is_an_index_error(folder, index):
    with pytest.raises(IndexError, match=r"example -?\d+: .*-12\.\.11"):
        RandomAccess(folder)[index]


@pytest.mark.parametrize("index", [1.0, "1", None, [1.5], [np.bool_(True)], np.ones(12, bool)])
def test_what_is_no_number_is_a_type_error(folder, index):
    with pytest.raises(TypeError):
        RandomAccess(folder)[index]


@pytest.mark.parametrize("kind", [Kind(), Kind(unequal_keys=True)], ids=["stride", "offsets"])
def test_locate_says_where_the_record_lies(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    examples = RandomAccess(tmp_path, "train[3:]")
    expected = [
        (str(tmp_path / f"train-0000{shard}-of-00004.tfrecord"), record)
        for shard, record in [(0, 3), (0, 4), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1), (3, 2)]
    ]
    assert [examples.locate(i)[:2] for i in range(9)] == expected
    for i in range(9):
        location = examples.locate(i)
        assert location == examples.locate(i - 9)
        assert str(location) == f"{location.file}, record {location.record}, byte offset {location.offset}"
        data = pathlib.Path(location.file).read_bytes()
        assert [offset for offset, _, _ in framing.records(io.BytesIO(data).read, "")][
            location.record
        ] == location.offset
        assert key_of("train", i + 3, kind) in data[location.offset : location.offset + 230]
    with pytest.raises(IndexError):
        examples.locate(9)


@pytest.mark.parametrize("kind", [Kind(), Kind(unequal_keys=True)], ids=["stride", "offsets"])
def test_a_corrupt_record_is_named_and_the_others_are_read(tmp_path, kind):
    write_dataset(tmp_path, COUNTS, kind=kind)
    examples = RandomAccess(tmp_path)
    location = examples.locate(7)
    data = bytearray(pathlib.Path(location.file).read_bytes())
    data[location.offset + 50] ^= 1
    pathlib.Path(location.file).write_bytes(data)
    with pytest.raises(DataError, check=at(location.file, record=None)):
        examples[6]
    examples = RandomAccess(tmp_path)
    with pytest.raises(DataError, check=at(location.file, "CRC", record=2, offset=location.offset)):
        examples[7]
    for number in (5, 6, 8):
        check(examples[number], number, kind)


@pytest.mark.parametrize(
    ("encoding", "name", "feature", "facts"),
    [
        ("raw", "unknown", {"dtype": "int64", "shape": []}, ["'unknown'", "0 values", "says 1"]),
        ("raw", "key", {"shape": [2]}, ["'key'", "1 value,", "says 2"]),
        ("raw", "label", {"shape": [3]}, ["'label'", "1 value,", "says 3"]),
        ("raw", "image", {"shape": [9, 6, 3]}, ["image", "144 bytes"]),
        ("raw", "image", {"encoding": "png"}, ["image"]),
        ("png", "image", {"shape": [9, 6, 3]}, ["8x6x3", "not 9x6x3"]),
    ],
)
def test_an_example_that_is_not_what_the_manifest_says_is_named(tmp_path, encoding, name, feature, facts):
    write_dataset(tmp_path, (3,), kind=Kind(encoding))

    def change(content):
        old = content["features"].get(name, {"encoding": None, "class_names": []})
        content["features"][name] = old | feature
        for split in content["splits"].values():
            split["image_sizes"] = {}
            if name == "label":  # a vector has no histogram
                content["format_version"] = LABELS_VERSION
                split |= {"label_histogram": [], "is_labelled": True}

    edit_manifest(tmp_path, change)
    examples = RandomAccess(tmp_path)
    with pytest.raises(DataError, check=at("train-00000-of-00001.tfrecord", *facts, record=1)):
        examples[1]
    if name == "image":
        assert type(RandomAccess(tmp_path, decode=False)[1]["image"]) is bytes


def test_compressed_shards_are_refused_with_the_reason(tmp_path):
    write_dataset(tmp_path, COUNTS, kind=Kind(compression="GZIP"))
    with pytest.raises(UsageError, check=at("train-00000-of-00004.tfrecord.gz", "GZIP", "forward")):
        RandomAccess(tmp_path)


def keys_in(examples, numbers):
    return [example["key"] for example in examples[numbers]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_may_read(tmp_path, method):
    write_dataset(tmp_path, COUNTS, kind=Kind(unequal_keys=True))
    examples = RandomAccess(tmp_path, "train[2:]")
    examples[0]
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = pool.submit(keys_in, examples, [9, 0]).result(timeout=120)
    assert found == [key_of("train", 11, Kind(unequal_keys=True)), key_of("train", 2, Kind(unequal_keys=True))]


def test_a_copy_is_the_same_and_small(tmp_path):
    write_dataset(tmp_path, (2000,), (1, 2, 1), kind=Kind(unequal_keys=True))
    examples = RandomAccess(tmp_path)
    before = len(pickle.dumps(examples))
    examples[:]
    assert len(pickle.dumps(examples)) == before < 4000  # where the records lie does not travel
    check(pickle.loads(pickle.dumps(examples))[1999], 1999, Kind(unequal_keys=True), shape=(1, 2, 1))


def test_a_remote_folder_is_read_alike(tmp_path):
    write_dataset(tmp_path, COUNTS, kind=Kind(unequal_keys=True))
    url = to_memory(tmp_path, "random_access")
    examples = RandomAccess(url)
    for example, number in zip(examples[[11, 0, 5]], (11, 0, 5), strict=True):
        check(example, number, Kind(unequal_keys=True))
    assert examples.locate(11).file == f"{url}/train-00003-of-00004.tfrecord"


def test_pytorchs_data_loader_takes_it(folder):
    data = pytest.importorskip("torch.utils.data", reason="needs PyTorch")
    loader = data.DataLoader(RandomAccess(folder), batch_size=4, num_workers=2, shuffle=False)
    batches = list(loader)
    assert [b["label"].tolist() for b in batches] == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]
    assert batches[0]["image"].shape == (4, *SHAPE)
