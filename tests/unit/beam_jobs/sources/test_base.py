import dataclasses
import itertools
import math
import pickle
import re

import numpy as np
import pytest

from beam_jobs.sources import base, open_source, packages_needed
from beam_jobs.sources.base import SourceOptions, resplit
from pipeline.errors import UsageError
from tests.made_source import Content, write_source
from tests.raised import said


def test_the_nearest_data_set_is_suggested():
    with pytest.raises(UsageError, match="unknown 'cifar-10'; did you mean 'cifar10'"):
        packages_needed("cifar-10")
    assert packages_needed("mnist") == ()
    assert packages_needed("digits") == ("sklearn",)
    assert packages_needed("tfds:mnist") == ("tensorflow_datasets",)


def test_help_names_every_data_set_and_layout():
    text = next(field for field in dataclasses.fields(SourceOptions) if field.name == "dataset").metadata["text"]
    said = set(re.findall(r"[\w:]+", text))
    assert [name for name in base.SOURCES if not said & {name, name.removeprefix("emnist_")}] == []


def test_a_flag_of_another_source_is_refused_with_its_takers():
    with pytest.raises(UsageError, match="--image_column: .*--dataset=mnist.* parquet"):
        open_source(SourceOptions("mnist", "x", image_column="img"))


FILES = base.Files(("a.bin", "b.bin", "c.bin"), (3, 0, 2))


def test_rows_of_files_end_to_end_are_found():
    files, rows = base.locate(FILES.counts, np.arange(5))
    assert files.tolist() == [0, 0, 0, 2, 2]
    assert rows.tolist() == [0, 1, 2, 0, 1]
    assert FILES.where(4) == ("c.bin", 1)
    assert FILES.num_rows == 5


def test_a_hash_is_of_the_file_and_the_row_in_it_alone():
    hashes = FILES.hashes(0, 5)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == 5
    assert FILES.hashes(2, 4).tolist() == hashes[2:4].tolist()
    assert base.Files(("c.bin",), (2,)).hashes(0, 2).tolist() == hashes[3:].tolist()


def test_keys_are_whole_whatever_the_name_and_padded_alike_or_not():
    files = base.Files(("é", "ab"), (12, 3))
    assert files.keys(np.array([14, 11, 0])).tolist() == [b"ab#02", "é#11".encode(), "é#00".encode()]
    assert files.keys(np.array([14, 11]), equal_digits=False).tolist() == [b"ab#2", "é#11".encode()]


FRACTIONS = {"train": 0.8, "validation": 0.15, "extra": 0.05}


def numbered(count, first=0):
    """Returns images (n, 2, 2, 1) that say which row they are."""
    numbers = np.arange(first, first + count)
    return np.stack([numbers >> shift & 255 for shift in (0, 8, 16, 24)], axis=1).astype(np.uint8).reshape(-1, 2, 2, 1)


def numbers_of(images):
    stacked = np.stack([np.frombuffer(i, np.uint8) for i in images]) if isinstance(images, list) else images
    return (stacked.reshape(len(images), 4).astype(np.int64) << [0, 8, 16, 24]).sum(axis=1).tolist()


@pytest.fixture
def source(tmp_path):
    """A function that makes a source with a given number of rows per split, whose images are numbered consecutively."""

    def make(counts, file="rows.pickle", chunks=None, files=None, listed=False, extra=None):
        splits, first = {}, 0
        for split, count in counts.items():
            images = numbered(count, first)
            splits[split] = Content(
                [image.tobytes() for image in images] if listed else images,
                labels=np.arange(first, first + count) % 10,
                chunks=(chunks or {}).get(split),
                files=(files or {}).get(split),
                extra={key: [value(first + row) for row in range(count)] for key, value in (extra or {}).items()},
            )
            first += count
        return write_source(tmp_path / file, splits)

    return make


def all_keys(source, split):
    return list(map(bytes, source.read(split, np.arange(source.splits[split])).keys))


