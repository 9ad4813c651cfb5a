"""One law of splits for all sources: found, kept apart, or refused with the flag that decides."""

import dataclasses
import pickle
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import convert
from beam_jobs.sources import joined, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature
from pipeline.records import framing, splits, tf_example
from tests.helpers.made_source import Content, write_source
from tests.helpers.raised import at, said
from tests.helpers.round_trips import fill, picture

ROWS = 4


def parquet(path, start=0, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = pa.array([picture(start + row) for row in range(ROWS)])
    own = {"image": images, "label": pa.array([0, 1] * (ROWS // 2))} | columns
    pq.write_table(pa.table({name: values for name, values in own.items() if values is not None}), path)


def records(path, **features):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"image": picture(row), "label": row % 2, **features} for row in range(ROWS)]
    path.write_bytes(b"".join(framing.frame(tf_example.encode(row)) for row in rows))


def images(path, count=ROWS):
    fill(path, {f"cat/{row}.png": picture(row) for row in range(count)})


def table(path, columns="", rows=("",) * ROWS, folder=""):
    lines = [f"file_name,label{columns}", *(f"{folder}{row}.png,a{more}" for row, more in enumerate(rows))]
    pictures = {f"{folder}{row}.png": picture(row) for row in range(len(rows))}
    fill(path.parent, {path.name: "\n".join(lines), **pictures})


def opened(dataset, source, **flags):
    return open_source(SourceOptions(dataset, str(source), **flags))


# {name: its split} of files that lie together.
NAMED = [
    {"train.x": "train", "Test.x": "test"},
    {"TRAIN/part-0.x": "train", "TEST/part-0.x": "test"},
    {"train_images/0.x": "train", "testImages/0.x": "test"},
    {"trainset-0.x": "train", "testset-0.x": "test", "valset-0.x": "validation"},
    {"Split-train/data-00000-of-00001.x": "train", "Split-eval/data-00000-of-00001.x": "test"},
    {"split=train/part-0.x": "train", "split=TEST/part-0.x": "test", "split=unlabelled/part-0.x": "unlabelled"},
    {"year=2020/subset=train/0.x": "train", "year=2020/subset=valid/0.x": "validation"},
    {"data/train-00000-of-00001.x": "train", "data/holdout-00000-of-00001.x": "holdout"},
]


@pytest.mark.parametrize("named", NAMED, ids=lambda named: next(iter(named)))
@pytest.mark.parametrize("dataset", ["parquet", "tfrecord"])
def test_names_of_files_and_folders_tell_the_split(dataset, named, tmp_path):
    write, suffix = {"parquet": (parquet, ".parquet"), "tfrecord": (records, ".tfrecord")}[dataset]
    for name in named:
        write(tmp_path / "in" / name.replace(".x", suffix))
    depth = next(iter(named)).count("/")
    source = opened(dataset, tmp_path / "in" if dataset == "parquet" else f"{tmp_path}/in/{'*/' * depth}*")
    wanted = sorted(named.values(), key=lambda split: (*splits.SPLITS, split).index(split))
    assert source.splits == dict.fromkeys(wanted, ROWS)
    for name, split in named.items():
        where, row = source.where(split, 1)
        assert (name.replace(".x", suffix).endswith(where), row) == (True, 1)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("Training", "Testing"), {"train", "test"}),
        (("seg_train", "seg_test"), {"train", "test"}),
        (("train", "test_images"), {"train", "test"}),
        (("split=train", "split=test"), {"train", "test"}),
        (("Split-train", "Split-eval"), {"train", "test"}),
    ],
)
def test_folders_of_images_are_splits_by_the_same_words(names, found, tmp_path):
    for name in names:
        images(tmp_path / name)
    source = opened("image_folder", tmp_path)
    assert (source.splits, source.class_names) == (dict.fromkeys(splits.in_order(found), ROWS), ("cat",))


