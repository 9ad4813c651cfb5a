"""Images with several labels, or with a number to predict, from every format of tables."""

import html
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from beam_jobs import validate
from beam_jobs.conversion.command import convert as convert_command
from beam_jobs.sources import open_source, table
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.inspect import __main__ as inspect
from pipeline.manifest import Feature
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at, said
from tests.helpers.round_trips import everything, picture

NAMES = [["sea", "beach"], ["city"], [], ["sea"], ["city", "sea"], ["beach"]]
HOT = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0]])
PRICES = [0.5, -2.25, 100.0, 0.1, 3.0, 1e10]


@pytest.fixture
def root(tmp_path):
    for row in range(len(NAMES)):
        (tmp_path / f"{row}.png").write_bytes(picture(row))
    return tmp_path


def write(root, form, labels):
    """Writes a table of the images with a label for each, None for a missing one; returns the flags that read it."""
    path = root / f"t.{form}"
    files = [f"{row}.png" for row in range(len(labels))]
    if form == "parquet":
        pq.write_table(pa.table({"image": [(root / name).read_bytes() for name in files], "label": labels}), path)
    elif form == "jsonl":
        rows = ({"file_name": name, "label": label} for name, label in zip(files, labels, strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        texts = (" ".join(label) if isinstance(label, list) else "" if label is None else label for label in labels)
        path.write_text("".join(f"{line}\n" for line in ["file_name,label", *map("{},{}".format, files, texts)]))
    return {"dataset": "parquet" if form == "parquet" else "image_table", "source": str(path)}


def opened(root, form, labels, **options):
    if form == "csv" and "float_labels" not in options:
        options |= {"label_separator": " "}
    return open_source(SourceOptions(**write(root, form, labels), **options))


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_an_image_of_several_classes_has_a_one_for_each(root, form):
    source = opened(root, form, NAMES)
    assert (source.class_names, source.label) == (("beach", "city", "sea"), Feature("int64", (3,)))
    block = everything(source)
    assert (block.labels.tolist(), block.bad) == (HOT.tolist(), {})


def test_a_text_is_divided_at_the_separator(root):
    labels = ["a, b", "", "b,,a", "c", None, "NA,a"]
    source = opened(root, "parquet", labels, label_separator=",")
    assert source.class_names == ("a", "b", "c")
    block = everything(source)
    assert block.labels[:4].tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert set(block.bad) == {4, 5}
    assert block.bad[4] == "label is null"
    assert "'NA'" in block.bad[5]
    assert opened(root, "parquet", labels, label_separator=",", na_is_class=True).class_names == ("NA", "a", "b", "c")


def test_lists_of_numbers_are_classes_by_number(root):
    source = opened(root, "parquet", [[0, 2], [1], [], None, [-1], [2, None]])
    assert source.class_names == ("0", "1", "2")
    block = everything(source)
    assert block.labels[:3].tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert {row: reason.split("label ")[1] for row, reason in block.bad.items()} == {
        3: "is null", 4: "is -1, not in 0..2", 5: "is null",
    }  # fmt: skip


@pytest.mark.parametrize("form", ["Sequence", "list"])
def test_class_names_of_lists_are_those_of_hugging_face_or_of_labels_txt(root, form):
    flags = write(root, "parquet", [[0], [1]])
    names = {"_type": "ClassLabel", "names": ["ape", "bee", "cat"]}
    label = [names] if form == "list" else {"feature": names, "_type": form}
    table = pq.read_table(flags["source"])
    info = json.dumps({"info": {"features": {"label": label}}})
    pq.write_table(table.replace_schema_metadata({"huggingface": info}), flags["source"])
    assert open_source(SourceOptions(**flags)).class_names == ("ape", "bee", "cat")
    table = pa.table({"image": table["image"], "label": [[0], [3]]})
    pq.write_table(table.replace_schema_metadata({"huggingface": info}), flags["source"])
    assert everything(open_source(SourceOptions(**flags))).bad == {1: "an element of label is 3, not in 0..2"}
    (root / "labels.txt").write_text("sea\ncity\nbeach\n")
    for form in ("csv", "jsonl"):
        source = opened(root, form, NAMES)
        assert source.class_names == ("sea", "city", "beach")
        assert everything(source).labels.tolist() == HOT[:, ::-1].tolist()


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_numbers_to_predict_are_float32(root, form):
    (root / "labels.txt").write_text("no class\n")
    source = opened(root, form, PRICES, float_labels=True)
    assert (source.class_names, source.label) == ((), Feature("float32"))
    block = everything(source)
    assert (block.labels.dtype, block.labels.tolist()) == (np.float32, np.float32(PRICES).tolist())


@pytest.mark.parametrize(
    ("labels", "is_told"),
    [(["1.5", "2", "3.25"], True), (["1.0", "2.0", "3"], False), (["1.5", "2", "v3.25"], False)],
)
def test_classes_that_are_made_of_fractions_are_told(root, capsys, labels, is_told):
    assert len(opened(root, "csv", labels).class_names) == 3
    err = capsys.readouterr().err
    assert ("'label' has numbers with fractions, such as 1.5, and 3 classes are made of them" in err) == is_told
    assert ("--float_labels" in err) == is_told


def test_a_label_that_is_no_finite_number_is_an_invalid_row(root):
    block = everything(opened(root, "parquet", [1.0, None, float("nan"), 1e300], float_labels=True))
    assert {row: reason.removeprefix("label ") for row, reason in block.bad.items()} == {
        1: "is null", 2: "is no finite number", 3: "1e+300 is beyond float32",
    }  # fmt: skip
    assert set(everything(opened(root, "csv", ["1", "", "2.5"], float_labels=True)).bad) == {1}
    with pytest.raises(DataError, check=at("t.csv", "'label' has 'x'", "no number", part="row 1")):
        opened(root, "csv", ["1", "x"], float_labels=True)


@pytest.mark.parametrize(
    ("labels", "flags", "facts"),
    [
        (["a"], {"float_labels": True}, ("--label_column=label", "string", "--float_labels")),
        ([[1.5, 2.0]], {}, ("--label_column=NAME", "has it as list<", "a vector per image: write TFRecords")),
        ([[1.5, 2.0]], {"float_labels": True}, ("--label_column=NAME", "list<", "a vector per image: write TFRecords")),
        ([1], {"label_separator": " "}, ("--label_column=label", "int64", "--label_separator")),
        ([1.5], {}, ("--label_column=label", "double", "--float_labels")),
        ([[1]], {"label_separator": " ", "float_labels": True}, ("--label_separator", "--float_labels")),
    ],
)
def test_labels_of_another_kind_are_refused(root, labels, flags, facts):
    with pytest.raises(UsageError, check=said(*facts)):
        opened(root, "parquet", labels, **flags)


@pytest.mark.parametrize(
    ("labels", "flags", "instead"),
    [
        ([1.5], {}, "give --float_labels"),
        (["a"], {"float_labels": True}, "leave out --float_labels"),
        ([1], {"label_separator": " "}, "leave out --label_separator"),
        ([{"a_long_name_of_a_field": 1, "and_a_longer_one": 2}], {}, "--label_column="),
    ],
)
def test_the_flag_to_give_stands_before_what_may_be_long(root, labels, flags, instead):
    with pytest.raises(UsageError) as refused:
        opened(root, "parquet", labels, **flags)
    before, path, _ = str(refused.value).partition(str(root))
    assert path
    assert instead in before


def test_another_column_is_named_that_could_be_the_labels(tmp_path):
    columns = {"image": [picture(1)], "label": [1.5], "key": [b"k"], "of split": ["a"], "the kind": ["a"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    given = SourceOptions("parquet", str(tmp_path / "a.parquet"), key_column="key", split_column="of split")
    with pytest.raises(UsageError, check=said("--label_column='the kind'")):
        open_source(given)


@pytest.mark.parametrize(
    ("form", "labels", "flags", "facts"),
    [
        ("parquet", [0, 7], {}, ("8 classes", "; --float_labels")),
        ("parquet", list("abcdef"), {}, ("6 classes", "; --label_separator=' '", "--float_labels")),
        ("csv", ["a b c", "d e f"], {"label_separator": " "}, ("6 classes", "; --label_column=NAME")),
    ],
)
def test_too_many_classes_name_the_flags_for_labels_that_are_none(root, form, labels, flags, facts, monkeypatch):
    monkeypatch.setattr(table, "MAX_CLASSES", 5)
    with pytest.raises(DataError, check=said("column 'label'", *facts)):
        opened(root, form, labels, **flags)


KINDS = {
    "several": (NAMES, [], HOT.tolist(), (2, 2, 3)),
    "float": (PRICES, ["--float_labels"], np.float32(PRICES).tolist(), ()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["source", "raw"])
@pytest.mark.quick(2)
def test_a_data_set_of_them_is_fed_checked_and_converted_again(root, kind, encoding, capsys):
    labels, flags, wanted, histogram = KINDS[kind]
    given = [f"--{name}={value}" for name, value in write(root, "parquet", labels).items()]
    given += [*flags, f"--image_encoding={encoding}", "--num_shards=2"]
    out = convert_in_process(*given, f"--data_dir={root}/out")
    made = manifest.load(out)
    assert made.splits["train"].label_histogram == histogram
    assert ("label" in made.columns) == (kind == "float")
    again = convert_in_process("--dataset=tfrecord", f"--source={out}", f"--data_dir={root}/again")
    for folder in (out, again):
        batches = pipeline.input_fn(folder, "train", global_batch_size=1, training=False, features=("key",))
        fed = {int(x["key"][0].numpy().split(b"#")[1]): label[0].numpy().tolist() for x, label, _ in batches}
        assert [fed[row] for row in range(len(labels))] == wanted
    validate.main([str(out)])
    assert "the data set matches its manifest" in capsys.readouterr().out


def test_the_command_says_the_classes_and_shuffles_in_two_passes(root, capsys):
    given = [f"--{name}={value}" for name, value in write(root, "csv", NAMES).items()]
    given += ["--label_separator= ", f"--data_dir={root}/out"]
    convert_command("convert", [*given, "--dry_run"])
    assert "2 of 3 classes  city, sea  png" in capsys.readouterr().out
    convert_command("convert", [*given, "--passes=2", "--num_shards=2"])
    assert manifest.load(LocalPath(root / "out")).features["label"] == Feature("int64", (3,))
    assert (root / "out" / "card.html").exists()
    with pytest.raises(UsageError, check=said("--columns", "'label'")):
        convert_command("convert", [*given, "--columns=records:label", "--overwrite=true"])


def test_data_sets_with_several_labels_are_not_joined(root):
    for name in "ab":
        convert_in_process(
            *[f"--{n}={v}" for n, v in write(root, "parquet", NAMES).items()], f"--data_dir={root}/{name}"
        )
    with pytest.raises(DataError, check=said("one class per image", "int64 (3,)")):
        open_source(SourceOptions("tfrecord", f"{root}/[ab]/*.tfrecord"))


def test_whole_numbers_that_float32_rounds_are_no_labels(root):
    source = opened(root, "parquet", [1, 2**24, 2**24 + 1, -(2**24) - 1, 2**53 + 1, 7], float_labels=True)
    block = everything(source)
    assert {row: reason.removeprefix("label ") for row, reason in block.bad.items()} == {
        2: "16777217 is not exactly a float32",
        3: "-16777217 is not exactly a float32",
        4: "9007199254740993 is not exactly a float32",
    }
    assert block.labels[[0, 1, 5]].tolist() == [1.0, 2.0**24, 7.0]


def test_a_list_of_one_length_holds_several_labels(root):
    path = root / "t.parquet"
    images = [(root / f"{row}.png").read_bytes() for row in range(3)]
    labels = pa.array([[0, 2], [1, 1], [2, 0]], pa.list_(pa.int64(), 2))
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    block = everything(open_source(SourceOptions(dataset="parquet", source=str(path))))
    np.testing.assert_array_equal(block.labels, [[1, 0, 1], [0, 1, 0], [1, 0, 1]])


def shown(root, form, labels, capsys, *flags):
    """Converts a table, and returns the data set's folder, its card and what `inspect` prints, spaces made one."""
    given = [f"--{name}={value}" for name, value in write(root, form, labels).items()]
    out = root / "out"
    convert_command("convert", [*given, *flags, f"--data_dir={out}"])
    capsys.readouterr()
    inspect.main([str(out)])
    return out, card_words(out), " ".join(capsys.readouterr().out.split())


def card_words(out):
    text = re.sub(r"<[^>]*>", " ", (out / "card.html").read_text())
    return " ".join(html.unescape(text).split())


def test_the_card_and_inspect_show_how_numbers_to_predict_are_spread(root, capsys):
    labels = [0.5, 3.0, 3.0, 0.5, 3.0, -2.0]
    out, card, printed = shown(root, "parquet", labels, capsys, "--float_labels", "--split=train:0.5,test:0.5")
    splits = "test", "train"
    for split in splits:
        numbers = np.load(next(iter((out / "columns").glob(f"{split}*label*"))))
        row = f"{split} {len(numbers)} 0 {numbers.min():g} {numbers.mean():,.6g} {numbers.max():g} {numbers.std():,.6g}"
        assert row in card
        assert row in printed
    assert "split labels missing least mean most standard deviation" in printed
    for value in (-2.0, 0.5, 3.0):
        counts = [int((np.load(next(iter((out / "columns").glob(f"{s}*label*")))) == value).sum()) for s in splits]
        assert " ".join([f"{value:g}", *map(str, counts)]) in printed
    assert "label test train -2 " in printed
    assert "label test train -2 " in card or "label train test -2 " in card
    for column in (out / "columns").glob("train*label*"):
        column.write_bytes(column.read_bytes()[:-1])
    with pytest.raises(DataError, check=said("CRC32C")):
        inspect.main([str(out)])


def test_without_a_column_of_labels_inspect_says_how_to_make_it(root, capsys):
    _, card, printed = shown(root, "parquet", PRICES, capsys, "--float_labels", "--columns=none")
    assert "--add_columns=records:label" in printed
    assert "standard deviation" not in printed.split("no column")[1]
    assert "least" not in card


def test_the_card_and_inspect_count_several_labels_per_example(root, capsys):
    _, card, printed = shown(root, "parquet", NAMES, capsys)
    assert "Labels per example: 1.17 in train" in card
    assert "train: 1.17 labels per example" in printed
    assert "0 beach 2 1 city 2 2 sea 3" in printed
