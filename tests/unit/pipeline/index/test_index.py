import dataclasses
import errno
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import zlib

import crc32c
import numpy as np
import pytest

from beam_jobs import validate
from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import path_of
from pipeline.index import __main__ as index
from pipeline.index import command
from pipeline.index.__main__ import IndexConfig
from pipeline.inspect import __main__ as inspect
from pipeline.manifest import naming
from pipeline.read.sidecars import shard_members, shard_offsets
from pipeline.records import framing, splits
from tests.helpers import foreign
from tests.helpers.datasets import write_dataset, write_shard
from tests.helpers.raised import at, said

ROOT = pathlib.Path(__file__).resolve().parents[4]
UNEQUAL = [b"", b"one", b"twenty-two", b"x" * 300]
EQUAL = [b"four", b"five"]


def framed(records):
    return [framing.frame(record) for record in records]


def file_of(records):
    return b"".join(framed(records))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "poems"
    place.mkdir()
    (place / "verses.rec").write_bytes(file_of(UNEQUAL))
    (place / "none at all").write_bytes(b"")
    (place / "part=07").write_bytes(file_of(EQUAL))
    return place


def listing(folder):
    files = filter(pathlib.Path.is_file, folder.rglob("*"))
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def run(folder, *arguments):
    index.main([str(folder), *arguments])
    return manifests.load(folder)


def test_files_of_any_name_become_a_data_set_and_stay_as_they_are(folder, capsys):
    before = listing(folder)
    made = run(folder, "--split=train:*e*", "--split=test:part*")
    assert made.dataset == "poems"
    assert made.features == {}
    train, test = made.splits["train"], made.splits["test"]
    assert [(s.file, s.num_examples) for s in train.shards] == [("none at all", 0), ("verses.rec", 4)]
    assert [(s.file, s.num_examples, s.stride) for s in test.shards] == [("part=07", 2, 20)]
    after = listing(folder)
    assert after.keys() - before.keys() == {
        *("manifest.json", "sidecars/offsets.verses.rec"),
        *("sidecars/crcs.verses.rec", "sidecars/crcs.part=07"),
    }
    assert {name: after[name] for name in before} == before
    out = capsys.readouterr().out
    assert f"{folder}: 6 records, " in out
    sizes = {name: sum(shard.num_bytes for shard in split.shards) for name, split in (("train", train), ("test", test))}
    assert f"  train: 4 records in 2 files, {sizes['train']} bytes\n" in out


def test_a_file_is_listed_as_the_converter_lists_it(folder, tmp_path):
    made = run(folder, "--split=all:*[!l]")
    for shard, records in zip(made.splits["all"].shards, (EQUAL, UNEQUAL), strict=True):
        assert shard == write_shard(tmp_path, shard.file, framed(records))
    theirs, ours = (
        (tmp_path / "sidecars/offsets.verses.rec").read_bytes(),
        (folder / "sidecars/offsets.verses.rec").read_bytes(),
    )
    assert ours == theirs
    found = shard_offsets(str(folder), made.splits["all"].shards[1])
    assert found.tolist() == np.cumsum([0, *(len(record) + 16 for record in UNEQUAL)]).tolist()


def test_patterns_of_one_split_add_up_in_their_order(folder):
    made = run(folder, "--split=train:verses*", "--split=train:part*")
    assert [shard.file for shard in made.splits["train"].shards] == ["verses.rec", "part=07"]