def test_lists_of_splits_beside_folders_of_images_are_named(tmp_path, capsys):
    images(tmp_path)
    (tmp_path / "train.txt").write_text("cat/0.png\n")
    opened("image_folder", tmp_path)
    assert "may list splits" not in capsys.readouterr().err
    (tmp_path / "Test.txt").write_text("cat/1.png\n")
    opened("image_folder", tmp_path)
    assert "Test.txt, train.txt may list splits" in capsys.readouterr().err


def test_words_for_splits_in_names_of_classes_are_classes(tmp_path):
    fill(tmp_path, {f"{name}/0.png": picture(0) for name in ("train_station", "test_tube", "train", "bus")})
    assert opened("image_folder", tmp_path).class_names == ("bus", "test_tube", "train", "train_station")


def column(*words):
    return pa.array(words).dictionary_encode()


def test_the_rows_of_a_column_of_splits_are_kept_apart(tmp_path):
    parquet(tmp_path / "a.parquet", split=column("train", "test", "Train", "train"))
    parquet(tmp_path / "b.parquet", 10, split=column("val", "train", "test", "val"))
    source = pickle.loads(pickle.dumps(opened("parquet", tmp_path)))
    assert source.splits == {"train": 4, "validation": 2, "test": 2}
    assert [source.where("test", row) for row in range(2)] == [("a.parquet", 1), ("b.parquet", 2)]
    block = source.read("validation", np.array([1, 0]))
    assert (block.images, block.keys.tolist()) == ([picture(13), picture(10)], [b"b.parquet#3", b"b.parquet#0"])
    assert {split: source.chunks(split).tolist() for split in source.splits} == {
        "train": [3, 1],
        "validation": [0, 2],
        "test": [1, 1],
    }
    # The column, the names, or the flag; a column with other words needs the flag.
    assert opened("parquet", tmp_path, split_column="none").splits == {"train": 8}
    parquet(tmp_path / "c" / "x.parquet", part=column("x", "y", "x", "x"))
    assert opened("parquet", tmp_path / "c", split_column="part").splits == {"x": 3, "y": 1}
    assert opened("parquet", tmp_path / "c").splits == {"train": 4}


def test_a_column_that_agrees_with_the_names_changes_nothing(tmp_path):
    for split in ("train", "test"):
        parquet(tmp_path / f"{split}.parquet", split=column(*[split] * ROWS))
    source = opened("parquet", tmp_path)
    assert (type(source).__name__, source.splits) == ("GroupedSource", {"train": ROWS, "test": ROWS})


@pytest.mark.parametrize("dataset", ["parquet", "image_table"])
def test_what_looks_like_splits_or_contradicts_itself_is_refused_with_the_flag_that_decides(dataset, tmp_path):
    def write(name, column_name, *words):
        if dataset == "parquet":
            parquet(tmp_path / name / f"{name}.parquet", **{column_name: pa.array(words)})
        else:
            table(tmp_path / name / f"{name}.csv", f",{column_name}", [f",{word or ''}" for word in words])
        return tmp_path / name / f"{name}{'.parquet' if dataset == 'parquet' else '.csv'}"

    usage = write("a", "Usage", "Training", "PublicTest", "Training", "Training")
    with pytest.raises(DataError, check=said(usage, "'PublicTest', 'Training'", "--split_column=Usage", "=none")):
        opened(dataset, usage)
    assert opened(dataset, usage, split_column="Usage").splits == {"train": 3, "PublicTest": 1}
    assert opened(dataset, usage, split_column="none").splits == {"train": 4}
    is_train = write("i", "is_training_image", "1", "0", "1", "1")
    with pytest.raises(DataError, check=said(is_train, "'is_training_image' has '0', '1'", "'split'", "=none")):
        opened(dataset, is_train)
    assert opened(dataset, is_train, split_column="none").splits == {"train": 4}
    assert opened(dataset, write("j", "is_train", "1", "1", "1", "1")).splits == {"train": 4}
    some = write("k", "is_train", "true", "true", None, "true")
    with pytest.raises(DataError, check=said(some, "'is_train' has 'true', ''", "=none")):
        opened(dataset, some)
    for number, (column_name, words, shown) in enumerate(
        [
            ("subset", ("train", "test", "extra", "extra"), "'test', 'train', 'extra'"),
            ("usage", ("train", "holdout", "train", "train"), "'train', 'holdout'"),
            ("usage", ("train", "train", None, "train"), "'train', ''"),
            ("partition", ("a", "b", "eval", "d"), "'eval', 'a'"),
            ("dataset", ("x_train", "x_train", "x_val", "y"), "'x_train', 'x_val', 'y'"),
        ]
    ):
        path = write(f"z{number}", column_name, *words)
        with pytest.raises(DataError, check=said(path, f"{column_name!r} has {shown}", f"={column_name}", "=none")):
            opened(dataset, path)
        assert opened(dataset, path, split_column="none").splits == {"train": 4}
    for number, words in enumerate((("red", "blue", "green", None), ("train", "train", "Training", "train"))):
        assert opened(dataset, write(f"y{number}", "set", *words)).splits == {"train": 4}
    odd = write("c", "split", "0", "1", "0", "0")
    with pytest.raises(DataError, check=said(f"{odd}, row 0", "'split' has '0'", "--split_column=none")):
        opened(dataset, odd)
    test = write("test", "split", "test", "train", "test", "test")
    with pytest.raises(DataError, check=said(f"{test}, row 1", "'train' by column", "'test' by the name", "=split")):
        opened(dataset, test)
    assert opened(dataset, test, split_column="split").splits == {"train": 1, "test": 3}
    assert opened(dataset, test, split_column="none").splits == {"test": 4}


