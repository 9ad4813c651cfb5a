"""New splits: rows one by one, in groups, and by strata."""

import datetime
import gzip
import itertools
import math
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.conversion.command import convert as convert_command
from beam_jobs.sources import dealt, open_source
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.dealt import resplit, shares_of
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from tests.helpers import foreign
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import examples_in
from tests.helpers.made_source import Content, write_source
from tests.helpers.raised import said
from tests.helpers.round_trips import everything, fill, picture

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
    return list(map(bytes, everything(source, split).keys))


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
        assert numbers == np.array(numbers_of(everything(made).images))[rows].tolist()
        assert any(n >= 300 for n in numbers)
        assert any(n < 300 for n in numbers)
        assert block.labels.tolist() == [n % 10 for n in numbers]
        expected = [b"train.rows#%03d" % n if n < 300 else b"test.rows#%02d" % (n - 300) for n in numbers]
        assert [bytes(key) for key in block.keys] == expected
        assert list(block.extra["number"]) == numbers
        assert list(block.extra["name"]) == [b"%d" % n for n in numbers]
        assert [len(values) for values in block.extra["box"]] == [n % 3 for n in numbers]
        assert len(made.read("train", rows[:0]).labels) == 0
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


SPLITS = "--split=train:0.7,validation:0.1,test:0.2"
THREE = {"train": 0.7, "validation": 0.1, "test": 0.2}


def table_of(path, count, first=0, groups=100, **columns):
    """Writes a Parquet table of images with columns `label`, `patient` and `row`, and returns its path."""
    path.parent.mkdir(exist_ok=True)
    rows = range(first, first + count)
    made = {
        "image": [picture(row % 200) for row in rows],
        "label": [("cat", "dog", "eel")[row * 7919 % 13 % 3] for row in rows],
        "patient": [f"p{row * row % groups}" for row in rows],
        "row": list(rows),
    }
    pq.write_table(pa.table(made | columns), path, row_group_size=50)
    return path


def source_of(path, **options):
    return open_source(SourceOptions("parquet", str(path), **options))


def dealt_from(source):
    """Returns {(file, row): split} of all rows of a source."""
    return {source.where(split, row): split for split, count in source.splits.items() for row in range(count)}


def split_of(source, column):
    """Returns {value of a column: its splits}."""
    texts, found = source.texts(column), {}
    names = np.repeat([*source.splits], [*source.splits.values()])
    for name, code in zip(names.tolist(), texts.codes.tolist(), strict=True):
        found.setdefault(texts.values[code], set()).add(name)
    return found


def test_a_group_is_in_one_split_and_rows_that_are_added_move_none(tmp_path):
    few = resplit(source_of(table_of(tmp_path / "a.parquet", 600), group_by="patient"), THREE, 3, "patient")
    groups = split_of(few, "patient")
    assert all(len(names) == 1 for names in groups.values())
    assert {name for names in groups.values() for name in names} == set(THREE)
    table_of(tmp_path / "a.parquet", 900, groups=140)  # more rows, and other groups
    table_of(tmp_path / "b.parquet", 100, 5000, groups=140)
    more = resplit(source_of(tmp_path, group_by="patient"), THREE, 3, "patient")
    assert len(split_of(more, "patient")) > len(groups)
    now = split_of(more, "patient")
    assert all(now[name] == names for name, names in groups.items() if name in now)
    other = split_of(resplit(source_of(tmp_path, group_by="patient"), THREE, 4, "patient"), "patient")
    assert other != now
    assert all(len(names) == 1 for names in other.values())