def test_no_fractions_leave_the_source_as_it_is_and_a_whole_one_every_row(source):
    made = source({"train": 5})
    assert resplit(made, {}) is made
    assert resplit(made, {"a": 1.0}).splits == {"a": 5}


@pytest.mark.parametrize("chunks", [None, {"train": [2500] * 4}, {"train": [2500] * 4, "test": [1000, 0, 1000]}])
def test_every_row_of_every_split_is_in_one_new_split(chunks, source):
    made = resplit(source({"train": 10_000, "test": 2000}, chunks=chunks), FRACTIONS)
    assert list(made.splits) == list(FRACTIONS)
    numbers = {split: numbers_of(made.read(split, np.arange(count)).images) for split, count in made.splits.items()}
    assert sorted(itertools.chain(*numbers.values())) == list(range(12_000))
    for split, fraction in FRACTIONS.items():
        deviation = math.sqrt(12_000 * fraction * (1 - fraction))
        assert abs(made.splits[split] - 12_000 * fraction) < 4 * deviation
        counts, expected = np.histogram(numbers[split], bins=6, range=(0, 12_000))[0], made.splits[split] / 6
        assert (np.abs(counts - expected) < 5 * math.sqrt(expected)).all()  # they come from everywhere


def test_it_is_a_source_like_any_other(source):
    inner = source({"train": 100, "test": 30})
    made = resplit(inner, FRACTIONS)
    for name in ("dataset", "class_names", "image_shape", "features", "files", "unique_keys"):
        assert getattr(made, name) == getattr(inner, name)
    copy = pickle.loads(pickle.dumps(made))
    assert len(pickle.dumps(made)) < 3000
    assert all_keys(copy, "train") == all_keys(made, "train")
    assert made.chunks("train") is None


def test_rows_come_in_the_order_asked_for_with_all_that_is_theirs(source):
    extra = {"number": np.int64, "name": lambda i: b"%d" % i, "box": lambda i: np.arange(i % 3)}
    for listed in (False, True):
        made = resplit(source({"train": 300, "test": 100}, listed=listed, extra=extra), FRACTIONS)
        rows = np.random.default_rng(0).permutation(made.splits["train"])[:150]
        block = made.read("train", rows)
        numbers = numbers_of(block.images)
        assert (
            numbers == np.array(numbers_of(made.read("train", np.arange(made.splits["train"])).images))[rows].tolist()
        )
        assert any(n >= 300 for n in numbers)
        assert any(n < 300 for n in numbers)
        assert block.labels.tolist() == [n % 10 for n in numbers]
        expected = [b"train.rows#%03d" % n if n < 300 else b"test.rows#%02d" % (n - 300) for n in numbers]
        assert [bytes(key) for key in block.keys] == expected
        assert list(block.extra["number"]) == numbers
        assert list(block.extra["name"]) == [b"%d" % n for n in numbers]
        assert [len(values) for values in block.extra["box"]] == [n % 3 for n in numbers]
        where = [made.where("train", int(row)) for row in rows]
        assert where == [("train.rows", n) if n < 300 else ("test.rows", n - 300) for n in numbers]


def test_bad_rows_stay_bad_where_they_come_to_lie(tmp_path):
    bad = {i: f"row {i}" for i in range(0, 200, 7)}
    content = Content(numbered(200), bad=bad), Content(numbered(100, 200), bad={i: f"row {200 + i}" for i in (0, 99)})
    made = resplit(write_source(tmp_path / "x", dict(zip(("a", "b"), content, strict=True))), FRACTIONS)
    found = {}
    for split, count in made.splits.items():
        block = made.read(split, np.arange(count)[::-1])
        numbers = numbers_of(block.images)
        assert block.bad == {i: f"row {n}" for i, n in enumerate(numbers) if f"row {n}" in block.bad.values()}
        found |= {numbers[i]: reason for i, reason in block.bad.items()}
    assert found == bad | {200: "row 200", 299: "row 299"}