def test_members_that_end_where_records_do_are_read_alone(folder, capsys, tmp_path):
    (folder / "a.gz").write_bytes(gzip.compress(file_of(UNEQUAL)) + gzip.compress(file_of(EQUAL)))  # two members
    (folder / "b.gz").write_bytes(gzip.compress(b""))
    (folder / "c.gz").write_bytes(b"")
    (folder / "d.gz").write_bytes(gzip.compress(file_of(EQUAL)))
    made = run(folder, "--split=train:*.gz", "--compression=GZIP")
    a, b, c, d = made.splits["train"].shards
    assert [shard.num_examples for shard in (a, b, c, d)] == [6, 0, 0, 2]
    data = (folder / "a.gz").read_bytes()
    assert (a.num_bytes, a.crc32c) == (len(data), f"{crc32c.crc32c(data):08x}")
    assert [shard.stride for shard in (a, b, c, d)] == [None, None, None, 20]
    assert (made.compression, made.format_version) == ("GZIP", 3)
    assert {path.name for path in folder.glob("sidecars/offsets.*")} == {"offsets.a.gz", "offsets.d.gz"}
    assert shard_members(str(folder), a).firsts.tolist() == [0, 4, 6]
    assert "any record can be read by itself" in capsys.readouterr().out
    found = RandomAccess(folder)
    assert [found[i]["record"] for i in (7, 5, 0, 4)] == [EQUAL[1], EQUAL[1], UNEQUAL[0], EQUAL[0]]


@pytest.mark.parametrize(
    "write",
    [
        lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
        lambda data: gzip.compress(data) + bytes(8) + gzip.compress(data),
        lambda data: gzip.compress(data) + bytes(8),
        lambda data: gzip.compress(data) + gzip.compress(b""),
        lambda data: gzip.compress(data * (1 + (17 << 20) // len(data))),
    ],
    ids=["a record is cut", "zeros between members", "zeros at the end", "an empty member", "a large member"],
)
def test_other_compressed_files_are_read_forward_and_the_command_says_so(folder, capsys, write):
    (folder / "a.gz").write_bytes(write(file_of(UNEQUAL)))
    made = run(folder, "--split=train:*.gz", "--compression=GZIP")
    (shard,) = made.splits["train"].shards
    assert (shard.stride, shard.offsets_crc32c, made.format_version) == (None, None, 2)
    assert not list(folder.glob("sidecars/offsets.*"))
    assert "read forward only: 1 file, such as a.gz: " in capsys.readouterr().out
    with pytest.raises(UsageError, check=at("a.gz", "one GZIP stream")):
        RandomAccess(folder)


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


WHOLE = file_of(UNEQUAL)  # records begin at the bytes 0, 16, 35, 61


@pytest.mark.parametrize(
    ("data", "arguments", "record", "offset", "fact"),
    [
        (flipped(WHOLE, 50), [], 2, 35, "CRC"),
        (flipped(WHOLE, 16), [], 1, 16, "length"),
        (WHOLE[:70], [], 3, 61, "9 of 12 bytes"),
        (gzip.compress(flipped(WHOLE, 50)), ["--compression=GZIP"], 2, 35, "CRC"),
    ],
    ids=["record", "length", "cut", "packed record"],
)
def test_a_damaged_file_is_named_with_the_record_and_nothing_is_written(folder, data, arguments, record, offset, fact):
    (folder / "x").write_bytes(data)
    before = listing(folder)
    where = at("/x", fact, record=record, offset=offset, decompressed=bool(arguments))
    with pytest.raises(DataError, check=where):
        run(folder, "--split=train:x", *arguments)
    assert listing(folder) == before


PACKS = {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}


@pytest.mark.parametrize(
    ("packings", "packing"),
    [
        (("", "GZIP", "ZLIB"), "GZIP (1 of 3 shards) and ZLIB (1 of 3 shards)"),
        (("GZIP", "", "GZIP"), "GZIP (2 of 3 shards)"),
        (("ZLIB", "ZLIB", "ZLIB"), "ZLIB"),
    ],
)
def test_each_file_may_be_compressed_in_its_own_way(folder, capsys, packings, packing):
    data = [[b"%d" % file + b"x" * row for row in range(5)] for file in range(3)]
    for name, kind, records in zip("abc", packings, data, strict=True):
        (folder / name).write_bytes(PACKS[kind](file_of(records)))
    made = run(folder, "--split=train:[abc]", "--split=test:verses.rec")
    if packing == "ZLIB":  # as GZIP, if all files are
        (folder / "verses.rec").write_bytes(zlib.compress(WHOLE))
        made = run(folder, "--split=train:[abc]", "--split=test:verses.rec", "--overwrite")
    assert [shard.compression for shard in made.splits["train"].shards] == [*packings]
    assert (made.compression, made.format_version) == ("ZLIB" if packing == "ZLIB" else "", 5)
    assert made.packing == packing.replace("of 3", "of 4")
    assert manifests.parse(made.to_bytes().decode(), "x") == made
    plain = [number for number, kind in enumerate(packings) if kind != "ZLIB"]  # which can only be read forward
    if plain:
        split = "train[:10]" if packings[2] == "ZLIB" else "train"
        wanted = [record for number in plain for record in data[number]]
        assert [found["record"] for found in RandomAccess(folder, split)] == wanted
    if "ZLIB" in packings:
        with pytest.raises(UsageError, check=at("" if len(set(packings)) == 1 else "c", "one ZLIB stream")):
            RandomAccess(folder)
        assert "read forward only" in capsys.readouterr().out
    validate.main([str(folder)])
    assert "the data set matches its manifest" in capsys.readouterr().out
    inspect.main([str(folder)])
    assert f"shards compressed with {made.packing}" in capsys.readouterr().out


def test_a_manifest_of_alike_files_is_as_before(folder):
    (folder / "a").write_bytes(gzip.compress(WHOLE))
    for pattern in ("a", "verses.rec"):
        content = json.loads(run(folder, f"--split=train:{pattern}", "--overwrite").to_bytes())
        assert content["format_version"] == (3 if pattern == "a" else 2)
        assert "compression" not in content["splits"]["train"]["shards"][0]


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda c: c.update(format_version=4), "a: is compressed with GZIP, which version 4 does not know of a shard"),
        (lambda c: c.update(compression="ZLIB"), "a: compression is GZIP, but that of all shards is ZLIB"),
        (lambda c: c["splits"]["train"]["shards"][0].update(compression="ZIP"), "'ZIP'; known: GZIP, ZLIB"),
        (lambda c: c["splits"]["train"]["shards"][0].update(compression="ZLIB"), "a table of GZIP members"),
    ],
)
def test_what_a_manifest_cannot_say_of_compression(folder, change, fact):
    (folder / "a").write_bytes(gzip.compress(WHOLE))
    content = json.loads(run(folder, "--split=train:[av]*").to_bytes())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, check=at("manifest.json", fact)):
        manifests.load(folder)


