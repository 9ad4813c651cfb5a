import datetime
import decimal
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.sources import open_source
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.parquet import parquet as parquet_labels
from beam_jobs.sources.parquet import reader as parquet_reader
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature
from tests.raised import at

ROOT = pathlib.Path(__file__).parents[5]
CIFAR10 = ROOT.parent / "shared" / "data" / "cifar10"
HUGGING_FACE = {
    b"huggingface": json.dumps(
        {
            "info": {
                "features": {
                    "image": {"_type": "Image"},
                    "label": {"names": ["cat", "dog", "eel"], "_type": "ClassLabel"},
                    "coarse": {"names": ["pet", "fish"], "_type": "ClassLabel"},
                }
            }
        }
    ).encode()
}


def png(number):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((2, 3, 3), number % 256, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


IMAGES = [png(number) for number in range(10)]
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


def table(metadata=None, **columns):
    """Returns ten rows; a column replaces one of the same name, None leaves it out."""
    own = {"image": pa.array(IMAGES), "label": pa.array(LABELS, pa.int16())} | columns
    return pa.table({name: values for name, values in own.items() if values is not None}).replace_schema_metadata(
        metadata
    )


def write(path, content=None, row_group_size=4, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table() if content is None else content, path, row_group_size=row_group_size, **options)
    return path


def opened(source, **options):
    return open_source(SourceOptions("parquet", str(source), **options))


def one(tmp_path, metadata=None, flags=None, **columns):
    """Writes one file and opens it."""
    return opened(write(tmp_path / "a.parquet", table(metadata, **columns)), **(flags or {}))


def everything(source, split="train"):
    return source.read(split, np.arange(source.splits[split]))


def test_rows_come_in_the_order_asked_for_whatever_row_group_they_are_in(tmp_path):
    write(tmp_path / "a.parquet")
    write(tmp_path / "sub" / "b.parquet", row_group_size=7)
    source = opened(tmp_path)
    assert source.splits == {"train": 20}
    assert source.chunks("train").tolist() == [4, 4, 2, 7, 3]
    rows = np.array([19, 0, 7, 7, 12, 3, 10])
    block = source.read("train", rows)
    assert block.images == [IMAGES[row % 10] for row in rows]
    assert block.labels.tolist() == [LABELS[row % 10] for row in rows]
    assert block.labels.dtype == np.int64
    files = ["sub/b.parquet#9", "a.parquet#0", "a.parquet#7", "a.parquet#7", "sub/b.parquet#2", "a.parquet#3"]
    assert [key.decode() for key in block.keys.tolist()] == [*files, "sub/b.parquet#0"]
    assert source.where("train", 19) == ("sub/b.parquet", 9)
    assert (block.bad, block.extra, source.image_shape, source.unique_keys) == ({}, {}, None, True)


IMAGE_TYPES = [
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()),
    pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    pa.struct([("path", pa.string()), ("bytes", pa.large_binary())]),
]  # fmt: skip


@pytest.mark.parametrize("kind", IMAGE_TYPES, ids=str)
def test_images_of_every_type_of_bytes(tmp_path, kind):
    values = [None if number == 3 else image for number, image in enumerate(IMAGES)]
    if pa.types.is_struct(kind):
        column = pa.array([{"bytes": value, "path": f"{n}.png"} for n, value in enumerate(values)], kind)
    elif pa.types.is_dictionary(kind):
        column = pa.array(values).dictionary_encode()
    else:
        column = pa.array(values, kind)
    block = one(tmp_path, image=column).read("train", np.array([3, 9, 0, 4]))
    assert block.images == [b"", IMAGES[9], IMAGES[0], IMAGES[4]]
    assert list(block.bad) == [0]
    assert block.bad[0] in ("image is null", "has no image bytes (a path is not followed)")


@pytest.mark.parametrize(("name", "flags"), [("img", {}), ("picture", {"image_column": "picture"})])
def test_images_are_in_the_column_named_or_image_or_img(tmp_path, name, flags):
    assert everything(one(tmp_path, flags=flags, image=None, **{name: pa.array(IMAGES)})).images == IMAGES


