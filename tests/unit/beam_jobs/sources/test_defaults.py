"""Nulls that become values: `--default=NAME:VALUE`, from every format of tables."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from beam_jobs.conversion.command import convert as convert_command
from beam_jobs.sources import open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import UsageError
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import said
from tests.helpers.round_trips import everything, picture

FORMS = ["parquet", "arrow", "jsonl", "csv"]
COLUMNS = {
    "label": ["b", None, "a", "b"],
    "count": [1, 2, None, 4],
    "score": [None, 0.5, 1.5, 2.0],
    "text": ["x", "y", "z", None],
    "split": ["train", "train", "test", None],
}


def write(root, form, columns, types=None):
    """Writes a table of images with these columns; returns the flags that read it."""
    path, count = root / f"t.{form}", len(next(iter(columns.values())))
    for row in range(count):
        (root / f"{row}.png").write_bytes(picture(row))
    if form in ("parquet", "arrow"):
        data = {"image": [picture(row) for row in range(count)]}
        data |= {name: pa.array(values, (types or {}).get(name)) for name, values in columns.items()}
        if form == "parquet":
            pq.write_table(pa.table(data), path, row_group_size=3)
        else:
            feather.write_feather(pa.table(data), path, chunksize=3)
    else:
        rows = [
            {"file": f"{row}.png", **{name: values[row] for name, values in columns.items()}} for row in range(count)
        ]
        lines = map(json.dumps, rows)
        if form == "csv":
            cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
            lines = map(",".join, [["file", *columns], *cells])
        path.write_text("".join(f"{line}\n" for line in lines))
    return {"dataset": form if form in ("parquet", "arrow") else "image_table", "source": str(path)}


def opened(flags, *defaults, **options):
    return open_source(SourceOptions(**flags, default=defaults, **options))


def rows(source):
    """Returns {key of the row in the source: (split, class, features, reason why it is invalid)}."""
    found = {}
    for split, count in source.splits.items():
        block = source.read(split, np.arange(count))
        for row, key in enumerate(block.keys):
            number = int(key.decode().partition("#")[2] or key.decode().removesuffix(".png"))
            extra = {name: np.array(values[row]).tolist() for name, values in block.extra.items()}
            found[number] = (split, source.class_names[block.labels[row]], extra, block.bad.get(row))
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize("form", FORMS)
def test_nulls_become_the_default_and_other_values_stay(tmp_path, form):
    flags = write(tmp_path, form, COLUMNS)
    defaults = ["label:none", "count:0.0", "score:-1.25", "text:a:b", "split:val"]
    source = opened(flags, *defaults, keep_columns=("count", "score", "text"))
    assert source.class_names == ("a", "b", "none")
    assert source.features == {"count": Feature("int64"), "score": Feature("float32"), "text": Feature("string")}
    assert rows(source) == [
        ("train", "b", {"count": 1, "score": -1.25, "text": b"x"}, None),
        ("train", "none", {"count": 2, "score": 0.5, "text": b"y"}, None),
        ("test", "a", {"count": 0, "score": 1.5, "text": b"z"}, None),
        ("validation", "b", {"count": 4, "score": 2.0, "text": b"a:b"}, None),
    ]


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_without_a_default_such_a_row_is_invalid(tmp_path, form):
    columns = {name: values for name, values in COLUMNS.items() if name != "split"}
    source = opened(write(tmp_path, form, columns), "count:7", keep_columns=("count", "score", "text"))
    assert [reason for *_, reason in rows(source)] == ["score is null", "label is null", None, "text is null"]


def test_words_for_missing_values_in_numbers_of_csv_are_nulls(tmp_path):
    columns = {"label": ["1", "NA", "3.0", ""], "score": ["NA", "nan", "", "1"], "name": ["NA", "", "b", "c"]}
    source = opened(write(tmp_path, "csv", columns), "label:2", "score:0", "name:z", keep_columns=("score", "name"))
    assert source.class_names == ("1", "2", "3")
    (_, *labels), names = zip(*((label, extra["name"]) for _, label, extra, _ in rows(source)), strict=True)
    assert (labels, names) == (["2", "3", "2"], (b"NA", b"z", b"b", b"c"))
    scores = [extra["score"] for *_, extra, _ in rows(source)]
    assert (scores[0], np.isnan(scores[1]), scores[2:]) == (0.0, True, [0.0, 1.0])  # NaN is a number


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("flag", ["group_by", "stratify"])
def test_rows_without_a_group_or_a_stratum_have_the_default_one(tmp_path, form, flag):
    flags = write(tmp_path, form, {"label": list("abab"), "who": ["p", None, "q", None]})
    source = opened(flags, "who:nobody", **{flag: "who"})
    found = source.texts("who")
    assert [found.values[code] for code in found.codes] == ["p", "nobody", "q", "nobody"]
    assert "who" not in source.features


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_images_without_a_list_of_boxes_have_the_default_one(tmp_path, form):
    columns = {"label": list("ab"), "bb": [[[0.0, 0.0, 0.5, 1.0]], None]}
    source = opened(write(tmp_path, form, columns), "bb:[]", boxes_column="bb")
    block = source.read("train", np.arange(2))
    assert ([values.tolist() for values in block.extra["boxes"]], block.bad) == ([[0.0, 0.0, 0.5, 1.0], []], {})


def test_na_may_be_a_class_beside_a_default(tmp_path):
    for form in ("csv", "parquet"):
        flags = write(tmp_path, form, {"label": ["NA", None, "a"]})
        assert [row[1] for row in rows(opened(flags, "label:b", na_is_class=True))] == ["NA", "b", "a"]
        assert [row[1] for row in rows(opened(flags, "label:b"))] == ["b", "b", "a"]


def test_labels_of_other_kinds(tmp_path):
    several = write(tmp_path, "parquet", {"label": [["a"], None, []]})
    assert read(opened(several, 'label:["b", "a"]')).tolist() == [[1, 0], [1, 1], [0, 0]]
    assert read(opened(several, "label:[]")).tolist() == [[1], [0], [0]]
    texts = write(tmp_path, "csv", {"label": ["a b", "", "c"]})
    assert read(opened(texts, "label:c a", label_separator=" ")).tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 1]]
    for form in FORMS:
        numbers = write(tmp_path, form, {"label": [1.5, None, 2.0]})
        assert read(opened(numbers, "label:0.1", float_labels=True)).tolist() == np.float32([1.5, 0.1, 2]).tolist()
    truths = write(tmp_path, "parquet", {"label": [True, None, False]})
    assert read(opened(truths, "label:true")).tolist() == [1, 1, 0]
    (tmp_path / "labels.txt").write_text("eel\nape\n")
    listed = write(tmp_path, "csv", {"label": ["ape", "", "eel"]})
    assert read(opened(listed, "label:eel")).tolist() == [1, 0, 0]
    assert read(opened(listed, "label:1")).tolist() == [1, 1, 0]
    with pytest.raises(UsageError, check=said("label:bee", "'bee'", "eel, ape")):
        opened(listed, "label:bee")


def read(source):
    block = everything(source)
    assert not block.bad
    return block.labels


def test_names_of_hugging_face_classes_are_defaults(tmp_path):
    flags = write(tmp_path, "parquet", {"label": [0, None]})
    info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["ape", "bee"]}}}}
    table = pq.read_table(flags["source"]).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, flags["source"])
    assert read(opened(flags, "label:bee")).tolist() == [0, 1]
    assert read(opened(flags, "label:1")).tolist() == [0, 1]
    with pytest.raises(UsageError, check=said("label:2", "below 2")):
        opened(flags, "label:2")


def test_lists_times_and_bytes_have_defaults_of_their_type(tmp_path):
    day = datetime.date(2024, 1, 2)
    columns = {"label": [1, 1], "box": [[1.5, 2], None], "tags": [[1], None], "day": [day, None], "raw": [b"x", None]}
    columns["more"] = [b"y", None]
    flags = write(tmp_path, "arrow", columns, {"box": pa.list_(pa.float32(), 2), "raw": pa.large_binary()})
    kept = ("box", "tags", "day:int64", "raw", "more")
    source = opened(flags, "box:[0, 4]", "tags:[]", "day:1970-01-11", "raw:", "more: é", keep_columns=kept)
    assert [row[2:] for row in rows(source)] == [
        ({"box": [1.5, 2.0], "tags": [1], "day": 19724, "raw": b"x", "more": b"y"}, None),
        ({"box": [0.0, 4.0], "tags": [], "day": 10, "raw": b"", "more": b" \xc3\xa9"}, None),
    ]


def test_partitions_without_a_value_have_defaults(tmp_path):
    for place in ("year=2020", "year=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / place).mkdir()
        pq.write_table(pa.table({"image": [picture(1)], "label": [0]}), tmp_path / place / "a.parquet")
    source = opened({"dataset": "parquet", "source": str(tmp_path)}, "year:1999")
    assert source.read("train", np.arange(2)).extra["year"].tolist() == [2020, 1999]


@pytest.mark.parametrize(
    ("default", "facts"),
    [
        ("no:1", ["--default", "no column 'no'"]),
        ("other:1", ["other:1", "--keep_columns=other"]),
        ("count:1.5", ["count:1.5", "int64"]),
        ("count:x", ["count:x", "int64"]),
        ("count:9223372036854775808", ["count:9223372036854775808", "int64"]),
        ("score:x", ["score:x", "double"]),
        ("score:0.1", ["score:0.1", "float32", "--keep_columns=score:float32"]),
        ("small:0.1", ["small:0.1", "float", "--keep_columns=small:float32"]),
        ("box:1", ["box:1", "list"]),
        ("box:[1]", ["box:[1]", "list"]),
        ("label:", ["label:", "empty"]),
        ("label:NA", ["label:NA", "--na_is_class"]),
        ("split:a b", ["split:a b", "no split"]),
        ("image:x", ["image:x", "each row"]),
        ("id:x", ["id:x", "each row"]),
    ],
)
def test_a_default_that_is_no_value_of_its_column_is_refused(tmp_path, default, facts):
    columns = {**COLUMNS, "id": list("abcd"), "other": [1, 2, 3, None], "small": [0.5] * 4, "box": [[1, 2]] * 4}
    flags = write(tmp_path, "parquet", columns, {"small": pa.float32(), "box": pa.list_(pa.int64(), 2)})
    kept = ("count", "score", "text", "small", "box")
    with pytest.raises(UsageError, check=said(*facts)):
        opened(flags, default, keep_columns=kept, key_column="id")


def test_the_default_of_a_rounded_column_is_rounded(tmp_path):
    for form in FORMS:
        flags = write(tmp_path, form, COLUMNS | {"split": ["train"] * 4, "label": list("aabb")})
        source = opened(flags, "score:0.1", keep_columns=("score:float32",))
        assert rows(source)[0][2]["score"] == np.float32(0.1).item()


@pytest.mark.parametrize("text", ["score", ":1", ""])
def test_a_default_has_a_name_and_a_value(tmp_path, text):
    with pytest.raises(UsageError, check=said(f"--default={text}", "NAME:VALUE")):
        convert_in_process("--dataset=parquet", f"--default={text}", f"--data_dir={tmp_path}/out")


def test_the_name_of_a_column_may_have_colons(tmp_path):
    flags = write(tmp_path, "parquet", {"my:own:label": ["b", None, "a"]})
    source = opened(flags, "my:own:label:c:d", label_column="my:own:label")
    assert [label for _, label, _, _ in rows(source)] == ["b", "c:d", "a"]


def test_two_defaults_of_a_column_are_refused(tmp_path):
    with pytest.raises(UsageError, check=said("count:2", "another default", "'1'")):
        opened(write(tmp_path, "csv", COLUMNS), "count:1", "count:2", keep_columns=("count",))


def test_the_manifest_has_the_defaults_and_a_dry_run_knows_them(tmp_path, capsys):
    flags = [f"--{name}={value}" for name, value in write(tmp_path, "csv", {"label": ["a", "", "b", ""]}).items()]
    convert_command("convert", [*flags, f"--data_dir={tmp_path}/out", "--default=label:c", "--dry_run"])
    shown = capsys.readouterr().out
    assert "none invalid" in shown
    assert "1.png      2  c" in shown
    out = convert_in_process(*flags, f"--data_dir={tmp_path}/out", "--default=label:c")
    made = manifest.load(out)
    assert (made.options["default"], made.class_names) == (["label:c"], ("a", "b", "c"))
    assert made.splits["train"].label_histogram == (1, 1, 2)
    with pytest.raises(UsageError, check=said("holds another data set", "default", "label:c", "label:a")):
        convert_command("convert", [*flags, f"--data_dir={tmp_path}/out", "--default=label:a"])
    plain = convert_in_process(*flags, f"--data_dir={tmp_path}/plain", "--max_rejects=2")
    assert "default" not in manifest.load(LocalPath(str(plain))).options
