"""Folders of IDX files: images of any size, with channels or not, split by their names."""

import gzip
import string
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.sources import open_source
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError, UsageError
from tests.helpers.lanes import examples
from tests.helpers.raised import at, said
from tests.helpers.round_trips import Row, check, digits, empty_folder


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


HEADS = {"train": ("train-", "shapes.Train."), "validation": ("val_",), "test": ("t10k-", "my test ")}
FORMS = ["images-idx{}-ubyte", "images.idx{}-ubyte"]


@st.composite
def pairs(draw):
    """Draws a data set and its {split: (file of images, images, file of labels, labels)}."""
    dataset = draw(st.sampled_from(["idx", "idx", "mnist", "emnist_letters"]))
    shape, highest, heads = (28, 28), 9, {"train": "train-", "test": "t10k-"}
    if dataset == "emnist_letters":
        highest, heads = 26, {split: f"emnist-letters-{split}-" for split in heads}
    if dataset == "idx":
        chosen = draw(st.lists(st.sampled_from(sorted(HEADS)), unique=True))
        heads = {split: draw(st.sampled_from(HEADS[split])) for split in HEADS if split in chosen} or {"train": ""}
        shape = (*draw(st.tuples(*[st.integers(1, 5)] * 2)), *draw(st.sampled_from([(), (1,), (3,), (4,)])))
    form = FORMS[0] if dataset != "idx" else draw(st.sampled_from(FORMS))
    found = {}
    for split, head in heads.items():
        count, noise = draw(st.integers(1, 9)), np.random.default_rng(draw(st.integers(0, 99)))
        images = noise.integers(0, 256, (count, *shape), np.uint8)
        labels = noise.integers(dataset == "emnist_letters", highest + 1, count, np.uint8)
        names = (head + form.format(1 + len(shape)), head + form.format(1).replace("images", "labels"))
        found[split] = (names[0], images, names[1], labels)
    return dataset, found


@given(st.data())
@settings(max_examples=examples(40), derandomize=True)
def test_pairs_of_files_become_their_rows(data):
    dataset, found = data.draw(pairs())
    is_letters, labels = dataset == "emnist_letters", np.concatenate([own for *_, own in found.values()])
    class_names = list(string.ascii_uppercase) if is_letters else [str(label) for label in range(10)]
    table = {}
    with empty_folder() as folder:
        source = folder / "in"
        source.mkdir()
        if dataset == "idx":
            class_names = class_names[: labels.max() + 1]
            if data.draw(st.booleans(), "labels.txt"):
                class_names = [f"class {label}" for label in range(10)]
                (source / "labels.txt").write_text("\n".join(class_names))
        for split, (images_name, images, labels_name, own) in found.items():
            for name, values in ((images_name, images), (labels_name, own)):
                packed = data.draw(st.booleans(), "gzip")
                (source / f"{name}{'.gz' if packed else ''}").write_bytes(
                    (gzip.compress if packed else bytes)(idx(values))
                )
            table[split] = [
                Row(
                    images_name, row, f"{images_name}#{row:0{digits(len(own))}d}".encode(),
                    (images[row].T if is_letters else images[row]).tobytes(), class_names[own[row] - is_letters],
                )
                for row in range(len(own))
            ]  # fmt: skip
        plan = check(data, folder, table, class_names, dataset=dataset, source=str(source))
    assert plan.source.image_shape == (*images.shape[1:], 1)[:3]


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
    with pytest.raises(UsageError, check=said("--source")):
        opened("")
    with pytest.raises(DataError, match="--source of idx", check=at("gone")):
        opened(tmp_path / "gone")