LABEL_TYPES = [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


@pytest.mark.parametrize("kind", LABEL_TYPES, ids=str)
def test_integer_labels_of_any_width_are_classes_up_to_the_highest(tmp_path, kind):
    labels = pa.array([0, 1, 6, None, 1, 2, 0, 1, 2, 0], kind)
    source = one(tmp_path, label=labels)
    assert source.class_names == ("0", "1", "2", "3", "4", "5", "6")
    block = everything(source)
    assert block.labels.tolist() == [0, 1, 6, 0, 1, 2, 0, 1, 2, 0]
    assert block.bad == {3: "label is null"}


def test_a_label_out_of_range_stays_for_the_reader_of_the_block(tmp_path):
    source = one(tmp_path, label=pa.array([-1, 1, 2, 0, 1, 2, 0, 1, 2, 5]), metadata=HUGGING_FACE)
    assert source.class_names == ("cat", "dog", "eel")
    block = everything(source)
    assert (block.labels[0], block.labels[9], block.bad) == (-1, 5, {})


def test_boolean_labels_are_two_classes(tmp_path):
    source = one(tmp_path, label=pa.array([True, False] * 5))
    assert source.class_names == ("false", "true")
    assert everything(source).labels.tolist() == [1, 0] * 5


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), None], ids=str)
def test_labels_of_text_are_numbered_in_the_order_of_their_names(tmp_path, kind):
    texts = ["eel", "Cat", "é", None, "", "eel", "Cat", "dog", "dog", "dog"]
    column = pa.array(texts, kind) if kind else pa.array(texts).dictionary_encode()
    write(tmp_path / "b.parquet", table(label=column))
    write(
        tmp_path / "a.parquet",
        table(label=pa.array(["ape"] * 10, kind) if kind else pa.array(["ape"] * 10).dictionary_encode()),
    )
    source = opened(tmp_path)
    assert source.class_names == ("Cat", "ape", "dog", "eel", "é")
    block = everything(source)
    assert block.labels.tolist() == [1] * 10 + [3, 0, 4, 0, 0, 3, 0, 2, 2, 2]
    assert block.bad == {13: "label is null", 14: "label is empty"}


def test_class_names_of_hugging_face_and_of_a_kept_column(tmp_path):
    source = one(tmp_path, HUGGING_FACE, {"keep_columns": ("coarse",)}, coarse=pa.array([0, 1] * 5))
    assert source.class_names == ("cat", "dog", "eel")
    assert source.features == {"coarse": Feature("int64", (), None, ("pet", "fish"))}


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"info": 3}', b'{"info": {"features": {"label": 1}}}', b"\xff"])
def test_metadata_of_another_form_is_ignored(tmp_path, text):
    assert one(tmp_path, {b"huggingface": text}).class_names == ("0", "1", "2")


def test_too_many_classes_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"a\.parquet: column 'label' has 1000001 classes or more, .*100000"):
        one(tmp_path, label=pa.array([1_000_000] * 10))
    monkeypatch.setattr(parquet_labels, "MAX_CLASSES", 5)
    with pytest.raises(DataError, match="column 'label' has 8 classes or more, .* 5; .* --label_column"):
        one(tmp_path, label=pa.array([f"name {n}" for n in range(10)]))


def test_labels_that_are_numbers_as_text_are_sorted_as_numbers(tmp_path):
    assert one(tmp_path, label=pa.array([str(n) for n in range(2, 12)])).class_names == tuple(map(str, range(2, 12)))


def test_labels_that_look_alike_are_refused_and_those_that_differ_in_case_are_named(tmp_path, capsys):
    for other in ("cat ", "c\u200bat"):
        with pytest.raises(DataError, match=r"a\.parquet: column 'label': the labels .* look alike .* make them equal"):
            one(tmp_path, label=pa.array(["cat", other] * 5))
    assert one(tmp_path, label=pa.array(["cat", "Cat"] * 5)).class_names == ("Cat", "cat")
    assert capsys.readouterr().err.endswith("a.parquet: the classes 'Cat' and 'cat' differ only in case\n")


