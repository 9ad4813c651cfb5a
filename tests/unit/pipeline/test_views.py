"""Views through the input: what is fed and read, how a run resumes, and the columns that views are made from."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

from pipeline import manifest as manifests
from pipeline import skipped_records
from pipeline.audit.__main__ import main as audit
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import alone_in
from pipeline.index.__main__ import main as index
from pipeline.input import input_fn, order_spec, steps_per_epoch
from pipeline.inspect import steps
from pipeline.manifest.columns import Columns
from pipeline.manifest.splits import select
from pipeline.order.sharding import Shard
from pipeline.read.shards import Shards
from pipeline.records import tf_example
from pipeline.request import Request
from pipeline.resolved import resolve, resolve_all
from pipeline.step_iterator import StepIterator
from tests.helpers.datasets import Kind, edit_manifest, write_dataset
from tests.helpers.lanes import some_slow

RAW = Kind()
COUNTS = (30, 0, 25, 45)  # records of each shard; record i has label i % 5
SMALL = 3000  # bytes to shuffle: several windows
VIEWS = {
    "where": {"where": "label in (1, 'class 3')"},
    "limit": {"limit": "7 per label"},
    "balance": {"where": "rare < 70 or label == 0", "balance": "label"},
    "weigh": {"weigh": "weight"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data sets of each kind, with columns `label`, `bytes`, `rare` (the record's number) and `weight`."""
    made = {}

    def of(name, kind=RAW):
        if name not in made:
            folder = made[name] = tmp_path_factory.mktemp("data") / name
            write_dataset(folder, COUNTS, classes=5, kind=kind)
            index([str(folder), "--add_columns=records"])
            keys = [f"{split}#{i:05d}" for split, n in (("train", 100), ("test", 4)) for i in range(n)]
            numbers = [int(key[-5:]) for key in keys]
            table = {"key": keys, "rare": numbers, "weight": [i % 7 / 2 for i in numbers]}
            pyarrow.parquet.write_table(pyarrow.table(table), folder.parent / "more.parquet")
            index([str(folder), f"--add_columns={folder.parent / 'more.parquet'}"])
        return made[name]

    return of


def fed(folder, epochs=1, **options):
    """Ids of the real rows, the labels and the images of an input's elements."""
    ids, labels, images = [], [], []
    arguments = {"global_batch_size": 10, "training": True, "epochs": epochs, "record_ids": True, **options}
    for image, label, weight, record in input_fn(folder, "train", **arguments).as_numpy_iterator():
        assert image.shape[0] == label.shape[0] == 10
        ids += record[weight > 0].tolist()
        labels += label[weight > 0].tolist()
        images += list(image[weight > 0])
    return np.array(ids), np.array(labels), np.array(images)


def check_portable(folder, least, **options):
    """A portable dataset has the elements of a usual one, of which there are more than `least`."""
    one, other = (list(input_fn(folder, portable=way, record_ids=True, **options)) for way in (False, True))
    assert len(one) == len(other) > least
    for mine, theirs in zip(one, other, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


KINDS = {
    "raw": RAW,
    "unequal": Kind(unequal_keys=False, extra=True),
    "png": Kind(encoding="png"),
    "members": Kind(compression="GZIP", members=4),
}
PORTABLE = (("raw", 1 << 30),)  # what the fast tests feed both ways


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shuffle_bytes"),
    some_slow(
        itertools.product(KINDS, (1 << 30, SMALL)),
        [("raw", SMALL), ("unequal", 1 << 30), ("png", SMALL), ("members", 1 << 30)],
    ),
)
def test_each_record_is_fed_as_often_as_its_view_says_with_its_own_image(data, kind, shuffle_bytes):
    folder = data(kind, KINDS[kind])
    ids, labels, plain = fed(folder, shuffle_bytes=shuffle_bytes)
    image_of = dict(zip(ids.tolist(), plain, strict=True))
    assert sorted(ids) == list(range(100))
    for name, view in VIEWS.items():
        ids, labels, images = fed(folder, shuffle_bytes=shuffle_bytes, **view)
        times = np.bincount(ids, minlength=100)
        assert steps_per_epoch(folder, global_batch_size=10, **view) == -(-len(ids) // 10)
        assert (labels == ids % 5).all()
        assert all((image == image_of[record]).all() for record, image in zip(ids.tolist(), images, strict=True))
        if name == "where":
            assert times.tolist() == [int(i % 5 in (1, 3)) for i in range(100)]
        elif name == "limit":
            assert np.bincount(labels).tolist() == [7] * 5
            assert times.max() == 1
        elif name == "balance":  # classes of 20, 14, 14, 14, 14
            assert np.bincount(labels).tolist() == [20] * 5
            assert {*times[:70:5]} == {1}
            assert {*times[1:70:5]} == {1, 2}
            assert not times[71::5].any()
        else:
            assert times.sum() == int(sum(i % 7 / 2 for i in range(100)))
            assert all(abs(times[i] - i % 7 / 2) < 1 for i in range(100))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shuffle_bytes"),
    [
        pytest.param(kind, size, id=f"{name}-{kind}", marks=() if (kind, size) in PORTABLE else pytest.mark.slow)
        for name, size in (("one window", 1 << 30), ("in windows", SMALL))
        for kind in (*list(KINDS)[:2], "png", "gzip")
    ],
)
def test_portable_views_feed_the_same_batches(data, kind, shuffle_bytes):
    folder = data(kind, (KINDS | {"gzip": Kind(compression="GZIP")})[kind])
    options = {"global_batch_size": 10, "training": True, "epochs": 3, "augment": "shift"}
    options |= {"shuffle_bytes": shuffle_bytes, "skip_steps": "1:2,5:7", "start_step": 1}
    for view in VIEWS.values():
        check_portable(folder, 5, **options, **view)