@pytest.mark.parametrize("damage", ["record", "stream"])
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
@pytest.mark.quick(2)
def test_damage_in_one_of_several_kinds_is_found_and_named(folder, capsys, kind, damage):
    (folder / "a").write_bytes(PACKS[kind](WHOLE))
    run(folder, "--split=train:a", "--split=train:verses.rec")
    whole = PACKS[kind](WHOLE)
    (folder / "a").write_bytes(
        PACKS[kind](flipped(WHOLE, 50)) if damage == "record" else flipped(whole, len(whole) - 1)
    )
    with pytest.raises(DataError):
        validate.main([str(folder)])
    said = capsys.readouterr().out
    assert ("a, record 2, byte offset 35 of the decompressed bytes: " if damage == "record" else "\na, ") in said


def test_compressed_files_need_no_flag_and_plain_ones_refuse_it(folder, capsys):
    (folder / "train.tfrecord.gz").write_bytes(gzip.compress(WHOLE) + gzip.compress(file_of(EQUAL)))
    (folder / "test-00000-of-00001.gz").write_bytes(gzip.compress(file_of(EQUAL)))
    made = run(folder)
    assert (made.compression, {name: split.num_examples for name, split in made.splits.items()}) == (
        "GZIP",
        {"train": 6, "test": 2},
    )
    assert [found["record"] for found in RandomAccess(folder, "test")] == EQUAL
    assert run(folder, "--compression=GZIP", "--overwrite") == made
    with pytest.raises(
        UsageError, check=said("--compression=GZIP", "1 file (verses.rec) has another compression or none")
    ):
        run(folder, "--split=train:verses.rec", "--compression=GZIP", "--overwrite")
    assert manifests.load(folder) == made


