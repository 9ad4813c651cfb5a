import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import types

import crc32c
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import validate
from beam_jobs.shards import writer
from pipeline import images, manifest
from pipeline.index.__main__ import main as index
from pipeline.manifest import Feature, naming
from pipeline.manifest.columns import Columns
from pipeline.manifest.splits import select
from pipeline.records import framing, tf_example
from tests.helpers import forked
from tests.helpers.converting import convert_in_process
from tests.helpers.made_source import Content

ROOT = pathlib.Path(__file__).parents[3]
# The first 16 digits of each file's SHA-256: conftest.py's mnist_arrays, --num_shards=train:2 --seed=1.
# test_records.py holds the records themselves against TensorFlow; this holds the order, the keys and the manifest.
GOLDEN = {
    "manifest.json": "e8ced2afecd9a328",
    "test-00000-of-00001.tfrecord": "2f18f11926645a3c",
    "sidecars/crcs.test-00000-of-00001.tf-record": "bab387a26d96720a",
    "train-00000-of-00002.tfrecord": "97c4f4fe216ee0cd",
    "sidecars/crcs.train-00000-of-00002.tf-record": "e54dfb372fd45a50",
    "train-00001-of-00002.tfrecord": "62a3158945b6e54c",
    "sidecars/crcs.train-00001-of-00002.tf-record": "d5892b57fdfa03c0",
}
BUNDLES = "--runner=apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"


def flags(source, out, *more):
    return ("--dataset=mnist", f"--source={source}", f"--data_dir={out}", *more)


@pytest.mark.parametrize("runner", ["--runner=FnApiRunner", BUNDLES])
@pytest.mark.quick(1)
def test_a_conversion_leaves_nothing_in_the_temporary_folder(mnist_folder, tmp_path, monkeypatch, convert, runner):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    made = flags(mnist_folder(), tmp_path / "out", runner)
    codes = [convert(*made, *more).code for more in (["--dry_run"], ["--max_shard_bytes=1"], [], [])]
    validate.main([str(tmp_path / "out")])
    assert (codes, os.listdir(place)) == ([0, 2, 0, 0], [])


def digests(contents):
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in contents.items()}


def test_the_bytes_of_a_tiny_data_set_are_pinned(mnist_folder, tmp_path, convert, contents):
    options = ("--num_shards=train:2", "--seed=1", "--columns=none")
    assert convert(*flags(mnist_folder(), tmp_path / "out", *options)).code == 0
    found = digests(contents(tmp_path / "out"))
    beside = {naming.CROISSANT, *naming.TFDS_FILES}  # Croissant's has versions of packages
    assert {name: found.pop(name) for name in beside if name in found}.keys() == beside
    assert found == GOLDEN


def column_files(folder):
    return {path.name: path.read_bytes() for path in (folder / "columns").iterdir()}


def test_columns_are_made_with_the_shards_and_go_with_the_data_set(mnist_folder, tmp_path, convert, contents):
    source, out, plain = mnist_folder(), tmp_path / "out", tmp_path / "plain"
    assert convert(*flags(source, out, "--num_shards=train:2", "--seed=1")).code == 0
    found = digests(contents(out))
    assert {name: found[name] for name in GOLDEN if name != "manifest.json"}.items() <= GOLDEN.items()
    made = manifest.load(out)
    assert {name: sorted(column.files) for name, column in made.columns.items()} == {
        "bytes": ["test", "train"],
        "label": ["test", "train"],
    }
    assert convert(*flags(source, plain, "--num_shards=train:2", "--seed=1", "--columns=none")).code == 0
    assert manifest.load(plain).digest == made.digest
    assert not (plain / "columns").exists()
    index([str(plain), "--add_columns=records"])  # which reads the shards
    assert contents(plain) == contents(out)
    again = convert(*flags(source, out, "--num_shards=train:2", "--seed=1", "--columns=records:label"))
    assert (again.code, "nothing to do" in again.out) == (0, True)
    assert convert(*flags(source, out, "--seed=2", "--overwrite", "--columns=records:label")).code == 0
    assert list(manifest.load(out).columns) == ["label"]
    assert len(column_files(out)) == 2
    assert (
        convert(*flags(source, out, "--seed=2", "--columns=records:bytes")).code == 0
    )  # of the data set that is there
    assert list(manifest.load(out).columns) == ["bytes", "label"]
    assert convert(*flags(source, out, "--seed=3", "--overwrite", "--columns=none")).code == 0
    assert not (out / "columns").exists()


