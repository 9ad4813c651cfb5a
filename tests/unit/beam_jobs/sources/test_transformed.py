"""--transform: rows in, rows out, whatever the source and however its rows are cut."""

import ast
import io
import json
import sys
import textwrap

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.sources.transformed import ROWS
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import examples_in
from tests.helpers.made_source import Content
from tests.helpers.raised import said
from tests.helpers.round_trips import picture, png

HEAD = "import numpy as np\n"


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A function that writes the module of the user, `mine`, and returns the flag for a function of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def write(body, head=HEAD):
        sys.modules.pop("mine", None)
        lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
        (tmp_path / "mine.py").write_text(f"{head}def made(rows):\n{lines}\n")
        return "--transform=mine:made"

    yield write
    sys.modules.pop("mine", None)


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or a module that is written twice in a second is not read


@pytest.fixture
def converted(made, tmp_path):
    """A function that converts a made source and returns {key: record} of each split, and the manifest."""

    def run(splits, *flags, out="out", **options):
        flags = ["--dataset=made", f"--source={made(splits, **options)}", f"--data_dir={tmp_path / out}", *flags]
        return stored(convert_in_process(*flags))

    return run


def stored(folder):
    """Returns {split: {key: record}} and the manifest of a data set, whose keys are all different."""
    found = manifest.load(folder)
    records = {
        name: [record for shard in split.shards for record in examples_in(folder / shard.file)]
        for name, split in found.splits.items()
    }
    by_key = {name: {one["key"][0].decode(): _plain(one) for one in each} for name, each in records.items()}
    assert {name: len(each) for name, each in records.items()} == {name: len(each) for name, each in by_key.items()}
    return by_key, found


def _plain(record):
    return {name: [*values] if isinstance(values, list) else values.tolist() for name, values in record.items()}


def splits(pixels, chunks=None, listed=False, counts=(150, 70), **more):
    made = {}
    for name, count in zip(("train", "test"), counts, strict=True):
        images = pixels(count, seed=count)
        extra = {key: [value(row) for row in range(count)] for key, value in more.items()}
        made[name] = Content(
            [png(i) for i in images] if listed else images, chunks=chunks and chunks[name], extra=extra
        )
    return made


CHUNKS = {"train": [3, 0, 100, 47], "test": [70]}
FEATURES = {
    "name": Feature("string"),
    "score": Feature("float32"),
    "pair": Feature("int64", (2,)),
    "list": Feature("float32", (None,)),
}
EXTRA = {
    "name": lambda row: f"row {row} \u00e9".encode() if row % 7 else b"\xff\0",
    "score": lambda row: np.float32(row / 3),
    "pair": lambda row: np.array([row, -row]),
    "list": lambda row: np.arange(row % 4, dtype=np.float32),
}


@pytest.mark.parametrize("listed", [False, True], ids=["pixels", "files"])
@pytest.mark.parametrize("chunks", [None, CHUNKS], ids=["one by one", "chunks"])
@pytest.mark.quick(2)
def test_rows_that_are_returned_as_they_are_become_the_same_records(chunks, listed, converted, code, pixels):
    rows = splits(pixels, chunks, listed, **EXTRA)
    plain, before = converted(rows, "--num_shards=3", features=FEATURES)
    again, after = converted(rows, "--num_shards=3", code("return rows"), out="again", features=FEATURES)
    assert again == plain
    assert after.features == before.features
    assert after.class_names == before.class_names
    assert [split.num_examples for split in after.splits.values()] == [70, 150]
    assert after.options["transform rows"]["train"] == "150 rows in, 150 out, 0 dropped"