def test_a_record_that_is_too_long_is_no_damage(folder, monkeypatch):
    monkeypatch.setattr(framing, "MAX_RECORD", 200)
    with pytest.raises(DataError, check=at("verses.rec", "300 bytes, above 200", record=3)) as error:
        run(folder, "--split=train:verses.rec")
    assert "corrupt" not in str(error.value)


def test_the_first_file_at_fault_stops_the_others(folder):
    for i in range(50):
        (folder / f"bad{i}").write_bytes(b"?" * 20)
    with pytest.raises(DataError, match="/bad", check=at("", record=0, offset=0)):
        run(folder, "--split=train:*")


def test_a_manifest_of_the_converter_is_never_replaced(tmp_path):
    write_dataset(tmp_path)
    before = listing(tmp_path)
    for more in ([], ["--overwrite"]):
        with pytest.raises(UsageError, match="beam_jobs.convert"):
            run(tmp_path, "--split=train:*.tfrecord", *more)
    assert listing(tmp_path) == before


def test_its_own_manifest_is_replaced_where_that_is_asked_for(folder):
    one = run(folder, "--split=train:*")
    text = (folder / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="--overwrite"):
        run(folder, "--split=train:*")
    assert run(folder, "--split=train:*", "--overwrite") == one
    assert (folder / "manifest.json").read_bytes() == text
    (folder / "verses.rec").write_bytes(file_of(EQUAL))
    other = run(folder, "--split=train:verses*", "--overwrite")
    assert other.splits["train"].shards[0].stride == 20
    assert not (folder / "sidecars/offsets.verses.rec").exists()  # it was of the first index


def test_a_manifest_that_cannot_be_read_is_not_replaced(folder):
    text = '{"format_version": 1}'
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UsageError, check=at("manifest.json")):
        run(folder, "--split=train:*", "--overwrite")
    assert (folder / "manifest.json").read_text() == text


def test_a_file_that_is_not_of_an_index_is_not_replaced(folder):
    (folder / "sidecars").mkdir()
    (folder / "sidecars/offsets.verses.rec").write_text("mine")
    with pytest.raises(UsageError, check=at("offsets.verses.rec", "no manifest")):
        run(folder, "--split=train:verses.rec")
    assert (folder / "sidecars/offsets.verses.rec").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--split=train"], UsageError, "--split=train:"),
        (["--split=train:"], UsageError, "--split=train::"),
        (["--split=my split:*"], UsageError, "'my split'"),
        (["--split=train:*.tfrecord"], UsageError, r"'\*.tfrecord'.* 3"),
        (["--split=train:a/*"], UsageError, r"'a/\*'; it has 3"),
        (["--split=train:../*/verses.rec"], UsageError, r"'../\*/verses.rec'"),
        (["--split=a:*", "--split=b:part*"], UsageError, "--split=b:part.*part=07"),
        (["--split=train:*", "--compression=ZIP"], UsageError, "--compression: .*'ZIP'.*'GZIP'"),
        (["--splits=train:*"], UsageError, "'--splits'.*'--split'"),
    ],
)
def test_wrong_flags_are_one_clear_error(folder, arguments, error, message):
    before = listing(folder)
    with pytest.raises(error, match=message):
        run(folder, *arguments)
    assert listing(folder) == before