FEATURES = {"id": 7, "score": 0.25, "site": b"web", "a/b": 3, "text": b"x" * 300, "box": [1.0, 2.0]}


def write_records(path, count=12, **more):
    """Writes images of several sizes with features, of which `id`, `score` and `site` differ."""
    with open(path, "wb") as file:
        for number in range(count):
            pixels = np.full((4 + number % 3, 5 + number % 2, 3), number, np.uint8)
            own = {"id": number * 1000, "score": number / 3, "site": [b"web", b"b\xffok"][number % 2]}
            values = {**FEATURES, **own, **more, "image": images.encoded(pixels, "png"), "label": number % 4}
            file.write(
                framing.frame(
                    tf_example.encode({name: np.float32(v) if isinstance(v, list) else v for name, v in values.items()})
                )
            )
    return ("--dataset=tfrecord", f"--source={path}", f"--keep_columns={','.join([*FEATURES, *more])}")


def test_all_features_with_one_value_are_columns_as_if_the_shards_were_read(tmp_path, convert, capfd):
    source = write_records(tmp_path / "a.tfrecord")
    for name, more in {"out": (), "twice": ("--passes=2",), "plain": ("--columns=none",)}.items():
        done = convert(*source, f"--data_dir={tmp_path / name}", "--num_shards=3", *more)
        assert done.code == 0, done.err
        noted = "note: 1 feature without a column (text): more than 65,536 different strings, or of more than 256"
        assert (noted in done.out) == (name != "plain")
    for folder in ("out", "plain"):
        if folder == "plain":
            index([str(tmp_path / folder), "--add_columns=records"])
            assert "text: left out, has strings of more than 256 characters" in capfd.readouterr().out
        made = manifest.load(tmp_path / folder)
        assert sorted(made.columns) == ["a_b", "bytes", "height", "id", "label", "score", "site", "width"]
        assert made.columns["site"].values == ("b\udcffok", "web")
    assert column_files(tmp_path / "out") == column_files(tmp_path / "plain")
    assert sorted(manifest.load(tmp_path / "twice").columns) == sorted(made.columns)
    columns = Columns(
        tmp_path / "out", manifest.load(tmp_path / "out"), select(manifest.load(tmp_path / "out"), "train")
    )
    assert sorted(columns["id"].tolist()) == [number * 1000 for number in range(12)]
    assert (columns["height"] == 4 + columns["id"] // 1000 % 3).all()


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        ("records:idd", {}, "--columns: feature: unknown 'idd'; did you mean 'id'?"),
        ("records", {"a_b": 1}, "features 'a/b' and 'a_b': both would be the column 'a_b'; name one of them"),
        ("records", {"a b": 1}, "features 'a/b' and 'a b': both would be the column 'a_b'; name one of them"),
        (
            "records:text",
            {},
            "--columns=records:text: 'text' has strings of more than 256 characters; rerun with others",
        ),
        ("foo", {}, "--columns=foo: must be FILE.parquet, records"),
    ],
)
@pytest.mark.quick(2)
def test_columns_that_cannot_be_are_refused(tmp_path, convert, columns, more, said):
    source = write_records(tmp_path / "a.tfrecord", **more)
    refused = convert(*source, f"--data_dir={tmp_path / 'out'}", f"--columns={columns}")
    assert refused.code != 0
    assert said in refused.err
    if "rerun" in said:
        assert convert(*source, f"--data_dir={tmp_path / 'out'}", "--columns=records:a/b,site,width").code == 0
        assert list(manifest.load(tmp_path / "out").columns) == ["a_b", "site", "width"]
    if "name one of them" in said:  # as the message says, with the value of that one
        _, advised = shlex.split(refused.err.partition("name one of them")[2])
        assert convert(*source, f"--data_dir={tmp_path / 'out'}", advised).code == 0
        made = manifest.load(tmp_path / "out")
        assert advised == f"--columns=records:label,{next(iter(more))}"
        assert list(made.columns) == ["a_b", "label"]
        assert (Columns(tmp_path / "out", made, select(made, "train"))["a_b"] == 1).all()


