"""Folders of IDX files: images of any size, with channels or not, split by their names."""

import gzip
import pickle
import struct

import numpy as np
import pytest

from beam_jobs.sources import open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from tests.converting import convert_in_process
from tests.raised import at


def idx(values):
    return struct.pack(f">I{values.ndim}I", 0x0800 | values.ndim, *values.shape) + values.tobytes()


def fill(folder, **files):
    """Writes files; `_` of their names stands for `-`."""
    folder.mkdir(exist_ok=True)
    for name, values in files.items():
        (folder / name.replace("_", "-")).write_bytes(idx(np.asarray(values, np.uint8)))
    return folder


def opened(folder):
    return open_source(SourceOptions("idx", str(folder)))


@pytest.fixture
def grey(pixels):
    return {
        "train_images_idx3_ubyte": pixels(7, (5, 9)),
        "train_labels_idx1_ubyte": np.arange(7) % 3,
        "t10k_images_idx3_ubyte": pixels(4, (5, 9), seed=1),
        "t10k_labels_idx1_ubyte": [0, 5, 1, 0],
    }


def test_images_of_any_size_are_read(grey, tmp_path):
    source = opened(fill(tmp_path / "a", **grey))
    assert (source.dataset, source.splits, source.image_shape) == ("idx", {"train": 7, "test": 4}, (5, 9, 1))
    assert source.class_names == tuple("012345")  # to the highest label of all splits
    block = pickle.loads(pickle.dumps(source)).read("train", np.array([6, 0]))
    assert (block.images[..., 0] == grey["train_images_idx3_ubyte"][[6, 0]]).all()
    assert block.labels.tolist() == [0, 0]
    assert block.keys.tolist() == [b"train-images-idx3-ubyte#6", b"train-images-idx3-ubyte#0"]


def test_channels_are_the_last_axis_of_idx4_and_one_pair_is_of_train(pixels, tmp_path):
    files = {"shapes.images.idx4-ubyte": pixels(6, (4, 3, 3)), "shapes.labels.idx1-ubyte": [0, 1, 0, 1, 0, 1]}
    folder = fill(tmp_path / "a", **files)
    packed = folder / "shapes.images.idx4-ubyte"
    (folder / f"{packed.name}.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    (folder / "labels.txt").write_text("circle\nsquare\nstar\n")
    out = convert_in_process("--dataset=idx", f"--source={folder}", f"--data_dir={tmp_path / 'out'}")
    made = manifest.load(out)
    assert made.features["image"].shape == (4, 3, 3)
    assert made.class_names == ("circle", "square", "star")
    assert made.splits["train"].label_histogram == (3, 3, 0)
    assert [file.file for file in made.source] == ["shapes.images.idx4-ubyte", "shapes.labels.idx1-ubyte"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("t10k_labels_idx1_ubyte"), "labels .* has t10k-images-idx3-ubyte$"),
        (lambda f: f.update(t10k_images_idx3_ubyte=np.zeros((4, 5, 8))), "5x8x1, .* 5x9x1"),
        (lambda f: f.update(t10k_labels_idx1_ubyte=[1]), "4 images, .*t10k-labels-idx1-ubyte has 1 label$"),
        (lambda f: f.update(t10k_labels_idx3_ubyte=f.pop("t10k_labels_idx1_ubyte")), "idx1, not idx3"),
        (
            lambda f: f.update(test_images_idx3_ubyte=np.zeros((1, 5, 9)), test_labels_idx1_ubyte=[0]),
            "'t10k' and of 'test' .* 'test'",
        ),
        (
            lambda f: f.update(more_images_idx3_ubyte=np.zeros((1, 5, 9)), more_labels_idx1_ubyte=[0]),
            "'more'",
        ),
        (lambda f: f.update(train_images_idx3_ubyte=np.zeros((7, 5))), "not 0x00000803: .* images"),
        (lambda f: f.clear(), "no IDX file .*--source of idx"),
    ],
    ids=range(8),
)
def test_what_is_no_such_folder_is_refused(change, message, grey, tmp_path):
    change(grey)
    with pytest.raises(DataError, match=message, check=at("")):
        opened(fill(tmp_path / "a", **grey))


def test_a_file_packed_and_unpacked_and_a_label_without_a_name_are_refused(grey, tmp_path):
    folder = fill(tmp_path / "a", **grey)
    (folder / "labels.txt").write_text("a\nb\nc\n")
    with pytest.raises(DataError, check=at("t10k-labels-idx1-ubyte", "row 1", "label 5", "0..2")):
        opened(folder)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    with pytest.raises(DataError, check=at(folder, "t10k-labels-idx1-ubyte and t10k-labels-idx1-ubyte.gz")):
        opened(folder)


def test_a_source_must_be_a_folder(tmp_path):
    with pytest.raises(UsageError, match="--source is missing; --source of idx is a folder"):
        opened("")
    with pytest.raises(DataError, match="--source of idx", check=at("gone")):
        opened(tmp_path / "gone")