def test_folders_that_cannot_be_indexed(tmp_path):
    with pytest.raises(DataError, check=at("nowhere", "No such file")):
        run(tmp_path / "nowhere", "--split=train:*")
    with pytest.raises(UsageError, check=at("gs://bucket/x")):
        index.main(["gs://bucket/x", "--split=train:*"])
    (tmp_path / "a:b").write_bytes(b"")
    with pytest.raises(UsageError, match="'a:b'"):
        run(tmp_path, "--split=train:*")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_who_is_stopped_leaves_no_data_set_and_the_next_run_cleans_up(tmp_path, how):
    original = tmp_path / "original"
    original.write_bytes(file_of([b"%d" % i * (i % 7) for i in range(200_000)]))
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(200):
        (folder / f"link{i:03d}").symlink_to(original)
    command = [sys.executable, "-m", "pipeline.index", str(folder), "--split=train:*"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not list(folder.glob(".pipeline.index-*/*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    assert out == ""
    assert not list(folder.glob("sidecars/*"))
    assert not (folder / "manifest.json").exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert err == "pipeline.index: interrupted\n"
        assert len(os.listdir(folder)) == 200
    else:
        run(folder, "--split=train:link00[0-3]")
        assert len(os.listdir(folder)) == 200 + 2  # sidecars, manifest
        assert len(os.listdir(folder / "sidecars")) == 2 * 4  # offsets and CRCs


KILLED = """
import os, sys
from pipeline.index import __main__ as index
left, replace = int(sys.argv[1]), os.replace
def move(source, target):
    global left
    if not left:
        os._exit(9)
    left -= 1
    replace(source, target)
os.replace = move
index.main(sys.argv[2:])
"""


def killed_after(moves, folder, *arguments):
    """Runs the command until it has given so many files their names."""
    command = [sys.executable, "-c", KILLED, str(moves), str(folder), *arguments]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 9


def test_who_is_killed_while_names_are_given_can_run_again(folder, capsys):
    killed_after(2, folder, "--split=train:*e*", "--split=test:part*")
    assert len(list(folder.glob("sidecars/*"))) == 2
    assert not (folder / "manifest.json").exists()
    (folder / "sidecars" / "mine").write_text("of somebody else")
    made = run(folder, "--split=test:part*")  # fewer files than before
    assert {path.name for path in folder.glob("sidecars/*")} == {"crcs.part=07", "mine"}
    assert {path.name for path in folder.glob(".*")} == set()
    killed_after(1, folder, "--split=train:*e*", "--split=test:part*", "--overwrite")
    assert run(folder, "--split=test:part*", "--overwrite") == made
    assert {path.name for path in folder.glob("sidecars/*")} == {"crcs.part=07", "mine"}


def test_a_file_that_took_the_place_of_a_killed_runs_own_stays(folder):
    killed_after(2, folder, "--split=train:verses.rec")
    (folder / "sidecars" / "crcs.verses.rec").write_text("mine")
    with pytest.raises(UsageError, check=at("crcs.verses.rec", "no manifest")) as raised:
        run(folder, "--split=train:verses.rec")
    assert raised.value.advice.startswith("move it elsewhere; ")
    assert [path.name for path in folder.glob("sidecars/*")] == ["crcs.verses.rec"]
    assert (folder / "sidecars" / "crcs.verses.rec").read_text() == "mine"


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--overwrite", "--overwrite: has no effect"),
        ("--compression=GZIP", "--compression=GZIP: has no effect"),
        ("--label_offset=-1", "--label_offset=-1: needs --feature_map"),
        ("--keep_columns=x", "--keep_columns=x: needs --feature_map"),
        ("--class_names=x", "--class_names=x: needs --feature_map"),
        ("--image_shape=2x2x1", "--image_shape=2x2x1: needs --feature_map"),
    ],
)
def test_flags_that_columns_alone_would_ignore_are_refused(folder, flag, facts):
    with pytest.raises(UsageError, check=said(facts)):
        run(folder, "--add_columns=records", flag)


def test_an_error_ends_the_command_with_one_line(folder):
    (folder / "bad").write_bytes(b"?" * 20)
    command = [sys.executable, "-m", "pipeline.index", str(folder), "--split=train:bad"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"pipeline.index: {folder}/bad, record 0, byte offset 0: ")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda c: c.update(class_names=["a"]), "class_names .*'a'"),
        (lambda c: c.update(image_mean=[1.0]), r"image_mean .*\(1.0,\)"),
        (lambda c: c.update(features={"label": dataclasses.asdict(manifests.Feature("int64"))}), "'image' .*uint8"),
        (lambda c: c["splits"]["train"].update(label_histogram=[6]), "histogram"),
        (lambda c: c["splits"]["train"].update(image_sizes={"8x8": 6}), "image_sizes .*6"),
    ],
)
def test_what_an_index_cannot_say(folder, change, facts):
    content = json.loads(run(folder, "--split=train:*").to_bytes())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=facts):
        manifests.load(folder)