def test_sizes_that_all_images_share_are_columns_if_they_are_named(mnist_folder, tmp_path, convert):
    named = "--columns=records:label,width"
    source, fresh, later = mnist_folder(), tmp_path / "fresh", tmp_path / "later"
    assert convert(*flags(source, fresh, named)).code == 0
    assert convert(*flags(source, later, "--columns=none")).code == 0
    again = convert(*flags(source, later, named))  # of the data set that is there
    assert (again.code, again.err) == (0, "")
    assert sorted(manifest.load(later).columns) == ["label", "width"]
    assert column_files(later) == column_files(fresh)


def test_an_older_data_set_without_columns_gets_a_note_that_says_how_to_add_them(mnist_folder, tmp_path, convert):
    source, out = mnist_folder(), tmp_path / "out"
    assert convert(*flags(source, out, "--columns=none")).code == 0
    assert "has no columns" not in convert(*flags(source, out, "--columns=none")).out
    again = convert(*flags(source, out))
    noted = f"note: the data set has no columns; to add them: python -m pipeline.index {out} --add_columns=records\n"
    assert (again.code, again.out.endswith(noted)) == (0, True)
    index([str(out), "--add_columns=records"])
    assert "has no columns" not in convert(*flags(source, out)).out


def test_a_feature_named_as_a_value_of_the_image_has_its_column_and_a_note(tmp_path, convert):
    source = write_records(tmp_path / "a.tfrecord", height=77)
    noted = "note: the column 'height' has the source's feature of that name, not the image's height\n"
    for flag in ("records", "records:height"):
        done = convert(*source, f"--data_dir={tmp_path / 'out'}", f"--columns={flag}", "--overwrite")
        assert noted in done.out
        made = manifest.load(tmp_path / "out")
        columns = Columns(tmp_path / "out", made, select(made, "train"))
        assert (columns["height"] == 77).all()
    assert "the column 'width'" not in done.out


def test_columns_of_a_function_are_added_to_those_of_the_records(mnist_folder, tmp_path, convert):
    (tmp_path / "mine.py").write_text("def f(record):\n    return {'first': record[0]}\n")
    source = mnist_folder()
    done = convert(*flags(source, tmp_path / "out", f"--columns={tmp_path / 'mine.py'}:f"))
    assert done.code == 0
    assert sorted(manifest.load(tmp_path / "out").columns) == ["bytes", "first", "label"]
    refused = convert(*flags(source, "s3://bucket/out", f"--columns={tmp_path / 'mine.py'}:f"))
    assert (refused.code, "are added to a local or mounted folder" in refused.err) == (2, True)


