import gzip

import numpy as np
import pytest

from beam_jobs import sources
from beam_jobs.sources import content
from pipeline.errors import DataError, UsageError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def arrays(train=50, test=20, side=28):
    draw = np.random.default_rng(7)
    return {
        split: (draw.integers(0, 256, (n, side, side), np.uint8), draw.integers(0, 10, n, np.uint8))
        for split, n in (("train", train), ("test", test))
    }


def opened(folder):
    return sources.open_source("mnist", str(folder))


def test_rows_are_those_of_the_files(mnist_folder):
    written = arrays()
    source = opened(mnist_folder(arrays=written))
    rows = np.array([49, 0, 7])
    block = source.read("train", rows)
    assert (block.images == written["train"][0][rows][..., None]).all()
    assert block.labels.tolist() == written["train"][1][rows].tolist()
    assert block.labels.dtype == np.int64
    assert block.keys.tolist() == [
        b"train-images-idx3-ubyte#49",
        b"train-images-idx3-ubyte#00",
        b"train-images-idx3-ubyte#07",
    ]
    assert source.splits == {"train": 50, "test": 20}
    assert source.image_shape == (28, 28, 1)


def test_gzip_or_not_is_the_same_source(mnist_folder):
    plain, packed = opened(mnist_folder("plain")), opened(mnist_folder("packed", packed=True))
    assert plain.files == packed.files
    rows = np.arange(20)
    assert plain.read("test", rows).keys.tolist() == packed.read("test", rows).keys.tolist()


def test_a_file_that_changes_after_the_check_is_an_error(mnist_folder, monkeypatch):
    folder = mnist_folder()
    source = opened(folder)
    data = bytearray((folder / IMAGES).read_bytes())
    data[-1] ^= 1
    (folder / IMAGES).write_bytes(data)
    monkeypatch.setattr(content, "_contents", {})  # as in a worker that has read nothing yet
    with pytest.raises(DataError, match=f"{IMAGES}: changed while it was being converted"):
        source.read("train", np.arange(3))


def damage(change):
    """Names a bad source: a function of the folder, and what the error must say."""
    return pytest.param(*change[1:], id=change[0])


def edit(name, function):
    def apply(folder):
        (folder / name).write_bytes(function((folder / name).read_bytes()))

    return apply


def replace_by_gzip(cut):
    def apply(folder):
        packed = gzip.compress((folder / IMAGES).read_bytes())
        (folder / IMAGES).unlink()
        (folder / f"{IMAGES}.gz").write_bytes(cut(packed))

    return apply


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


BAD = [
    ("missing", lambda folder: (folder / LABELS).unlink(), f"{LABELS}: no such file, and no {LABELS}.gz either"),
    ("empty", edit(IMAGES, lambda data: b""), f"{IMAGES}: begins with an empty file, not 0x00000803"),
    ("wrong magic", edit(IMAGES, lambda data: b"\0\0\x0d" + data[3:]), "begins with 0x00000d03, not 0x00000803"),
    ("labels for images", edit(IMAGES, lambda data: b"\0\0\x08\x01" + data[4:]), "no IDX file of images"),
    ("short header", edit(IMAGES, lambda data: data[:10]), "ends inside its header (10 of 16 bytes)"),
    ("one byte short", edit(IMAGES, lambda data: data[:-1]), "50x28x28 = 39200 bytes, it has 39199: it is cut short"),
    ("one byte long", edit(IMAGES, lambda data: data + b"x"), "50x28x28 = 39200 bytes, it has more"),
    ("no image", edit(IMAGES, lambda data: data[:4] + bytes(4) + data[8:16]), "its header says 0x28x28 values"),
    (
        "huge header",
        edit(IMAGES, lambda data: data[:4] + b"\xff" * 12),
        "4294967295x4294967295x4294967295 values; must",
    ),
    (
        "large header",
        edit(IMAGES, lambda data: data[:4] + b"\0\x7f\xff\xff" + data[8:]),
        "it is cut short; get the file",
    ),
    ("counts differ", edit(LABELS, lambda data: data[:4] + b"\0\0\0\x31" + data[8:-1]), "has 50 images, but"),
    (
        "label out of range",
        edit(LABELS, lambda data: data[:11] + b"\x0a" + data[12:]),
        f"{LABELS}: row 3: label 10 is not in 0..9",
    ),
    (
        "gzip cut short",
        replace_by_gzip(lambda data: data[: len(data) // 2]),
        f"{IMAGES}.gz: its gzip data is cut short",
    ),
    ("gzip without its end", replace_by_gzip(lambda data: data[:-8]), f"{IMAGES}.gz: its gzip data is cut short"),
    ("gzip corrupt", replace_by_gzip(lambda data: flip(data, -6)), f"{IMAGES}.gz: its gzip data is corrupt"),
    ("gzip corrupt inside", replace_by_gzip(lambda data: flip(data, 5000)), f"{IMAGES}.gz: "),
]


@pytest.mark.parametrize(("change", "message"), [damage(bad) for bad in BAD])
def test_bad_files_are_named_and_nothing_is_written(change, message, mnist_folder, tmp_path, convert, refused):
    folder, out = mnist_folder(), tmp_path / "out"
    change(folder)
    outcome = convert("--dataset=mnist", f"--source={folder}", f"--data_dir={out}")
    refused(outcome, 1, message, folder, data_dir=out)
    assert not out.exists()


def test_images_of_another_size_are_refused(mnist_folder):
    with pytest.raises(DataError, match="its images are 27x27; they must be 28x28"):
        opened(mnist_folder(arrays=arrays(side=27)))


def test_a_folder_in_the_place_of_a_file_is_refused(mnist_folder):
    folder = mnist_folder()
    (folder / IMAGES).unlink()
    (folder / IMAGES).mkdir()
    with pytest.raises(DataError, match=f"{IMAGES}: is not a regular file"):
        opened(folder)


def test_a_gzip_bomb_is_not_unpacked(mnist_folder):
    folder = mnist_folder()
    data = (folder / IMAGES).read_bytes()
    (folder / IMAGES).write_bytes(gzip.compress(data + bytes(300 << 20), compresslevel=1))
    with pytest.raises(DataError, match="it has more: it is not what its header says"):
        opened(folder)


@pytest.mark.parametrize(
    ("source", "kind", "message"), [("", UsageError, "--source is missing"), ("/no/such", DataError, "no such folder")]
)
def test_a_source_that_is_no_folder(source, kind, message):
    with pytest.raises(kind, match=message):
        opened(source)