@pytest.mark.parametrize("column", [pa.array([None, -5] * 5), pa.array([None, ""] * 5, pa.string())])
def test_a_column_without_any_label_is_refused(tmp_path, column):
    with pytest.raises(DataError, match=r"a\.parquet: column 'label'"):
        one(tmp_path, label=column)


KEPT = [
    (pa.array([*range(9), None], pa.uint16()), Feature("int64"), [*range(9), 0]),
    (pa.array([True] * 9 + [None]), Feature("int64"), [1] * 9 + [0]),
    (pa.array([0.5] * 9 + [None], pa.float32()), Feature("float32"), [0.5] * 9 + [None]),
    (pa.array([-0.125] * 9 + [None], pa.float64()), Feature("float32"), [-0.125] * 9 + [None]),
    (pa.array([0.1] * 9 + [None], pa.float16()), Feature("float32"), [float(np.float16(0.1))] * 9 + [None]),
    (pa.array(["é"] * 9 + [None]), Feature("string"), ["é".encode()] * 9 + [b""]),
    (pa.array([b"\0\xff"] * 9 + [None]), Feature("string"), [b"\0\xff"] * 9 + [b""]),
    (pa.array([b"1234"] * 9 + [None], pa.binary(4)), Feature("string"), [b"1234"] * 9 + [b""]),
    (pa.array([[1, 2], [], [3]] * 3 + [None]), Feature("int64", (None,)), [[1, 2], [], [3]] * 3 + [[]]),
    (pa.array([[1.5]] * 9 + [[None]], pa.large_list(pa.float64())), Feature("float32", (None,)), [[1.5]] * 9 + [None]),
    (pa.array([[1, 2]] * 9 + [[3, None]], pa.list_(pa.int8(), 2)), Feature("int64", (2,)), [[1, 2]] * 9 + [[3, 0]]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "feature", "values"), KEPT, ids=lambda value: str(getattr(value, "type", "")))
def test_other_columns_become_features_and_nulls_in_them_bad_rows(tmp_path, column, feature, values):
    source = one(tmp_path, flags={"keep_columns": ("other",)}, other=column)
    assert source.features == {"other": feature}
    rows = np.array([9, 8, 0, 1, 5])
    block = source.read("train", rows)
    for place, row in enumerate(rows.tolist()):
        if values[row] is not None:
            assert np.array_equal(block.extra["other"][place], values[row])
    assert list(block.bad) == [0]
    assert block.bad[0] in ("other is null", "an element of other is null")
    if feature.dtype != "string":
        assert np.asarray(block.extra["other"][0]).dtype == feature.dtype
    if feature.shape == (2,):
        assert block.extra["other"].shape == (5, 2)


EXACT = [0.5, -0.0, float("nan"), float("inf"), 2.0**-149, 16_777_216.0, 1.0, 2.0, 3.0, 4.0]
INEXACT = [
    (1700000001.0, "1700000001.0", "(rounded) or other:string (exact, as text) or other:int64 (whole numbers)"),
    (1e300, "1e+300", "other:float32 (rounded) or other:string (exact, as text)"),
    (0.1, "0.1", "other:float32 (rounded) or other:string (exact, as text)"),
    (2.0**-150, "7.006492321624085e-46", "other:float32 (rounded) or other:string (exact, as text)"),
]  # fmt: skip


def test_float64_is_kept_where_float32_holds_every_value(tmp_path):
    block = everything(one(tmp_path, flags={"keep_columns": ("other",)}, other=pa.array(EXACT)))
    assert block.bad == {}
    assert np.array_equal(block.extra["other"].astype(np.float64), EXACT, equal_nan=True)
    assert np.signbit(block.extra["other"][1])