def test_a_source_is_read_as_the_flags_say(tmp_path, convert_without_beam):
    """No data set is found without its flags."""
    pixels = np.arange(6 * 12, dtype=np.uint8).reshape(6, 4, 3, 1)
    pngs = [images.encoded(each, "png") for each in pixels]
    (tmp_path / "a.tfrecord").write_bytes(
        b"".join(
            framing.frame(tf_example.encode({"ink": each.tobytes(), "kind": number % 2}))
            for number, each in enumerate(pixels)
        )
    )
    table = pa.table({"picture": pngs, "label": [0, 1] * 3, "image": ["no image"] * 6})
    pq.write_table(table, tmp_path / "b.parquet")
    (tmp_path / "c" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c" / "dog").symlink_to(tmp_path / "elsewhere")
    for number, png in enumerate(pngs):
        ((tmp_path / "c" / "cat" if number % 2 == 0 else tmp_path / "elsewhere") / f"{number}.png").write_bytes(png)
    (tmp_path / "d.csv").write_text("\n".join(["id,label", *(f"{number},{number % 2}" for number in range(6))]))
    (tmp_path / "pictures").mkdir()
    for number, png in enumerate(pngs):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(png)
    for dataset, source, flags in (
        ("tfrecord", "a.tfrecord", ["--feature_map=image:ink,label:kind", "--image_shape=4x3x1"]),
        ("parquet", "b.parquet", ["--image_column=picture"]),
        ("image_folder", "c", ["--follow_links"]),
        ("image_table", "d.csv", ["--image_column=id", f"--image_dir={tmp_path / 'pictures'}/{{}}.png"]),
    ):
        out = tmp_path / "out" / dataset
        given = [f"--dataset={dataset}", f"--source={tmp_path / source}", f"--data_dir={out}", "--image_encoding=raw"]
        for left_out in flags:
            others = [flag for flag in flags if flag != left_out]
            assert convert_without_beam(*given, *others).code != 0, left_out
        outcome = convert_without_beam(*given, *flags)
        assert outcome.code == 0, outcome
        found = {example["image"][0]: example["label"][0] for example in examples_of(out, "train")}
        assert found == {each.tobytes(): number % 2 for number, each in enumerate(pixels)}


def test_one_of_anything_is_said_in_the_singular(run, convert, pixels, tmp_path, capfd):
    """One example, shard and invalid row: looked at beforehand, converted and validated."""
    splits = {"train": Content(pixels(2), bad={1: "is torn"})}
    for more in (["--dry_run"], []):
        outcome = run(splits, "--num_shards=1", "--max_rejects=1", *more, convert=convert)
        assert outcome.code == 0, outcome
        assert not _ONES.search(outcome.out + outcome.err)
    validate.main([str(tmp_path / "out")])
    assert not _ONES.search(capfd.readouterr().out)


_ONES = re.compile(
    r"(?<![\d.,])1 (shards|rows|examples|records|files|bytes|images|classes|sizes|members|problems)\b(?!/s)"
)


def test_the_seed_and_the_split_are_those_of_the_flags(mnist_folder, tmp_path, convert, contents):
    source, found = mnist_folder(), []
    for number, more in enumerate(([], ["--seed=3"], ["--split=train:0.7,held:0.3"])):
        out = tmp_path / str(number)
        assert convert(*flags(source, out, "--num_shards=1", *more)).code == 0
        found.append(contents(out))
    records = [sorted(map(row_of, examples_of(tmp_path / str(number), "train"))) for number in (0, 1)]
    assert records[0] == records[1]
    shard = "train-00000-of-00001.tfrecord"
    assert found[0][shard] != found[1][shard]  # the same records in another order
    made = [manifest.load(tmp_path / str(number)) for number in (0, 2)]
    assert made[1].splits.keys() == {"train", "held"}
    total = sum(split.num_examples for split in made[0].splits.values())
    shares = [made[1].splits[name].num_examples for name in ("train", "held")]
    assert sum(shares) == total
    assert 0 < shares[1] < shares[0]


def examples_of(folder, split):
    """Returns the decoded examples of a split, in the order of its shards, each file checked against the manifest."""
    made = manifest.load(folder)
    found = []
    for shard in made.splits[split].shards:
        data = (folder / shard.file).read_bytes()
        assert f"{crc32c.crc32c(data):08x}" == shard.crc32c
        data = gzip.decompress(data) if made.compression else data
        found += [tf_example.decode(record) for _, _, record in framing.records(io.BytesIO(data).read, shard.file)]
        assert len(found) >= shard.num_examples
    assert len(found) == made.splits[split].num_examples
    return found


def row_of(example):
    return int(example["key"][0].rpartition(b"#")[2])


@pytest.fixture
def run(made, tmp_path, convert_without_beam):
    """A function that converts contents to a folder, without Beam unless told, and returns the outcome."""

    def run(splits, *flags, out="out", features=None, unique_keys=True, convert=convert_without_beam):
        source = made(splits, unique_keys=unique_keys, features=features)
        return convert("--dataset=made", f"--source={source}", f"--data_dir={tmp_path / out}", *flags)

    return run


@pytest.mark.parametrize(
    ("encoding", "flags", "shape"),
    [
        ("raw", [], (12, 10, 3)),
        ("png", ["--resize=6x7"], (6, 7, 3)),
        ("jpeg", ["--channels=1"], (12, 10, 1)),
        ("raw", ["--resize=20x20", "--channels=1"], (20, 20, 1)),
    ],
)
def test_images_are_stored_as_the_flags_say(encoding, flags, shape, run, pixels, tmp_path):
    stored = pixels(20, (12, 10, 3))
    assert run({"train": Content(stored)}, f"--image_encoding={encoding}", *flags).code == 0
    made = manifest.load(tmp_path / "out")
    assert made.features["image"] == Feature("uint8", shape, encoding)
    assert made.options["image_encoding"] == encoding
    for example in examples_of(tmp_path / "out", "train"):
        expected = images.resized(images.with_channels(stored[row_of(example)], shape[2]), shape[:2])
        data = example["image"][0]
        if encoding == "raw":
            assert data == expected.tobytes()
        else:
            assert data == images.encoded(expected, encoding)
    mean = np.mean([images.resized(images.with_channels(s, shape[2]), shape[:2]).mean((0, 1)) for s in stored], axis=0)
    np.testing.assert_allclose(made.image_mean, mean, rtol=1e-12)


def test_large_jpegs_may_be_decoded_at_a_part_of_their_size(run, convert, pixels, tmp_path):
    files = [images.encoded(np.kron(image, np.ones((8, 8, 1), np.uint8)), "jpeg") for image in pixels(3, (12, 10, 3))]
    found = {}
    for flags in (("--resize=20x20",), ("--resize=20x20", "--scaled_decoding")):
        data_dir = tmp_path / f"out{len(flags)}"
        outcome = run({"train": Content(files)}, "--image_encoding=raw", *flags, f"--data_dir={data_dir}")
        assert outcome.code == 0, outcome
        found[len(flags)] = {row_of(example): example["image"][0] for example in examples_of(data_dir, "train")}
    made = manifest.load(tmp_path / "out2")
    assert made.options["scaled_decoding"] is True
    assert "scaled_decoding" not in manifest.load(tmp_path / "out1").options
    for row, file in enumerate(files):
        scaled = PIL.Image.open(io.BytesIO(file))
        scaled.draft("RGB", (20, 20))
        assert scaled.size == (20, 24)  # a quarter of 80x96; an eighth would be less than 20
        assert found[2][row] == images.resized(np.asarray(scaled), (20, 20)).tobytes()
        assert found[2][row] != found[1][row]


@pytest.mark.parametrize("how", [[], [BUNDLES], ["--direct_runner_bundle_repeat=1"]])
@pytest.mark.quick(1)
def test_a_key_that_comes_twice_is_an_error_in_whatever_splits(how, run, convert, pixels, tmp_path):
    keys = [b"%d" % i for i in range(40)]
    content = {"train": Content(pixels(30), keys=[*keys[:29], b"39"]), "test": Content(pixels(10), keys=keys[30:])}
    outcome = run(content, "--num_shards=3", *how, unique_keys=False, convert=convert)
    assert outcome.code == 1, outcome
    assert re.search(
        r"duplicate key '39': record \d+ of test-0000\d-of-00003.tfrecord and record \d+ of "
        r"train-0000\d-of-00003.tfrecord; every example needs its own",
        outcome.err,
    )
    assert "kept 6 finished shards in " in outcome.err
    assert "rerun" not in outcome.err  # it would fail again
    assert not (tmp_path / "out" / "manifest.json").exists()
    content["train"].keys[29] = b"no other has this"
    assert run(content, "--num_shards=3", *how, unique_keys=False, convert=convert).code == 0


@pytest.mark.parametrize("passes", [1, 2])
def test_the_list_of_rejects_that_an_error_names_is_there(passes, run, convert, pixels, tmp_path):
    content = {"train": Content(pixels(20), labels=[99, *[1] * 19])}
    outcome = run(content, f"--passes={passes}", convert=convert)
    assert f"; {tmp_path / 'out' / 'rejects.jsonl'} lists them; " in outcome.err
    assert len((tmp_path / "out" / "rejects.jsonl").read_text().splitlines()) == 1


def test_rejects_are_bounded_and_the_work_is_kept_for_a_larger_bound(run, pixels, tmp_path):
    stored = [images.encoded(image, "png") for image in pixels(200)]
    for row in range(5, 200, 40):
        stored[row] = stored[row][:50]
    content = {"train": Content(stored, labels=[99 if row == 3 else 1 for row in range(200)])}
    out = tmp_path / "out"
    outcome = run(content, "--num_shards=8", "--max_rejects=5")
    assert outcome.code == 1
    assert re.search(r"6 invalid rows, over --max_rejects=5.* train.rows, row 3: .*--max_rejects=6 ", outcome.err)
    assert not (out / "manifest.json").exists()
    listed = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert [reject["row"] for reject in listed] == [3, 5, 45, 85, 125, 165]  # however they lie in the shards
    assert {(reject["split"], reject["file"]) for reject in listed} == {("train", "train.rows")}
    assert next(reject["reason"] for reject in listed if reject["row"] == 3) == "label 99 is not in 0..9"
    assert all("cut short" in reject["reason"] for reject in listed if reject["row"] != 3)
    inodes = {path.name: path.stat().st_ino for path in out.glob(".converting.tmp-*/*.tfrecord")}
    assert len(inodes) == 8
    assert run(content, "--num_shards=8", "--max_rejects=6").code == 0
    assert {path.name: path.stat().st_ino for path in out.glob("*.tfrecord")} == inodes  # not made again
    made = manifest.load(out)
    assert (made.splits["train"].num_examples, made.splits["train"].num_rejects) == (194, 6)
    assert len((out / "rejects.jsonl").read_text().splitlines()) == 6
    assert run(content, "--num_shards=8", "--max_rejects=6", out="other").code == 0
    assert (tmp_path / "other" / "manifest.json").read_bytes() == (out / "manifest.json").read_bytes()
    assert (tmp_path / "other" / "rejects.jsonl").read_bytes() == (out / "rejects.jsonl").read_bytes()
    assert run(content, "--num_shards=8", "--max_rejects=6").code == 0


@pytest.mark.parametrize("passes", [1, 2])
def test_a_failure_leaves_the_list_of_rejects_of_the_data_set_that_is_there(
    passes, run, convert, pixels, tmp_path, contents
):
    content = {"train": Content(pixels(20), bad={3: "first"})}
    assert run(content, "--max_rejects=1").code == 0
    before = contents(tmp_path / "out")
    assert b"first" in before["rejects.jsonl"]
    others = {"train": Content(pixels(20), bad={3: "second", 4: "third"})}
    refused = run(others, "--overwrite", f"--passes={passes}", convert=convert)
    assert (refused.code, contents(tmp_path / "out")) == (1, before)
    (path,) = re.findall(r"; (\S+) lists them; ", refused.err)
    assert [json.loads(line)["reason"] for line in pathlib.Path(path).read_text().splitlines()] == ["second", "third"]
    assert run({"train": Content(pixels(20))}, "--overwrite").code == 0
    assert "rejects.jsonl" not in contents(tmp_path / "out")


def test_two_passes_shuffle_rows_of_chunks_and_lose_nothing(run, convert, pixels, tmp_path):
    labels = np.repeat(np.arange(10), 30)  # sorted by class, in chunks of one class
    content = {"train": Content(pixels(300), labels=labels, chunks=[30] * 10, bad={7: "bad"})}
    for out, passes in (("one", 1), ("two", 2)):
        outcome = run(content, "--num_shards=10", "--max_rejects=1", f"--passes={passes}", out=out, convert=convert)
        assert outcome.code == 0, outcome
    one, two = (manifest.load(tmp_path / out) for out in ("one", "two"))
    entropy = [np.mean([shard.label_entropy for shard in made.splits["train"].shards]) for made in (one, two)]
    assert entropy[0] < 1.1
    assert entropy[1] > 2.8  # of 3.32
    examples = [examples_of(tmp_path / out, "train") for out in ("one", "two")]
    assert sorted(e["key"][0] for e in examples[0]) == sorted(e["key"][0] for e in examples[1])
    for example in examples[1]:
        assert example["image"][0] == pixels(300)[row_of(example)].tobytes()
        assert example["label"][0] == row_of(example) // 30
    for field in ("dataset", "class_names", "features", "source", "image_mean", "image_std"):
        assert getattr(one, field) == getattr(two, field)
    assert two.splits["train"].label_histogram == one.splits["train"].label_histogram
    assert two.splits["train"].num_rejects == 1
    assert (tmp_path / "two" / "rejects.jsonl").read_bytes() == (tmp_path / "one" / "rejects.jsonl").read_bytes()
    assert not list((tmp_path / "two").glob(".*"))
    assert (
        "nothing to do"
        in run(content, "--num_shards=10", "--max_rejects=1", "--passes=2", out="two", convert=convert).out
    )


@pytest.mark.parametrize("name", ["dataset_info.json", "card.html", "croissant.json"])
def test_a_file_of_another_tool_is_not_written_over(name, run, pixels, tmp_path, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    for flags in ([], ["--overwrite"]):
        outcome = run({"train": Content(pixels(5))}, *flags)
        refused(outcome, 1, f"{name}: was not written by a conversion; remove it", data_dir=tmp_path / "out")
        assert (tmp_path / "out" / name).read_bytes() == b"mine"


@pytest.mark.parametrize(
    "how",
    [
        ["--direct_running_mode=multi_threading", "--direct_num_workers=2"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
        ["--direct_runner_bundle_repeat=1"],
        [BUNDLES],
    ],
)
@pytest.mark.quick(1)
def test_no_runner_or_number_of_workers_changes_a_byte(how, mnist_folder, tmp_path, convert, contents):
    source = mnist_folder()
    convert_in_process(*flags(source, tmp_path / "one", "--num_shards=5"))
    outcome = convert(*flags(source, tmp_path / "other", "--num_shards=5", *how))
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_a_failed_bundle_that_is_retried_changes_nothing(mnist_folder, tmp_path, convert, contents, monkeypatch):
    source = mnist_folder()
    convert_in_process(*flags(source, tmp_path / "one", "--num_shards=5"))
    failed, publish = [], writer._publish

    def fails_once_after_writing(draft, folder, receipt):
        publish(draft, folder, receipt)
        if len(failed) < 3 and receipt.info.file not in failed:  # a bundle is tried four times
            failed.append(receipt.info.file)
            raise RuntimeError("the worker was lost")
        return receipt

    monkeypatch.setattr(writer, "_publish", fails_once_after_writing)
    assert convert(*flags(source, tmp_path / "other", "--num_shards=5", BUNDLES)).code == 0
    assert len(failed) == 3
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_the_manifest_says_nothing_of_this_machine(mnist_folder, tmp_path, convert_without_beam):
    source = mnist_folder()
    assert convert_without_beam(*flags(source, tmp_path / "out")).code == 0
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert "Runner" not in text
    assert set(json.loads(text)["options"]) == {"num_shards", "seed"}
    made = manifest.load(tmp_path / "out")
    assert {file.file: file.num_bytes for file in made.source}["train-images-idx3-ubyte"] == 16 + 50 * 784


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset=minst"], "--dataset: unknown 'minst'; did you mean 'mnist'?"),
        (["--overwite"], "flag: unknown '--overwite'; see --help"),
        (["--seed=x"], "--seed: 'x' is not a whole number"),
        (["--runner=FnApiRuner"], "did you mean 'FnApiRunner'?"),
        (["--direct_num_workers=-1"], "--direct_num_workers=-1: must be 1 or more"),
        (["--runner=PortableRunner"], "--runner=PortableRunner: --job_endpoint is missing"),
        (["--environment_type=PROCESS"], "--environment_type: has no effect with --runner=FnApiRunner"),
        (["--no_wait_until_finish"], "--no_wait_until_finish: has no effect"),
        (["more"], "unexpected argument 'more'"),
        (["--dataset=digits"], "takes no --source"),
        (["--data_dir=/dev/null"], "/dev/null is not a folder"),
        (["--data_dir="], "--data_dir=: must not be empty"),
    ],
)
def test_a_usage_error_is_one_line(more, message, mnist_folder, tmp_path, convert, refused):
    refused(convert(*flags(mnist_folder(), tmp_path / "out", *more)), 2, message, data_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_help_is_fast_and_loads_neither_beam_nor_tensorflow():
    program = (
        "import sys\nfrom beam_jobs.convert import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('apache_beam', 'tensorflow', 'sklearn') if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "[]"
    for flag in ("--dataset", "--num_shards", "--overwrite", "--direct_num_workers"):
        assert flag in done.stdout
    # Of the processor, whose other users do not count; under 0.5 s on an idle machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_a_missing_extra_is_one_line_with_the_install(tmp_path):
    program = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'apache_beam' else find(name, *a)\n"
        "from beam_jobs.convert import entry_point\n"
        f"sys.argv[1:] = ['--dataset=digits', '--data_dir={tmp_path}']\n"
        "entry_point()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == "beam_jobs.convert: needs apache_beam, which is not installed: pip install 'stepfeed[convert]'\n"
    )


@pytest.mark.parametrize("module", ["argparse", "numpy", "apache_beam"])
def test_ctrl_c_while_modules_are_loaded_is_one_line(module, tmp_path):
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts)\n"
        f"sys.argv[1:] = ['--dataset=mnist', '--source={tmp_path}', '--data_dir={tmp_path}']\n"
        "runpy.run_module('beam_jobs.convert', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "beam_jobs.convert: interrupted\n")


@pytest.mark.parametrize(
    "mode",
    [
        "in_memory",
        pytest.param("multi_threading", marks=pytest.mark.slow),
        pytest.param("multi_processing", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_in_a_worker_is_one_line(mode, mnist_folder, tmp_path, refused):
    def limit():  # as a full disk: no file over 12,000 bytes; a shard of train takes 6,139, that of test 17,540
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    out = tmp_path / "out"
    workers = "1" if mode == "in_memory" else "2"
    more = ["--num_shards=train:8,test:1", f"--direct_running_mode={mode}", f"--direct_num_workers={workers}"]
    command = [sys.executable, "-m", "beam_jobs.convert", *flags(mnist_folder(), out, *more)]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # half of what Python compiles would be left in __pycache__
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, preexec_fn=limit)
    outcome = types.SimpleNamespace(code=done.returncode, err=done.stderr)
    refused(outcome, 1, out / "test-00000-of-00001.tfrecord: cannot be written: File too large", data_dir=out)
    (folder,) = out.glob(".converting.tmp-*")
    assert re.match(rf"kept [1-8] finished shards? in {folder}: rerun the same command to resume\n", done.stderr)


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        (signal.SIGINT, "in_memory"),
        pytest.param(signal.SIGTERM, "in_memory", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "multi_processing", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "multi_processing", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_with_one_line_and_no_data_set(number, mode, mnist_folder, tmp_path, contents):
    out = tmp_path / "out"
    more = ["--num_shards=train:4000,test:20", f"--direct_running_mode={mode}"]
    more += ["--direct_num_workers=2"] if mode == "multi_processing" else []
    program = ["-m", "beam_jobs.convert", *flags(mnist_folder(arrays=many()), out, *more)]
    process = forked.Process(program)  # for Beam's workers, too
    deadline = time.monotonic() + 60
    while len(list(out.glob(".converting*/*.receipt.json"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    kept, interrupted = err.splitlines()
    assert interrupted == "beam_jobs.convert: interrupted"
    assert process.returncode == 128 + number
    assert contents(out) == {}
    (folder,) = out.iterdir()
    count = re.fullmatch(rf"kept (\d+) finished shards? in {folder}: rerun the same command to resume", kept)[1]
    assert int(count) >= 20
    left = set(os.listdir(folder))
    assert sum(name.endswith(".receipt.json") for name in left) == int(count)
    assert not [name for name in left if ".tmp-" in name or name == "manifest.json"]
    time.sleep(0.3)  # no worker continues
    assert set(os.listdir(folder)) == left


def many():
    return {
        split: (np.zeros((n, 28, 28), np.uint8), np.zeros(n, np.uint8)) for split, n in (("train", 4000), ("test", 20))
    }


def test_what_a_kill_after_publishing_left_goes_with_the_next_command(tmp_path):
    out = tmp_path / "out"
    arguments = ["--dataset=digits", f"--data_dir={out}"]
    convert_in_process(*arguments)
    left = out / f".converting.tmp-{'0' * 16}"
    left.mkdir()
    (left / "train-00000-of-00001.tfrecord.receipt.json").write_text("{}")
    (out / "mine.txt").write_text("not ours")
    convert_in_process(*arguments)
    assert not left.exists()
    assert (out / "mine.txt").exists()


def test_a_folder_alone_and_a_data_set_as_a_source_are_answered_by_the_next_command(tmp_path):
    (tmp_path / "photos/cats").mkdir(parents=True)
    (tmp_path / "photos/cats/1.png").touch()
    for flags in (["photos"], ["--source=photos"], ["--data_dir=out", "--source=photos", "--resize=8"]):
        done = forked.run(["-m", "beam_jobs.convert", *flags], cwd=tmp_path)
        assert done.returncode == 2
        assert "python -m beam_jobs.convert --dataset=image_folder --source=photos" in done.stderr
    made = convert_in_process("--dataset=digits", f"--data_dir={tmp_path / 'digits'}")
    for flags in (["digits"], ["--source=digits"], ["--dataset=image_folder", "--source=digits", "--data_dir=out"]):
        done = forked.run(["-m", "beam_jobs.convert", *flags], cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert done.stderr.endswith(f" a data set already; train on it: python -m trainer.run {made.name}\n")
