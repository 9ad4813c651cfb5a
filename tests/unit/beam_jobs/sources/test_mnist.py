import gzip
import hashlib
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from beam_jobs import sources
from beam_jobs.sources import row_files
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError
from tests.helpers.raised import at

REAL = pathlib.Path(__file__).parents[5] / "shared" / "data" / "mnist"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def opened(folder):
    return sources.open_source(SourceOptions("mnist", str(folder)))


def test_a_file_that_is_there_packed_and_unpacked_is_refused(mnist_folder):
    folder = mnist_folder()
    (folder / f"{LABELS}.gz").write_bytes(gzip.compress((folder / LABELS).read_bytes()))
    with pytest.raises(DataError, check=at("source", f"{LABELS} and {LABELS}.gz")):
        opened(folder)


def edit(name, function):
    def apply(folder):
        (folder / name).write_bytes(function((folder / name).read_bytes()))

    return apply


def replace_by_gzip(cut):
    def apply(folder):
        packed = gzip.compress((folder / IMAGES).read_bytes(), compresslevel=1)
        (folder / IMAGES).unlink()
        (folder / f"{IMAGES}.gz").write_bytes(cut(packed))

    return apply


def replace_by_folder(folder):
    (folder / IMAGES).unlink()
    (folder / IMAGES).mkdir()


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


BAD = [
    ("missing", lambda folder: (folder / LABELS).unlink(), f"{LABELS}"),
    ("folder", replace_by_folder, f"{IMAGES}: is not a regular file"),
    ("empty", edit(IMAGES, lambda data: b""), f"{IMAGES}: .*0x00000803"),
    ("wrong magic", edit(IMAGES, lambda data: b"\0\0\x0d" + data[3:]), "0x00000d03.* 0x00000803"),
    ("labels for images", edit(IMAGES, lambda data: b"\0\0\x08\x01" + data[4:]), "0x00000801.* images"),
    ("short header", edit(IMAGES, lambda data: data[:10]), "10 of 16 bytes"),
    ("one byte short", edit(IMAGES, lambda data: data[:-1]), "50x28x28 = 39,200 bytes.* 39199"),
    ("one byte long", edit(IMAGES, lambda data: data + b"x"), "50x28x28 = 39,200 bytes.* more"),
    ("no image", edit(IMAGES, lambda data: data[:4] + bytes(4) + data[8:16]), "0x28x28; .* values"),
    ("huge header", edit(IMAGES, lambda data: data[:4] + b"\xff" * 12), "4294967295x4294967295x4294967295; .* values"),
    ("large header", edit(IMAGES, lambda data: data[:4] + b"\0\x7f\xff\xff" + data[8:]), "39200"),
    ("other size", edit(IMAGES, lambda data: data[:11] + b"\x0e" + data[12:15] + b"\x38" + data[16:]), "14x56.* 28x28"),
    ("counts differ", edit(LABELS, lambda data: data[:4] + b"\0\0\0\x31" + data[8:-1]), "50 images.* 49 labels"),
    ("label", edit(LABELS, lambda data: data[:11] + b"\x0a" + data[12:]), f"{LABELS}: row 3: label 10 .*0..9"),
    ("gzip cut short", replace_by_gzip(lambda data: data[: len(data) // 2]), f"{IMAGES}.gz: .* cut short"),
    ("gzip without its end", replace_by_gzip(lambda data: data[:-8]), f"{IMAGES}.gz: .* cut short"),
    ("gzip corrupt", replace_by_gzip(lambda data: flip(data, -6)), f"{IMAGES}.gz: .* corrupt"),
    ("gzip corrupt inside", replace_by_gzip(lambda data: flip(data, 5000)), f"{IMAGES}.gz: "),
    ("bomb", edit(IMAGES, lambda data: gzip.compress(data + bytes(100 << 20), compresslevel=1)), "39,200.* more"),
]


@pytest.mark.parametrize(("change", "fact"), [pytest.param(*bad[1:], id=bad[0]) for bad in BAD])
def test_bad_files_are_named(change, fact, mnist_folder):
    folder = mnist_folder()
    change(folder)
    with pytest.raises(DataError, match=f"(?=.*{folder}).*{fact}", check=at("")):
        opened(folder)


def test_a_source_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name, problem in (("no", "no such folder"), ("file", "not a folder")):
        with pytest.raises(DataError, check=at(tmp_path / name, problem)):
            opened(tmp_path / name)


def test_a_file_that_is_only_touched_is_still_the_same(mnist_folder, monkeypatch):
    folder = mnist_folder()
    source = opened(folder)
    os.utime(folder / IMAGES, ns=(0, 0))
    expected = mnist_arrays_of(folder)[:3]
    assert (source.read("train", np.arange(3)).images[..., 0] == expected).all()
    monkeypatch.setattr(row_files, "_kept", {})
    assert (source.read("train", np.arange(3)).images[..., 0] == expected).all()


def mnist_arrays_of(folder):
    return np.frombuffer((folder / IMAGES).read_bytes()[16:], np.uint8).reshape(-1, 28, 28)


@pytest.mark.parametrize("in_worker", [False, True])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda path: os.truncate(path, 5000), "changed"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), "changed"),
        (lambda path: path.unlink(), "no such file"),
    ],
)
def test_a_file_that_changes_under_an_open_source_is_an_error(change, problem, in_worker, mnist_folder, monkeypatch):
    folder = mnist_folder()
    source = opened(folder)
    source.read("train", np.arange(3))
    change(folder / IMAGES)
    if in_worker:
        monkeypatch.setattr(row_files, "_kept", {})
    with pytest.raises(DataError, check=at(IMAGES, problem)):
        source.read("train", np.arange(3))