@pytest.mark.parametrize("options", [{}, {"shuffle_bytes": SMALL}, {"portable": True}, {"augment": "shift"}])
@pytest.mark.parametrize("kind", ["raw", "png"])
@pytest.mark.quick(1)
def test_the_records_of_some_classes_have_labels_of_their_own(data, kind, options):
    folder, classes = data(kind, KINDS[kind]), ["class 3", "class 0"]
    ids, labels, _ = fed(folder, classes=classes, where="rare < 90", **options)
    assert sorted(ids) == [i for i in range(90) if i % 5 in (0, 3)]
    assert labels.tolist() == [{3: 0, 0: 1}[i % 5] for i in ids.tolist()]
    assert steps_per_epoch(folder, global_batch_size=10, classes="class 3,class 0", where="rare < 90") == 4
    ids, labels, _ = fed(folder, training=False, classes=classes, **options)
    assert ids.tolist() == [i for i in range(100) if i % 5 in (0, 3)]
    assert labels.tolist() == [{3: 0, 0: 1}[i % 5] for i in ids.tolist()]


def test_rows_that_are_handed_out_where_they_lie_have_the_labels_of_the_view(data):
    classes = [f"class {number}" for number in range(5)][::-1]
    options = {"global_batch_size": 1, "training": True, "epochs": 1, "record_ids": True, "shuffle_bytes": SMALL}
    elements = input_fn(data("raw"), classes=classes, **options).as_numpy_iterator()
    rows = [(int(record[0]), int(label[0])) for _, label, _, record in elements]
    assert sorted(rows) == [(number, 4 - number % 5) for number in range(100)]


def test_what_counts_classes_counts_those_of_the_view(data):
    options = {"classes": ("class 4", "class 1", "class 2"), "epochs": 1}
    elements = input_fn(data("raw"), global_batch_size=10, training=True, augment="mixup", **options)
    assert elements.element_spec[1].shape == (10, 3)
    counts = np.bincount(fed(data("raw"), balance="label", **options)[1])
    assert counts.tolist() == [20, 20, 20]
    weights = input_fn(data("raw"), global_batch_size=30, training=True, class_weight={0: 5.0}, **options)
    for _, labels, weight in weights.as_numpy_iterator():
        assert (weight[labels == 0] == 5).all()
        assert (weight[labels > 0] == 1).all()
    with pytest.raises(UsageError, match="there is no class 3; the data set has 0 to 2"):
        input_fn(data("raw"), global_batch_size=10, training=True, class_weight={3: 5.0}, **options)


def test_another_order_of_classes_is_another_order_of_the_run(data):
    options = {"global_batch_size": 10, "training": True}
    one, other = (order_spec(data("raw"), classes=names, **options) for names in ("class 1,class 2", "class 2,class 1"))
    assert one.view.startswith("classes: class 1, class 2; column label: ")
    assert one.digest != other.digest
    assert order_spec(data("raw"), classes=["class 1", "class 2"], **options) == one


