import dataclasses
import datetime
import decimal
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.sources import open_source, parquet
from beam_jobs.sources import table as tables
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature
from tests.helpers.lanes import examples
from tests.helpers.raised import at, said
from tests.helpers.round_trips import (
    NO_PICTURES,
    PICTURES,
    Row,
    check,
    digits,
    empty_folder,
    everything,
    in_order,
    picture,
)

ROOT = pathlib.Path(__file__).parents[4]
CIFAR10 = ROOT.parent / "shared" / "data" / "cifar10"


def hugging_face(**names):
    """Returns the metadata that Hugging Face writes for class label columns."""
    features = {column: {"_type": "ClassLabel", "names": classes} for column, classes in names.items()}
    return {b"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}} | features}}).encode()}


IMAGES = [picture(number) for number in range(10)]
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


def table(metadata=None, **columns):
    """Returns ten rows; a given column replaces one of the same name, None omits it."""
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


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of kept columns.

    Attributes:
      type: Arrow type.
      feature: resulting feature.
      values: strategy for valid values.
      bad: invalid values as (value, words in the reason); a null is always invalid.
      given: type given by the user.
      stored: function from a value in the file to the value of the feature.
    """

    type: pa.DataType
    feature: Feature
    values: st.SearchStrategy
    bad: tuple[tuple[object, tuple[str, ...]], ...] = ()
    given: str = ""
    stored: Callable[[object], object] = lambda value: value


class TextOf:
    """Equal to any text of this number."""

    def __init__(self, value):
        self._value = value

    def __eq__(self, text):
        return float(text) == self._value

    __hash__ = None


INT64, FLOAT32, STRING = Feature("int64"), Feature("float32"), Feature("string")
SINGLES, DOUBLES = st.floats(width=32), st.floats()
WHOLE, BEYOND = "is not a whole number that int64 holds", "is beyond float32"
# A double that would round to infinity is not a float32.
NEAR_SINGLES = DOUBLES.filter(lambda value: abs(value) < 3.4e38 or not np.isfinite(value))
WHOLES = st.integers(-(2**62), 2**62).map(float)
CENTS = st.integers(-(10**6), 10**6).map(lambda number: decimal.Decimal(number).scaleb(-2))
TIMES = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
EPOCH = datetime.datetime(1970, 1, 1)
KINDS = {
    "uint8": Kind(pa.uint8(), INT64, st.integers(0, 255)),
    "int64": Kind(pa.int64(), INT64, st.integers(-(2**63), 2**63 - 1)),
    "uint64": Kind(pa.uint64(), INT64, st.integers(0, 2**63 - 1), ((2**63, ("int64",)), (2**64 - 1, ("int64",)))),
    "bool": Kind(pa.bool_(), INT64, st.booleans()),
    "float16": Kind(pa.float16(), FLOAT32, st.floats(width=16)),
    "float32": Kind(pa.float32(), FLOAT32, SINGLES),
    "float64": Kind(pa.float64(), FLOAT32, SINGLES),
    "string": Kind(pa.string(), STRING, st.text(max_size=5), stored=str.encode),
    "strings": Kind(pa.dictionary(pa.int8(), pa.string()), STRING, st.sampled_from("abc"), stored=str.encode),
    "view": Kind(pa.string_view(), STRING, st.text(max_size=20), stored=str.encode),
    "binary": Kind(pa.large_binary(), STRING, st.binary(max_size=5)),
    "fixed": Kind(pa.binary(4), STRING, st.binary(min_size=4, max_size=4)),
    "list": Kind(pa.list_(pa.int32()), Feature("int64", (None,)), st.lists(st.integers(-9, 9)), (([1, None], ()),)),
    "doubles": Kind(pa.large_list(pa.float64()), Feature("float32", (None,)), st.lists(SINGLES), (([None], ()),)),
    "rounded vector": Kind(
        pa.list_(pa.float64(), 2), Feature("float32", (2,)), st.tuples(SINGLES, SINGLES),
        (((0.5, 1e300), (BEYOND,)),), "float32",
    ),
    "vector": Kind(
        pa.list_(pa.int8(), 2), Feature("int64", (2,)), st.tuples(*[st.integers(-128, 127)] * 2), (([3, None], ()),)
    ),
    "rounded": Kind(
        pa.float64(), FLOAT32, NEAR_SINGLES, ((1e300, ("1e+300", BEYOND)), (-4e38, (BEYOND,))), "float32", np.float32
    ),
    "rounded integer": Kind(
        pa.int64(), FLOAT32, st.integers(-(2**63), 2**63 - 1), (), "float32", lambda n: np.int64(n).astype(np.float32)
    ),
    "rounded list": Kind(
        pa.list_(pa.float64()), Feature("float32", (None,)), st.lists(NEAR_SINGLES), (([0.0, 1e300], (BEYOND,)),),
        "float32", np.float32,
    ),
    "whole": Kind(
        pa.float64(), INT64, st.integers(-(2**53), 2**53).map(float),
        tuple((value, (WHOLE,)) for value in (0.5, 2.0**63, float("nan"), float("-inf"))), "int64", int,
    ),
    "whole list": Kind(
        pa.list_(pa.float64()), Feature("int64", (None,)), st.lists(st.integers(-9, 9).map(float)),
        (([0.5], (WHOLE,)),), "int64",
    ),
    "text of float": Kind(pa.float64(), STRING, st.floats(allow_nan=False), (), "string", TextOf),
    "text of uint64": Kind(
        pa.uint64(), STRING, st.integers(0, 2**64 - 1), (), "string", lambda value: str(value).encode()
    ),
    "text of decimal": Kind(pa.decimal128(10, 2), STRING, CENTS, (), "string", lambda value: str(value).encode()),
    "whole decimal": Kind(
        pa.decimal256(50, 2), INT64, st.integers(-(2**63), 2**63 - 1).map(decimal.Decimal),
        ((decimal.Decimal("1.20"), ("1.20", WHOLE)), (decimal.Decimal(2**63), (WHOLE,))), "int64", int,
    ),
    "rounded decimal": Kind(
        pa.decimal256(50, 2), FLOAT32, CENTS, ((decimal.Decimal(10**40), (BEYOND,)),), "float32", float
    ),
    "microseconds": Kind(
        pa.timestamp("us"), INT64, TIMES, (), "int64", lambda time: (time - EPOCH) // datetime.timedelta(0, 0, 1)
    ),
    "days": Kind(pa.date32(), INT64, TIMES.map(lambda time: time.date()), (), "int64",
                 lambda date: (date - EPOCH.date()).days),
    "text of time": Kind(
        pa.timestamp("ms"), STRING, TIMES.map(lambda time: time.replace(microsecond=0)), (), "string",
        lambda time: time.isoformat(" ", "milliseconds").encode(),
    ),
}  # fmt: skip

IMAGE_TYPES = [
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()),
    pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    pa.struct([("path", pa.string()), ("bytes", pa.large_binary())]),
]  # fmt: skip
INTEGER_TYPES = [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
WORDS = {"train": ("train", "Training"), "validation": ("val", "valid", "dev"), "test": ("test", "eval")}
NAMES = ["{}-{:05d}-of-{:05d}.parquet", "data/x_{}-{:05d}-of-{:05d}-0a1b.parquet", "{}/{}.parquet", "my_{}{}.parquet"]
WITHOUT_WORDS = ["2020/x.parquet", "latest.parquet", "part-0.parquet"]


@st.composite
def layouts(draw):
    """Draws {split: {file: rows}}, both in the order of the source; the first file of a split is not empty."""
    counts = st.tuples(st.sampled_from([1, 2, 4, 11]), st.integers(0, 4)).map(list)
    splits = draw(st.lists(st.sampled_from(["train", "validation", "test", "unsupervised"]), unique=True, max_size=3))
    known = [split for split in WORDS if split in splits]
    if not known:
        return {"train": dict(zip(WITHOUT_WORDS, [2, *draw(counts)], strict=True))}
    found = {}
    for split in [*known, *sorted({*splits} - {*known})]:
        name = NAMES[0] if split not in WORDS else draw(st.sampled_from(NAMES))
        word, rows = draw(st.sampled_from(WORDS.get(split, (split,)))), draw(counts)
        found[split] = {name.format(word, number, len(rows)): count for number, count in enumerate(rows)}
    return found


class Table:
    """Rows of images, labels, keys and other columns, drawn column by column.

    Attributes:
      rows: expected results.
      columns: {name: Arrow array}.
      flags: flags that name the columns.
      class_names, features: class names and features of the data set.
      metadata: metadata of the files.
    """

    def __init__(self, draw, count, firsts):
        """Draws `count` rows, of which `firsts` are valid."""
        self._draw = draw
        first = draw(st.sampled_from(range(len(KINDS))), "first kept")
        kept = [
            sorted(KINDS)[(first + number) % len(KINDS)]
            for number in range(draw(st.sampled_from([6, 6, 6, 0]), "kept"))
        ]
        key = draw(st.sampled_from([None, pa.string(), pa.binary(), pa.int64()]), "key")
        image, label = draw(st.sampled_from([("image", "label"), ("img", "label"), ("photo", "kind")]), "names")
        parts = [name for name in kept for _ in (None, *KINDS[name].bad)]  # one for each kind of fault
        parts = draw(st.permutations([*parts, "image", "label", *(["key"] if key else [])]), "parts")
        others = [number for number in range(count) if number not in firsts]
        faulty = st.lists(st.sampled_from(others or [0]), unique=True, min_size=len(others) // 2, max_size=len(others))
        self._faults = dict(zip(draw(faulty, "faulty"), itertools.cycle(parts), strict=False))
        self.rows = [Row("", 0, b"", b"", "") for _ in range(count)]
        self.features = {name: KINDS[name].feature for name in kept}
        self.flags = {"keep_columns": ",".join(f"{name}:{KINDS[name].given}".rstrip(":") for name in kept)}
        if label != "label":
            self.flags |= {"image_column": image, "label_column": label}
        self.metadata = None
        self.columns = {image: self._images(image), label: self._labels(label)}
        if key:
            self.columns["id"] = self._keys(key)
            self.flags["key_column"] = "id"
        self.columns |= {name: self._kept(name) for name in kept}

    def write(self, folder, layout):
        """Writes the rows into files, one after the other."""
        start, self.groups = 0, {split: [] for split in layout}
        content = pa.table(self.columns).replace_schema_metadata(self.metadata)
        for split, files in layout.items():
            for name, count in files.items():
                options = {
                    "row_group_size": self._draw(st.integers(1, 5), "row group"),
                    "compression": self._draw(st.sampled_from(["none", "snappy", "zstd"]), "compression"),
                    "write_page_checksum": self._draw(st.booleans(), "checksum"),
                }
                write(folder / name, content.slice(start, count), **options)
                self.groups[split] += [
                    min(options["row_group_size"], count - n) for n in range(0, count, options["row_group_size"])
                ]
                for number, row in enumerate(self.rows[start : start + count]):
                    row.file, row.number = name, number
                    if "id" not in self.columns:
                        row.key = f"{name}#{number:0{digits(count)}d}".encode()
                start += count

    def _column(self, part, values, bad, kind):
        """Returns an array of values, with those of faulty rows replaced by items of `bad`, (value, words)."""
        found = list(values)
        rows = [number for number, faulty in self._faults.items() if faulty == part]
        for number, (value, words) in zip(rows, itertools.cycle(self._draw(st.permutations(bad), part)), strict=False):
            found[number], self.rows[number].fault = value, words
        self.values = found
        if pa.types.is_struct(kind):
            found = [{"bytes": value, "path": "a.png"} for value in found]
        if pa.types.is_dictionary(kind):
            return pa.array(found, kind.value_type).dictionary_encode()
        return pa.array(found, kind)

    def _several(self, values):
        return self._draw(st.lists(values, min_size=len(self.rows), max_size=len(self.rows)))

    def _images(self, name):
        kind = self._draw(st.sampled_from(IMAGE_TYPES), "type of images")
        values = self._several(st.sampled_from(PICTURES))
        for row, value in zip(self.rows, values, strict=True):
            row.image = value
        null = (None, ("image bytes",) if pa.types.is_struct(kind) else (name, "null"))
        return self._column("image", values, [null, *((data, ()) for data in NO_PICTURES)], kind)

    def _labels(self, name):
        what = self._draw(st.sampled_from(["number", "named", "bool", "text", "text of numbers"]), "labels")
        kinds, labels = {
            "number": (INTEGER_TYPES, st.integers(0, 6)),
            "named": (INTEGER_TYPES, st.integers(0, 2)),
            "bool": ([pa.bool_()], st.booleans()),
            "text": (TEXT_TYPES, st.sampled_from(["Cat", "ape", "eel", "\u00e9", "7", "10"])),
            "text of numbers": (TEXT_TYPES, st.sampled_from(["10", "9", "2"])),
        }[what]
        kind, values = self._draw(st.sampled_from(kinds), "type of labels"), self._several(labels)
        bad = [(None, (name, "null"))]
        bad += [("", (name, "empty"))] if kind in TEXT_TYPES else []
        bad += [(-1, ("-1", "0.."))] if pa.types.is_signed_integer(kind) else []
        bad += [(3, ("3", "0..2"))] if what == "named" else []
        column = self._column("label", values, bad, kind)
        if what == "named":
            self.class_names, self.metadata = ["cat", "dog", "eel"], hugging_face(**{name: ["cat", "dog", "eel"]})
        elif kind in TEXT_TYPES:
            self.class_names = in_order({value for value in self.values if value})
        else:
            self.class_names = ["false", "true"] if what == "bool" else [
                str(label) for label in range(max(value for value in self.values if value is not None) + 1)
            ]  # fmt: skip
        for row, value in zip(self.rows, values, strict=True):
            row.class_name = value if kind in TEXT_TYPES else self.class_names[value] if row.fault is None else ""
        return column

    def _keys(self, kind):
        values = [
            number * 7 - 3 if pa.types.is_integer(kind) else f"\u00e9\0{number}\0" for number in range(len(self.rows))
        ]
        for row, value in zip(self.rows, values, strict=True):
            row.key = str(value).encode()
        values = [row.key for row in self.rows] if pa.types.is_binary(kind) else values
        empty = [] if pa.types.is_integer(kind) else [(values[0][:0], ("id", "empty"))]
        return self._column("key", values, [(None, ("id", "null")), *empty], kind)

    def _kept(self, name):
        kind = KINDS[name]
        values = self._several(kind.values)
        for row, value in zip(self.rows, values, strict=True):
            row.extra[name] = kind.stored(value)
        bad = [(value, (name, *words)) for value, words in kind.bad]
        # pyarrow 25 cannot read a row group with a null in a column of fixed-size lists.
        bad += [] if pa.types.is_fixed_size_list(kind.type) else [(None, (name, "null"))]
        return self._column(name, values, bad, kind.type)


@given(st.data())
@settings(max_examples=examples(60), derandomize=True)
def test_a_table_becomes_its_valid_rows_and_the_rejects_of_the_others(data):
    layout = data.draw(layouts(), "layout")
    ends = np.cumsum([0, *(sum(files.values()) for files in layout.values())]).tolist()
    table = Table(data.draw, ends[-1], firsts={*ends[:-1]})
    splits = {
        split: table.rows[start:stop] for split, (start, stop) in zip(layout, itertools.pairwise(ends), strict=True)
    }
    with empty_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_MAX_BATCH", data.draw(st.integers(1, 4), "batch"))
        table.write(folder / "in", layout)
        flags = {"dataset": "parquet", "source": str(folder / "in"), **table.flags}
        plan = check(data, folder, splits, table.class_names, table.features, **flags)
    for split, groups in table.groups.items():
        assert list(filter(None, plan.source.chunks(split).tolist())) == groups


WRAPPED = {
    "scalar": (pa.float64(), lambda value: value),
    "list": (pa.list_(pa.float64()), lambda value: [0.5, value]),
    "vector": (pa.list_(pa.float64(), 2), lambda value: (value, 1.0)),
}


@given(
    st.sampled_from(sorted(WRAPPED)),
    st.lists(SINGLES, max_size=9),
    st.lists(DOUBLES | WHOLES, max_size=3),
    st.booleans(),
)
@settings(max_examples=examples(60), derandomize=True)
def test_float64_is_kept_where_float32_holds_all_values_and_else_the_first_other_is_named(
    form, exact, others, is_later
):
    kind, wrapped = WRAPPED[form]
    values = [0.5, *exact, *others]
    with np.errstate(over="ignore"):
        wrong = [row for row, value in enumerate(values) if value == value and float(np.float32(value)) != value]
    with empty_folder() as folder:
        if is_later:  # the first file says nothing about others
            write(
                folder / "a.parquet",
                pa.table({"image": IMAGES[:1], "label": [0], "other": pa.array([wrapped(0.5)], kind)}),
            )
        images = {"image": [IMAGES[0]] * len(values), "label": [0] * len(values)}
        write(folder / "b.parquet", pa.table(images | {"other": pa.array(list(map(wrapped, values)), kind)}))
        if not wrong:
            assert everything(opened(folder, keep_columns=("other",))).bad == {}
            return
        with pytest.raises(UsageError) as error:
            opened(folder, keep_columns=("other",))
        for option, is_offered in (
            ("float32", True), ("string", True),
            ("int64", values[wrong[0]].is_integer() and abs(values[wrong[0]]) < 2**63),
        ):  # fmt: skip
            assert (f"other:{option}" in str(error.value)) == is_offered
            if is_offered:
                opened(folder, keep_columns=(f"other:{option}",))
    assert f"b.parquet, row {wrong[0]}: is {values[wrong[0]]!r}, " in str(error.value)


def test_class_names_of_hugging_face_and_of_a_kept_column(tmp_path):
    source = one(
        tmp_path,
        hugging_face(label=["cat", "dog", "eel"], coarse=["pet", "fish"]),
        {"keep_columns": ("coarse",)},
        coarse=pa.array([0, 1] * 5),
    )
    assert source.class_names == ("cat", "dog", "eel")
    assert source.features == {"coarse": Feature("int64", (), None, ("pet", "fish"))}


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"info": 3}', b'{"info": {"features": {"label": 1}}}', b"\xff"])
def test_metadata_of_another_form_is_ignored(tmp_path, text):
    assert one(tmp_path, {b"huggingface": text}).class_names == ("0", "1", "2")


def test_too_many_classes_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, check=at("a.parquet", "'label'", 1000001, 100000)):
        one(tmp_path, label=pa.array([1_000_000] * 10))
    monkeypatch.setattr(tables, "MAX_CLASSES", 5)
    with pytest.raises(DataError, check=said("'label'", "8 ", "5;", "--label_column")):
        one(tmp_path, label=pa.array([f"name {n}" for n in range(10)]))


def test_labels_that_look_alike_are_refused_and_those_that_differ_in_case_are_named(tmp_path, capsys):
    for other in ("cat ", "c\u200bat"):
        with pytest.raises(DataError, check=at("a.parquet", "'label'", "look alike")):
            one(tmp_path, label=pa.array(["cat", other] * 5))
    assert one(tmp_path, label=pa.array(["cat", "Cat"] * 5)).class_names == ("Cat", "cat")
    assert capsys.readouterr().err.endswith("a.parquet: the classes 'Cat' and 'cat' differ only in case\n")


@pytest.mark.parametrize("column", [pa.array([None, -5] * 5), pa.array([None, ""] * 5, pa.string())])
def test_a_column_without_any_label_is_refused(tmp_path, column):
    with pytest.raises(DataError, match=r"a\.parquet: column 'label'"):
        one(tmp_path, label=column)


@pytest.mark.parametrize("values", [[0.5, 0.1], [[0.5], [0.5, 0.1]]], ids=["scalars", "lists"])
def test_a_worker_writes_no_rounded_value_whatever_was_looked_at_before(tmp_path, monkeypatch, values):
    monkeypatch.setattr(tables, "check_exact", lambda *_: None)
    block = everything(one(tmp_path, flags={"keep_columns": ("other",)}, other=pa.array(values * 5)))
    assert {reason.rpartition("other ")[2] for reason in block.bad.values()} == {"0.1 is not exactly a float32"}
    assert list(block.bad) == [1, 3, 5, 7, 9]


def test_a_name_may_itself_end_like_a_type(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, table().append_column("other:string", pa.array([1] * 10)))
    assert opened(path, keep_columns=("other:string",)).features == {"other:string": Feature("int64")}


@pytest.mark.parametrize(
    "column",
    [pa.array([0] * 10, pa.timestamp("s")), pa.array([[["a"]]] * 10), pa.array([{"a": 1}] * 10), pa.array([None] * 10)],
    ids=lambda column: str(column.type),
)
def test_a_column_that_is_no_feature_is_refused_with_its_type(tmp_path, column):
    with pytest.raises(UsageError, match=r"--keep_columns: .*a\.parquet has 'other' as (timestamp|list|struct|null)"):
        one(tmp_path, flags={"keep_columns": ("other",)}, other=column)


OTHER_DATA = "docs/boxes.md; text and tables .* python -m pipeline.index .* input_fn.*trainer.Task"


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
    with pytest.raises(UsageError, check=said("--label_column=objects:", "pipeline.index")):
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
    with pytest.raises(UsageError, check=said("a.parquet", "--label_column=label", "2 columns")):
        opened(write(tmp_path / "a.parquet", content))


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
        (table(hugging_face(label=["cat", "dog", "eel"])), "in type or class names"),
    ):
        write(tmp_path / "b.parquet", content)
        with pytest.raises(DataError, match=message):
            opened(tmp_path)
    write(tmp_path / "b.parquet", table(image=pa.array(IMAGES, pa.large_binary()), label=pa.array(LABELS, pa.int64())))
    assert opened(tmp_path).splits == {"train": 20}  # widths may differ
    write(tmp_path / "a.parquet", table(age=pa.array(range(10))))
    write(tmp_path / "b.parquet", table(age=pa.array([float(n) for n in range(10)])))  # as pandas, if one is missing
    with pytest.raises(
        DataError, match=r"b\.parquet: its column 'age' is float32, and int64 in .*a\.parquet; give --keep"
    ):
        opened(tmp_path, keep_columns=("age",))
    assert opened(tmp_path, keep_columns=("age:int64",)).splits == {"train": 20}


def test_a_split_without_a_row_is_refused(tmp_path):
    write(tmp_path / "train.parquet")
    write(tmp_path / "test.parquet", table().slice(0, 0))
    with pytest.raises(DataError, match=r"'test'.*test\.parquet"):
        opened(tmp_path)


def test_a_row_group_too_large_to_read_again_and_again_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 2000)
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


def test_rows_that_a_row_group_lacks_are_an_error(tmp_path):
    path = write(tmp_path / "a.parquet", row_group_size=10)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")  # of the footer, with the numbers of rows: twice
    told = (10, 10)
    for place in (place for place in range(begin, len(data) - 8) if data[place] == 20):  # 10, in Thrift's encoding
        path.write_bytes(data[:place] + b"\x16" + data[place + 1 :])
        footer = pq.read_metadata(path)
        if (footer.num_rows, footer.row_group(0).num_rows) != told:
            data, told = path.read_bytes(), (footer.num_rows, footer.row_group(0).num_rows)
    path.write_bytes(data)
    assert told == (11, 11)
    with pytest.raises(DataError, check=at(path, "row group 0", "10 rows", "11")):
        opened(path)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 5, b"not parquet" * 100])
def test_a_file_that_is_no_parquet_is_one_line(tmp_path, data):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataError, check=at("a.parquet", "Parquet")):
        opened(tmp_path)


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path):
    """Runs in a process of its own, so that a crash fails only this test."""
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
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    whole, refused = json.loads(done.stdout)
    assert whole + refused == 300
    assert min(whole, refused) > 30


LISTS = {
    "of lists": (pa.array([[[1, 2], [3]], []] * 5), ["[[1, 2], [3]]", "[]"]),
    "of float64": (pa.array([[0.1, None], [1e300]] * 5), ["[0.1, null]", "[1e+300]"]),
    "of texts in lists": (pa.array([[["a", "\u00e9"]], [[""]]] * 5), ['[["a", "\u00e9"]]', '[[""]]']),
    "of structs": (pa.array([[{"x": 2**60 + 1}], []] * 5), ['[{"x": 1152921504606846977}]', "[]"]),
    "of times": (
        pa.array([[datetime.datetime(2020, 1, 2, 3, 4, 5, 6)], []] * 5),
        ['["2020-01-02 03:04:05.000006"]', "[]"],
    ),
    "of one length": (
        pa.array([[[1, 2]], [[3, 4]]] * 5, pa.list_(pa.list_(pa.int64(), 2), 1)),
        ["[[1, 2]]", "[[3, 4]]"],
    ),
}


@pytest.mark.parametrize(("column", "texts"), LISTS.values(), ids=LISTS)
def test_lists_of_any_values_are_kept_exactly_as_json_which_the_refusal_names(column, texts, tmp_path):
    with pytest.raises(
        UsageError, check=said("'other'" if "double" not in str(column.type) else "other", "other:string")
    ):
        one(tmp_path, flags={"keep_columns": ("other",)}, other=column)
    source = one(tmp_path, flags={"keep_columns": ("other:string",)}, other=column)
    assert source.features == {"other": Feature("string")}
    assert everything(source).extra["other"] == [text.encode() for text in texts] * 5


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_lists_of_texts_are_kept_as_lists(tmp_path, kind):
    column = pa.array([["a", "\u00e9"], [], None, ["", None], ["b"]] * 2, pa.list_(kind))
    source = one(tmp_path, flags={"keep_columns": ("other",)}, other=column)
    assert source.features == {"other": Feature("string", (None,))}
    block = everything(source)
    assert [block.extra["other"][row] for row in (0, 1, 9)] == [[b"a", "\u00e9".encode()], [], [b"b"]]
    nulls = {2: "other is null", 3: "an element of other is null"}
    assert block.bad == nulls | {row + 5: text for row, text in nulls.items()}
    if kind != pa.binary():  # as JSON, if the user says so
        assert one(tmp_path, flags={"keep_columns": ("other:string",)}, other=column).features["other"].shape == ()


def test_null_lists_are_invalid_rows_and_lists_of_bytes_are_refused(tmp_path):
    flags = {"keep_columns": ("other:string",)}
    assert everything(one(tmp_path, flags=flags, other=pa.array([[["a"]], None] * 5))).bad.keys() == {1, 3, 5, 7, 9}
    with pytest.raises(UsageError, check=said("list<element: binary>")):
        one(tmp_path, flags=flags, other=pa.array([[b"a"]] * 10))


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