def test_hashes_are_those_of_the_rows(source):
    inner = source({"train": 300, "test": 100})
    made = resplit(inner, FRACTIONS)
    whole = {"train": inner.hashes("train", 0, 300), "test": inner.hashes("test", 0, 100)}
    for split, count in made.splits.items():
        numbers = numbers_of(made.read(split, np.arange(count)).images)
        expected = [whole["train"][n] if n < 300 else whole["test"][n - 300] for n in numbers]
        assert made.hashes(split, 0, count).tolist() == expected
        assert made.hashes(split, 1, 3).tolist() == expected[1:3]


def test_hashes_are_made_by_ranges(source, monkeypatch):
    inner = source({"train": 5000, "test": 100})
    made, ranges = resplit(inner, {"few": 0.01, "most": 0.99}), []
    whole, own = inner.hashes("train", 0, 5000), type(inner).hashes

    def hashes(self, split, start, stop):
        ranges.append((split, start, stop))
        return own(self, split, start, stop)

    monkeypatch.setattr(type(inner), "hashes", hashes)
    for split, count in made.splits.items():
        ranges.clear()
        made.hashes(split, 0, count)
        assert len(ranges) <= 3  # a row at a time, they were as many as rows
    monkeypatch.setattr(type(made), "_rows", lambda self, split: np.array([7, 9, 4990, 4999]))
    ranges.clear()
    assert made.hashes("few", 0, 4).tolist() == whole[[7, 9, 4990, 4999]].tolist()
    assert ranges == [("train", 7, 10), ("train", 4990, 5000)]  # what lies far between is not hashed


def test_another_file_leaves_the_splits_of_all_other_rows_alone(source):
    before = resplit(source({"train": 500}, files={"train": {"a": 200, "b": 300}}), FRACTIONS)
    more = source({"train": 900}, "more", files={"train": {"a": 200, "aa": 400, "b": 300}})
    after = resplit(more, FRACTIONS)
    places = {made.where(s, r): s for made in [before] for s, count in made.splits.items() for r in range(count)}
    now = {after.where(s, r): s for s, count in after.splits.items() for r in range(count)}
    assert len(places) == 500
    assert len(now) == 900
    assert places.items() <= now.items()
    assert {split for (file, _), split in now.items() if file == "aa"} == set(FRACTIONS)


def test_fractions_that_grow_take_rows_and_give_none(source):
    inner = source({"train": 2000})
    small = resplit(inner, {"train": 0.8, "test": 0.2})
    large = resplit(inner, {"train": 0.9, "test": 0.1})
    assert set(all_keys(small, "train")) < set(all_keys(large, "train"))
    assert set(all_keys(large, "test")) < set(all_keys(small, "test"))


def test_chunks_count_the_rows_that_a_new_split_has_of_each(source):
    chunks = {"train": [100, 0, 300, 1, 99], "test": [250, 250]}
    made = resplit(source({"train": 500, "test": 500}, chunks=chunks), FRACTIONS)
    ends = np.cumsum(chunks["train"] + chunks["test"])
    total = np.zeros(7, np.int64)
    for split, count in made.splits.items():
        numbers = numbers_of(made.read(split, np.arange(count)).images)
        expected = np.histogram(numbers, bins=[0, *ends[[0, 2, 3, 4, 5, 6]]])[0]
        found = made.chunks(split)
        assert found.sum() == count
        assert np.delete(found, 1).tolist() == expected.tolist()
        assert found[1] == 0
        total += found
    assert total.tolist() == chunks["train"] + chunks["test"]


def test_rows_without_chunks_among_chunks_are_chunks_of_one(source):
    made = resplit(source({"train": 100, "test": 50}, chunks={"train": [50, 50]}), {"a": 0.5, "b": 0.5})
    assert len(made.chunks("a")) == 52
    assert (made.chunks("a") + made.chunks("b")).tolist() == [50, 50] + [1] * 50


def test_a_split_without_a_row_is_an_error(source):
    with pytest.raises(UsageError, check=said("--split:", "b:1e-06", "10 rows")):
        resplit(source({"train": 10}), {"a": 0.999999, "b": 0.000001})