def test_groups_span_no_split_where_the_source_has_splits_of_its_own(tmp_path):
    table_of(tmp_path / "train.parquet", 300)
    table_of(tmp_path / "test.parquet", 300, 1000)
    for stratify in ("", "label"):
        made = resplit(source_of(tmp_path, group_by="patient"), THREE, 0, "patient", stratify)
        assert all(len(names) == 1 for names in split_of(made, "patient").values())
    by_column = table_of(tmp_path / "x.parquet", 400, split=["test", "train"] * 200)
    made = resplit(source_of(by_column, group_by="patient", split_column="split"), THREE, 0, "patient")
    assert all(len(names) == 1 for names in split_of(made, "patient").values())
    assert sum(made.splits.values()) == 400


@pytest.mark.parametrize(
    ("fractions", "size"),
    [({"train": 0.8, "test": 0.2}, 5), (THREE, 10), ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 3)],
)
def test_every_class_has_its_share_and_rows_behind_the_others_move_none(tmp_path, fractions, size):
    path = tmp_path / "a.parquet"
    source = source_of(table_of(path, 500))
    made = resplit(source, fractions, 1, "", "label")
    shares = shares_of(made)
    totals = np.sum([*shares.counts.values()], axis=0)
    for split, fraction in fractions.items():
        assert (abs(shares.counts[split] - fraction * totals) <= size * fraction).all()  # at most a block is not whole
    order = [place[1] for place, split in sorted(dealt_from(made).items()) if split == [*fractions][-1]]
    assert len({b - a for a, b in itertools.pairwise(order)}) > 4  # no pattern that follows the source's own
    before = dealt_from(made)
    after = dealt_from(resplit(source_of(table_of(path, 800)), fractions, 1, "", "label"))
    assert before.items() <= after.items()
    assert dealt_from(resplit(source_of(path), fractions, 2, "", "label")) != after


def test_a_split_of_the_source_that_grows_moves_no_row_of_the_others(tmp_path):
    table_of(tmp_path / "train.parquet", 303)
    table_of(tmp_path / "test.parquet", 200, 1000, label=["cat"] * 199 + ["owl"])
    before = resplit(source_of(tmp_path), THREE, 0, "", "label")
    assert "owl" in shares_of(before).strata
    labels, own = ["cat", "owl"] * 50, ["train", "test"] * 50
    path = table_of(tmp_path / "other" / "x.parquet", 100, label=labels, split=own)
    one = source_of(path, split_column="split", splits=("train",))
    assert shares_of(resplit(one, THREE, 0, "", "label")).strata == ("cat",)  # only test has the other
    path.unlink()
    table_of(tmp_path / "train.parquet", 331)
    assert dealt_from(before).items() <= dealt_from(resplit(source_of(tmp_path), THREE, 0, "", "label")).items()


def test_a_split_of_one_class_that_grows_moves_no_row_of_the_others(tmp_path):
    table_of(tmp_path / "test.parquet", 43, label=["cat"] * 43)
    table_of(tmp_path / "train.parquet", 200, 1000, label=["cat"] * 200)
    before = dealt_from(resplit(source_of(tmp_path), THREE, 0, "", "label"))
    table_of(tmp_path / "train.parquet", 231, 1000, label=["cat"] * 231)
    table_of(tmp_path / "test.parquet", 57, label=["cat"] * 57)
    assert before.items() <= dealt_from(resplit(source_of(tmp_path), THREE, 0, "", "label")).items()


def test_the_rows_of_a_class_are_in_another_order_in_each_block(tmp_path):
    source = source_of(table_of(tmp_path / "a.parquet", 200, label=["cat"] * 200))
    made = dealt_from(resplit(source, {"train": 0.8, "test": 0.2}, 0, "", "label"))
    assert {row % 5 for (_, row), split in made.items() if split == "test"} == set(range(5))


def test_a_share_that_no_whole_number_of_rows_is_holds_in_the_long_run(tmp_path):
    fractions = {"train": 0.9963, "test": 0.0037}
    path = table_of(tmp_path / "a.parquet", 3000, label=["a"] * 3000)
    made = resplit(source_of(path), fractions, 0, "", "label")
    assert made.splits == {"train": 2988, "test": 12}  # 2,988.9 and 11.1


