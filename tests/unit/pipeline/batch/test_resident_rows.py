"""Splits in memory: rows of which only crops are taken give the same batches to the byte."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import Shard, input_fn, operations
from pipeline.batch import resident
from pipeline.batch.compose import choose
from pipeline.batch.resident import load
from pipeline.decode.forms import Kept, Serialized
from pipeline.errors import DataError
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers import datasets, forked
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.raised import at

PARTS = ["cifar10_tutorial(crop=5)", "cifar10_tutorial(crop=6, flip=False)", "pad_crop_flip(pad=3)", "shift(pixels=5)"]
WHOLE = ["none", "cutout(size=2) | pad_crop_flip(pad=1)", "color_jitter"]


def taken(folder, **options):
    given = {"global_batch_size": 4, "training": True, "epochs": 2, "record_ids": True, "seed": 7, **options}
    return [[np.asarray(crop) for crop in element] for element in input_fn(folder, **given)]


def rows_of(folder, **options):
    request = Request(folder, **{"global_batch_size": 4, "training": True, **options})
    return load(*choose(resolve(request)))[0]


@pytest.mark.parametrize(
    ("augment", "options"),
    [
        *(pytest.param(augment, {}, marks=pytest.mark.slow if i else ()) for i, augment in enumerate(PARTS)),
        pytest.param(PARTS[0], {"start_step": 5}, marks=pytest.mark.slow),
        (PARTS[2], {"shard": Shard(1, 2)}),
        ("shift(pixels=3) | cutout(size=2) | mixup", {"start_step": 5, "shard": Shard(1, 2)}),
    ],
    ids=str,
)
@pytest.mark.quick(1)
def test_parts_give_the_bytes_of_whole_images(folder, compiled_operation, monkeypatch, augment, options):
    crops = taken(folder, augment=augment, **options)
    monkeypatch.setattr(operations, "is_compiled", lambda: False)
    assert rows_of(folder, augment=augment).crops is None
    whole = taken(folder, augment=augment, **options)
    assert len(crops) == len(whole) == 16 - options.get("start_step", 0)
    assert any(not np.array_equal(crops[0][0][0], element[0][0]) for element in crops)
    for one, other in zip(crops, whole, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            assert mine.tobytes() == theirs.tobytes()


CROPPED = {"augment": "random_resized_crop(size=6)"}


def form_of(folder, **options):
    request = Request(folder, **{"global_batch_size": 4, "training": True, **CROPPED, **options})
    return load(*choose(resolve(request)))[1].form


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_files_that_stay_in_memory_give_the_images_of_copied_records(
    tmp_path, compiled_operation, monkeypatch, encoding
):
    write_dataset(tmp_path, (11, 10), (20, 18, 3), kind=Kind(encoding, varied=True))
    monkeypatch.setattr(resident, "_COPIED_BYTES", 3000)  # so that they are found in several parts
    assert isinstance(form_of(tmp_path), Kept)
    kept = taken(tmp_path, **CROPPED, start_step=2)
    monkeypatch.setattr(operations, "find_images", lambda records, *names: tf.fill([tf.size(records), 3], np.int64(-1)))
    assert isinstance(form_of(tmp_path), Serialized)
    copied = taken(tmp_path, **CROPPED, start_step=2)
    assert len(kept) == len(copied) == 10
    for one, other in zip(kept, copied, strict=True):
        assert [part.tobytes() for part in one] == [part.tobytes() for part in other]
    # They need their records: features of them, and those of which some may be skipped.
    assert isinstance(form_of(tmp_path, features=["key"]), Serialized)
    assert isinstance(form_of(tmp_path, on_corrupt="skip"), Serialized)


def test_parts_are_taken_where_a_recipe_begins_with_them(folder, compiled_operation):
    for augment in PARTS:
        assert rows_of(folder, augment=augment).crops is not None
        assert rows_of(folder, augment=augment, augment_on="device").crops is None
        assert rows_of(folder, augment=augment, training=False).crops is None
    for augment in WHOLE:
        assert rows_of(folder, augment=augment).crops is None


def test_the_zeros_around_an_image_are_where_it_was_moved_from(folder):
    """Each image is the stored one, moved, and zero where it was moved from."""
    stored = {
        int(r): image for images, _, _, ids in taken(folder, augment=None) for r, image in zip(ids, images, strict=True)
    }
    moved = 0
    for images, _, _, ids in taken(folder, augment="shift(pixels=3)"):
        for image, record in zip(np.round(images * 255).astype(np.uint8), ids, strict=True):
            framed = np.pad(stored[int(record)], [(3, 3), (3, 3), (0, 0)])
            places = [(y, x) for y in range(7) for x in range(7) if (framed[y : y + 8, x : x + 6] == image).all()]
            assert places
            moved += places[0] != (3, 3)
    assert moved > 30


def test_rows_carry_their_record_ids(folder):
    rows = rows_of(folder, augment="shift")
    found = rows.take(tf.constant(0, tf.int64), tf.constant([[3, 30], [0, 3]], tf.int64))
    assert found["record_id"].numpy().tolist() == [[3, 30], [0, 3]]
    assert found["image"].shape == (2, 2, 8 * 6 * 3)
    assert np.array_equal(found["image"][0, 0], found["image"][1, 1])
    assert not np.array_equal(found["image"][0, 0], found["image"][1, 0])


@pytest.mark.parametrize("number", [2, 11, 16])
@pytest.mark.parametrize("together", [256, 5])
def test_the_first_image_that_cannot_be_decoded_is_named(tmp_path, monkeypatch, number, together):
    """In shards of 10 and 8 records, decoded all at once, or 5 at a time."""
    encoded = datasets.encoded

    def broken(image, encoding):
        data = encoded(image, encoding)
        bad = int(image.reshape(-1)[0]) in (number, 17)  # by which images tell their numbers
        return data[:-30] + bytes(30) if bad else data

    monkeypatch.setattr(datasets, "encoded", broken)
    made = write_dataset(tmp_path, (10, 8), kind=Kind("png"))
    monkeypatch.setattr(resident, "DECODED_TOGETHER", together)
    shard, row = divmod(number, 10)
    file = made.splits["train"].shards[shard].file
    with pytest.raises(
        DataError, check=at(file, "its image cannot be decoded: ", record=row, advice="convert the data again")
    ):
        rows_of(tmp_path)


def test_images_are_decoded_in_parts_and_keep_their_order(tmp_path, monkeypatch):
    write_dataset(tmp_path, (10, 8), kind=Kind("png", extra=True))
    monkeypatch.setattr(resident, "DECODED_TOGETHER", 5)
    columns = rows_of(tmp_path, features=["id"]).columns
    np.testing.assert_array_equal(columns["image"], datasets.images_of(0, 18, (8, 6, 3)).reshape(18, -1))
    assert columns["id"].numpy().tolist() == [*range(1000, 1018)]
    assert columns["label"].numpy().tolist() == [number % 3 for number in range(18)]


MANY = """
import sys
from pipeline import input_fn
for side in range(4, 10):
    images, *_ = next(iter(input_fn(sys.argv[1], global_batch_size=4, training=True, resize=(side, side))))
    assert images.shape == (4, side, side, 3)
"""


@pytest.mark.slow
def test_many_inputs_of_images_are_no_reason_to_warn_of_traces(tmp_path):
    write_dataset(tmp_path, (300,), (8, 8, 3), kind=Kind("png"))  # decoded in two parts, of which the second is smaller
    # In a process of its own, as TensorFlow warns of a function twice at most.
    done = forked.run(["-c", MANY, tmp_path])
    assert done.returncode == 0, done.stderr
    assert "retracing" not in done.stderr
