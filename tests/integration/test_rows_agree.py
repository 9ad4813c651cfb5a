"""Each row fed belongs to one record: image, label, key, features and record id carry the same number.

One table of forms of data, and of ways to feed them. Record i has label i % 300; its number is in its image (two
pixels of noise, or a grey that augmentations keep), in its key and in its features.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipeline import RandomAccess, Shard, StepIterator, augment_fn, distribute, input_fn
from pipeline.distribution import copied_ahead, on_devices
from pipeline.manifest import naming
from pipeline.request import Request
from tests.helpers.datasets import GREY_STEP, Kind, extra_of, flip, image_of, to_memory, write_dataset

COUNTS, SHAPE = (20, 0, 9, 8), (12, 10, 3)
LONG = (
    200,
    0,
    110,
    90,
)  # two windows of 25 batches, of which the last 16 are copied and the others stay where they lie
N, G, CLASSES = sum(COUNTS), 8, 300  # labels of one byte and, in long windows, of two
BYTES = 12 * 10 * 3
MEMORY, WINDOWS = {"streams": 1}, {"streams": 2, "shuffle_bytes": 2 * 7 * BYTES}
EXTRA = ("key", "id", "box")
EACH_MEMORY = pytest.mark.parametrize(
    "memory", [pytest.param(MEMORY, marks=pytest.mark.slow), WINDOWS], ids=["memory", "windows"]
)
Rows = dict[str, np.ndarray]
Feed = Callable[[str, dict[str, Any]], Iterator[Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of data, and how it is transformed.

    Attributes:
      kind: kind of the data set.
      options: options of `input_fn`.
      counts: number of records in each shard.
      greys: function from images, (rows, height, width, channels), to grey values; None if images are compared as they
        are.
    """

    kind: Kind
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    greys: Callable[[np.ndarray], np.ndarray] | None = None
    counts: tuple[int, ...] = COUNTS