def test_a_table_of_images_in_folders_of_several_splits_must_say_its_splits(tmp_path):
    table(tmp_path / "labels.csv", folder="train/")
    table(tmp_path / "labels.csv", folder="test/")
    rows = [f"{split}/{row}.png,a" for split in ("train", "test") for row in range(ROWS)]
    (tmp_path / "labels.csv").write_text("\n".join(["file_name,label", *rows]))
    with pytest.raises(DataError, check=said("labels.csv, row 4: test/0.png and train/0.png", "--split_column=none")):
        opened("image_table", tmp_path / "labels.csv")
    assert opened("image_table", tmp_path / "labels.csv", split_column="none").splits == {"train": 8}


def test_all_folders_of_a_table_of_images_are_looked_at(tmp_path):
    rows = [f"train/n{number:04d}/0.png,a" for number in range(1100)]
    text = "\n".join(["file_name,label", *rows, "test/n0000/0.png,a"])
    fill(tmp_path, {"train/n0000/0.png": picture(0), "labels.csv": text})
    with pytest.raises(DataError, check=said("row 1100: test/n0000/0.png and train/n0000/0.png", "=none")):
        opened("image_table", tmp_path / "labels.csv")


def test_a_feature_that_looks_like_splits_is_refused(tmp_path):
    records(tmp_path / "x.tfrecord", split=b"train")
    with pytest.raises(DataError, check=said("x.tfrecord", "'split' has 'train'", "--split_column=none")):
        opened("tfrecord", tmp_path)
    assert opened("tfrecord", tmp_path, split_column="none").splits == {"train": ROWS}
    for number, (name, values) in enumerate(
        [
            ("split", (0, 1)),
            ("split", (np.array([0.5, 1], np.float32),)),
            ("is_train", (1, 0)),
            ("is_training_image", (b"true", b"false")),
            ("subset", (b"train", b"holdout")),
            ("usage", (b"train",) * 150 + (b"test",)),  # later than the first records
        ]
    ):
        path = tmp_path / str(number) / "x.tfrecord"
        path.parent.mkdir()
        rows = [{"image": picture(0), "label": 0, name: value} for value in values]
        path.write_bytes(b"".join(framing.frame(tf_example.encode(row)) for row in rows))
        for has_names in (False, True):  # with them, labels need not be read
            if has_names:
                (path.parent / "labels.txt").write_text("a\nb")
            with pytest.raises(DataError, check=said(repr(name), "a file per split", "--split_column=none")):
                opened("tfrecord", path)
            assert opened("tfrecord", path, split_column="none").splits == {"train": len(values)}
    records(tmp_path / "y" / "x.tfrecord", is_train=1, subset=b"train", phase=3, set=b"red")
    assert opened("tfrecord", tmp_path / "y").splits == {"train": ROWS}
    with pytest.raises(UsageError, check=said("--split_column=split", "names of files")):
        opened("tfrecord", tmp_path, split_column="split")


