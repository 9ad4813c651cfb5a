import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.sources import label_table
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature
from tests.helpers.datasets import write_dataset

CLASS = Feature("int64")


@pytest.fixture
def made(tmp_path):
    """A function that returns the manifest of a data set with classes and labels of some form."""
    write_dataset(tmp_path / "data", (3,))
    found = manifest.load(tmp_path / "data")

    def make(names, label=CLASS, **options):
        features = {**found.features, "label": label}
        return dataclasses.replace(found, class_names=names, features=features, options=options)

    return make


@pytest.fixture
def path(tmp_path):
    return LocalPath(tmp_path)


def csv(path, *rows):
    (path / "labels.csv").write_text("\n".join(["label,key", *rows]) + "\n")
    return path / "labels.csv"


def test_names_come_before_numbers_and_new_ones_behind(made, path):
    table = csv(path, "dog,a", "0,b", "zebra,c", "ant,d", " cat ,e")
    found, names = label_table.read(table, made(("cat", "dog")))
    assert names == ("cat", "dog", "ant", "zebra")
    assert found == {b"a": 1, b"b": 0, b"c": 3, b"d": 2, b"e": 0}
    assert label_table.read(csv(path, "1,a"), made(("1", "x")))[0] == {b"a": 0}


def test_where_classes_are_numbers_all_up_to_a_higher_one_are_classes(made, path):
    found, names = label_table.read(csv(path, "4,a", "0,b"), made(("0", "1", "2")))
    assert (found, names) == ({b"a": 4, b"b": 0}, ("0", "1", "2", "3", "4"))
    with pytest.raises(DataError, match="row 0: has the label 'cat': not a class of the data set, which has 3"):
        label_table.read(csv(path, "cat,a"), made(("0", "1", "2")))
    with pytest.raises(DataError, match="row 0: has the label '999999999': not a class"):
        label_table.read(csv(path, "999999999,a"), made(("0", "1", "2")))


def test_where_classes_have_other_numbers_for_names_a_number_is_a_name(made, path):
    odd = made(("1", "3", "7"))
    found, names = label_table.read(csv(path, "3,a", "2,b", "0,c", "7,d"), odd)
    assert names == ("1", "3", "7", "0", "2")  # and not the classes with the numbers 2 and 0, 7 and 1
    assert found == {b"a": 1, b"b": 4, b"c": 3, b"d": 2}
    assert label_table.read(csv(path, "2,a"), made(("cat", "7")))[1] == ("cat", "7", "2")
    several = made(("1", "3", "7"), Feature("int64", (3,)))
    assert label_table.read(csv(path, '"3,7",a'), several)[0][b"a"].tolist() == [0, 1, 1]
    with pytest.raises(DataError, match="row 0: has the label '2': not a class of the data set, which has 3"):
        label_table.read(csv(path, "2,a"), several)


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("NA", "row 0: has the label 'NA': a missing value"),
        ('"new\nline"', r"the name of class 2, 'new\\nline', holds a line break; rename the class"),
        ("cafe\u0301", r"the classes 'caf\\xe9' and 'cafe\\u0301' look alike"),
        ("0cat\u200b", "look alike"),
    ],
)
def test_a_new_class_has_a_name_that_a_conversion_makes(label, problem, made, path):
    with pytest.raises(DataError, match=problem):
        label_table.read(csv(path, f"{label},a"), made(("caf\xe9", "0cat")))
    assert label_table.read(csv(path, "NA,a"), made(("cat", "NA")))[0] == {b"a": 1}
    assert label_table.read(csv(path, "NA,a"), made(("cat",), na_is_class=True))[1] == ("cat", "NA")


def test_numbers_that_pandas_writes_with_a_point_are_those_without(made, path):
    """It does if a row of the column has no label."""
    assert label_table.read(csv(path, "1.0,a", "0.0,b"), made(("0", "1", "2")))[0] == {b"a": 1, b"b": 0}
    found, names = label_table.read(csv(path, "1.0,a", "cat,b"), made(("cat", "dog")))
    assert (found, names) == ({b"a": 1, b"b": 0}, ("cat", "dog"))
    with pytest.raises(DataError, match=r"row 0: has the label '5\.0': not a class of the data set, which has 2"):
        label_table.read(csv(path, "5.0,a"), made(("cat", "dog")))