def test_an_index_has_no_images(folder):
    with pytest.raises(UsageError, match=r"^poems: .*pipeline.index .*parse="):
        _ = run(folder, "--split=train:*").image_shape


@pytest.mark.parametrize("folder", ["", " ", "/", "//", "/tmp/.."])
def test_no_manifest_is_written_into_the_root_or_a_folder_without_a_name(folder):
    with pytest.raises(UsageError, match="^DATA_DIR='.*': "):
        IndexConfig(folder)


def test_a_split_without_a_record_is_refused(folder):
    before = listing(folder)
    (folder / "too").write_bytes(b"")
    with pytest.raises(DataError, match=r"^--split=test: 2 files .*\(none at all, too\)"):
        run(folder, "--split=train:verses.rec", "--split=test:none*", "--split=test:too")
    (folder / "too").unlink()
    assert listing(folder) == before
    (folder / "test.tfrecord").write_bytes(b"")
    with pytest.raises(DataError, match=r"^split 'test': 1 file .*\(test.tfrecord\)"):
        run(folder)


def test_a_manifest_that_cannot_be_moved_takes_all_new_files_with_it(folder, monkeypatch):
    before, replace = listing(folder), os.replace

    def full(source, target):
        if pathlib.Path(target).name == "manifest.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DataError, check=at("manifest.json", "cannot be written", "No space left")):
        run(folder, "--split=train:verses.rec")
    assert listing(folder) == before
    assert not (folder / "sidecars").exists()


def test_a_file_that_is_written_to_meanwhile_is_named(folder, monkeypatch):
    walk = command.walk

    def written(read):
        yield from walk(read)
        (folder / "verses.rec").write_bytes(file_of([*UNEQUAL, b"more"]))

    monkeypatch.setattr(command, "walk", written)
    with pytest.raises(
        DataError,
        check=at("verses.rec", "changed while it was being read", advice="stop what writes there and start again"),
    ):
        run(folder, "--split=train:verses.rec")
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize("damaged", [1, 200], ids=["seen_for_the_schema", "read_later"])
def test_who_has_a_damaged_file_is_not_told_to_convert_it(folder, damaged):
    data = bytearray(file_of(EQUAL * 150))
    data[20 * damaged + 13] ^= 1
    (folder / "verses.rec").write_bytes(data)
    with pytest.raises(
        DataError, check=at("verses.rec", "CRC is wrong", record=damaged, advice="copy or write the file again")
    ):
        run(folder, "--split=train:verses.rec")