@pytest.mark.parametrize("row", [0, 3, 9])  # among those that are sampled and not
@pytest.mark.parametrize(("value", "text", "choices"), INEXACT, ids=lambda value: str(value)[:20])
def test_float64_that_float32_cannot_hold_is_refused_with_what_to_do(tmp_path, value, text, choices, row):
    column = [*EXACT[:row], value, *EXACT[row + 1 :]]
    message = re.escape(f"a.parquet, row {row}: is {text}, which float32, the only") + ".*" + re.escape(choices) + "$"
    with pytest.raises(UsageError, match=f"--keep_columns=other: .*{message}"):
        one(tmp_path, flags={"keep_columns": ("other",)}, other=pa.array(column))
    lists = pa.array([[1.0, None]] * row + [[0.5, value]] + [[]] * (9 - row))
    with pytest.raises(UsageError, match=rf"row {row}: is {re.escape(text)}, .* keep other:float32 \(rounded\)"):
        one(tmp_path, flags={"keep_columns": ("other",)}, other=lists)
    pairs = pa.array([[1.0, 2.0]] * row + [[0.5, value]] + [[3.0, 4.0]] * (9 - row), pa.list_(pa.float64(), 2))
    with pytest.raises(UsageError, match=rf"row {row}: is {re.escape(text)}, "):
        one(tmp_path, flags={"keep_columns": ("other",)}, other=pairs)


@pytest.mark.parametrize("values", [[0.5, 0.1], [[0.5], [0.5, 0.1]]], ids=["scalars", "lists"])
def test_a_worker_writes_no_rounded_value_whatever_was_looked_at_before(tmp_path, monkeypatch, values):
    monkeypatch.setattr("beam_jobs.sources.parquet.parquet._check_doubles", lambda opened: None)
    block = everything(one(tmp_path, flags={"keep_columns": ("other",)}, other=pa.array(values * 5)))
    assert {reason.rpartition("other ")[2] for reason in block.bad.values()} == {"0.1 is not exactly a float32"}
    assert list(block.bad) == [1, 3, 5, 7, 9]


def test_a_later_file_may_hold_float64_that_float32_cannot(tmp_path):
    write(tmp_path / "a.parquet", table(other=pa.array([0.5] * 10, pa.float32())))
    write(tmp_path / "b.parquet", table(other=pa.array(EXACT)))
    assert everything(opened(tmp_path, keep_columns=("other",))).bad == {}
    write(tmp_path / "b.parquet", table(other=pa.array([*EXACT[:9], 0.3])))
    with pytest.raises(UsageError, match=r"b\.parquet, row 9: is 0\.3, "):
        opened(tmp_path, keep_columns=("other",))


DAY = datetime.datetime(2026, 1, 2, 3, 4, 5)
GIVEN = [
    ("float32", pa.array([0.1, 1e300, None, 2.0**-150]), [np.float32(0.1), None, None, 0], "1e+300 is beyond float32"),
    ("int64", pa.array([1700000001.0, 0.5, None, -(2.0**63)]), [1700000001, None, None, -(2**63)], "0.5 is no whole"),
    ("int64", pa.array([7.0, 2.0**63, None, float("nan")]), [7, None, None, None], "is no whole number that int64"),
    ("string", pa.array([0.1, 1e300, None, 1 / 3]), [b"0.1", b"1e+300", None, repr(1 / 3).encode()], "is null"),
    ("string", pa.array([2**64 - 1, 1, None, 0], pa.uint64()), [b"18446744073709551615", b"1", None, b"0"], "is null"),
    ("float32", pa.array([2**24 + 1, 1, None, 0], pa.int64()), [2**24, 1, None, 0], "is null"),
    ("string", pa.array([decimal.Decimal("1.20"), decimal.Decimal("-3.00"), None]), [b"1.20", b"-3.00", None], "null"),
    (
        "int64",
        pa.array([decimal.Decimal("1.20"), decimal.Decimal("-3.00"), None]),
        [None, -3, None],
        "1.20 is no whole",
    ),
    ("float32", pa.array([decimal.Decimal("1.25"), decimal.Decimal("-3.00"), None]), [1.25, -3, None], "is null"),
    ("int64", pa.array([DAY, None], pa.timestamp("us")), [1767323045000000, None], "is null"),
    ("int64", pa.array([DAY.date(), None]), [20455, None], "is null"),
    ("string", pa.array([DAY, None], pa.timestamp("s")), [b"2026-01-02 03:04:05.000", None], "is null"),
    ("string", pa.array(["a", None]), [b"a", None], "is null"),
    (
        "float32",
        pa.array([[0.1, 0.5], [1e300], None]),
        [np.float32([0.1, 0.5]), None, None],
        "1e+300 is beyond float32",
    ),
    ("int64", pa.array([[2.0**53], [0.5], None]), [[2**53], None, None], "0.5 is no whole"),
]