def centre(images: np.ndarray) -> np.ndarray:
    """Returns the grey value, 0..255, in the middle, which shifts by a few pixels of zeros leave unchanged."""
    return images[:, images.shape[1] // 2, images.shape[2] // 2, 0] * (1 if images.dtype == np.uint8 else 255.0)


def mean(images: np.ndarray) -> np.ndarray:
    """Returns the mean grey value; all pixels of an image have it."""
    means = images.reshape(len(images), -1).mean(1)
    assert np.abs(images.reshape(len(images), -1) - means[:, None]).max() <= 1
    return means


def halved(images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    del keys
    return tf.cast(images, tf.float32) / 510.0


NOISE, GREY = Kind(), Kind(grey=True)
FEATURES = {"features": EXTRA}
FORMS = {
    "raw": Form(NOISE),
    "raw, long windows": Form(NOISE, {"streams": 1, "shuffle_bytes": 200 * BYTES}, counts=LONG),
    "raw, keys": Form(NOISE, {"features": ("key",)}),
    "raw, keys of several lengths": Form(Kind(unequal_keys=True), {"features": ("key",)}),
    "raw, features": Form(Kind(extra=True), FEATURES),
    "PNG": Form(Kind("png"), {"features": ("key",)}),
    "PNG, features": Form(Kind("png", extra=True), FEATURES),
    "JPEG": Form(dataclasses.replace(GREY, encoding="jpeg"), {"features": ("key",)}, mean),
    "GZIP": Form(Kind(compression="GZIP"), {"features": ("key",)}),
    "GZIP of members": Form(Kind(compression="GZIP", members=4), {"features": ("key",)}),
    "GZIP of members, PNG": Form(Kind("png", compression="GZIP", members=4), {"features": ("key",)}),
    "shift, whose crops are taken in memory": Form(GREY, {"augment": "shift", "features": ("key",)}, centre),
    "a recipe that takes whole images": Form(GREY, {"augment": "flip", "features": ("key",)}, centre),
    "a function": Form(GREY, {"augment": halved}, lambda images: 2 * centre(images)),
    "PNG, a part of each decoded": Form(
        dataclasses.replace(GREY, encoding="png", varied=True),
        {"augment": "random_crop(size=6,normalize=False)", "features": ("key",)},
        mean,
    ),
    "JPEG, a part of each decoded": Form(
        dataclasses.replace(GREY, encoding="jpeg", varied=True),
        {"augment": "random_resized_crop(size=6,normalize=False)", "features": ("key",)},
        mean,
    ),
    "sizes that vary, stretched": Form(
        dataclasses.replace(GREY, encoding="png", varied=True), {"resize": "6x6", "features": ("key",)}, mean
    ),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Writes the data set of a kind, once."""

    @functools.cache
    def made(kind: Kind, counts: tuple[int, ...] = COUNTS) -> str:
        folder = tmp_path_factory.mktemp("agree") / "made"
        write_dataset(folder, counts, SHAPE, classes=CLASSES, kind=kind)
        return str(folder)

    return made


def mirrored(count: int = 2) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def replicas_of(strategy: tf.distribute.Strategy, elements: Any) -> Iterator[Sequence[Any]]:
    """Yields the rows of each replica."""
    for element in elements:
        values = [strategy.experimental_local_results(value) for value in tf.nest.flatten(element)]
        for of_replica in zip(*values, strict=True):
            yield tf.nest.pack_sequence_as(element, list(of_replica))


def alone(data_dir: str, options: dict[str, Any]) -> Iterator[Sequence[Any]]:
    yield from input_fn(data_dir, **options)


def worker(index: int, count: int, local: int = 1) -> Feed:
    return lambda data_dir, options: iter(input_fn(data_dir, shard=Shard(index, count, local), **options))


def in_host_memory(data_dir: str, options: dict[str, Any]) -> Iterator[Sequence[Any]]:
    strategy = mirrored()
    return replicas_of(strategy, distribute(strategy, data_dir, **options))


def on_each_device(data_dir: str, options: dict[str, Any]) -> Iterator[Sequence[Any]]:
    strategy = mirrored()
    return replicas_of(strategy, on_devices(strategy, Request(data_dir, **options), copied_ahead(2)))


def stacked(data_dir: str, options: dict[str, Any]) -> Iterator[Sequence[Any]]:
    strategy = mirrored()
    for element in replicas_of(strategy, distribute(strategy, data_dir, virtual_replicas=4, **options)):
        for i in range(2):
            yield tf.nest.map_structure(lambda value: value[i], element)  # noqa: B023, called immediately


def from_numpy(data_dir: str, options: dict[str, Any]) -> Iterator[Sequence[Any]]:
    return StepIterator(data_dir, **options)


def by_tensorflow(data_dir: str, options: dict[str, Any]) -> Iterator[Sequence[Any]]:
    yield from input_fn(data_dir, portable=True, **options)


WAYS: dict[str, Feed] = {
    "input_fn": alone,
    "worker 1 of 2": worker(1, 2),
    "worker 2 of 4, two replicas": worker(1, 2, 2),
    "replicas in host memory": in_host_memory,
    "replicas on devices": on_each_device,
    "virtual replicas": stacked,
    "NumPy": from_numpy,
    "TensorFlow's reader": by_tensorflow,
}
FED = [
    (form, memory, way)
    for form in FORMS
    for memory in ("memory", "windows")
    for way in WAYS
    if form == "raw, keys"
    or way == "input_fn"
    or (
        form in ("raw", "raw, long windows", "PNG, features")
        and way in ("replicas in host memory", "TensorFlow's reader")
    )
]
IN_MEMORY = ("shift, whose crops are taken in memory",)  # the form that `make test` reads in memory
ONLY_SLOW = ("raw", "raw, long windows", "raw, features", "PNG", "GZIP", "a function")  # others are read by windows


def lane(form: str, memory: str, way: str) -> list[pytest.MarkDecorator]:
    """Returns the marks of a case: `make test` reads each form in one way, and one form in every way."""
    has_form = way == "input_fn" and (form in IN_MEMORY if memory == "memory" else form not in ONLY_SLOW)
    has_way = form == "raw, keys" and memory == "windows"
    return [] if has_form or has_way else [pytest.mark.slow]


def rows_of(elements: Iterable[Sequence[Any]]) -> Iterator[Rows]:
    """Yields the components of each element by name, as arrays."""
    for x, labels, weights, records in elements:
        found = {**(x if isinstance(x, dict) else {"image": x}), "label": labels, "weight": weights, "record": records}
        yield {name: np.asarray(value) for name, value in found.items()}


def check(form: Form, rows: Rows, numbers: np.ndarray) -> None:
    """Asserts that all components of rows belong to the records with these numbers."""
    assert rows["label"].tolist() == (numbers % CLASSES).tolist()
    if form.greys is None:
        assert (rows["image"] == np.stack([image_of(int(n), SHAPE, form.kind) for n in numbers])).all()
    else:
        np.testing.assert_allclose(form.greys(rows["image"]), numbers * GREY_STEP, atol=1.5)
    if "key" in rows:
        assert [int(key.split(b"#")[1]) for key in rows["key"].tolist()] == numbers.tolist()
    if "id" in rows:
        assert rows["id"].tolist() == [int(extra_of(int(n))["id"][0]) for n in numbers]
        assert rows["box"].tolist() == [extra_of(int(n))["box"].tolist() for n in numbers]


@pytest.mark.parametrize(("form", "memory", "way"), [pytest.param(*case, marks=lane(*case)) for case in FED])
@pytest.mark.quick(4)
def test_every_component_of_a_row_is_of_one_record(form, memory, way, folder_of):
    form, where = FORMS[form], {"memory": MEMORY, "windows": WINDOWS}[memory]
    options = {"global_batch_size": G, "training": True, "epochs": 2, "record_ids": True} | where | form.options
    seen = []
    for rows in rows_of(WAYS[way](folder_of(form.kind, form.counts), options)):
        check(form, rows, rows["record"])
        seen += rows["record"][rows["weight"] > 0].tolist()
    assert "worker" in way or sorted(seen) == sorted([*range(sum(form.counts))] * 2)


@pytest.mark.parametrize("step", [3, 30])
@pytest.mark.quick(1)
def test_a_run_that_begins_inside_a_window(step, folder_of):
    form = FORMS["raw, long windows"]
    options = {"global_batch_size": G, "training": True, "epochs": 1, "record_ids": True, "start_step": step}
    found = [*rows_of(alone(folder_of(form.kind, form.counts), options | form.options))]
    for rows in found:
        check(form, rows, rows["record"])
    assert len(found) == 50 - step


@pytest.mark.parametrize("form", ["raw, long windows", "PNG, features", "GZIP"])
@pytest.mark.parametrize("split", [pytest.param("train[5:20]", marks=pytest.mark.slow), "train[10:]+train[:3]"])
def test_slices_and_evaluations_in_their_order(form, split, folder_of):
    form = FORMS[form]
    count = sum(form.counts)
    numbers = np.r_[5:20] if split == "train[5:20]" else np.r_[10:count, 0:3]
    options = {"split": split, "global_batch_size": G, "training": False, "record_ids": True} | form.options
    seen = []
    for rows in rows_of(alone(folder_of(form.kind, form.counts), options)):
        check(form, rows, numbers[rows["record"]])
        seen += rows["label"][rows["weight"] > 0].tolist()
    assert seen == (numbers % CLASSES).tolist()


@pytest.mark.parametrize("way", ["input_fn", "worker 1 of 2", "replicas in host memory", "NumPy"])
@pytest.mark.parametrize("form", ["raw, keys", pytest.param("PNG, features", marks=pytest.mark.slow)])
@pytest.mark.quick(2)
def test_the_rows_of_a_mixture(form, way, folder_of):
    """The sources are two halves of one split, so that record ids are record numbers."""
    form = FORMS[form]
    data_dir = folder_of(form.kind)
    sources = [(f"{data_dir}:train[:20]", 3), (f"{data_dir}:train[20:]", 1)]
    options = {"global_batch_size": G, "training": True, "epochs": 2, "record_ids": True} | form.options
    seen = set()
    for rows in rows_of(WAYS[way](sources, options)):
        check(form, rows, rows["record"])
        seen |= {*rows["record"].tolist()}
    assert {number < 20 for number in seen} == {True, False}


@EACH_MEMORY
@pytest.mark.parametrize("place", ["host", "device"])
def test_rows_that_are_mixed_have_both_their_labels(place, memory, folder_of):
    data_dir = folder_of(GREY)
    options = {"global_batch_size": G, "training": True, "epochs": 1, "augment": "mixup", "augment_on": place} | memory
    mixed = augment_fn(data_dir, **options) if place == "device" else lambda *batch: batch
    for batch in input_fn(data_dir, **options):
        images, labels, _ = mixed(*batch)
        greys = images.numpy().reshape(G, -1)
        expected = labels.numpy() @ (np.arange(CLASSES) * GREY_STEP)
        scale = 255.0 if greys.max() <= 1 else 1.0
        np.testing.assert_allclose(greys * scale, np.broadcast_to(expected[:, None], greys.shape), atol=0.51)


@EACH_MEMORY
def test_rows_that_a_device_augments(memory, folder_of):
    form, data_dir = Form(GREY, greys=centre), folder_of(GREY)
    options = {"global_batch_size": G, "training": True, "epochs": 1, "augment": "shift", "augment_on": "device"}
    options |= {"features": ("key",)} | memory
    augment = augment_fn(data_dir, **options)
    for *batch, records in input_fn(data_dir, record_ids=True, **options):
        [rows] = rows_of([(*augment(*batch), records)])
        check(form, rows, records.numpy())


@EACH_MEMORY
def test_parsed_rows(memory, folder_of):
    def parse(records):
        kinds = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        kinds |= {"key": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_example(records, kinds | {"box": tf.io.FixedLenFeature([4], tf.float32)})
        found["image"] = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (-1, *SHAPE))
        return found, found.pop("label")

    form = FORMS["raw, features"]
    options = {"global_batch_size": G, "training": True, "epochs": 1, "record_ids": True, "parse": parse} | memory
    for rows in rows_of(alone(folder_of(form.kind), options)):
        check(form, rows, rows["record"])


@pytest.mark.parametrize("form", ["raw, keys", "PNG, features", "GZIP of members"])
@pytest.mark.quick(1)
def test_rows_of_copies_in_a_cache(form, folder_of, tmp_path):
    form = FORMS[form]
    url = to_memory(pathlib.Path(folder_of(form.kind)), f"agree-{form.kind.encoding}{form.kind.compression}")
    options = {"global_batch_size": G, "training": True, "epochs": 1, "record_ids": True, "cache_dir": tmp_path}
    for rows in rows_of(alone(url, options | form.options | WINDOWS)):
        check(form, rows, rows["record"])


@EACH_MEMORY
@pytest.mark.parametrize("form", ["raw, keys", "PNG, features", "GZIP of members"])
@pytest.mark.quick(1)
def test_rows_beside_a_corrupt_record(form, memory, tmp_path):
    form = FORMS[form]
    write_dataset(tmp_path, COUNTS, SHAPE, classes=CLASSES, kind=form.kind)
    path = tmp_path / f"train-00002-of-00004.tfrecord{naming.COMPRESSIONS[form.kind.compression]}"
    flip(path, mask=255)
    options = {"global_batch_size": G, "training": True, "epochs": 1, "record_ids": True, "on_corrupt": "skip"}
    seen = []
    for rows in rows_of(alone(str(tmp_path), options | form.options | memory)):
        real = rows["weight"] > 0
        check(form, {name: part[real] for name, part in rows.items()}, rows["record"][real])
        seen += rows["record"][real].tolist()
    assert N - 9 <= len(set(seen)) == len(seen) < N


@pytest.mark.parametrize("form", ["raw, features", "PNG, features", "GZIP of members, PNG"])
@pytest.mark.quick(1)
def test_single_examples(form, folder_of):
    form = FORMS[form]
    for number, found in enumerate(RandomAccess(folder_of(form.kind))):
        named = {name: np.asarray(value)[None] for name, value in found.items() if name in ("image", "label", *EXTRA)}
        named["key"] = np.array([found["key"]], object)
        check(form, named, np.array([number]))