@pytest.mark.parametrize("chunks", [None, CHUNKS], ids=["one by one", "chunks"])
def test_rows_are_dropped_made_and_joined_with_columns_and_classes_follow(chunks, converted, code, pixels):
    flag = code("""
        keep = np.array([not label.endswith("3") for label in rows["label"]])
        rows = {name: values[keep] for name, values in rows.items()}
        number = np.array([int(key.partition("#")[2]) for key in rows["key"]])
        names = ["few" if label == "class 4" else label for label in rows["label"]]
        return {
            "image": np.concatenate([rows["image"][:, :3], rows["image"][:, 3:]]),
            "label": names * 2,
            "key": [f"{key}/top" for key in rows["key"]] + [f"{key}/bottom" for key in rows["key"]],
            "number": np.concatenate([number, number]),
            "half": np.repeat([0.5, 1.5], len(number)),
        }
    """)
    rows = splits(pixels, chunks)
    found, made = converted(rows, flag, "--num_shards=train:4,test:1")
    expected = [row for row in range(150) if row % 10 != 3]
    assert sorted(found["train"]) == sorted(
        f"train.rows#{row:03d}/{side}" for row in expected for side in ("bottom", "top")
    )
    assert made.class_names == tuple(sorted({f"class {n}" for n in range(10)} - {"class 3", "class 4"} | {"few"}))
    assert made.features["number"] == Feature("int64")
    assert made.features["half"] == Feature("float32")
    assert made.image_shape == (3, 5, 3)
    for row in expected:
        label = made.class_names.index("few" if row % 10 == 4 else f"class {row % 10}")
        for half, side in enumerate(("top", "bottom")):
            record = found["train"][f"train.rows#{row:03d}/{side}"]
            assert record["image"][0] == rows["train"].images[row, 3 * half : 3 * half + 3].tobytes()
            assert (record["label"][0], record["number"][0], record["half"][0]) == (label, row, half + 0.5)
    assert made.options["transform rows"] == {
        "train": "150 rows in, 270 out, 15 dropped",
        "test": "70 rows in, 126 out, 7 dropped",
    }
    assert sum(split.num_rejects for split in made.splits.values()) == 0