@pytest.mark.parametrize("text", ["nan", "NA", "None", "null", "N/A"])
def test_a_missing_value_is_no_new_class(text, made, path):
    with pytest.raises(DataError, match=f"row 1: has the label '{text}': a missing value, and not a class"):
        label_table.read(csv(path, "cat,a", f"{text},b"), made(("cat", "dog")))
    assert label_table.read(csv(path, f"{text},b"), made(("cat", text)))[0] == {b"b": 1}
    (path / "labels.json").write_text(json.dumps([{"key": "a", "label": ["cat", None]}]))
    with pytest.raises(DataError, match="a missing value, and not a class"):
        label_table.read(path / "labels.json", made(("cat", "dog"), Feature("int64", (2,))))


def test_a_new_class_that_looks_like_another_is_refused_and_one_in_another_case_said(made, path, capsys):
    with pytest.raises(DataError, match="the classes '1' and '1.0' look alike .*; nothing was changed"):
        label_table.read(csv(path, "x,a", "1.0,b"), made(("1", "cat")))
    with pytest.raises(DataError, match="the classes 'big cat' and 'big  cat' look alike"):
        label_table.read(csv(path, "big  cat,a"), made(("big cat", "dog")))
    label_table.read(csv(path, "Dog,a"), made(("A", "a", "dog")))
    assert capsys.readouterr().err == f"{path / 'labels.csv'}: the classes 'Dog' and 'dog' differ only in case\n"


def test_types_of_tables_are_those_of_the_labels(made, path):
    pq.write_table(pa.table({"key": [7, 8], "label": [2, None]}), path / "labels.parquet")
    with pytest.raises(DataError, match="row 1: has the label None: it is empty"):
        label_table.read(path / "labels.parquet", made(("0", "1", "2")))
    pq.write_table(pa.table({"key": [7, 8], "label": [True, False]}), path / "labels.parquet")
    assert label_table.read(path / "labels.parquet", made(("false", "true")))[0] == {b"7": 1, b"8": 0}
    (path / "labels.jsonl").write_text('{"key": "a", "label": 1.0}\n')
    assert label_table.read(path / "labels.jsonl", made(("0", "1", "2")))[0] == {b"a": 1}


def test_numbers_to_predict_are_float32(made, path):
    found, names = label_table.read(csv(path, "0.1,a", "-3,b"), made((), Feature("float32")))
    assert names == ()
    assert found == {b"a": np.float32(0.1), b"b": np.float32(-3)}
    for text in ("nan", "inf", "x", "", "1_000", "1e39", "16777217"):
        with pytest.raises(DataError, match=f"row 0: has the label '{text}': it is (no|empty|not exactly a float32)"):
            label_table.read(csv(path, f"{text},a"), made((), Feature("float32")))


def test_several_classes_have_the_separator_of_the_data_set_or_are_lists(made, path):
    several = made(("red", "green", "blue"), Feature("int64", (3,)), label_separator="|")
    found, _ = label_table.read(csv(path, "red|blue,a", "2,b", ",c"), several)
    assert {key: label.tolist() for key, label in found.items()} == {b"a": [1, 0, 1], b"b": [0, 0, 1], b"c": [0, 0, 0]}
    (path / "labels.json").write_text(json.dumps([{"key": "a", "label": ["green", "red"]}]))
    assert label_table.read(path / "labels.json", several)[0][b"a"].tolist() == [1, 1, 0]
    (path / "labels.json").write_text(json.dumps([{"key": "b", "label": ["red"]}, {"key": "a", "label": None}]))
    with pytest.raises(
        DataError, match="row 1: has the label None: it is null; a record without a class has an empty list"
    ):
        label_table.read(path / "labels.json", several)
    plain = made(("red", "green", "blue"), Feature("int64", (3,)))
    assert label_table.read(csv(path, '"red, green",a'), plain)[0][b"a"].tolist() == [1, 1, 0]
    with pytest.raises(DataError, match="has the label 'pink': not a class of the data set, which has 3"):
        label_table.read(csv(path, "pink,a"), several)
    with pytest.raises(UsageError, match="its labels are float32 4, which a table cannot give"):
        label_table.read(csv(path, "1,a"), made((), Feature("float32", (4,))))


def test_a_table_has_rows_and_each_has_a_key(made, path):
    with pytest.raises(DataError, match=r"labels\.csv: has no rows"):
        label_table.read(csv(path), made(("cat",)))
    with pytest.raises(DataError, match="row 1: has no key"):
        label_table.read(csv(path, "cat,a", "cat,"), made(("cat",)))
    (path / "labels.csv").write_text("id,label\na,cat\n")
    with pytest.raises(UsageError, match="--set_labels: .* has no column 'key'; columns: id, label"):
        label_table.read(path / "labels.csv", made(("cat",)))