def test_partitions_are_columns_and_none_of_them_vanishes(tmp_path):
    for year, label in ((2020, "cat"), (2021, "dog"), (2021, "a%20b")):
        parquet(tmp_path / f"year={year}" / f"label={label}" / "0.parquet", len(label), label=None)
    source = pickle.loads(pickle.dumps(opened("parquet", tmp_path)))
    assert (source.class_names, source.features) == (("a b", "cat", "dog"), {"year": Feature("int64")})
    block = source.read("train", np.arange(3 * ROWS))
    assert block.labels.tolist() == [1] * ROWS + [0] * ROWS + [2] * ROWS
    assert block.extra["year"].tolist() == [2020] * ROWS + [2021] * 2 * ROWS
    with pytest.raises(UsageError, check=said("'label' cannot be kept")):
        opened("parquet", tmp_path, label_column="year")
    assert opened("parquet", tmp_path, keep_columns=("year:string",)).features == {"year": Feature("string")}
    with pytest.raises(DataError, check=said("year=2020", "row 0", "'year' has '2020'")):
        opened("parquet", tmp_path, split_column="year")
    parquet(tmp_path / "0.parquet")
    with pytest.raises(DataError, check=said("label, year", "those of others do not")):
        opened("parquet", tmp_path)


def test_a_column_that_a_file_has_is_not_that_of_its_folder(tmp_path):
    years = pa.array(range(ROWS))
    parquet(tmp_path / "year=2020" / "site=a" / "0.parquet", year=years)
    source = opened("parquet", tmp_path, keep_columns=("year",))
    assert source.features == {"year": Feature("int64"), "site": Feature("string")}
    assert source.read("train", np.arange(ROWS)).extra["year"].tolist() == [*range(ROWS)]


def test_a_partition_that_names_no_split_is_refused(tmp_path):
    parquet(tmp_path / "split=train" / "0.parquet")
    parquet(tmp_path / "split=a-b" / "0.parquet")
    with pytest.raises(DataError, check=at("split=a-b/0.parquet", "split=a-b names no split")):
        opened("parquet", tmp_path)


def test_files_of_splits_that_are_left_out_are_not_opened(tmp_path):
    parquet(tmp_path / "p" / "train.parquet")
    parquet(tmp_path / "p" / "test.parquet", label=None)
    with pytest.raises(UsageError, check=said("test.parquet", "label", "--splits")):
        opened("parquet", tmp_path / "p")
    assert opened("parquet", tmp_path / "p", splits=("train",)).splits == {"train": ROWS}
    records(tmp_path / "r" / "train.tfrecord")
    records(tmp_path / "r" / "val.tfrecord")
    (tmp_path / "r" / "test.tfrecord").write_bytes(b"broken")
    (tmp_path / "r" / "more.tfrecord").write_bytes(b"broken")
    source = opened("tfrecord", tmp_path / "r", splits=("validation", "train"))
    assert source.splits == {"train": ROWS, "validation": ROWS}
    assert opened("tfrecord", tmp_path / "r", splits=("val",)).splits == {"validation": ROWS}


def test_rows_and_tables_of_splits_may_be_left_out(tmp_path):
    table(tmp_path / "train" / "metadata.csv")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "metadata.csv").write_text("file_name\nx.png\n")
    assert opened("image_table", tmp_path, splits=("train",)).splits == {"train": ROWS}
    table(tmp_path / "all.csv", ",split", [",train", ",test", ",test", ",val"])
    assert opened("image_table", tmp_path / "all.csv", splits=("test", "val")).splits == {
        "validation": 1,
        "test": 2,
    }
    parquet(tmp_path / "x.parquet", split=pa.array(["train", "test", "test", "test"]))
    source = opened("parquet", tmp_path / "x.parquet", splits=("test",))
    assert (source.splits, source.where("test", 0)) == ({"test": 3}, ("x.parquet", 1))