@pytest.mark.slow
def test_sources_with_other_classes_are_mixed_by_those_that_they_share(data, tmp_path):
    write_dataset(tmp_path / "two", (20,), classes=2)
    index([str(tmp_path / "two"), "--add_columns=records"])
    sources, options = [(data("raw"), 0.5), (tmp_path / "two", 0.5)], {"global_batch_size": 10, "training": True}
    with pytest.raises(UsageError, match="differ in the number of classes: 5 and 2"):
        input_fn(sources, **options)
    own = [(folder, weight, {"classes": ["class 1", "class 0"]}) for folder, weight in sources]
    of_first = {"classes": f"{data('raw')}:train: class 1,class 0"}
    for given, more in ((sources, {"classes": "class 1,class 0"}), (own, {}), ([sources[0], own[1]], of_first)):
        seen = set()
        elements = input_fn(given, epochs=1, record_ids=True, **more, **options)
        for _, label, _, record in elements.as_numpy_iterator():
            classes = np.where(record < 100, record % 5, (record - 100) % 2)
            assert (label == 1 - classes).all()
            seen |= set(label.tolist())
        assert seen == {0, 1}


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ("class 1,lynx", "classes: unknown 'lynx'"),
        ("class 1,class 1", "names 'class 1' twice"),
        ("", "must be names of classes"),
        ([], "must be names of classes"),
        (["class 1", 2], "must be names of classes"),
        (3, "must be names of classes"),
    ],
)
def test_classes_that_cannot_be_are_named(data, classes, problem):
    with pytest.raises(UsageError, match=problem):
        input_fn(data("raw"), global_batch_size=10, training=True, classes=classes)


def test_classes_need_the_labels_of_images(data, tmp_path):
    options = {"global_batch_size": 10, "training": True, "classes": "class 1"}
    with pytest.raises(UsageError, match="classes='class 1' with parse"):
        input_fn(data("raw"), parse=lambda records: records, **options)
    with pytest.raises(UsageError, match="classes=class 1 with where='rare < 0': keeps none of the 100 records"):
        input_fn(data("raw"), where="rare < 0", **options)
    write_dataset(tmp_path / "none", (20,), classes=2)
    with pytest.raises(UsageError, match=r"classes=.*column 'label': the data set has no columns"):
        input_fn(tmp_path / "none", **options)
    (tmp_path / "own.py").write_text("def own(record): return {'label': 1}")
    index([str(tmp_path / "none"), f"--add_columns={tmp_path}/own.py:own"])
    with pytest.raises(UsageError, match="the column 'label' has values of a file or function"):
        input_fn(tmp_path / "none", **options)


@pytest.mark.slow
def test_a_portable_mixture_feeds_the_views_of_its_sources(data):
    sources = [(data("raw"), 0.5, VIEWS["weigh"]), (data("png", KINDS["png"]), 0.5, VIEWS["where"])]
    check_portable(sources, 5, global_batch_size=10, training=True, epochs=2, limit=60)


@pytest.mark.slow
def test_a_portable_mixture_follows_its_schedule(data):
    sources = [(data("raw"), 1, VIEWS["where"]), (data("gzip", Kind(compression="GZIP")), 1)]
    one, other = (os.fspath(source[0]) for source in sources)
    schedule = [(0, {one: 1, other: 1}), (4, {one: 0, other: 1}), (8, {one: 1, other: 2})]
    check_portable(sources, 8, global_batch_size=12, training=True, epochs=3, start_step=1, schedule=schedule)


def test_epochs_differ_in_who_gets_the_extra_turn(data):
    view = VIEWS["balance"]
    first, second = (np.bincount(fed(data("raw"), epochs=epochs, **view)[0], minlength=100) for epochs in (1, 2))
    second -= first
    assert first.sum() == second.sum() == 100
    assert (first != second).any()


@pytest.mark.parametrize("shuffle_bytes", some_slow([1 << 30, SMALL], [SMALL]), ids=["in memory", "in windows"])
def test_copies_of_a_record_are_augmented_differently_and_the_first_as_without_a_view(data, shuffle_bytes):
    options = {"augment": "shift", "shuffle_bytes": shuffle_bytes}
    ids, _, images = fed(data("raw"), **options)
    plain = dict(zip(ids.tolist(), images, strict=True))
    ids, _, images = fed(data("raw"), weigh="weight", **options)
    several = [record for record in range(100) if (ids == record).sum() == 3]
    found = [images[ids == record] for record in several]
    assert len(several) > 10
    assert all(any((image == plain[record]).all() for image in own) for record, own in zip(several, found, strict=True))
    assert np.mean([len({image.tobytes() for image in own}) for own in found]) > 2.5


