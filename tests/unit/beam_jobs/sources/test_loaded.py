"""Tables as text: gzipped, and as one list of JSON."""

import gzip
import json

import pytest

from beam_jobs.sources import loaded, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at
from tests.helpers.round_trips import everything, picture

ROWS = [{"file": f"{row}.png", "label": "ab"[row % 2], "score": row / 2} for row in range(5)]
TEXTS = {
    "csv": "file,label,score\n" + "".join(f"{row['file']},{row['label']},{row['score']}\n" for row in ROWS),
    "tsv": "file\tlabel\tscore\n" + "".join(f"{row['file']}\t{row['label']}\t{row['score']}\n" for row in ROWS),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "json": json.dumps(ROWS, indent=1),
}


@pytest.fixture
def root(tmp_path):
    for row in ROWS:
        (tmp_path / row["file"]).write_bytes(picture(int(row["file"][0])))
    return tmp_path


def opened(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_source(SourceOptions("image_table", str(path), **options))


def values(source):
    block = everything(source)
    return source.class_names, block.keys, block.labels.tolist(), block.extra["score"].tolist(), block.bad


@pytest.mark.parametrize("form", TEXTS)
def test_a_gzipped_table_is_the_same_data_set(root, form):
    plain = opened(root / f"t.{form}", TEXTS[form], keep_columns=("score",))
    assert values(plain) == (("a", "b"), [f"{row}.png".encode() for row in range(5)], [0, 1, 0, 1, 0],
                             [0.0, 0.5, 1.0, 1.5, 2.0], {})  # fmt: skip
    packed = opened(root / f"T.{form}.gz", gzip.compress(TEXTS[form].encode()), keep_columns=("score",))
    assert values(packed) == values(plain)
    assert packed.files == tuple(
        entry if entry.file == "images" else type(entry)(f"T.{form}", entry.num_bytes, entry.sha256)
        for entry in plain.files
    )


def test_the_shards_of_a_gzipped_table_are_those_of_the_plain_one(root, contents):
    for folder, name, content in (("a", "t.json", TEXTS["json"].encode()), ("b", "t.json.gz", None)):
        (root / name).write_bytes(content or gzip.compress(TEXTS["json"].encode()))
        flags = ["--dataset=image_table", f"--source={root}/{name}", "--num_shards=2", f"--data_dir={root}/{folder}"]
        convert_in_process(*flags)
    assert contents(LocalPath(root / "a")) == contents(LocalPath(root / "b"))


def test_metadata_may_be_gzipped_and_is_there_once(root):
    (root / "metadata.csv.gz").write_bytes(gzip.compress(TEXTS["csv"].encode()))
    assert open_source(SourceOptions("image_table", str(root))).splits == {"train": 5}
    (root / "metadata.csv").write_text(TEXTS["csv"])
    with pytest.raises(DataError, check=at(root, "metadata.csv and metadata.csv.gz")):
        open_source(SourceOptions("image_table", str(root)))


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("fault", ["cut short", "corrupt"])
def test_damaged_gzip_data_is_named(root, form, fault):
    packed = bytearray(gzip.compress(TEXTS[form].encode()))
    if fault == "corrupt":
        packed[-8] ^= 1  # the CRC
    with pytest.raises(DataError, check=at(f"t.{form}.gz", "gzip data is", fault)):
        opened(root / f"t.{form}.gz", bytes(packed[: -9 if fault == "cut short" else None]))


@pytest.mark.parametrize(
    ("text", "part", "facts"),
    [
        ("[]", "", ["no object"]),
        ('[{"file": "0.png"}, 3]', "row 1", ["not an object", "3"]),
        ('[{"file": "0.png"} {"file": "1.png"}]', "row 1", ["comma", "1.png"]),
        ('[{"file": "0.png"}, ]', "row 1", ["is not JSON", "]"]),
        ('[{"file": "0.png"}', "row 1", ["is missing", "the file ends"]),
        ('[{"file": "0.png"}, {"fi', "row 1", ["is not JSON", '{"fi']),
        ('[{"file": "0.png"}]\n[', "row 1", ["continues after its list", "["]),
        (b'[{"file": "\xff"}]', "", ["not UTF-8", "xff"]),
        (b'[{"file": "\xc3', "", ["not UTF-8", "xc3"]),
        ('["0.png"]', "row 0", ["not an object", "0.png"]),
        ('[{"file": "' + "x" * (1 << 25) + '"}]', "row 0", ["16,777,216 characters"]),
    ],
)
def test_a_file_that_is_no_list_of_objects_is_refused(root, text, part, facts):
    with pytest.raises(DataError, check=at("t.json", *facts, part=part)):
        opened(root / "t.json", text)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n \n"])
def test_a_list_may_be_laid_out_in_any_way_and_is_read_in_parts(root, monkeypatch, mark):
    rows = [{**row, "label": row["label"] + "\u00e9" * 9} for row in ROWS]
    monkeypatch.setattr(loaded.streams, "BLOCK", 7)  # inside of each object, and of a letter
    for indent in (None, 2):
        text = json.dumps(rows, indent=indent, ensure_ascii=False).encode()
        source = opened(root / "t.json", mark + text + b"\n\n", keep_columns=("score",))
        assert values(source)[2:] == ([0, 1, 0, 1, 0], [0.0, 0.5, 1.0, 1.5, 2.0], {})


@pytest.mark.parametrize("form", ["[{}]", "{}\n"])
def test_numbers_of_json_are_exact(root, form):
    row = '{"file": "0.png", "label": "a", "score": 9007199254740993.0}'
    source = opened(root / "t.json", form.replace("{}", row), keep_columns=("score:int64",))
    assert values(source)[3] == [9007199254740993]
    with pytest.raises(
        DataError, match="row 0: column 'score' has 9223372036854775808, which int64 does not hold; write"
    ):
        opened(
            root / "t.json",
            form.replace("{}", row.replace("9007199254740993.0", str(1 << 63))),
            keep_columns=("score",),
        )