def test_folders_of_splits_that_are_left_out_are_not_looked_into(tmp_path):
    images(tmp_path / "train")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "1.png").write_bytes(picture(1))  # without labels
    (tmp_path / "extra").mkdir()
    with pytest.raises(DataError, check=said("'extra'", "--splits=train,test")):
        opened("image_folder", tmp_path)
    (tmp_path / "extra").rmdir()
    with pytest.raises(DataError, check=said("test/1.png", "--splits")):
        opened("image_folder", tmp_path)
    source = opened("image_folder", tmp_path, splits=("train",))
    assert (source.splits, source.class_names) == ({"train": ROWS}, ("cat",))
    assert pickle.loads(pickle.dumps(source)).read("train", np.array([0])).labels.tolist() == [0]


def test_a_split_without_labels_is_refused_with_the_flag_that_leaves_it_out(tmp_path, capsys):
    parquet(tmp_path / "in" / "train.parquet")
    parquet(tmp_path / "in" / "test.parquet", label=pa.array([-1] * ROWS))
    flags = ["--dataset=parquet", f"--source={tmp_path / 'in'}", f"--data_dir={tmp_path / 'out'}"]
    for more in (["--max_rejects=100"], ["--max_rejects=100", "--dry_run"]):
        with pytest.raises(DataError, check=said("--splits=train")):
            convert.main([*flags, *more])
    convert.main([*flags, "--splits=train"])
    assert manifest.load(tmp_path / "out").splits.keys() == {"train"}


def test_splits_of_any_source_may_be_left_out(tmp_path, capsys):
    assert open_source(SourceOptions("digits", splits=("test",))).splits == {"test": 368}
    convert.main(["--dataset=digits", f"--data_dir={tmp_path}", "--splits=test"])
    made = manifest.load(tmp_path)
    assert ({*made.splits}, made.options["splits"]) == ({"test"}, "test")
    assert opened("tfrecord", tmp_path, splits=("test",)).splits == {"test": 368}
    with pytest.raises(UsageError, check=said("--splits", "'train'", "test")):
        opened("tfrecord", tmp_path, splits=("train",))
    with pytest.raises(UsageError, check=said("--splits", "'validation'", "test, train")):
        open_source(SourceOptions("digits", splits=("validation",)))