@pytest.mark.parametrize(("given", "column", "values", "reason"), GIVEN, ids=lambda value: str(value)[:40])
def test_a_kept_column_can_be_converted_on_purpose(tmp_path, given, column, values, reason):
    count = len(column)
    column = pa.concat_arrays([column] * (10 // count + 1))[:10]
    source = one(tmp_path, flags={"keep_columns": (f"other:{given}",)}, other=column)
    assert source.features["other"].dtype == given
    rows = np.array([9, *range(9)])
    block = source.read("train", rows)
    assert list(block.bad) == [place for place, row in enumerate(rows) if values[row % count] is None]
    assert reason in " ".join(block.bad.values())
    for place, row in enumerate(rows):
        if place not in block.bad:
            assert np.array_equal(block.extra["other"][place], values[row % count])


def test_the_text_of_float64_is_exact(tmp_path):
    bits = np.random.default_rng(1).integers(0, 2**64, 4000, np.uint64).view(np.float64)
    values = bits[np.isfinite(bits)][:3000]
    images, labels = pa.array([IMAGES[0]] * 3000), pa.array([0] * 3000)
    write(tmp_path / "a.parquet", pa.table({"image": images, "label": labels, "other": values}))
    found = everything(opened(tmp_path / "a.parquet", keep_columns=("other:string",))).extra["other"]
    assert [float(text) for text in found] == values.tolist()


def test_a_name_may_itself_end_like_a_type(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, table().append_column("other:string", pa.array([1] * 10)))
    assert opened(path, keep_columns=("other:string",)).features == {"other:string": Feature("int64")}


def test_an_integer_above_int64_is_a_bad_row(tmp_path):
    source = one(tmp_path, flags={"keep_columns": ("other",)}, other=pa.array([2**63] + [2**63 - 1] * 9, pa.uint64()))
    block = everything(source)
    assert block.bad == {0: "other is above 9223372036854775807, the most that int64 holds"}
    assert block.extra["other"][1] == 2**63 - 1


@pytest.mark.parametrize(
    "column",
    [pa.array([0] * 10, pa.timestamp("s")), pa.array([["a"]] * 10), pa.array([{"a": 1}] * 10), pa.array([None] * 10)],
    ids=lambda column: str(column.type),
)
def test_a_column_that_is_no_feature_is_refused_with_its_type(tmp_path, column):
    with pytest.raises(UsageError, match=r"--keep_columns: .*a\.parquet has 'other' as (timestamp|list|struct|null)"):
        one(tmp_path, flags={"keep_columns": ("other",)}, other=column)


KEYS = [
    (pa.array(["b", "é", None, "", *"cdefgh"]), [b"b", "é".encode(), b"", b"", *(c.encode() for c in "cdefgh")]),
    (pa.array([b"b\0", b"b", None, b"", *([b"x"] * 6)]), [b"b\0", b"b", b"", b"", *([b"x"] * 6)]),
    (pa.array([7, -1, None, 2**40, *range(6)]), [b"7", b"-1", b"", b"1099511627776", *(b"%d" % n for n in range(6))]),
]


@pytest.mark.parametrize(("column", "keys"), KEYS, ids=lambda value: str(getattr(value, "type", "")))
def test_keys_of_a_column_are_bytes_and_not_known_to_be_unique(tmp_path, column, keys):
    source = one(tmp_path, flags={"key_column": "id"}, id=column)
    assert not source.unique_keys
    block = everything(source)
    assert block.keys == keys
    assert block.bad == {row: f"id is {'null' if row == 2 else 'empty'}" for row in (2, 3) if keys[row] == b""}


OTHER_DATA = "boxes, masks and captions are not converted: .* python -m pipeline.index .* input_fn.*trainer.Task"


def test_data_without_images_or_labels_gets_the_columns_and_what_to_do(tmp_path):
    path, text = tmp_path / "a.parquet", pa.array(["a", "b"])
    boxes = pa.array([{"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [3]}] * 2)
    for columns, facts in (
        (
            {"text": text, "label": [0, 1]},
            r"a\.parquet has no column that could be the image; it has text \(string\), label",
        ),
        (
            {"photo": IMAGES[:2], "label": [0, 1]},
            "--image_column is missing: .* no column 'image', .*the image could be photo;",
        ),
        (
            {"image": IMAGES[:2], "text": text, "kind": [0, 1]},
            "--label_column is missing: .*the label could be text, kind;",
        ),
        (
            {"image": IMAGES[:2], "objects": boxes},
            r"has no column that could be the label; it has image \(binary\), objects",
        ),
    ):
        write(path, pa.table(columns))
        with pytest.raises(UsageError, match=f"{facts}.*{OTHER_DATA}") as caught:
            opened(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=f"--label_column=objects: .*it must be integers.*{OTHER_DATA}"):
        opened(path, label_column="objects")


USAGE = [
    ({"image_column": "imgae"}, r"--image_column: .*'imgae'.*'image'.* image, label, text"),
    ({"label_column": "class"}, "--label_column: .*'class'"),
    ({"image_column": "text"}, "--image_column=text: .*string"),
    ({"image_column": "label"}, "--image_column=label: .*int16"),
    ({"label_column": "image"}, "--label_column=image: .*binary"),
    ({"key_column": "weight"}, "--key_column=weight: .*double"),
    ({"key_column": "label"}, "image, label, label"),
    ({"keep_columns": ("text", "gone")}, "--keep_columns: .*'gone'"),
    ({"keep_columns": ("gone:int64",)}, "--keep_columns: .*'gone:int64'"),
    ({"keep_columns": ("weight:float64",)}, "--keep_columns=weight.*: must be weight, weight:float32 or .*:string$"),
    ({"keep_columns": ("weight", "weight:int64")}, "--keep_columns: 'weight' cannot be kept: .* already in use"),
    ({"keep_columns": ("text:float32",)}, "--keep_columns: .* has 'text' as string; keep it as text:string"),
    ({"keep_columns": ("label",)}, "--keep_columns: 'label'"),
    ({"keep_columns": ("key",)}, "--keep_columns: 'key'"),
    ({"label_column": "text", "keep_columns": ("text",)}, "--keep_columns: 'text'"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), USAGE, ids=lambda value: str(value)[:40])
def test_a_flag_that_cannot_work_is_refused(tmp_path, flags, message):
    with pytest.raises(UsageError, match=message) as raised:
        one(tmp_path, flags=flags, text=pa.array(["a"] * 10), weight=pa.array([1.0] * 10), key=pa.array(["k"] * 10))
    assert "\n" not in str(raised.value)


def test_two_columns_of_one_name_are_refused(tmp_path):
    content = pa.table([pa.array(IMAGES), pa.array(LABELS), pa.array(LABELS)], ["image", "label", "label"])
    with pytest.raises(UsageError, match="has 2 columns of that name"):
        opened(write(tmp_path / "a.parquet", content))


LAYOUTS = [
    (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-0.parquet"], "train train test"),
    (["data/train-00000-of-00001-0a1b2c.parquet", "data/validation-00000-of-00001-ff.parquet"], "train validation"),
    (["cifar10-train-00000-of-00001.parquet", "cifar10-test-00000-of-00001.parquet"], "train test"),
    (["train/0.parquet", "train/1.parquet", "val/0.parquet"], "train train validation"),
    (["train/part-00000-of-00001.parquet", "test/part-00000-of-00001.parquet"], "train test"),
    (["Train.parquet", "my_test.parquet", "dev_001.parquet"], "train test validation"),
    (["train-00000-of-00001.parquet", "unsupervised-00000-of-00001.parquet"], "train unsupervised"),
    (["images-00000-of-00002.parquet", "images-00001-of-00002.parquet"], "train train"),
    (["part-0.parquet", "latest.parquet", "2020/x.parquet"], "train train train"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "splits"), LAYOUTS, ids=lambda value: str(value)[:30])
def test_splits_are_told_from_the_names_of_files_and_folders(tmp_path, names, splits):
    for name in names:
        write(tmp_path / name)
    source = opened(tmp_path)
    expected = {split: splits.split().count(split) * 10 for split in splits.split()}
    assert source.splits == expected
    if "train" in expected:
        assert next(iter(source.splits)) == "train"
    for name, split in zip(names, splits.split(), strict=True):
        assert name in {source.where(split, row)[0] for row in range(expected[split])}


AMBIGUOUS = [
    (["train.parquet", "more.parquet"], r"more\.parquet: .*'train'"),
    (["train/test-1.parquet"], r"test-1\.parquet: .*test or train"),
    (["val/0.parquet", "validation/0.parquet"], "'val' and of 'validation'"),
]


@pytest.mark.parametrize(("names", "message"), AMBIGUOUS, ids=lambda value: str(value)[:30])
def test_a_layout_that_can_mean_two_things_is_refused(tmp_path, names, message):
    for name in names:
        write(tmp_path / name)
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


def test_a_glob_takes_some_files_and_names_them_from_its_fixed_folder(tmp_path):
    for name in ("train-00000-of-00003.parquet", "train-00001-of-00003.parquet", "test-00000-of-00001.parquet"):
        write(tmp_path / "data" / name)
    source = opened(tmp_path / "*" / "train-*.parquet")
    assert source.splits == {"train": 20}
    assert source.where("train", 10) == ("data/train-00001-of-00003.parquet", 0)
    assert opened(tmp_path / "data" / "test-00000-of-00001.parquet").splits == {"test": 10}


def test_hidden_files_and_folders_are_no_data_and_links_to_files_are(tmp_path):
    write(tmp_path / "a.parquet")
    write(tmp_path / ".hidden.parquet")
    write(tmp_path / "_temporary" / "b.parquet")
    (tmp_path / "_metadata").write_bytes(b"x")
    (tmp_path / "README.md").write_bytes(b"x")
    write(tmp_path / ".blobs" / "0123")
    (tmp_path / "linked.parquet").symlink_to(tmp_path / ".blobs" / "0123")  # as in Hugging Face's cache
    assert [file.file for file in opened(tmp_path).files] == ["a.parquet", "linked.parquet"]


def test_sources_that_are_not_there(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "gone", "*.parquet"):
        with pytest.raises(DataError, check=at(tmp_path / name)):
            opened(tmp_path / name)
    with pytest.raises(UsageError, match="--source"):
        opened("")
    (tmp_path / os.fsdecode(b"\xff.parquet")).write_bytes(write(tmp_path / "a.parquet").read_bytes())
    with pytest.raises(DataError, match="not valid UTF-8"):
        opened(tmp_path)


def test_files_that_differ_in_their_columns_are_refused(tmp_path):
    write(tmp_path / "a.parquet")
    for content, message in (
        (table(image=None, img=pa.array(IMAGES)), r"b\.parquet has no column 'image'.*a\.parquet"),
        (table(label=pa.array(["x"] * 10)), r"b\.parquet: its columns image, label differ from those of .*a\.parquet"),
        (table(HUGGING_FACE), "in type or class names"),
    ):
        write(tmp_path / "b.parquet", content)
        with pytest.raises(DataError, match=message):
            opened(tmp_path)
    write(tmp_path / "b.parquet", table(image=pa.array(IMAGES, pa.large_binary()), label=pa.array(LABELS, pa.int64())))
    assert opened(tmp_path).splits == {"train": 20}  # widths may differ


def test_a_split_without_a_row_is_refused(tmp_path):
    write(tmp_path / "train.parquet")
    write(tmp_path / "test.parquet", table().slice(0, 0))
    with pytest.raises(DataError, match=r"'test'.*test\.parquet"):
        opened(tmp_path)


def test_a_row_group_too_large_to_read_again_and_again_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_reader, "MAX_GROUP_BYTES", 2000)
    other = table(other=pa.array([os.urandom(5000)] * 10))
    assert opened(write(tmp_path / "a.parquet", other, row_group_size=10)).splits == {"train": 10}  # it is not read
    for content, flags in (
        (other, {"keep_columns": ("other",)}),
        (table(image=pa.array([image * 5 for image in IMAGES])), {}),
    ):
        with pytest.raises(DataError, match=r"row group 0: .* [\d,]{4,} bytes.* 2,000;"):
            opened(write(tmp_path / "a.parquet", content, row_group_size=10), **flags)


def test_a_file_that_changes_after_it_was_opened_is_an_error(tmp_path):
    path = write(tmp_path / "a.parquet")
    source = opened(path)
    everything(source)
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, check=at(path, "changed")):
        everything(source)
    path.unlink()
    with pytest.raises(DataError, check=at(path, "no such file")):
        everything(source)


def test_a_corrupt_page_is_one_line_with_its_row_group(tmp_path):
    path = write(tmp_path / "a.parquet", write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(IMAGES[9], pq.read_metadata(path).row_group(2).column(0).dictionary_page_offset)] ^= 1
    path.write_bytes(data)
    source = opened(path)
    assert source.read("train", np.arange(8)).images == IMAGES[:8]
    with pytest.raises(DataError, check=at(path, "row group 2", "CRC")):
        everything(source)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 5, b"not parquet" * 100])
def test_a_file_that_is_no_parquet_is_one_line(tmp_path, data):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataError, check=at("a.parquet", "Parquet")):
        opened(tmp_path)


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path):
    """In a process of its own, so that a crash is a failure of this test and not of all."""
    program = f"""
import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import numpy as np, pathlib, pyarrow as pa, test_parquet as t
from pipeline.errors import PipelineError
draw, path, counts = np.random.default_rng(5), pathlib.Path({str(tmp_path / "a.parquet")!r}), [0, 0]
content = t.table(label=pa.array(["a", "b"] * 5), other=pa.array([[1], []] * 5))
bases = [t.write(path, content, compression=c, write_page_checksum=k).read_bytes()
         for c in ("none", "snappy", "zstd", "gzip", "lz4") for k in (True, False)]
for _ in range(300):
    data = bytearray(bases[draw.integers(len(bases))])
    if draw.integers(5) == 0:
        del data[draw.integers(len(data)):]
    for _ in range(draw.integers(4)):
        data[draw.integers(len(data)) if data else 0:][:1] = b""
        if data:
            data[draw.integers(len(data))] = draw.integers(256)
    path.write_bytes(data)
    try:
        t.everything(t.opened(path, keep_columns=("other",)))
        counts[0] += 1
    except PipelineError as error:
        assert "\\n" not in str(error), error
        counts[1] += 1
print(counts)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    whole, refused = json.loads(done.stdout)
    assert whole + refused == 300
    assert min(whole, refused) > 30


def test_a_source_of_many_files_pickles_small_and_reads_elsewhere(tmp_path):
    for number in range(200):
        write(tmp_path / f"{number:05d}.parquet")
    source = opened(tmp_path)
    data = pickle.dumps(source)
    assert len(data) < 1500 + 200 * 250  # Python 3.12 repeats parts of the paths
    assert pickle.loads(data).read("train", np.arange(2000)).images == IMAGES * 200


@pytest.mark.skipif(not CIFAR10.is_dir(), reason=f"CIFAR-10's images are not in {CIFAR10}")
def test_cifar10_as_hugging_face_publishes_it():
    source = opened(CIFAR10)
    assert source.splits == {"train": 50_000, "test": 10_000}
    assert source.class_names == tuple("0123456789")
    assert source.chunks("train").tolist() == [2500] * 20
    for split, count in source.splits.items():
        rows = np.random.default_rng(1).permutation(count)
        block = source.read(split, rows)
        content = pq.read_table(CIFAR10 / f"cifar10-{split}-00000-of-00001.parquet")
        assert (block.labels == content["label"].to_numpy()[rows]).all()
        images = content["img"].combine_chunks().field("bytes").to_pylist()
        assert block.images == [images[row] for row in rows]
        digits = len(str(count - 1))
        assert block.keys[0] == f"cifar10-{split}-00000-of-00001.parquet#{rows[0]:0{digits}d}".encode()
        assert np.bincount(block.labels).tolist() == [count // 10] * 10