def test_blocks_depend_on_the_source_alone_and_mix_what_is_sorted(converted, code, pixels, tmp_path):
    log = """
        with open("log", "a") as stream:
            stream.write(" ".join(sorted(rows["key"])) + "\\n")
        return rows
    """
    rows = splits(pixels, counts=(300, 10))
    rows["train"].labels = np.arange(300) // 30
    seen = []
    for number, shards in enumerate(("1", "5")):
        converted(rows, code(log), f"--num_shards={shards}", f"--seed={number}", out=f"out{number}")
        seen.append({*(tmp_path / "log").read_text().splitlines()})
    assert seen[0] == seen[1]
    blocks = [[int(key.partition("#")[2]) for key in line.split()] for line in seen[0] if line.startswith("train")]
    assert sorted(map(len, blocks)) == [300 % ROWS, *[ROWS] * (300 // ROWS)]
    assert sorted(row for block in blocks for row in block) == [*range(300)]
    assert min(len({row // 30 for row in block}) for block in blocks) > 8


def test_a_row_that_raises_is_invalid_and_says_where(converted, code, pixels, tmp_path):
    flag = code("""
        assert not (rows["score"] == 5).any(), "five"
        return rows
    """)
    rows, features = splits(pixels, score=np.float32), {"score": Feature("float32")}
    with pytest.raises(
        DataError, check=said("2 invalid rows, over --max_rejects=0", "mine.py:3: AssertionError: five")
    ):
        converted(rows, flag, features=features)
    found, _ = converted(rows, flag, "--max_rejects=2", features=features)
    listed = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert [(one["file"], one["row"], one["reason"]) for one in listed] == [
        ("test.rows", 5, "mine.py:3: AssertionError: five"),
        ("train.rows", 5, "mine.py:3: AssertionError: five"),
    ]
    assert sorted(found["train"]) == [f"train.rows#{row:03d}" for row in range(150) if row != 5]


def test_words_for_missing_values_are_no_classes(converted, code, pixels, tmp_path):
    """pandas' astype(str) makes nan of a label that a join did not find."""
    flag = code("return {**rows, 'label': ['nan' if score == 5 else 'a' for score in rows['score']]}")
    rows, features = splits(pixels, score=np.float32), {"score": Feature("float32")}
    reason = "mine:made returned the label 'nan', a missing value"
    with pytest.raises(DataError, check=said("2 invalid rows, over --max_rejects=0", reason)):
        converted(rows, flag, features=features)
    found, made = converted(rows, flag, "--max_rejects=2", features=features)
    assert made.class_names == ("a",)
    assert sorted(map(len, found.values())) == [69, 149]


def test_a_column_of_splits_is_refused_since_rows_have_theirs(converted, code, pixels):
    flag = code("return {**rows, 'Split': ['test'] * len(rows['label'])}")
    with pytest.raises(UsageError, match="returns the column 'Split', but new rows stay in the split of"):
        converted(splits(pixels), flag)


@pytest.mark.parametrize(("made_of", "noted"), [("pixels", True), ("file", False)])
def test_pixels_of_a_photograph_that_lies_on_its_side_are_noted(made_of, noted, converted, code, pixels, capfd):
    """They are stored as they are, while predictions turn photographs upright."""
    exif, rows = PIL.Image.Exif(), splits(pixels, listed=True, counts=(3, 2))
    exif[0x0112] = 6
    for content, kind in ((rows["train"], "JPEG"), (rows["test"], "TIFF")):  # Pillow turns the latter itself
        stream = io.BytesIO()
        PIL.Image.new("RGB", (8, 6)).save(stream, kind, exif=exif)
        content.images[1] = stream.getvalue()
    decoded = "[np.asarray(Image.open(io.BytesIO(data)).convert('RGB')) for data in rows['image']]"
    images = decoded if made_of == "pixels" else "list(rows['image'])"
    flag = code(f"return {{**rows, 'image': {images}}}", f"import io\nfrom PIL import Image\n{HEAD}")
    converted(rows, flag)
    said = "note: --transform=mine:made returned 1 image without the EXIF orientation of the file"
    assert (said in capfd.readouterr().err) is noted


def test_a_row_for_which_it_exits_is_invalid(converted, code, pixels):
    rows, features = splits(pixels, score=np.float32), {"score": Feature("float32")}
    flag = code("if 5 in rows['score']: sys.exit()\nreturn rows", f"import sys\n{HEAD}")
    with pytest.raises(DataError, check=said("2 invalid rows, over --max_rejects=0", "mine.py:4: SystemExit")):
        converted(rows, flag, features=features)


def test_invalid_rows_do_not_reach_it_and_keep_their_place(converted, code, pixels, tmp_path):
    flag = code("""
        keys = rows["key"]
        assert "train.rows#007" not in keys
        assert all(image.startswith(b"\\x89PNG") for image in rows["image"])
        return {
            "image": [b"?" if key.endswith("#20") else image for key, image in zip(keys, rows["image"])],
            "label": [None if key.endswith("#30") else label for key, label in zip(keys, rows["label"])],
            "key": [f"{key}/x" for key in keys],
        }
    """)
    rows = splits(pixels, listed=True, counts=(80, 10))
    rows["train"].bad = {7: "broken"}
    rows["train"].labels = [11 if row == 9 else row % 10 for row in range(80)]
    found, _ = converted(rows, flag, "--max_rejects=4")
    assert sorted(found["train"]) == [f"train.rows#{row:02d}/x" for row in range(80) if row not in (7, 9, 20, 30)]
    listed = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert [(one["row"], one["reason"][:20]) for one in listed] == [
        (7, "broken"),
        (9, "label 11 is not in 0"),
        (20, "no image of a known "),
        (30, "mine:made returned n"),
    ]


WRONG = {
    "return 3": ("returns int, not a dict",),
    "return [rows]": ("returns list, not a dict",),
    'del rows["key"]; return rows': ("returns no 'key', but 'image', 'score', 'label'",),
    'del rows["label"]; return rows': ("returns no 'label'",),
    'return rows | {"n": 3}': ("returns 'n' as int, not as an array",),
    'return rows | {"n": np.zeros(3)}': ("columns of different lengths", "'n' of 3", f"'key' of {ROWS}"),
    'return rows | {"n": np.zeros(len(rows["key"]), "M8[s]")}': ("'n' as timestamp[s]",),
    'return rows | {"n": [None] * len(rows["key"])}': ("'n' as null",),
    'return rows | {"n": np.full(len(rows["key"]), 0.1)}': ("'n': n 0.1 is not exactly a float32", "rounds"),
    'return rows | {"n": np.full(len(rows["key"]), 2**63, np.uint64)}': ("'n': n is above 9223372036854775807",),
    'return rows | {"n": [1] * (len(rows["key"]) - 1) + ["a"]}': ("'n' with values that do not fit", "'a'"),
    'return rows | {"label": rows["score"]}': ("'label' with float", "instead of text"),
    'return rows | {"image": rows["image"][:, 0]}': ("'image' as uint8 (64, 5, 3), not as uint8 (n, height, width,",),
    'return rows | {"n": np.ones(len(rows["key"]), complex)}': ("'n' with values that do not fit",),
    'return rows | {"": np.ones(len(rows["key"]))}': ("a column called ''",),
    "return rows | {3: [1] * len(rows['key'])}": ("a column called 3",),
    'return rows | {"image": rows["image"] / 255}': ("'image' as float64",),
    'return rows | {"key": rows["score"]}': ("'key' with float",),
    'return rows | {"key": ["a"] * len(rows["key"])}': ("the key 'a' of no row that it got",),
    'return rows | {"key": [rows["key"][0]] * len(rows["key"])}': ("'train.rows#", "twice"),
    'return rows | ({"n": rows["score"]} if len(rows["key"]) == 64 else {})': (
        "'n' as float32",
        "as nothing for others",
    ),
}


@pytest.mark.parametrize(("body", "words"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_no_block_of_rows_is_one_error_that_says_what_may_be_returned(body, words, converted, code, pixels):
    rows = splits(pixels, score=np.float32)
    with pytest.raises(
        UsageError, check=said("--transform=mine:made returns", *words, "it may return a dict of arrays")
    ):
        converted(rows, code(body), features={"score": Feature("float32")})
    with pytest.raises(DataError, check=said("--transform=mine:made drops all 150 rows of the split 'train'")):
        converted(rows, code("return {name: values[:0] for name, values in rows.items()}"))


IMPURE = {
    'count.append(0); return rows | {"n": np.full(len(rows["key"]), len(count))}': "row ",
    # Only the second time that it gets the last block, which is on a worker.
    'count.append(len(rows["key"]) == 6)\n'
    'return rows | {"n": np.full(len(rows["key"]), len(rows["key"]) == 6 and sum(count) > 1)}': "test.rows",
    "count.append(0)\nreturn {name: values[len(count) % 2 :] for name, values in rows.items()}": "row ",
}


@pytest.mark.parametrize(("body", "place"), IMPURE.items(), ids=["first", "later", "rows"])
def test_a_function_that_returns_something_else_the_second_time_is_refused(body, place, converted, code, pixels):
    with pytest.raises(
        DataError, check=said("returns something else when it is called again", place, "must return the same")
    ):
        converted(splits(pixels), code(body, f"{HEAD}count = []\n"))


@pytest.mark.parametrize(
    ("value", "dtype"), [("[3, 4]", "int64"), ("['ä', 'b']", "string"), ("[0.5]", "float32"), ("[]", "float32")]
)
def test_a_block_whose_lists_are_all_empty_says_nothing_about_what_they_are_lists_of(
    value, dtype, converted, code, pixels
):
    for row in ("train.rows#003", "train.rows#149"):
        flag = code(f'return rows | {{"n": [{value} if key == {row!r} else [] for key in rows["key"]]}}')
        found, made = converted(splits(pixels), flag, "--num_shards=3", out=row[-3:])
        assert made.features["n"] == Feature(dtype, (None,))
        lists = {key: example.get("n", []) for key, example in found["train"].items()}
        own = lists.pop(row)
        assert [one.decode() if isinstance(one, bytes) else one for one in own] == ast.literal_eval(value)
        assert [*lists.values()] == [[]] * 149
    flag = code(
        'return rows | {"n": [[1] if key == "test.rows#03" else ["a"] * (key[-3:] == "149") for key in rows["key"]]}'
    )
    with pytest.raises(UsageError, check=said("'n' as", "int64", "string", "for others")):
        converted(splits(pixels), flag, out="other")


def test_the_first_block_is_called_twice_before_anything_is_written(converted, code, pixels, tmp_path):
    body, _ = next(iter(IMPURE.items()))
    with pytest.raises(DataError, check=said("returns something else when it is called again")):
        converted(splits(pixels), code(body, f"{HEAD}count = []\n"))
    assert not (tmp_path / "out").exists()


def test_a_function_that_raises_for_rows_together_alone_is_refused(converted, code, pixels):
    with pytest.raises(DataError, check=said("raises for 64 rows together, but for none of them alone", "mine.py:3")):
        converted(splits(pixels), code('assert len(rows["key"]) == 1\nreturn rows'))


def test_what_is_given_may_be_changed_and_the_source_stays(converted, code, pixels):
    flag = code('rows["image"][:] = 7; rows["list"][0][:] = 9; rows["label"][:] = "one"; return rows')
    rows = splits(pixels, list=lambda row: np.arange(2, dtype=np.float32))
    found, made = converted(rows, flag, features={"list": Feature("float32", (None,))})
    assert made.class_names == ("one",)
    assert {bytes(record["image"][0]) for record in found["train"].values()} == {bytes([7]) * 90}
    assert not (rows["train"].images == 7).all()


@pytest.mark.parametrize("flags", [["--split=train:0.7,test:0.3"], ["--folds=3"]], ids=["split", "folds"])
def test_rows_made_of_one_are_in_its_split(flags, converted, code, pixels):
    twice = """
        keys = [f"{key}/{number}" for number in (0, 1) for key in rows["key"]]
        return {name: np.concatenate([values, values]) for name, values in rows.items()} | {"key": keys}
    """
    rows = splits(pixels)
    plain, _ = converted(rows, *flags)
    found, _ = converted(rows, *flags, code(twice), out="twice")
    assert {split: {key.rpartition("/")[0] for key in each} for split, each in found.items()} == {
        split: {*each} for split, each in plain.items()
    }
    assert all(len(found[split]) == 2 * len(plain[split]) for split in plain)


def test_pixels_become_files_and_texts_and_boxes_go_in_and_out(convert, code, tmp_path):
    rows = [
        {
            "image": picture(n, size=(8, 10)),
            "label": "ab"[n % 2],
            "boxes": [[0.25, 0.5, 0.75, 1.0]] * (n % 3),
            "note": f"n{n}",
            "tags": ["\u00e9"] * (n % 4),
        }
        for n in range(100)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=40)
    body = """
        out = {name: [] for name in rows}
        for image, label, note, key, boxes, tags in zip(*map(rows.get, "image label note key boxes tags".split())):
            assert boxes.shape[1:] == (4,) and boxes.dtype == np.float32
            pixels = np.asarray(PIL.Image.open(io.BytesIO(image)))
            for number, (top, left, bottom, right) in enumerate(boxes):
                out["image"].append(pixels[int(top * 8) : int(bottom * 8), int(left * 10) : int(right * 10)])
                out["label"].append(label)
                out["note"].append(note + "!")
                out["key"].append(f"{key}/{number}")
                out["boxes"].append([[0, 0, 1, 1]])
                out["tags"].append([*tags, str(number)] if key.endswith("5") else tags[:0])
        return out
    """
    flag = code(body, "import io\nimport numpy as np, PIL.Image\n")
    flags = ["--dataset=parquet", f"--source={tmp_path}/rows.parquet", "--boxes_column=boxes"]
    flags += ["--keep_columns=note,tags"]
    outcome = convert(*flags, f"--data_dir={tmp_path / 'out'}", flag, "--num_shards=2")
    assert outcome.code == 0, outcome.err
    assert "\n  mine:made: train: 100 rows in, 99 out, 34 dropped\n" in outcome.out
    found, made = stored(tmp_path / "out")
    assert made.features["image"].shape == (4, 5, 3)
    assert sorted(found["train"]) == sorted(f"rows.parquet#{n:02d}/{i}" for n in range(100) for i in range(n % 3))
    record = found["train"]["rows.parquet#05/1"]
    assert record["note"][0] == b"n5!"
    assert record["tags"] == ["\u00e9".encode(), b"1"]
    assert made.features["tags"] == Feature("string", (None,))
    assert record["boxes"] == [0, 0, 1, 1]
    pixels = np.asarray(PIL.Image.open(io.BytesIO(record["image"][0])))
    assert pixels.shape == (4, 5, 3)
    assert (pixels == 5).all()
    card = (tmp_path / "out" / "card.html").read_text()
    assert "100 rows in, 99 out, 34 dropped" in card
    assert "mine:made" in card
    outcome = convert(*flags, f"--data_dir={tmp_path / 'no'}", flag, "--dry_run", "--folds=2", "--stratify=label")
    assert "\nnew splits by label:\n  fold0: 50 rows, 50.0%" in outcome.out


def test_a_dry_run_says_what_it_makes_and_writes_nothing(convert, code, made, pixels, tmp_path):
    half = code("return {name: values[::2] for name, values in rows.items()}")
    flags = ["--dataset=made", f"--source={made(splits(pixels))}", f"--data_dir={tmp_path / 'out'}", half]
    outcome = convert(*flags, "--dry_run")
    assert (outcome.code, outcome.err) == (0, "")
    assert "made: 110 examples to 2 shards in" in outcome.out
    assert (
        "\n  mine:made: train: 150 rows in, 75 out, 75 dropped; test: 70 rows in, 35 out, 35 dropped\n" in outcome.out
    )
    assert not (tmp_path / "out").exists()


def test_the_same_command_again_does_nothing_and_another_function_is_another_data_set(converted, code, pixels):
    rows, half = splits(pixels), "return {name: values[::2] for name, values in rows.items()}"
    once = converted(rows, code(half))
    assert converted(rows, code(half)) == once
    words = "--transform is mine:made there and not given", "--transform rows is test:70 rows in, 35 out"
    with pytest.raises(UsageError, check=said("holds another data set", *words)):
        converted(rows)
    with pytest.raises(UsageError, check=said("--transform code is mine.py:")):
        converted(rows, code(f"rows = rows\n{half}"))


def test_two_passes_mix_the_rows_that_were_made(convert, code, made, pixels, tmp_path):
    rows, half = made(splits(pixels)), code("return {name: values[::2] for name, values in rows.items()}")
    flags = ["--dataset=made", f"--source={rows}", half]
    for passes in (1, 2):
        assert convert(*flags, f"--data_dir={tmp_path / str(passes)}", f"--passes={passes}").code == 0
    (one, once), (two, twice) = (stored(tmp_path / name) for name in "12")
    assert one == two
    assert once.options["transform rows"] == twice.options["transform rows"]


@pytest.mark.parametrize("what", ["code", "file"])
@pytest.mark.quick(1)
def test_shards_made_by_code_or_of_files_that_were_edited_since_are_not_kept(what, converted, code, pixels, tmp_path):
    body = """
        assert (rows["score"] != 5).all()
        with open("added") as file:
            return rows | {"score": rows["score"] + int(file.read()) + 0}
    """
    rows, features = splits(pixels, score=np.float32), {"score": Feature("float32")}
    (tmp_path / "added").write_text("0")

    def kept(body):
        with pytest.raises(DataError, match="2 invalid rows"):
            converted(rows, code(body), features=features)
        return [*(tmp_path / "out").glob(".converting.tmp-*")]

    first = kept(body)
    assert kept(body) == first
    if what == "file":
        (tmp_path / "added").write_text("1")
    edited = body.replace("+ 0", "+ 1") if what == "code" else body
    assert len(kept(edited)) == 1
    assert kept(edited) != first
    found, _ = converted(rows, code(edited), "--max_rejects=2", features=features)
    assert found["train"]["train.rows#007"]["score"] == [8]
    assert not [*(tmp_path / "out").glob(".converting.tmp-*")]


def test_an_append_takes_the_stored_function_and_refuses_edited_code(convert, code, made, pixels, tmp_path):
    half = "return {name: values[::2] for name, values in rows.items()}"
    flags = ["--dataset=made", f"--data_dir={tmp_path / 'out'}"]
    first, second = (made({"train": Content(pixels(n), files={f"{n}.rows": n})}, f"{n}.pickle") for n in (20, 12))
    assert convert(*flags, f"--source={first}", code(half)).code == 0
    before = manifest.load(tmp_path / "out")
    code("return rows")
    edited = convert(*flags, f"--source={second}", "--append")
    assert edited.code == 2
    assert "--append: mine.py was edited since --transform=mine:made made the data set" in edited.err
    code(half)
    other = convert(*flags, f"--source={second}", "--append", "--transform=mine:other")
    assert "--append with --transform=mine:other: it is mine:made in the data set; leave it out" in other.err
    assert manifest.load(tmp_path / "out") == before
    assert convert(*flags, f"--source={second}", "--append").code == 0
    found, after = stored(tmp_path / "out")
    assert (after.version, len(found["train"])) == (2, 16)
    assert after.options["transform"] == "mine:made"


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("mine", "must be a module and a name in it"),
        ("mine:other", "mine.py has no 'other'"),
        ("mine:np", "must be a function"),
        ("none:made", "importing none fails: ModuleNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_is_refused(flag, words, converted, code, pixels):
    code("return rows")
    with pytest.raises(UsageError, check=said(f"--transform={flag}: ", words)):
        converted(splits(pixels), f"--transform={flag}")