class TestDataSetsOfOneGlob:
    """Converted data sets that one glob names are joined by the names of their classes."""

    @staticmethod
    def convert(folder, classes, **flags):
        for number, name in enumerate(classes):
            pictures = {f"{folder.name}{row}.png": picture(10 * number + row) for row in range(ROWS)}
            fill(folder / "in" / name, pictures)
        flags = [f"--{name}={value}" for name, value in flags.items()]
        convert.main(["--dataset=image_folder", f"--source={folder / 'in'}", f"--data_dir={folder / 'out'}", *flags])

    def test_classes_and_splits_are_kept_and_keys_begin_with_the_data_set(self, tmp_path, capsys):
        self.convert(tmp_path / "a", ("cat", "dog"))
        self.convert(tmp_path / "b", ("ape", "dog"), split="train:0.5,test:0.5")
        source = pickle.loads(pickle.dumps(opened("tfrecord", f"{tmp_path}/*/out/*.tfrecord")))
        assert source.class_names == ("ape", "cat", "dog")
        assert {*source.splits} == {"train", "test"}
        found = {}
        for split, count in source.splits.items():
            block = source.read(split, np.arange(count)[::-1])
            found |= {key.decode(): label for key, label in zip(block.keys, block.labels.tolist(), strict=True)}
        assert found == {
            **{f"a/out/{name}/a{row}.png": label for name, label in (("cat", 1), ("dog", 2)) for row in range(ROWS)},
            **{f"b/out/{name}/b{row}.png": label for name, label in (("ape", 0), ("dog", 2)) for row in range(ROWS)},
        }
        assert [file.file for file in source.files] == ["a/out/manifest.json", "b/out/manifest.json"]
        only = opened("tfrecord", f"{tmp_path}/a/out/train-*")
        assert (only.class_names, only.splits) == (("cat", "dog"), {"train": 2 * ROWS})
        flags = ["--dataset=tfrecord", f"--source={tmp_path}/*/out/*.tfrecord", f"--data_dir={tmp_path / 'all'}"]
        convert.main(flags)
        made = manifest.load(tmp_path / "all")
        assert made.class_names == ("ape", "cat", "dog")
        assert sum(sum(split.label_histogram[2:]) for split in made.splits.values()) == 2 * ROWS

    def test_shards_of_one_data_set_are_not_taken_for_others(self, tmp_path, capsys):
        self.convert(tmp_path / "d", ("cat", "dog"), num_shards="4")
        self.convert(tmp_path / "e", ("cat", "dog"), num_shards="4")
        for shards in ("d", "[de]"):  # of one, of a join
            flags = ["--dataset=tfrecord", f"--data_dir={tmp_path / shards}-some", "--num_shards=train:2"]
            one, other = (f"--source={tmp_path}/{shards}/out/train-0000[{numbers}]*" for numbers in ("01", "23"))
            convert.main([*flags, one])
            convert.main([*flags, one])
            assert "nothing to do" in capsys.readouterr().out
            with pytest.raises(UsageError, check=said("shards", "--overwrite")):
                convert.main([*flags, other])
        assert [file.file for file in opened("tfrecord", f"{tmp_path}/d/out/train-*").files] == ["manifest.json"]

    def test_what_cannot_be_joined_is_refused(self, tmp_path, capsys):
        self.convert(tmp_path / "a", ("cat", "dog"))
        self.convert(tmp_path / "b", ("cat", "dog"), image_encoding="raw", resize="8x8")
        with pytest.raises(DataError, check=said("a/out are files", "b/out 8x8x3", "--image_encoding")):
            opened("tfrecord", f"{tmp_path}/*/out/train-*")
        records(tmp_path / "c" / "out" / "train-00000-of-00001.tfrecord")
        with pytest.raises(DataError, check=said("c/out/train-00000-of-00001.tfrecord", "manifest.json")):
            opened("tfrecord", f"{tmp_path}/[ac]/out/train-*")
        self.convert(tmp_path / "d", ("Cat", " cat"))
        with pytest.raises(DataError, check=said("' cat'", "'cat'", "look alike")):
            opened("tfrecord", f"{tmp_path}/[ad]/out/train-*")

    def test_two_of_them_may_have_equal_keys(self, tmp_path, capsys):
        for folder in ("a", "b/a"):
            self.convert(tmp_path / folder, ("cat",))
        for raw in (False, True):  # a list of keys, an array
            if raw:
                for folder in ("a", "b/a"):
                    self.convert(tmp_path / folder, ("cat",), image_encoding="raw", overwrite="true")
            out = tmp_path / f"all{raw}"
            convert.main(["--dataset=tfrecord", f"--source={tmp_path}/**/out/train-*", f"--data_dir={out}"])
            block = opened("tfrecord", out).read("train", np.arange(2 * ROWS))
            wanted = [f"{name}/out/cat/a{row}.png".encode() for name in ("a", "b/a") for row in range(ROWS)]
            assert sorted(map(bytes, block.keys)) == wanted
            assert (out / "manifest.json").exists()


def test_many_classes_are_joined_in_no_time(tmp_path):
    one, other = (write_source(tmp_path / name, {"train": Content([picture(0)])}) for name in "ab")
    names = tuple(f"class {number:06d}" for number in range(50_000))
    sets = {"a": dataclasses.replace(one, class_names=names), "b": dataclasses.replace(other, class_names=names[::-1])}
    started = time.process_time()
    made = joined.joined("x", LocalPath(str(tmp_path)), sets)
    assert time.process_time() - started < 5  # a search for each among all takes minutes
    assert made.numbers == {"a": (*range(50_000),), "b": (*range(50_000),)[::-1]}
