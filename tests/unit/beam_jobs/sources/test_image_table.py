import csv
import io
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.sources import image_files, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature
from tests.helpers.lanes import examples
from tests.helpers.raised import at, said
from tests.helpers.round_trips import NO_PICTURES, PICTURES, Row, check, empty_folder, everything, fill, in_order

DELIMITERS = {".csv": ",;", ".tsv": "\t"}  # the first row decides
CAPTION = 'a "cat",\nor;\ttwo'


def write(path, rows):
    """Writes {column: values} as a table of the kind that the name says; None is a field that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pa.table(rows)
        number = table.schema.names.index("label") if "label" in rows else -1
        if number >= 0:
            table = table.set_column(number, "label", table.column(number).dictionary_encode())
        pq.write_table(table, path, row_group_size=3)
    elif path.suffix == ".jsonl":
        lines = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
        path.write_text("\ufeff" + "".join(json.dumps(line) + "\n" for line in lines))
    else:
        stream = io.StringIO()
        writer = csv.writer(
            stream,
            delimiter=DELIMITERS[path.suffix][len(rows["label"]) % len(DELIMITERS[path.suffix])],
            lineterminator="\r\n",
        )
        writer.writerows([rows.keys(), *zip(*rows.values(), strict=True)])
        path.write_bytes(b"\xef\xbb\xbf" + stream.getvalue().encode())
    return path


def opened(source, **options):
    return open_source(SourceOptions("image_table", str(source), **options))


FAULTS = {
    "gone": ("no such file",),
    "a folder": ("not a regular file",),
    "unnamed": (" is ",),
    "unlabelled": ("label",),
    "drawn": (".svg",),
    "no picture": (),
}
NAMES = ["{}.png", "sub/deep/{}.JPEG", "b\u00e9/{} x.tif", "'{}', y.webp"]


@given(st.data())
@settings(max_examples=examples(60), derandomize=True)
def test_a_table_becomes_its_images_and_the_rejects_of_other_rows(data):
    draw = data.draw
    suffix = draw(st.sampled_from([*DELIMITERS, ".jsonl", ".parquet"]))
    name = draw(st.sampled_from(["file_name", "path", "Image"]))
    words = draw(st.sampled_from([{}, {"train": "Train"}, {"train": "train", "validation": "val", "test": "test"}]))
    names = draw(st.sampled_from([["cat", "Dog", "\u00e9\u00e8l"], ["0", "2", "10", "011"]]))
    columns = {name: [], "label": [], "score": [], "caption": [], "more": []} | ({"split": []} if words else {})
    table = {split: [] for split in words or ["train"]}
    with empty_folder() as folder:
        for number in range(draw(st.integers(len(table), 10))):
            split = list(table)[number % len(table)]
            fault = draw(st.sampled_from([None, None, None, *FAULTS])) if table[split] else None
            label, again = draw(st.sampled_from(names)), draw(st.integers(0, 3)) == 0
            earlier = [row for rows in table.values() for row in rows if row.fault is None]
            if again and earlier and fault is None:
                path = draw(st.sampled_from(earlier)).key.decode().split("#")[0]
                key, content = f"{path}#{number}", (folder / "in" / path).read_bytes()
            else:
                path = draw(st.sampled_from(NAMES)).format(number) + (".svg" if fault == "drawn" else "")
                key, content = path, draw(st.sampled_from(NO_PICTURES if fault == "no picture" else PICTURES))
                if fault == "a folder":
                    (folder / "in" / path).mkdir(parents=True)
                elif fault != "gone":
                    fill(folder / "in", {path: content})
            missing = draw(st.sampled_from([None, ""] if suffix in (".jsonl", ".parquet") else [None, " "]))
            written = draw(st.sampled_from([path, f" {path}", f"./{path}", path.replace("/", "\\")]))
            columns[name].append(missing if fault == "unnamed" else written)
            columns["label"].append((missing and missing.strip()) if fault == "unlabelled" else label)
            columns["score"].append(number / 4)
            columns["caption"].append(CAPTION)
            columns["more"].append(draw(st.sampled_from(["1", "x", "2024-05-01"])))
            if words:
                columns["split"].append(words[split])
            extra = {"score": number / 4, "caption": CAPTION.encode()}
            words_of = (*FAULTS[fault], *[f"{path}: "] * (fault != "unnamed")) if fault else None
            row = Row(f"labels{suffix}", number, key.encode(), content, label, extra, words_of)
            table[split].append(row)
        write(folder / "in" / f"labels{suffix}", columns)
        labels = in_order({label for label in columns["label"] if label})
        flags = {"dataset": "image_table", "source": str(folder / "in" / f"labels{suffix}")}
        features = {"score": Feature("float32"), "caption": Feature("string")}
        check(data, folder, table, labels, features, keep_columns="score,caption", **flags)


A, B = PICTURES[:2]


@pytest.fixture
def root(tmp_path):
    """A folder with two images, and a third one outside."""
    fill(tmp_path, {"outside/c.png": PICTURES[2]})
    return fill(tmp_path / "root", {"a.png": A, "sub/b.png": B})


def table_of(root, text, name="labels.csv"):
    return fill(root, {name: text}) / name


def test_whole_numbers_are_classes_by_value_and_zeros_before_a_number_stay(root):
    source = opened(table_of(root, "file_name,label\na.png,10\nsub/b.png,9\n"))
    assert (source.class_names, everything(source).labels.tolist()) == (("9", "10"), [1, 0])
    source = opened(table_of(root, "file_name,label\na.png,007\nsub/b.png,x\n"))
    assert source.class_names == ("007", "x")
    source = opened(table_of(root, "file_name,label\na.png,10.0\nsub/b.png,9.0\na.png,\n"))  # of pandas
    assert source.class_names == ("9", "10")
    assert opened(table_of(root, "file_name,label\na.png,1.0\nsub/b.png,1.5\n")).class_names == ("1.0", "1.5")
    with pytest.raises(DataError, check=said("'007' and '7' look alike")):
        opened(table_of(root, "file_name,label\na.png,007\nsub/b.png,7\n"))


def test_labels_that_are_numbers_in_the_table_are_labels(root):
    source = opened(table_of(root, '{"file_name": "a.png", "label": 2}\n{"path": "b", "label": null}\n', "a.jsonl"))
    assert source.class_names == ("0", "1", "2")
    block = everything(source)
    assert (block.labels[0], block.bad) == (2, {1: "file_name is null"})


def test_rows_without_a_file_do_not_name_it_again(root, capsys):
    names = [None, "a.png", "", ""]
    source = opened(write(root / "a.jsonl", {"file": names, "label": [0] * 4}), image_column="file")
    assert "earlier" not in capsys.readouterr().err
    assert source.unique_keys
    assert everything(source).keys == [b"", b"a.png", b"", b""]


def test_labels_txt_names_the_classes(root):
    fill(root, {"labels.txt": "eel\nape\n"})
    for labels, wanted in ((("ape", "eel"), [1, 0]), (("1", "0"), [1, 0])):
        source = opened(table_of(root, "file_name,label\na.png,{}\nsub/b.png,{}\n".format(*labels)))
        assert (source.class_names, everything(source).labels.tolist()) == (("eel", "ape"), wanted)
    with pytest.raises(DataError, check=at("labels.csv", "'dog'", "labels.txt", part="row 1")):
        opened(table_of(root, "file_name,label\na.png,ape\nsub/b.png,dog\n"))


def test_kept_columns_of_text_are_numbers_if_all_their_fields_are(root):
    text = "file_name,label,n,score,code,mixed,none\na.png,1,3,0.5,007,1,\nsub/b.png,1,,1e2,008,x,\n"
    source = opened(table_of(root, text), keep_columns=("n", "score", "code", "mixed", "none"))
    assert {name: feature.dtype for name, feature in source.features.items()} == {
        "n": "int64", "score": "float32", "code": "string", "mixed": "string", "none": "string",
    }  # fmt: skip
    block = everything(source)
    assert block.bad == {1: "n is null"}
    assert (block.extra["n"][0], block.extra["score"].tolist()) == (3, [0.5, 100])
    assert (block.extra["code"], block.extra["mixed"]) == ([b"007", b"008"], [b"1", b"x"])
    source = opened(table_of(root, text), keep_columns=("code:int64", "n:float32", "score:string"))
    assert everything(source).extra["code"].tolist() == [7, 8]
    assert everything(source).extra["score"] == [b"0.5", b"1e2"]
    with pytest.raises(DataError, check=at("labels.csv", "'mixed'", "'x'", part="row 1")):
        opened(table_of(root, text), keep_columns=("mixed:float32",))
    with pytest.raises(UsageError, check=said("--keep_columns=score", "row 1", "0.1", "score:float32")):
        opened(table_of(root, "file_name,label,score\na.png,1,0.5\nsub/b.png,1,0.1\n"), keep_columns=("score",))


def test_texts_with_line_breaks_may_be_longer_than_a_block_of_the_table(root):
    captions = [f"{number}\n" + "x\n" * 5000 for number in range(300)]
    table = {"file_name": ["a.png"] * 300, "label": [0] * 300, "caption": captions}
    block = everything(opened(write(root / "labels.csv", table), keep_columns=("caption",)))
    assert block.extra["caption"] == [caption.strip().encode() for caption in captions]


def test_splits_are_those_of_the_column_or_of_the_names_of_tables(root, tmp_path):
    text = "file_name,label,split,fold\na.png,1,Val,one\nsub/b.png,2,train,two\n"
    assert opened(table_of(root, text)).splits == {"train": 1, "validation": 1}
    source = opened(table_of(root, text), split_column="fold")
    assert source.splits == {"one": 1, "two": 1}
    assert source.where("two", 0) == ("labels.csv", 1)
    with pytest.raises(DataError, check=at("labels.csv", "'split'", "'x'", part="row 1")):
        opened(table_of(root, text.replace("2,train", "2,x")))
    fill(tmp_path / "hub", {"train/metadata.csv": "file_name,label\na.png,1\n", "train/a.png": A})
    fill(tmp_path / "hub", {"test/metadata.csv": "file_name,label\nb/b.png,2\n", "test/b/b.png": B})
    source = opened(tmp_path / "hub")
    assert source.splits == {"train": 1, "test": 1}
    assert everything(source, "test").keys == [b"test/b/b.png"]
    assert source.where("test", 0) == ("test/metadata.csv", 0)
    assert [file.file for file in source.files] == ["test/metadata.csv", "train/metadata.csv", "images"]
    fill(tmp_path / "hub", {"test/metadata.jsonl": '{"file_name": "b/b.png", "label": 2}\n'})
    with pytest.raises(DataError, check=at("test/metadata.jsonl", "label (string)", "test/metadata.csv")):
        opened(tmp_path / "hub")
    (tmp_path / "hub" / "test" / "metadata.jsonl").unlink()
    fill(tmp_path / "hub", {"test/metadata.csv": "file_name,class\nb/b.png,2\n"})
    with pytest.raises(DataError, check=said("--label_column", "train/metadata.csv", "'class'", "test/metadata.csv")):
        opened(tmp_path / "hub")


def test_images_lie_where_the_flag_says(root, tmp_path):
    table = table_of(tmp_path, "id,label\na,1\n")
    assert everything(opened(table, image_column="id", image_dir=f"{root}/{{}}.png")).keys == [b"a.png"]
    table = table_of(tmp_path, "id,label\nb.png,1\n")
    assert everything(opened(table, image_column="id", image_dir=str(root / "sub"))).images == [B]
    hub = fill(tmp_path / "hub", {"train/metadata.csv": "id,label\nb.png,1\n"})
    assert everything(opened(hub, image_column="id", image_dir=str(root / "sub"))).images == [B]
    with pytest.raises(DataError, check=said("row 0: b.png: no such file", "--image_dir=FOLDER")):
        opened(table, image_column="id", image_dir=str(root))
    with pytest.raises(UsageError, check=said("--image_dir=", "/gone ", "not a folder")):
        opened(table, image_column="id", image_dir="gone")


def test_absolute_paths_of_another_machine_are_to_be_made_relative(root):
    with pytest.raises(DataError, check=said("row 0: /gone/x.png: no such file", "relative")):
        opened(table_of(root, "file_name,label\n/gone/x.png,1\n"))
    with pytest.raises(DataError, check=said("row 0: C:/gone/x.png: no such file", "relative")):
        opened(table_of(root, "file_name,label\nC:\\gone\\x.png,1\n"))


def test_files_of_the_web_are_to_be_downloaded(root):
    with pytest.raises(DataError, check=said("row 0", "x.org/a.png", "download")):
        opened(table_of(root, "file_name,label\nhttps://x.org/a.png,1\n"))


@pytest.mark.parametrize(
    ("name", "advice"), [("b.png", "root/sub/"), ("a", "root/{}.png"), ("b", "root/sub/{}.png"), ("x", "FOLDER")]
)
def test_if_no_file_is_there_the_place_of_the_first_is_advised(root, name, advice):
    with pytest.raises(DataError, check=at("labels.csv", name, part="row 0")) as raised:
        opened(table_of(root, f"file_name,label\n{name},1\ny,1\n"))
    assert raised.value.advice.startswith("--image_dir=" if name == "x" else "give --image_dir=")
    assert advice in raised.value.advice


def test_only_files_of_the_folder_are_read(root, tmp_path):
    (root / "link.png").symlink_to(tmp_path / "outside" / "c.png")
    (root / "away").symlink_to(tmp_path / "outside")
    (root / "near.png").symlink_to("a.png")
    for path in ("link.png", "away/c.png", "../outside/c.png", str(tmp_path / "outside" / "c.png")):
        table = table_of(root, f"path,label\na.png,1\n{path},1\n")
        with pytest.raises(DataError, check=at("labels.csv", "c.png" if "c.png" in path else "link.png", part="row 1")):
            opened(table)
        assert everything(opened(table, follow_links=True)).images == [A, PICTURES[2]]
    table = table_of(root, f"path,label\nnear.png,1\n{root}/sub/b.png,1\n/gone/x.png,1\n")
    source = opened(table)
    block = everything(source)
    assert block.keys[:2] == [b"near.png", b"sub/b.png"]
    assert block.bad == {2: "no such file"}
    assert source.invalid("train", 2, "no such file") == ("labels.csv", 2, "/gone/x.png: no such file")


def test_what_was_chosen_and_what_is_missing_is_said(root, capsys):
    table = table_of(root, "path,class,split\na.png,1,train\ngone.png,1,train\na.png,1,train\n")
    source = opened(table)
    assert capsys.readouterr().err.splitlines() == [
        f"{table}: column 'path' names the images, 'class' their labels (1 class), 'split' their splits",
        f"{table}, row 1: gone.png: no such file; invalid rows of this kind: 1 of 3",
        f"{table}, row 2: an earlier row names a.png too; rows of this kind: 1; each becomes an example",
    ]
    assert everything(source).keys == [b"a.png", b"gone.png", b"a.png#2"]
    assert source.hashes("train", 0, 1) == source.hashes("train", 2, 3)  # one file, one split
    opened(table_of(root, "path,class\na.png,1\n"), image_column="path", label_column="class")
    assert capsys.readouterr().err == ""


REFUSED = [
    ("", "is empty"),
    ("file_name,label\n", "no row"),
    ("a.png,cat\nb.png,dog\n", "names an image, 'a.png', but must name the columns"),
    ("file_name,label\na.png,c\nb.png,8,9\n", "line 3: has 3 columns, not 2 .* 'b.png,8,9'"),
    ('file_name,label\n"a.png,c\n', "double quotes, which must be closed"),
    (b"file_name,label\na.png,\xe4\n", r"row 0: column 'label' has b'\\xe4', which is not UTF-8"),
    (b"n\xe4me,label\na.png,1\n", "first line is not UTF-8"),
    ("file_name,label\na.png,1\n".encode("utf-16"), "is UTF-16 text; .*UTF-8"),
    ("file_name,label\na.png,\n", "column 'label' has no label"),
    ("file,labels\na.png,1\n", "--label_column is missing: .*the label could be labels"),
    ("id,label\na.png,1\n", "--image_column is missing: .*the image could be id"),
    ('"a\nb",label\nx,1\n', "--image_column is missing: .* has no column 'image', but a b"),
    ('path,label\n"a\nb.png",1\n', r"row 0: a\\nb.png: no such file"),
    ("file,file,label\na.png,a.png,1\n", "--image_column=file: .* has 2 columns of that name"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_table_of_another_form_is_refused_in_one_line(root, content, message):
    with pytest.raises((DataError, UsageError), match=message, check=said("labels.csv")):
        opened(table_of(root, content))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"image_column": "file_nam"}, "--image_column: .* no column 'file_nam'; did you mean 'file_name'"),
        ({"label_column": "labl"}, "--label_column: .* no column 'labl'; did you mean 'label'"),
        ({"key_column": "x"}, "--key_column: .* no column 'x'"),
        ({"split_column": "x"}, "--split_column: .* no column 'x'"),
        ({"keep_columns": ("x",)}, "--keep_columns: .* no column 'x'"),
        ({"keep_columns": ("label",)}, "--keep_columns: 'label' cannot be kept"),
        ({"split_column": "box"}, "column 'box' cannot name splits"),
        ({"label_column": "score"}, "--label_column=score: give --float_labels .*astype.* as double"),
        ({"image_column": "box"}, "--image_column=box: .* strings, the paths .*--dataset=parquet"),
    ],
)
def test_flags_that_do_not_fit_the_table(root, flags, message):
    table = table_of(root, '{"file_name": "a.png", "label": "x", "box": [1, 2], "score": 1.0}\n', "a.jsonl")
    kind = DataError if "cannot name splits" in message else UsageError
    with pytest.raises(kind, match=message, check=said("" if "keep" in message else "a.jsonl")):
        opened(table, **flags)


STREAM = io.BytesIO()
pq.write_table(pa.table({"file": ["?.png"], "label": ["x"]}), STREAM, use_dictionary=False, compression="none")
NOT_UTF8 = STREAM.getvalue().replace(b"?.png", b"\xe4.png")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", "x", "ends in none of .csv"),
        ("a.jsonl", '"a.png"\n', "line 1: is not an object: .*each line must be one object"),
        ("a.jsonl", '\n{"file_name": "a.png", "label": 1}\n{"file_n', "line 3: is not JSON"),
        ("a.jsonl", "null" + '{"file_name": "a.png"}', "line 1: is not JSON"),  # at which pyarrow's parser crashes
        ("a.jsonl", "[" * 100_000, "row 0: is not JSON"),
        (
            "a.jsonl",
            '{"path": "a.png", "label": 1}\n{"path": "b.png", "label": "x"}\n',
            "row 1: .*'label' has 'x'.* int",
        ),
        (
            "a.jsonl",
            '{"path": "a.png", "label": 99999999999999999999}\n',
            "row 0: column 'label' has 99999999999999999999, which int64 does not hold",
        ),
        ("a.jsonl", b'{"file_name": "a\xff.png", "label": 1}\n', "line 1: is not JSON .* in UTF-8"),
        ("a.parquet", "x", "cannot be read as Parquet"),
        ("a.parquet", NOT_UTF8, r"row 0: column 'file' has b'\\xe4.png', which is not UTF-8 text"),
    ],
)
def test_files_that_are_no_tables(root, name, content, message):
    with pytest.raises(DataError, match=message, check=said(name)):
        opened(table_of(root, content, name))


def test_sources_that_are_no_table(tmp_path):
    with pytest.raises(UsageError, match="--source is missing"):
        opened("")
    with pytest.raises(DataError, check=at("gone.csv", "no such file")):
        opened(tmp_path / "gone.csv")
    with pytest.raises(DataError, check=at(tmp_path, "metadata.csv")):
        opened(tmp_path)


def test_columns_of_json_that_are_not_read_may_hold_anything(root):
    lines = [
        '{"file_name": "a.png", "label": 1, "more": 1}',
        "",
        '{"file_name": "sub/b.png", "label": 0, "more": ["x"]}',
    ]
    table = table_of(root, "\n".join(lines), "metadata.jsonl")
    assert everything(opened(table)).images == [A, B]
    with pytest.raises(DataError, check=at("metadata.jsonl", "'more'", "['x']", "int", part="row 1")):
        opened(table, keep_columns=("more",))


@pytest.mark.slow
def test_json_of_many_lines_is_one_table(root):
    lines = [{"file_name": "a.png", "label": row % 7} | ({"n": row} if row < 9 else {}) for row in range(40_000)]
    table = table_of(root, "".join(json.dumps(line) + "\n" for line in lines), "metadata.jsonl")
    source = opened(table, keep_columns=("n",))
    block = source.read("train", np.array([8, 39_999, 0]))
    assert (block.labels.tolist(), block.extra["n"].tolist()) == ([1, 1, 0], [8, 0, 0])
    assert block.bad == {1: "n is null"}
    lines[39_999]["label"] = "x"
    table_of(root, "".join(json.dumps(line) + "\n" for line in lines), "metadata.jsonl")
    with pytest.raises(DataError, check=at("metadata.jsonl", "label", "'x'", part="row 39999")):
        opened(table)


def test_texts_of_json_that_look_like_times_stay_texts(root):
    lines = '{"file_name": "a.png", "label": "2024-05-01"}\n{"file_name": "sub/b.png", "label": "2024-06-01"}\n'
    assert opened(table_of(root, lines, "metadata.jsonl")).class_names == ("2024-05-01", "2024-06-01")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_strings_of_parquet_of_any_type_are_read(root, kind):
    names = pa.array(["a.png", "sub/b.png", None], kind)
    table = pa.table({"file": names, "label": pa.array(["x", "y", "y"], kind), "also": names, "bytes": [b"1"] * 3})
    pq.write_table(table, root / "a.parquet")
    block = everything(opened(root / "a.parquet", keep_columns=("also", "bytes")))
    assert (block.images[:2], block.labels.tolist()) == ([A, B], [0, 1, 1])
    assert block.bad == {2: "file is null"}
    assert block.extra["also"][:2] == [b"a.png", b"sub/b.png"]


def test_class_names_of_hugging_face_are_known(root):
    info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["ape", "bee"]}}}}
    table = pa.table({"file_name": ["a.png"], "label": [1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), root / "a.parquet")
    assert opened(root / "a.parquet").class_names == ("ape", "bee")
    info["info"]["features"]["label"]["names"] = ["bee", "ape"]
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), root / "b.parquet")
    with pytest.raises(DataError, check=at("b.parquet", "a.parquet", "class names differ")):
        opened(root / "*.parquet")


@pytest.mark.parametrize("change", ["the table", "gone", "longer", "touched", "the classes"])
def test_what_changed_is_an_error_for_a_worker(root, monkeypatch, change):
    table = table_of(root, "path,label\na.png,1\nsub/b.png,0\n")
    data = pickle.dumps(opened(table))
    assert len(data) < 1500
    assert everything(pickle.loads(data)).images == [A, B]
    monkeypatch.setattr(image_files, "_kept", {})  # as in a worker that has read nothing yet
    assert everything(pickle.loads(data)).images == [A, B]
    monkeypatch.setattr(image_files, "_kept", {})
    if change == "the table":
        table_of(root, "path,label\na.png,1\nsub/b.png,00\n")
    elif change == "the classes":
        fill(root, {"labels.txt": "x\ny"})
    elif change == "gone":
        (root / "a.png").unlink()
    elif change == "longer":
        time = (root / "a.png").stat().st_mtime_ns
        (root / "a.png").write_bytes(A + b"x")
        os.utime(root / "a.png", ns=(time, time))
    else:
        os.utime(root / "a.png", ns=(0, 0))
    with pytest.raises(DataError, check=at("labels.csv" if change == "the table" else "", "changed")):
        everything(pickle.loads(data))


def test_the_manifest_knows_the_table_and_the_content_of_the_images(root):
    table = table_of(root, "path,label\na.png,1\nsub/b.png,0\nsub/b.png,0\n")
    before = opened(table).files
    assert [(file.file, file.num_bytes) for file in before] == [
        ("labels.csv", table.stat().st_size), ("images", len(A) + len(B)),
    ]  # fmt: skip
    (root / "a.png").write_bytes(A[:-1] + b"x")
    assert [one == two for one, two in zip(before, opened(table).files, strict=True)] == [True, False]


def test_a_column_of_keys_names_the_examples(root):
    source = opened(table_of(root, "path,label,id\na.png,1,x1\nsub/b.png,0,\n"), key_column="id")
    block = everything(source)
    assert (block.keys[0], block.bad, source.unique_keys) == (b"x1", {1: "id is empty"}, False)


def numbers_of(root, kept, *texts):
    text = "".join(f"a.png,x,{value}\n" for value in texts)
    return opened(table_of(root, f"file_name,label,n\n{text}"), keep_columns=(kept,))


@pytest.mark.parametrize(
    ("texts", "kept", "found"),
    [
        ([f"17000000000000000{number:02d}" for number in (0, 40, 80)], "n", None),
        (["1700000000000000001", "1700000000000000003"], "n:int64", None),
        (["9007199254740993", "1.0"], "n:int64", [9007199254740993, 1]),
        (["-9223372036854775808", "+9223372036854775807"], "n:int64", [-(2**63), 2**63 - 1]),
        (["007", "1e3", "5"], "n:int64", [7, 1000, 5]),
        (["9007199254740992", "0.5"], "n:float32", [2.0**53, 0.5]),
        (["9007199254740993", "0.5"], "n:float32", [2.0**53, 0.5]),  # rounded, as the flag says
        (["18446744073709551615"], "n:string", [b"18446744073709551615"]),
        (["18446744073709551615", "1"], "n:float32", [2.0**64, 1.0]),
        (["0.10000000149011612", "2"], "n", [float(np.float32(0.1)), 2.0]),
    ],
)
def test_numbers_of_text_are_exact(root, texts, kept, found):
    block = everything(numbers_of(root, kept, *texts))
    assert np.asarray(block.extra["n"]).tolist() == ([int(text) for text in texts] if found is None else found)


@pytest.mark.parametrize(
    ("texts", "kept", "facts"),
    [
        (["1", "18446744073709551615"], "n", ("row 1", "18446744073709551615", "n:string", "n:float32")),
        (["1", "18446744073709551615"], "n:int64", ("row 1", "18446744073709551615", "int64", "n:string")),
        (["1.0", "9007199254740993"], "n", ("row 1", "9007199254740993", "n:string")),
        (["0.5", "9007199254740993"], "n:int64", ("row 1", "9007199254740993", "n:string")),
        (["0.5", "0.50000000000000000001"], "n", ("row 1", "0.50000000000000000001", "n:string")),
        (["0.5", "1e400"], "n", ("row 1", "1e400", "n:string")),
        (["0.5", "x"], "n:float32", ("row 1", "'x'", "no number", "n:string")),
    ],
)
def test_numbers_of_text_that_would_become_others_are_refused_with_advice_that_helps(root, texts, kept, facts):
    with pytest.raises(DataError, check=said("labels.csv", "'n'", *facts)) as error:
        numbers_of(root, kept, *texts)
    for advised in ("n:string", "n:float32"):
        if advised in str(error.value):
            assert len(everything(numbers_of(root, advised, *texts)).extra["n"]) == 2


def test_numbers_of_json_are_exact_or_refused(root):
    def kept(*values):
        rows = "".join(f'{{"file_name": "a.png", "label": 0, "n": {value}}}\n' for value in values)
        return everything(opened(table_of(root, rows, "labels.jsonl"), keep_columns=("n:int64",))).extra["n"].tolist()

    assert kept("9007199254740993", "1") == [9007199254740993, 1]
    assert kept("9007199254740994.0", "1.0") == [9007199254740994, 1]
    assert kept("9007199254740993.0") == [9007199254740993]  # alone, it stays a decimal
    with pytest.raises(DataError, check=said("labels.jsonl, row 1", "9007199254740993.0", "float64")):
        kept("1.5", "9007199254740993.0")
    with pytest.raises(DataError, check=said("labels.jsonl", "1.5")):
        kept("9007199254740993", "1.5")


def test_uint64_and_dates_of_parquet_are_exact_or_invalid_rows(root):
    content = {"file_name": ["a.png"] * 2, "label": [0, 1], "n": pa.array([2**63 - 1, 2**63], pa.uint64())}
    content["t"] = pa.array([1_700_000_000_000_000_040] * 2, pa.timestamp("ns"))
    block = everything(opened(write(root / "t.parquet", content), keep_columns=("n", "t:int64")))
    assert (int(block.extra["n"][0]), block.extra["t"].tolist()) == (2**63 - 1, [1_700_000_000_000_000_040] * 2)
    assert set(block.bad) == {1}
    block = everything(opened(root / "t.parquet", keep_columns=("n:string",)))
    assert block.extra["n"] == [b"9223372036854775807", b"9223372036854775808"]


def test_labels_that_are_one_number_are_one_class(root):
    fill(root, {"train/a.png": A, "test/a.png": A})
    fill(root, {"train/metadata.csv": "file_name,label\na.png,0\na.png,1\n"})
    fill(root, {"test/metadata.csv": "file_name,label\na.png,0.0\na.png,\na.png,1.0\n"})
    source = opened(root)
    assert (source.class_names, everything(source, "test").labels.tolist()) == (("0", "1"), [0, 0, 1])
    assert everything(source, "test").bad.keys() == {1}
    source = opened(table_of(root, "file_name,label\na.png,1e3\na.png,1000\na.png,+7\n"))
    assert (source.class_names, everything(source).labels.tolist()) == (("7", "1000"), [1, 1, 0])
    with pytest.raises(DataError, check=said("'1'", "'1.0'", "number")):  # not all are whole numbers
        opened(table_of(root, "file_name,label\na.png,1\na.png,1.0\na.png,cat\n"))
    with pytest.raises(DataError, check=said("'1'", "'1.0'", "number")):
        opened(write(root / "t.jsonl", {"file_name": ["a.png"] * 2, "label": ["1", "1.0"]}))


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_missing_labels_are_invalid_rows_in_every_format(root, name):
    words = ["cat", "NA", "nan", "None", "null", "N/A", "<NA>", "none"]
    write(root / name, {"file_name": ["a.png"] * 8, "label": words})
    source = opened(root / name)
    assert source.class_names == ("cat", "none")
    block = everything(source)
    assert (list(block.bad), block.labels[[0, 7]].tolist()) == ([1, 2, 3, 4, 5, 6], [0, 1])
    assert "'NA'" in block.bad[1]
    assert "--na_is_class" in block.bad[1]
    kept = opened(root / name, na_is_class=True)
    assert (set(kept.class_names), everything(kept).bad) == (set(words), {})
    fill(root, {"labels.txt": "cat\nnone\nNone\n"})  # who lists it, wants it
    block = everything(opened(root / name))
    assert (list(block.bad), block.labels[[0, 3, 7]].tolist()) == ([1, 2, 4, 5, 6], [0, 2, 1])


def test_a_column_of_numbers_that_becomes_text_is_named(root, capsys):
    assert numbers_of(root, "n", "1", "2", "N/A", "4").features == {"n": Feature("string")}
    assert "labels.csv, row 2: column 'n' has 'N/A' where most rows have numbers" in capsys.readouterr().err
    block = everything(numbers_of(root, "n:float32", "1", "2", "N/A", "4"))
    assert (list(block.bad), block.extra["n"][[0, 1, 3]].tolist()) == ([2], [1.0, 2.0, 4.0])
    for texts in (("a", "b", "3"), ("01234", "90210", "8"), ("", "1", "2")):
        numbers_of(root, "n", *texts)
        assert "where most rows" not in capsys.readouterr().err


def test_the_delimiter_may_be_given(root):
    path = table_of(root, "file_name\tlabel\tx, y, z, w\na.png\tcat\t1\n", "t.tsv")
    assert opened(path).class_names == ("cat",)  # a .tsv has tabs
    path = table_of(root, "file_name\tlabel\tx, y, z, w\na.png\tcat\t1\n", "t.csv")
    with pytest.raises(DataError, check=said("t.csv, line 2", "--delimiter")):
        opened(path, image_column="file_name")
    assert opened(path, delimiter="\t").class_names == ("cat",)
    assert opened(table_of(root, "file_name:label\na.png:cat\n", "u.csv"), delimiter=":").class_names == ("cat",)


def test_names_that_differ_in_unicode_form_or_case_are_hinted_at(root, capsys):
    decomposed, composed = "ne\u0301/e\u0301.png", "n\u00e9/\u00e9.png"
    fill(root, {decomposed: A, "B.PNG": B})
    with pytest.raises(DataError, check=said(ascii(decomposed), ascii(composed), "Unicode")):
        opened(table_of(root, f"file_name,label\n{composed},x\n"))
    with pytest.raises(DataError, check=said("there is B.PNG", "case")):
        opened(table_of(root, "file_name,label\nb.png,x\n"))
    opened(table_of(root, "file_name,label\na.png,x\nb.png,x\n"))
    assert "there is B.PNG" in capsys.readouterr().err
    opened(table_of(root, "file_name,label\na.png,x\nc.png,x\n"))
    assert "there is" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_folders_of_partitions_are_columns_of_their_tables(tmp_path, kind):
    for year, site in ((2020, "a"), (2021, "a%20b")):
        folder = tmp_path / f"year={year}" / f"site={site}"
        write(folder / f"metadata.{kind}", {"file": ["0.png", "1.png"], "label": ["cat", "dog"]})
        fill(folder, {f"{number}.png": PICTURES[0] for number in range(2)})
    for named in (tmp_path, f"{tmp_path}/year=*/site=*/metadata.{kind}"):
        source = pickle.loads(pickle.dumps(opened(named)))
        assert source.features == {"year": Feature("int64"), "site": Feature("string")}
        block = everything(source)
        assert block.extra["year"].tolist() == [2020, 2020, 2021, 2021]
        assert [bytes(site) for site in block.extra["site"]] == [b"a", b"a", b"a b", b"a b"]
        assert [bytes(key) for key in block.keys][2] == b"year=2021/site=a%20b/0.png"
        assert block.labels.tolist() == [0, 1, 0, 1]
    source = opened(tmp_path, label_column="site", keep_columns=("year:string",))
    assert (source.class_names, source.features) == (("a", "a b"), {"year": Feature("string")})
    assert everything(source).labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, check=said("year=2020", "row 0", "'year' has '2020'")):
        opened(tmp_path, split_column="year")
    with pytest.raises(UsageError, check=said("--keep_columns", "'years'", "'year'", "site")):
        opened(tmp_path, keep_columns=("years",))
    write(tmp_path / f"metadata.{kind}", {"file": ["0.png"], "label": ["cat"]})
    with pytest.raises(DataError, check=said("site, year", "those of others do not")):
        opened(tmp_path)


def test_a_partition_is_the_split_or_the_label_where_a_table_has_none(tmp_path):
    for part, label in (("train", "cat"), ("train", "dog"), ("holdout", "dog")):
        fill(tmp_path / f"part={part}" / f"label={label}", {"metadata.csv": "file\n0.png\n", "0.png": PICTURES[0]})
    source = opened(tmp_path, split_column="part")
    assert (source.splits, source.class_names) == ({"holdout": 1, "train": 2}, ("cat", "dog"))
    assert source.features == {}
    assert everything(source, "holdout").labels.tolist() == [1]


def test_a_column_that_a_table_has_is_not_that_of_its_folder(tmp_path):
    folder = tmp_path / "year=2020" / "site=__HIVE_DEFAULT_PARTITION__"
    fill(folder, {"metadata.csv": "file,label,year\n0.png,cat,7\n", "0.png": PICTURES[0]})
    source = opened(tmp_path, keep_columns=("year",))
    assert source.features == {"year": Feature("int64"), "site": Feature("string")}
    block = everything(source)
    assert (block.extra["year"].tolist(), [bytes(site) for site in block.extra["site"]]) == ([7], [b""])