def test_a_mixture_has_views_of_its_sources_and_common_ones(data):
    one, other = data("raw"), data("png", KINDS["png"])
    sources = [(one, 0.5), (other, 0.5, {"where": "label == 2"})]
    arguments = {"global_batch_size": 10, "training": True, "epochs": 1, "record_ids": True, "limit": "4 per label"}
    assert steps_per_epoch(sources, global_batch_size=10, limit="4 per label") == 4
    found = list(input_fn(sources, **arguments).as_numpy_iterator())
    ids = np.concatenate([element[-1][element[-2] > 0] for element in found])
    own, theirs = ids[ids < 100], ids[ids >= 100] - 100
    assert np.bincount(own % 5).tolist() == [4] * 5
    assert {*theirs % 5} == {2}
    assert len({*theirs.tolist()}) == 4
    spec = order_spec(sources, global_batch_size=10, training=True, limit="4 per label")
    assert [part.view.partition("; column")[0] for part in spec.parts] == [
        "limit: 4 per label",
        "where: label == 2; limit: 4 per label",
    ]


def test_all_copies_of_a_key_are_found(data):
    options = {"global_batch_size": 10, "training": True, "balance": "label", "where": "rare < 70 or label == 0"}
    resolved = resolve_all(Request(data("raw"), **options))
    ids, _, _ = fed(data("raw"), balance="label", where="rare < 70 or label == 0")
    record = int(np.bincount(ids).argmax())
    assert len(steps.fed_in_epoch(resolved, 0, record, 0, 1)) == (ids == record).sum() > 1


def test_an_option_that_no_source_has_is_named(data):
    with pytest.raises(UsageError, match=r"option: unknown 'wehre'; did you mean 'where'\?"):
        Request([(data("raw"), 1.0, {"wehre": "label == 1"})], global_batch_size=4, training=True)


def test_an_evaluation_takes_the_chosen_records_in_the_stored_order(data):
    ids, _, _ = fed(data("raw"), training=False, epochs=None, where="label == 4", limit=15)
    assert ids.tolist() == sorted(ids)
    assert len(ids) == 15
    assert {*ids % 5} == {4}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"balance": "label", "training": False},
            "balance='label' with training=False: an evaluation counts each record",
        ),
        ({"weigh": "weight", "training": False}, "weigh='weight' with training=False"),
        ({"skip_steps": "1:2", "training": False}, "skip_steps with training=False"),
        (
            {"where": "lable == 1"},
            "unknown 'lable'; did you mean 'label'? known: bytes, height, label, rare, weight, width",
        ),
        ({"where": "label == 'class 9'"}, "no value 'class 9'; did you mean 'class 4'? known: class 0, class 1"),
        ({"limit": 9, "remainder": "drop"}, "its 9 records of the view limit: 9 do not fill one batch of 10"),
    ],
)
def test_what_cannot_work_is_said(data, options, said):
    with pytest.raises(UsageError) as caught:
        fed(data("raw"), **options)
    assert said in str(caught.value)


def test_a_data_set_without_columns_says_how_to_get_them(tmp_path):
    write_dataset(tmp_path / "old")
    with pytest.raises(UsageError, match=r"has no columns; write those .*pipeline.index .*old --add_columns=records"):
        fed(tmp_path / "old", where="label == 1")
    ids, _, _ = fed(tmp_path / "old", where="height == 8 and width == 6")  # of images of one size, known without
    assert sorted(ids) == list(range(12))


@pytest.mark.parametrize("shuffle_bytes", [1 << 30, SMALL], ids=["in memory", "in windows"])
@pytest.mark.quick(1)
def test_a_shard_of_which_nothing_is_wanted_is_never_opened(data, shuffle_bytes, monkeypatch):
    opened, plain = set(), Shards.opened

    def noted(self, segment):
        opened.add(self.segments[segment].shard.file)
        return plain(self, segment)

    monkeypatch.setattr(Shards, "opened", noted)
    ids, _, _ = fed(data("raw"), where="30 <= rare < 55", shuffle_bytes=shuffle_bytes)
    assert sorted(ids) == list(range(30, 55))
    assert opened == {"train-00002-of-00004.tfrecord"}


@pytest.mark.parametrize("kind", ["raw", "unequal"])
def test_a_window_reads_only_the_records_that_it_needs(data, kind, monkeypatch):
    read = []
    import pipeline.read.frames as frames

    plain = frames.read

    def noted(file, begins, places, memory):
        read.append(len(begins))
        return plain(file, begins, places, memory)

    monkeypatch.setattr(frames, "read", noted)
    ids, _, _ = fed(data(kind, KINDS[kind]), where="rare % 10 == 3", shuffle_bytes=SMALL)
    assert sorted(ids) == list(range(3, 100, 10))
    assert sum(read) == 10 + (kind != "raw")  # the first one is looked at before the graph is built