def test_the_groups_of_each_class_are_shared_out_by_the_class_of_their_first_row(tmp_path):
    groups = [f"g{row // 4}" for row in range(800)]
    labels = [("cat", "dog")[row // 4 % 5 == 0] for row in range(800)]
    path = table_of(tmp_path / "a.parquet", 800, patient=groups, label=labels)
    made = resplit(source_of(path, group_by="patient"), THREE, 0, "patient", "label")
    shares = shares_of(made)
    assert shares.groups == {"train": 140, "validation": 20, "test": 40}
    by_class = dict(zip(shares.strata, np.stack([*shares.counts.values()], axis=1).tolist(), strict=True))
    assert by_class == {"dog": [112, 16, 32], "cat": [448, 64, 128]}
    assert all(len(names) == 1 for names in split_of(made, "patient").values())


def test_strata_may_be_any_column_and_rows_without_a_value_are_one_of_them(tmp_path):
    sites = [("north", "south", None)[row % 3] for row in range(300)]
    path = table_of(tmp_path / "a.parquet", 300, site=sites)
    shares = shares_of(resplit(source_of(path, stratify="site"), THREE, 0, "", "site"))
    assert shares.strata == ("north", "south", "")
    assert shares.counts["train"].tolist() == [70, 70, 70]
    assert "70.0% of each site" in shares.lines()[1]
    path = table_of(path, 300, site=["north"] * 299 + [None])
    assert not [line for line in shares_of(resplit(source_of(path), THREE, 0, "", "site")).lines() if "no row" in line]


def test_shares_that_came_out_are_said_and_what_a_large_group_makes_impossible(tmp_path, capsys):
    patients = ["big"] * 120 + [f"p{row}" for row in range(180)]
    path = table_of(tmp_path / "a.parquet", 300, patient=patients, label=["cat"] * 296 + ["owl"] * 4)
    flags = ["--dataset=parquet", f"--source={path}", "--group_by=patient", f"--data_dir={tmp_path}/out", SPLITS]
    found = {}
    for seed in range(6):
        convert_command("convert", [*flags, f"--seed={seed}", "--dry_run"])
        out = capsys.readouterr().out
        found[seed] = out
        made = resplit(source_of(path, group_by="patient"), THREE, seed, "patient")
        for split, rows in made.splits.items():
            assert f"{split}: {rows} rows, {rows / 300:.1%} (asked for {THREE[split]:.1%})" in out
        shares = shares_of(made)
        assert sum(shares.groups.values()) == 181
        assert f"{shares.groups['test']} groups" in out
        row = ["cat", *(str(shares.counts[split][0]) for split in THREE)]
        assert " ".join(row) in " ".join(out.split())
        far = [split for split, rows in made.splits.items() if abs(rows / 300 - THREE[split]) > 0.2 * THREE[split]]
        for split, asked in THREE.items():
            line = f"warning: {split} has {made.splits[split] / 300:.1%} of the rows, not {asked:.1%}: the largest"
            assert (line in out) == (split in far)
    assert any("'big', alone has 40.0% (120 rows)" in out for out in found.values())
    assert any("has no row of class owl" in out for out in found.values())


@pytest.mark.parametrize("stratify", ["", "label"])
def test_groups_that_look_alike_are_in_one_split(tmp_path, stratify):
    alike = [(f"p{n}", f"P{n}", f" p{n} ", f"p{n}\u200b") for n in range(20)] + [
        (f"{n}", f"{n}.0", f"{n}e0") for n in range(20)
    ]
    patients = [name for names in alike for name in names]
    path = table_of(tmp_path / "a.parquet", len(patients), patient=patients)
    made = resplit(source_of(path, group_by="patient"), THREE, 0, "patient", stratify)
    splits = {patients[row]: split for split in made.splits for row in dealt._rows(made.inner, made.dealing, split)}
    assert len(splits) == 140
    assert set(splits.values()) == set(THREE)
    assert all(len({splits[name] for name in names}) == 1 for names in alike)
    assert sum(shares_of(made).groups.values()) == 40
    assert shares_of(made).largest[1] == 4


def test_a_day_is_one_group_in_whatever_type_and_unit_a_file_has_it(tmp_path):
    days = [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=day) for day in range(40)]
    noon = [datetime.datetime(2021, 1, 1, 12, 30, 5) + datetime.timedelta(days=day) for day in range(40)]
    times = [pa.array(days + noon, pa.timestamp(unit, zone)) for unit in ("s", "us", "ns") for zone in (None, "UTC")]
    texts = [[time.strftime(form) for time in days + noon] for form in ("%F %T", "%FT%TZ", " %F %T.000 UTC")]
    forms = [*times, *texts, [str(day.date()) for day in days], pa.array([day.date() for day in days])]
    found = set()
    for number, patients in enumerate(forms):
        path = table_of(tmp_path / f"{number}.parquet", len(patients), patient=patients)
        made = resplit(source_of(path, group_by="patient"), THREE, 0, "patient")
        found.add(
            tuple(tuple(row for row in dealt._rows(made.inner, made.dealing, split) if row < 40) for split in THREE)
        )
    assert len(found) == 1
    zones = [pa.array(days, pa.timestamp(unit, "Asia/Tokyo")) for unit in ("s", "us", "ns")]
    made = [
        resplit(source_of(table_of(tmp_path / "z.parquet", 40, patient=each), group_by="patient"), THREE, 0, "patient")
        for each in zones
    ]
    assert len({tuple(one.splits.items()) for one in made}) == 1


def test_folds_are_splits_of_equal_shares_of_every_group_and_are_told_before_they_are_written(tmp_path, capsys):
    path = table_of(tmp_path / "a.parquet", 400, groups=397)
    flags = ["--dataset=parquet", f"--source={path}", f"--data_dir={tmp_path}/out"]
    convert_command(
        "convert", [*flags, "--folds=4", "--group_by=patient", "--stratify=label", "--keep_columns=patient"]
    )
    assert "new splits by patient and label:" in capsys.readouterr().out
    made = manifest.load(tmp_path / "out")
    assert sorted(made.splits) == ["fold0", "fold1", "fold2", "fold3"]
    assert made.options["folds"] == 4
    assert (made.options["group_by"], made.options["stratify"]) == ("patient", "label")
    groups = {}
    for name, split in made.splits.items():
        assert split.num_examples > 80
        for shard in split.shards:
            for example in examples_in(tmp_path / "out" / shard.file):
                groups.setdefault(example["patient"][0], set()).add(name)
    assert all(len(names) == 1 for names in groups.values())
    assert manifest.splits.select(made, "fold0+fold1+fold3").num_examples == 400 - made.splits["fold2"].num_examples


def folder_of(path, names):
    return fill(path, {name: picture(row) for row, name in enumerate(names)})


def test_groups_may_be_a_part_of_the_path_of_an_image(tmp_path):
    names = [f"{('cat', 'dog')[n % 2]}/day{n % 3}/p{n % 20:02d}_{n}.png" for n in range(200)]
    folder = folder_of(tmp_path / "images", names)
    (tmp_path / "t.csv").write_text("file,label\n" + "".join(f"images/{name},{name[:3]}\n" for name in names))
    for dataset, source in (("image_folder", folder), ("image_table", tmp_path / "t.csv")):
        by = r"file:/(p\d+)_"
        made = resplit(open_source(SourceOptions(dataset, str(source), group_by=by)), THREE, 1, by)
        groups = split_of(made, by)
        assert sorted(groups) == [f"p{n:02d}" for n in range(20)]
        assert all(len(found) == 1 for found in groups.values())
        whole = split_of(resplit(open_source(SourceOptions(dataset, str(source))), {"a": 1.0}), r"file:day\d")
        assert sorted(whole) == ["day0", "day1", "day2"]
        shares = shares_of(resplit(open_source(SourceOptions(dataset, str(source))), THREE, 1, "", "label"))
        assert shares.counts["train"].tolist() == [70, 70]
        assert sorted(shares.strata) == ["cat", "dog"]


def test_rows_that_name_one_file_stay_together_under_strata(tmp_path):
    folder_of(tmp_path, [f"{n}.png" for n in range(50)])
    lines = "".join(f"{n}.png,{label}\n" for label in "ab" for n in range(50))
    (tmp_path / "t.csv").write_text("file,label\n" + lines)
    made = resplit(open_source(SourceOptions("image_table", f"{tmp_path}/t.csv")), THREE, 0, "", "label")
    assert all(len(found) == 1 for found in split_of(made, "file").values())


REFUSED = {
    "no value": (
        {"patient": ["a"] * 10 + [None, " "] + ["b"] * 8},
        ["--group_by=patient"],
        ("no value", "2 such rows"),
    ),
    "no column": ({}, ["--group_by=doctor"], ("--group_by", "no column 'doctor'")),
    "fractions": ({"score": [0.5] * 20}, ["--group_by=score"], ("--group_by=score", "double")),
    "a path": ({}, ["--group_by=file:x"], ("--group_by=file:x", "no paths")),
    "a path of strata": ({}, ["--stratify=file:x"], ("--stratify=file:x", "no paths")),
    "several classes": ({"label": [["a"]] * 20}, ["--stratify=label"], ("--stratify=label", "one class per row")),
    "few groups": ({"patient": ["a"] * 20}, ["--group_by=patient"], ("gets none", "1 group", "--seed")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_dealt_is_refused_and_nothing_is_written(tmp_path, case):
    columns, flags, facts = REFUSED[case]
    path = table_of(tmp_path / "a.parquet", 20, **columns)
    with pytest.raises((UsageError, DataError), check=said(*facts)):
        convert_in_process("--dataset=parquet", f"--source={path}", f"--data_dir={tmp_path}/out", SPLITS, *flags)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_folds_of_too_few_groups_name_their_flag(tmp_path):
    path = table_of(tmp_path / "a.parquet", 20, patient=["a"] * 10 + ["b"] * 10)
    with pytest.raises(UsageError, check=said("--folds=3: fold", "2 groups", "give fewer")):
        convert_in_process(
            "--dataset=parquet", f"--source={path}", f"--data_dir={tmp_path}/out", "--folds=3", "--group_by=patient"
        )


def test_a_path_without_a_group_is_named_and_folders_have_no_columns(tmp_path):
    folder = folder_of(tmp_path / "images", ["cat/p1_a.png", "cat/x.png"])
    flags = ["--dataset=image_folder", f"--source={folder}", f"--data_dir={tmp_path}/out", "--folds=2"]
    with pytest.raises(DataError, check=said("cat/x.png", "no match")):
        convert_in_process(*flags, "--group_by=file:(p.)_")
    with pytest.raises(UsageError, check=said("--group_by=patient", "no columns", "file:(.*)/")):
        convert_in_process(*flags, "--group_by=patient")
    with pytest.raises(UsageError, check=said("--group_by", "image_folder", "mnist")):
        open_source(SourceOptions("mnist", "x", group_by="patient"))


def records_of(path, count, groups=120, first=0, **more):
    """Writes a file of Examples of `count` rows, of which several in a row are of one patient."""
    rows = range(first, first + count)
    patients = [f"p{row * groups // 300:03d}".encode() for row in rows]
    records = [
        {"image": picture(row % 7), "label": b"ab"[row % 2 : row % 2 + 1], "patient": patient, "number": row // 9}
        | {name: value(row) for name, value in more.items()}
        for row, patient in zip(rows, patients, strict=True)
    ]
    foreign.write(path, records)
    return path


def groups_in(folder):
    """Returns {patient: splits}, and the number of records of each split, of a data set."""
    made, groups = manifest.load(folder), {}
    for name, split in made.splits.items():
        for shard in split.shards:
            for example in examples_in(folder / shard.file):
                groups.setdefault(example["patient"][0], set()).add(name)
    return groups, {name: split.num_examples for name, split in made.splits.items()}


def test_groups_of_records_are_those_of_a_table_whatever_files_hold_them(tmp_path):
    first = tmp_path / "records"
    records_of(first / "train-00000-of-00002", 180)
    records_of(first / "train-00001-of-00002", 120, first=180, more=lambda row: b"x" * (row % 3))
    packed = tmp_path / "packed/train-00000-of-00001"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(b"".join(path.read_bytes() for path in sorted(first.iterdir()))))
    keep = ("--keep_columns=patient,number",)
    given = {"tfrecord": (first, keep), "packed": (packed.parent, keep)}
    for number, half in enumerate(sorted(first.iterdir())):  # and two data sets with two splits each, joined
        flags = ("--dataset=tfrecord", f"--source={half}", f"--data_dir={tmp_path}/halves/{number}")
        convert_in_process(*flags, *keep, "--split=train:0.6,test:0.4")
    given |= {"ours": (tmp_path / "halves/0", ()), "joined": (tmp_path / "halves/*/t*-of-*", ())}
    table = pa.table({
        "image": [picture(row % 7) for row in range(300)],
        "label": ["ab"[row % 2] for row in range(300)],
        "patient": [f"p{row * 120 // 300:03d}" for row in range(300)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    convert_in_process(
        "--dataset=parquet", f"--source={tmp_path}/a.parquet", f"--data_dir={tmp_path}/out", SPLITS,
        "--group_by=patient", "--keep_columns=patient",
    )  # fmt: skip
    expected, _ = groups_in(tmp_path / "out")
    assert all(len(names) == 1 for names in expected.values())
    for name, (source, flags) in given.items():
        out = tmp_path / f"out {name}"
        convert_in_process(
            "--dataset=tfrecord", f"--source={source}", f"--data_dir={out}", SPLITS, "--group_by=patient", *flags
        )
        groups, counts = groups_in(out)
        assert sum(counts.values()) == (180 if name == "ours" else 300)
        assert groups == {patient: expected[patient] for patient in groups}
    flags = ("--dataset=tfrecord", f"--source={first}", f"--data_dir={tmp_path}/strata", "--folds=2", *keep)
    convert_in_process(*flags, "--group_by=number", "--stratify=label")
    shares = manifest.load(tmp_path / "strata")
    assert {split.num_examples for split in shares.splits.values()} <= {*range(130, 171)}


@pytest.mark.parametrize(
    ("value", "flag", "error", "facts"),
    [
        (lambda row: b"a" if row != 7 else np.zeros(0, np.int64), "site", DataError, (
            "train-00000-of-00001", "record 7", "'site' has no value, which --group_by=site needs (1 such record)")),
        (lambda row: [b"a", b"b"], "site", DataError, ("record 0", "'site' has 2 values of bytes, not one text")),
        (lambda row: np.array([0.5], np.float32), "site", DataError, ("record 0", "'site' has 1 value of float")),
        (lambda row: b"a", "sight", UsageError, ("--group_by: feature", "'sight'", "'site'")),
        (lambda row: b"a", "file:(.)", UsageError, ("records have no paths of images",)),
    ],
)  # fmt: skip
def test_records_without_a_group_are_refused(tmp_path, value, flag, error, facts):
    records_of(tmp_path / "in/train-00000-of-00001", 30, site=value)
    with pytest.raises(error, check=said(*facts)):
        convert_in_process(
            "--dataset=tfrecord", f"--source={tmp_path}/in", f"--data_dir={tmp_path}/out", SPLITS, f"--group_by={flag}"
        )
    assert not (tmp_path / "out").exists()