class TestSplitsByNames:
    """Without --split, names of files tell the splits as they do for conversions."""

    @staticmethod
    def of(folder, names, *arguments):
        for name in names:
            (folder / name).write_bytes(file_of(EQUAL))
        made = run(folder, *arguments)
        return {name: [shard.file for shard in split.shards] for name, split in made.splits.items()}

    @pytest.mark.parametrize(
        ("names", "wanted"),
        [
            (
                ("train-00000-of-00002", "train-00001-of-00002", "val-00000-of-00001", "labels.txt.bak"),
                {"train": ["train-00000-of-00002", "train-00001-of-00002"], "validation": ["val-00000-of-00001"]},
            ),
            (
                ("Val.tfrecords", "cifar10_eval.tfrecord", "train-0-491.tfrec", "README.md"),
                {"train": ["train-0-491.tfrec"], "validation": ["Val.tfrecords"], "test": ["cifar10_eval.tfrecord"]},
            ),
            (("data_tfrecord-00000-of-00001", "b.tfrec"), {"train": ["b.tfrec", "data_tfrecord-00000-of-00001"]}),
            (("train.tfrecord", "holdout-00000-of-00001.tfrecord"), {
                "train": ["train.tfrecord"], "holdout": ["holdout-00000-of-00001.tfrecord"],
            }),
        ],
    )  # fmt: skip
    def test_they_are_those_of_a_conversion_and_said(self, tmp_path, capsys, names, wanted):
        assert self.of(tmp_path, names) == wanted
        said = capsys.readouterr().out.splitlines()[0]
        assert said.startswith("splits by the names of the files: train (")
        assert all(f"{split} (" in said and files[-1] in said for split, files in wanted.items())
        conversion = splits.by_files(path_of(str(tmp_path)), [*filter(naming.is_foreign_file, names)])
        assert {split: sorted(files) for split, files in conversion.items()} == wanted

    @pytest.mark.parametrize(
        ("names", "facts"),
        [
            (("train.tfrec", "more.tfrec"), ("more.tfrec", "'train'")),
            (("train-test.tfrec",), ("train-test.tfrec", "test or train")),
            (("val.tfrec", "dev.tfrec"), ("'dev' and of 'val'",)),
            (
                ("x-00000-of-00003", "x-00002-of-00003"),
                ("x-00001-of-00003", "is missing; the folder has 2 of 3 files; get it"),
            ),
            (("train.rec", "train.rec.gz"), ("both train.rec and train.rec.gz", "remove one of them")),
        ],
    )
    def test_what_they_do_not_tell_is_refused_with_the_flag_that_decides(self, tmp_path, names, facts):
        with pytest.raises(UsageError, check=said(*facts, "--split=NAME:PATTERN")) as error:
            self.of(tmp_path, names)
        assert "glob" not in str(error.value)
        assert "--splits" not in str(error.value)
        assert not (tmp_path / "manifest.json").exists()
        assert self.of(tmp_path, names, "--split=train:*") == {"train": sorted(names)}

    def test_images_may_get_columns_in_the_same_command(self, tmp_path):
        foreign.melanoma(tmp_path, 6)
        made = run(tmp_path, foreign.MELANOMA, "--add_columns=records:diagnosis")
        assert (made.has_images, made.splits["train"].num_examples) == (True, 6)
        assert {"label", "diagnosis"} <= made.columns.keys()

    @pytest.mark.parametrize(
        ("name", "values"),
        [("split", (b"train", b"test")), ("is_train", (1, 0)), ("usage", (b"train",) * 150 + (b"test",))],
        ids=["split", "is_train", "later than the first records"],
    )
    def test_a_feature_that_looks_like_splits_is_refused_where_names_tell_none(self, tmp_path, name, values):
        for file, of_file in (("a.tfrec", values[:1]), ("b.tfrec", values)):
            foreign.write(tmp_path / file, [{name: value, "x": 1} for value in of_file])
        with pytest.raises(DataError, check=said(repr(name), "a file per split", "--split=NAME:PATTERN")):
            run(tmp_path)
        assert listing(tmp_path).keys() == {"a.tfrec", "b.tfrec"}
        made = run(tmp_path, "--split=train:*")
        assert made.splits["train"].num_examples == 1 + len(values)
        (tmp_path / "a.tfrec").rename(tmp_path / "test-a.tfrec")
        (tmp_path / "b.tfrec").rename(tmp_path / "train-b.tfrec")
        assert run(tmp_path, "--overwrite").splits.keys() == {"train", "test"}