@pytest.mark.slow
def test_a_corrupt_record_is_skipped_in_all_of_its_copies(tmp_path):
    folder = tmp_path / "torn"
    made = write_dataset(folder, (20,), classes=2)
    index([str(folder), "--add_columns=records"])
    shard = made.splits["train"].shards[0]
    path = folder / shard.file
    data = bytearray(path.read_bytes())
    data[shard.stride * 6 + 40] ^= 1
    path.write_bytes(data)
    (tmp_path / "weights.py").write_text("def w(record):\n    return {'w': 3}\n")
    with pytest.raises(DataError, match="record 6"):
        index([str(folder), f"--add_columns={tmp_path / 'weights.py'}:w"])
    for shuffle_bytes in (1 << 30, SMALL):
        ids, labels, _ = fed(folder, weigh="bytes", shuffle_bytes=shuffle_bytes, on_corrupt="skip", limit=4)
        del labels
        times = np.bincount(ids, minlength=20)
        assert times[6] == 0
        assert len({*times.tolist()} - {0}) == 1
    assert [record.record for record in skipped_records(folder)] in ([6], [])


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.quick(1)
def test_workers_feed_the_rows_of_the_whole_batch_and_any_step_can_be_the_first(data, view):
    options = {
        "global_batch_size": 12,
        "training": True,
        "record_ids": True,
        "shuffle_bytes": SMALL,
        "augment": "shift",
    }
    whole = [
        [np.asarray(part) for part in element]
        for element in input_fn(data("raw"), **options, **view, epochs=2).as_numpy_iterator()
    ]
    for worker, first in ((0, 0), (2, 5)):
        shard = Shard(worker, 3)
        own = input_fn(data("raw"), **options, **view, epochs=2, shard=shard, start_step=first)
        for step, element in enumerate(own.as_numpy_iterator(), first):
            for part, of_whole in zip(element, whole[step], strict=True):
                np.testing.assert_array_equal(part, of_whole[worker * 4 : worker * 4 + 4])


def test_rows_of_skipped_steps_have_no_weight_and_others_are_as_before(data):
    options = {"global_batch_size": 10, "training": True, "record_ids": True, "epochs": 1}
    for more in ({}, {"shuffle_bytes": SMALL}, {"weights": "mean"}):
        plain, skipped = (
            list(input_fn(data("raw"), **options, **more, skip_steps=skips).as_numpy_iterator())
            for skips in ((), "3:5,9:10")
        )
        assert len(plain) == len(skipped) == 10
        for step, (one, other) in enumerate(zip(plain, skipped, strict=True)):
            np.testing.assert_array_equal(one[3], other[3])
            np.testing.assert_array_equal(other[2], 0 if step in (3, 4, 9) else one[2])


def test_an_iterator_resumes_in_its_view_and_in_no_other(data, caplog):
    def made(**more):
        return StepIterator(
            data("raw"), global_batch_size=10, training=True, record_ids=True, **{"balance": "label", **more}
        )

    batches = made()
    for _ in range(3):
        next(batches)
    state, rest = json.loads(json.dumps(batches.get_state())), [next(batches)[-1] for _ in range(12)]
    again = made()
    again.set_state(state)
    np.testing.assert_array_equal([next(again)[-1] for _ in range(12)], rest)
    with pytest.raises(UsageError, match="view was balance: label; column label: .*, is limit: 50"):
        made(balance=None, limit=50).set_state(state)
    with pytest.raises(UsageError, match="skip_steps was none, is 2:3; give the old values"):
        made(skip_steps="2:4").set_state(state)
    with caplog.at_level(logging.WARNING, "pipeline"):
        later = made(skip_steps="3:4")
        later.set_state(state)
    assert "skip_steps was none, is 3:4, which differ only from step 3 on" in caplog.text
    assert next(later)[2].tolist() == [0] * 10
    np.testing.assert_array_equal(next(later)[-1], rest[1])


def test_a_function_is_known_by_the_records_that_it_keeps(data):
    arguments = {"global_batch_size": 10, "training": True}

    def spec(function):
        return order_spec(data("raw"), **arguments, where=function)

    one, same, other = (
        spec(f) for f in (lambda c: c["label"] == 3, lambda c: c["label"] - 3 == 0, lambda c: c["label"] == 2)
    )
    assert one.view == same.view
    assert one.view.startswith("where: mask ")
    assert one.view != other.view