def test_a_packed_file_that_another_process_finds_changed_is_an_error(mnist_folder, monkeypatch):
    folder = mnist_folder(packed=True)
    source = opened(folder)
    path = folder / f"{IMAGES}.gz"
    path.write_bytes(gzip.compress(flip(gzip.decompress(path.read_bytes()), 100)))
    source.read("train", np.arange(3))  # what this process unpacked and checked is still right
    monkeypatch.setattr(row_files, "_kept", {})
    with pytest.raises(DataError, check=at(f"{IMAGES}.gz", "changed")):
        source.read("train", np.arange(3))


@pytest.mark.skipif(not REAL.is_dir(), reason="needs MNIST in ../shared/data/mnist")
def test_the_published_files_are_read_whole():
    source = opened(REAL)
    assert source.splits == {"train": 60_000, "test": 10_000}
    assert [file.num_bytes for file in source.files] == [47_040_016, 60_008, 7_840_016, 10_008]
    images = gzip.decompress((REAL / f"{IMAGES}.gz").read_bytes())
    assert source.files[0].sha256 == hashlib.sha256(images).hexdigest()
    block = source.read("train", np.arange(60_000))
    assert block.images.tobytes() == images[16:]
    assert np.bincount(block.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert block.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert block.keys[[0, 59_999]].tolist() == [b"train-images-idx3-ubyte#00000", b"train-images-idx3-ubyte#59999"]
    assert np.bincount(source.read("test", np.arange(10_000)).labels)[:3].tolist() == [980, 1135, 1032]


def emnist(folder, part, labels=None):
    """Renames a tiny MNIST's files to the names of a part of EMNIST."""
    for path in folder.iterdir():
        split = "train" if path.name.startswith("train") else "test"
        data = path.read_bytes()
        if labels is not None and "labels" in path.name:
            data = data[:8] + bytes(np.resize(labels, len(data) - 8).tolist())
        (folder / f"emnist-{part}-{split}-{path.name.split('-', 1)[1]}").write_bytes(data)
        path.unlink()
    return folder


def named(dataset, folder):
    return sources.open_source(SourceOptions(dataset, str(folder)))


@pytest.mark.parametrize(
    ("label", "part", "bounds"), [(0, "letters", "1..26"), (27, "letters", "1..26"), (47, "balanced", "0..46")]
)
def test_a_label_of_emnist_out_of_range_is_named(label, part, bounds, mnist_folder):
    folder = emnist(mnist_folder(), part, labels=[1, 2, label])
    with pytest.raises(
        DataError, check=at(f"emnist-{part}-train-labels-idx1-ubyte", "row 2", f"label {label} ", bounds)
    ):
        named(f"emnist_{part}", folder)


@pytest.mark.parametrize(
    ("dataset", "count", "some"),
    [
        ("mnist", 10, {3: "3"}),
        ("fashion_mnist", 10, {0: "T-shirt/top", 9: "Ankle boot"}),
        ("kmnist", 10, {0: "o", 9: "wo"}),
        ("emnist_digits", 10, {3: "3"}),
        ("emnist_mnist", 10, {3: "3"}),
        ("emnist_letters", 26, {0: "A", 25: "Z"}),
        ("emnist_balanced", 47, {10: "A", 36: "a", 38: "d", 46: "t"}),
        ("emnist_bymerge", 47, {46: "t"}),
        ("emnist_byclass", 62, {10: "A", 36: "a", 61: "z"}),
    ],
)
def test_every_data_set_has_its_class_names(dataset, count, some, mnist_folder):
    folder = mnist_folder()
    if dataset.startswith("emnist_"):
        emnist(folder, dataset.removeprefix("emnist_"), labels=[1])
    source = named(dataset, folder)
    assert source.dataset == dataset
    assert len(source.class_names) == len(set(source.class_names)) == count
    assert {label: source.class_names[label] for label in some} == some


def test_the_files_of_another_data_set_are_recognised(mnist_folder):
    plain = mnist_folder("plain")
    with pytest.raises(DataError, check=at("plain", "emnist-digits-", "--dataset=mnist or fashion_mnist or")):
        named("emnist_digits", plain)
    folder = emnist(mnist_folder("other"), "letters")
    for dataset in ("mnist", "emnist_byclass"):
        with pytest.raises(DataError, match="--dataset=emnist_letters"):
            named(dataset, folder)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_files(tmp_path):
    """235 MB of images, sparse or as gzip: a process's memory stays far below that."""
    count = 300_000
    header = (0x803).to_bytes(4, "big") + count.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
    for name in ("train", "t10k"):
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + header[4:8] + bytes(count))
    (tmp_path / IMAGES).write_bytes(header)
    os.truncate(tmp_path / IMAGES, 16 + count * 784)
    with gzip.open(tmp_path / "t10k-images-idx3-ubyte.gz", "wb", compresslevel=1) as stream:
        stream.write(header)
        for _ in range(30):
            stream.write(bytes(count // 30 * 784))
    script = """
import resource, sys
import numpy as np
from beam_jobs import sources
from beam_jobs.sources.base import SourceOptions
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = sources.open_source(SourceOptions("mnist", sys.argv[1]))
for split in ("train", "test"):
    assert source.read(split, np.arange(0, 300_000, 100)).images.shape == (3000, 28, 28, 1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    root = pathlib.Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) < 40_000  # KB