class TestFolders:
    """Files in folders of the data set's folder."""

    NAMES = ("train/a.tfrec", "train/b.tfrec", "val/a.tfrec")

    @staticmethod
    def write(folder, *names):
        for number, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file_of([b"%d" % number * (1 + row) for row in range(3)]))

    def test_folders_of_splits_need_no_flag_and_are_read_each_as_it_is(self, tmp_path, capsys):
        self.write(tmp_path, *self.NAMES)
        made = run(tmp_path)
        assert "train (2 files, train/a.tfrec to train/b.tfrec), validation (val/a.tfrec)" in capsys.readouterr().out
        files = {name: [shard.file for shard in split.shards] for name, split in made.splits.items()}
        assert files == {"train": ["train/a.tfrec", "train/b.tfrec"], "validation": ["val/a.tfrec"]}
        sidecars = [f"{kind}.{name}" for kind in ("crcs", "offsets") for name in ("train~a", "train~b", "val~a")]
        assert sorted(path.name for path in (tmp_path / "sidecars").iterdir()) == [f"{x}.tf-rec" for x in sidecars]
        train = [b"0", b"00", b"000", b"1", b"11", b"111"]
        assert [found["record"] for found in RandomAccess(tmp_path, "train")] == train
        assert [found["record"] for found in RandomAccess(tmp_path, "validation")] == [b"2", b"22", b"222"]
        validate.main([str(tmp_path)])
        assert "the data set matches its manifest" in capsys.readouterr().out
        assert run(tmp_path, "--overwrite") == made

    def test_patterns_may_name_folders_of_any_depth(self, tmp_path):
        self.write(tmp_path, *self.NAMES, "x/y/c.tfrec", "c.tfrec")
        made = run(tmp_path, "--split=train:*/a*", "--split=test:x/[y]/*", "--split=mine:*.tfrec")
        assert {name: [shard.file for shard in split.shards] for name, split in made.splits.items()} == {
            "train": ["train/a.tfrec", "val/a.tfrec"], "test": ["x/y/c.tfrec"], "mine": ["c.tfrec"],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("names", "facts"),
        [
            (("a.tfrec", "val/a.tfrec"), ("and in val/", "--split=NAME:PATTERN")),
            (("train/a.tfrec", "more/a.tfrec"), ("2 folders", "more/", "--split=NAME:PATTERN")),
            (("val/a.tfrec", "dev/a.tfrec"), ("'dev' and of 'val'", "--split=NAME:PATTERN")),
            (("train/test.tfrec",), ("train/test.tfrec", "--split=NAME:PATTERN")),
            (("train/a.tfrec", "a/b/train.tfrec"), ("2 folders", "a/b/", "--split=NAME:PATTERN")),
            (("train/a.tfrec", "val/x/a.tfrec", "val/manifest.json"), ("val/ is a data set of its own",)),
        ],
    )
    def test_what_they_do_not_tell_is_refused(self, tmp_path, names, facts):
        self.write(tmp_path, *names)
        with pytest.raises(UsageError, check=said(*facts)):
            run(tmp_path)
        assert not (tmp_path / "manifest.json").exists()

    def test_two_names_with_one_sidecar_are_refused(self, tmp_path):
        self.write(tmp_path, "a/b~c.tfrec", "a~b/c.tfrec")
        with pytest.raises(UsageError, check=said("a/b~c.tfrec and a~b/c.tfrec differ only in / and ~")):
            run(tmp_path, "--split=train:*/*")

    def test_one_folder_of_another_name_is_the_data_set(self, tmp_path):
        self.write(tmp_path, "data/train-00000-of-00001", "data/test-00000-of-00001")
        assert run(tmp_path).splits.keys() == {"train", "test"}

    def test_a_changed_file_is_named_with_its_folder(self, tmp_path):
        self.write(tmp_path, *self.NAMES)
        run(tmp_path)
        with open(tmp_path / "val" / "a.tfrec", "ab") as file:
            file.write(b"x")
        with pytest.raises(DataError, check=at("val/a.tfrec", "the manifest says")):
            RandomAccess(tmp_path, "validation")
        with pytest.raises(DataError, check=said("1 of 3 shards")):
            validate.main([str(tmp_path)])