# Columns.


def test_columns_are_those_of_the_records_and_leave_the_data_as_they_are(data, tmp_path):
    plain = write_dataset(tmp_path / "plain", COUNTS, classes=5)
    folder = data("raw")
    made = manifests.load(folder)
    assert made.digest == plain.digest
    assert dataclasses.replace(made, columns={}).to_bytes() == plain.to_bytes()
    columns = Columns(folder, made, select(made, "train[90:]+test"))
    assert columns["label"].tolist() == [*(i % 5 for i in range(90, 100)), 0, 1, 2, 3]
    assert columns["rare"].tolist() == [*range(90, 100), 0, 1, 2, 3]
    assert {name: column.dtype for name, column in made.columns.items()} == {
        "bytes": "int16",
        "label": "int8",
        "rare": "int8",
        "weight": "float32",
    }
    assert isinstance(Columns(folder, made, select(made, "train"))["label"], np.memmap)


def parquet(tmp_path, **columns):
    path = tmp_path / "columns.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_values_that_a_file_lacks_are_nan_false_or_empty(tmp_path, capsys):
    folder = tmp_path / "set"
    write_dataset(folder, (4,), test_counts=(2,))
    path = parquet(
        tmp_path,
        key=["train#00002", "train#00000", "other"],
        score=[0.5, 1.5, 9.0],
        bad=[True, False, True],
        source=["web", "book", "tv"],
    )
    index([str(folder), f"--add_columns={path}"])
    assert "2 of its 3 keys match; 2 records of train are not in it" in capsys.readouterr().out
    made = manifests.load(folder)
    columns = Columns(folder, made, select(made, "train"))
    np.testing.assert_array_equal(columns["score"], np.float32([1.5, np.nan, 0.5, np.nan]))
    assert columns["bad"].tolist() == [0, 0, 1, 0]
    assert [columns.names_of("source")[code] for code in columns["source"]] == ["book", "", "web", ""]
    ids, _, _ = fed(folder, where="not bad == 1 and source != 'book'")
    assert sorted(ids) == [1, 3]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"key": ["train#00000"], "n": [1]},
            "column 'n': 3 records are not in the file, which no whole number can mark",
        ),
        ({"key": ["a", "a"], "n": [1.0, 2.0]}, "the key 'a' is there twice"),
        ({"key": ["a"], "n": [1.0]}, "none of its 1 key, such as 'a', is in"),
        ({"name": ["a"], "n": [1.0]}, "must have a column 'key' and others; it has name, n"),
        ({"key": ["train#00000"], "a b": [1.0]}, "the column 'a b' must be a name"),
        ({"key": [], "n": []}, "has no rows"),
    ],
)
def test_a_file_that_cannot_be_joined_is_refused_and_nothing_is_written(tmp_path, columns, said):
    folder = tmp_path / "set"
    write_dataset(folder, (4,), test_counts=(2,))
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises((DataError, UsageError)) as caught:
        index([str(folder), f"--add_columns={parquet(tmp_path, **columns)}"])
    assert said in str(caught.value)
    assert (folder / "manifest.json").read_bytes() == before
    assert not (folder / "columns").exists()


def test_columns_of_a_function_and_of_foreign_records(tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for i in range(6):
            feature = {
                "image/height": tf.train.Feature(int64_list=tf.train.Int64List(value=[10 * i])),
                "site": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"web" if i % 2 else b"book"])),
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x" * i])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    (tmp_path / "of.py").write_text("def odd(record):\n    return {'odd': len(record) % 2 == 1}\n")
    index([str(folder), "--split=train:a.*", "--add_columns=records"])
    index([str(folder), f"--add_columns={tmp_path / 'of.py'}:odd"])
    made = manifests.load(folder)
    assert sorted(made.columns) == ["bytes", "image_height", "odd", "site"]
    arguments = {"global_batch_size": 2, "training": False, "parse": lambda records: records, "record_ids": True}
    found = input_fn(folder, where="site == 'web' and image_height > 10", **arguments)
    assert [element[-1].tolist() for element in found.as_numpy_iterator()] == [[3, 5]]


def test_columns_that_are_cut_lost_or_of_another_conversion_are_refused(tmp_path):
    folder = tmp_path / "set"
    write_dataset(folder)
    index([str(folder), "--add_columns=records"])
    [file] = (folder / "columns").glob("train.label.*.npy")
    whole = file.read_bytes()
    for content, said in ((whole[:-1], "its CRC32C is"), (whole[:-1] + b"\7", "cut, or of another conversion")):
        file.write_bytes(content)
        with pytest.raises(DataError, match=said):
            fed(folder, where="label == 1")
    file.unlink()
    with pytest.raises(DataError, match="the manifest lists this column, but it"):
        fed(folder, where="label == 1")
    assert sorted(fed(folder)[0]) == list(range(12))  # without a view, columns are not read
    other = tmp_path / "other"
    write_dataset(other, (4, 4))
    index([str(other), "--add_columns=records"])
    [file] = (other / "columns").glob("train.label.*.npy")
    edit_manifest(folder, lambda content: content["columns"]["label"]["files"].update(train=file.name.split(".")[2]))
    (folder / "columns" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match=r"has int8 of shape \(8,\), but the manifest says int8 for 12 records"):
        fed(folder, where="label == 1")


def test_new_values_replace_old_ones_and_another_spec_says_so(tmp_path):
    folder = tmp_path / "set"
    write_dataset(folder, (4,), test_counts=(2,))
    keys = [*(f"train#{i:05d}" for i in range(4)), "test#00000", "test#00001"]
    specs = []
    for more in (0.0, 1.0):
        index([str(folder), f"--add_columns={parquet(tmp_path, key=keys, score=[i + more for i in range(6)])}"])
        specs.append(order_spec(folder, global_batch_size=2, training=True, where="score >= 0"))
    assert len(list((folder / "columns").iterdir())) == 2
    assert list(specs[0].differences(json.loads(specs[1].to_json()))) == ["view"]
    assert specs[0].manifest_digest == specs[1].manifest_digest


# The audit.


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        (["--where=label in (1, 'class 3')"], 40),
        (["--limit=7 per label"], 35),
        (["--where=rare < 70 or label == 0", "--balance=label"], 100),
        (["--weigh=weight", "--skip_steps=5:7,8:9"], 147),
    ],
)
def test_the_audit_proves_the_view_of_its_flags(data, flags, rows, capsys):
    audit([str(data("raw")), "--global_batch_size=30", "--workers=3", "--against_workers=5", "--epoch=1", *flags])
    out = capsys.readouterr().out
    assert f"view: {rows} rows per epoch" in out
    assert "proof holds: every record as often as the view says" in out
    assert "holds  each record is fed as often as its view says" in out
    assert ("90 rows are dropped or skipped" in out) == ("skip" in flags[-1])


def test_the_audit_compares_the_labels_of_some_classes(data, capsys):
    audit([str(data("raw")), "--global_batch_size=20", "--classes=class 4,class 0", "--content"])
    out = capsys.readouterr().out
    assert "view: 40 rows per epoch" in out
    assert "rows compared" in out


def test_the_audit_compares_the_rows_that_are_fed_under_a_view(data, capsys):
    audit([str(data("raw")), "--global_batch_size=30", "--weigh=weight", "--content", "--skip_steps=1:2"])
    assert "rows compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    [
        lambda found: found._replace(times=np.roll(found.times, 1)),
        lambda found: found._replace(ids=found.ids[::-1].copy()),
        lambda found: found._replace(pieces=found.pieces[:-1]),
    ],
    ids=["times", "ids", "pieces"],
)
def test_the_audit_finds_a_view_that_is_planned_wrongly(data, broken, monkeypatch):
    from pipeline.order.views import EpochPositions

    plain = EpochPositions.located
    monkeypatch.setattr(EpochPositions, "located", lambda self, *given: broken(plain(self, *given)))
    with pytest.raises(DataError, match="the proof fails"):
        audit([str(data("raw")), "--global_batch_size=30", "--weigh=weight"])


def test_the_audit_finds_a_view_that_counts_wrongly(data, monkeypatch):
    from pipeline.order.views import Times

    plain = Times._balanced
    monkeypatch.setattr(Times, "_balanced", lambda self, strata, epoch: plain(self, strata, 0))
    flags = [f"--{name}={value}" for name, value in VIEWS["balance"].items()]
    with pytest.raises(DataError, match="the proof fails"):
        audit([str(data("raw")), "--global_batch_size=30", "--epoch=1", *flags])


def test_resolving_reads_only_the_columns_that_it_needs(data):
    found = resolve(Request(data("raw"), global_batch_size=4, training=True, where="rare > 3"))
    assert found.spec.view.count("column") == 1


FUNCTIONS = """
def none(record): return None
def pair(record): return {"a": [1, 2]}
def mixed(record): return {"a": 1 if record[-1] % 2 else "x"}
def hyphen(record): return {"my-score": 1.0}
def keyword(record): return {"class": 1}
"""


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        ("none", DataError, "the function returned NoneType, must be {column: value}"),
        ("pair", UsageError, r"column 'a': each record needs one value, not \(2,\)"),
        ("mixed", UsageError, "column 'a': "),
        ("hyphen", UsageError, "column 'my-score': must be a name of letters, digits and _"),
        ("keyword", UsageError, "column 'class': must be a name of letters, digits and _, and no word of Python"),
    ],
)
def test_what_a_function_returns_is_checked_and_nothing_is_written(tmp_path, function, error, said):
    folder = tmp_path / "data"
    write_dataset(folder, (6, 5), classes=5)
    before = (folder / "manifest.json").read_bytes()
    (tmp_path / "of.py").write_text(FUNCTIONS)
    with pytest.raises(error, match=said):
        index([str(folder), f"--add_columns={tmp_path / 'of.py'}:{function}"])
    assert (folder / "manifest.json").read_bytes() == before
    assert not list(folder.rglob("*.npy"))


def test_other_strings_of_the_same_numbers_are_another_spec(tmp_path):
    folder = tmp_path / "data"
    write_dataset(folder, (6, 5), classes=5)
    specs = []
    for names in (("a", "b"), ("b", "c")):
        (tmp_path / "of.py").write_text(f"def city(record): return {{'city': {names}[record[-1] % 2]}}")
        index([str(folder), f"--add_columns={tmp_path / 'of.py'}:city"])
        specs.append(order_spec(folder, global_batch_size=4, training=True, where="city == 'b'"))
    assert specs[0].digest != specs[1].digest


def test_one_command_writes_to_a_folder_at_a_time(tmp_path):
    folder = tmp_path / "data"
    write_dataset(folder, (6, 5), classes=5)
    with alone_in(folder), pytest.raises(UsageError, match="another command is writing there; wait until it ends"):
        index([str(folder), "--add_columns=records"])
    index([str(folder), "--add_columns=records"])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    shutil.copy(next(folder.glob("train-*.tfrecord")), foreign)
    with alone_in(foreign), pytest.raises(UsageError, match="another command is writing there; wait until it ends"):
        index([str(foreign), "--split=train:*.tfrecord"])
    assert not (foreign / "manifest.json").exists()


def test_columns_of_too_many_strings_are_left_out_or_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipeline.manifest.columns.MOST_STRINGS", 10)
    monkeypatch.setattr("pipeline.records.columns.MOST_STRINGS", 10)
    folder = tmp_path / "data"
    write_dataset(folder, (6, 5), classes=5, kind=Kind(extra=True))
    (tmp_path / "of.py").write_text("import zlib\ndef name(record): return {'name': str(zlib.crc32(record))}")
    with pytest.raises(UsageError, match="column 'name': 15 different strings, at most 10"):
        index([str(folder), f"--add_columns={tmp_path / 'of.py'}:name"])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    with tf.io.TFRecordWriter(str(foreign / "a.tfrecord")) as writer:
        for i in range(11):
            texts = {"name": f"{i}.jpg", "site": f"{i % 2}"}
            feature = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
                for name, text in texts.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    index([str(foreign), "--split=train:a.*", "--add_columns=records"])
    assert set(manifests.load(foreign).columns) == {"bytes", "site"}
    assert "name: left out, has 11 different strings; a column has 10 at most" in capsys.readouterr().out


def test_two_features_that_would_be_one_column_are_named_and_one_of_them_can_be_had(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for number in range(5):
            writer.write(tf_example.encode({"a/b": number, "a_b": 10 * number, "c": 1}))
    index([str(tmp_path), "--split=train:*.tfrecord"])
    said = "features 'a/b' and 'a_b': both would be the column 'a_b'; name one of them: --add_columns=records:label,a_b"
    for columns in ("records", "records:a/b,a_b"):
        with pytest.raises(UsageError) as caught:
            index([str(tmp_path), f"--add_columns={columns}"])
        assert said in str(caught.value)
    for name, factor in (("a/b", 1), ("a_b", 10)):
        index([str(tmp_path), f"--add_columns=records:c,{name}"])
        made = manifests.load(tmp_path)
        assert Columns(tmp_path, made, select(made, "train"))["a_b"].tolist() == [factor * n for n in range(5)]
