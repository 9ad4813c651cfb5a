"""WebDataset's tar files."""

import gzip
import io
import json
import pickle
import tarfile

import numpy as np
import PIL.Image
import pytest

from beam_jobs import validate
from beam_jobs.sources import open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature
from tests.helpers.converting import convert_in_process
from tests.helpers.datasets import examples_in
from tests.helpers.raised import at, said
from tests.helpers.round_trips import everything, picture


def tar(path, members):
    """Writes {name: content} as a tar; a content that is no bytes is written as JSON or as its text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            data = json.dumps(content) if isinstance(content, (dict, list)) else content
            data = data if isinstance(data, bytes) else str(data).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def samples(rows, **more):
    """Returns the members of samples: an image, its class, and for each ending of `more` a function of the row."""
    for row in rows:
        yield f"{row:04}.png", picture(row)
        yield f"{row:04}.cls", row % 3
        for ending, content in more.items():
            yield f"{row:04}.{ending}", content(row)


def opened(source, **options):
    return open_source(SourceOptions("webdataset", str(source), **options))


def test_samples_are_rows_of_key_image_and_label(tmp_path):
    tar(tmp_path / "train-000000.tar", samples(range(4)))
    tar(tmp_path / "train-000001.tar", samples(range(4, 9)))
    tar(tmp_path / "val-000000.tar", samples(range(3)))
    source = pickle.loads(pickle.dumps(opened(tmp_path)))
    assert (source.splits, source.class_names) == ({"train": 9, "validation": 3}, ("0", "1", "2"))
    block = source.read("train", np.array([8, 0, 4]))
    assert block.images == [picture(8), picture(0), picture(4)]
    assert block.labels.tolist() == [2, 0, 1]
    assert block.keys == [b"train-000001.tar/0008.png", b"train-000000.tar/0000.png", b"train-000001.tar/0004.png"]
    assert source.where("train", 5) == ("train-000001.tar", 1)
    names = ["train-000000.tar", "train-000001.tar", "val-000000.tar"]
    assert [file.file for file in source.files] == names
    assert opened(tmp_path, splits=("val",)).splits == {"validation": 3}


def test_numbers_of_classes_stay_and_names_are_sorted(tmp_path):
    tar(tmp_path / "a.tar", [("a.jpg", picture(1)), ("a.cls", "5\n"), ("b.jpg", picture(2)), ("b.cls", " 2")])
    source = opened(tmp_path / "a.tar")
    assert (len(source.class_names), everything(source).labels.tolist()) == (6, [5, 2])
    (tmp_path / "labels.txt").write_text("".join(f"{name}\n" for name in "abcdef"))
    assert opened(tmp_path / "a.tar").class_names == tuple("abcdef")
    (tmp_path / "labels.txt").unlink()
    tar(tmp_path / "a.tar", [("a.jpg", picture(1)), ("a.cls", "dog\n"), ("b.jpg", picture(2)), ("b.cls", "ape")])
    source = opened(tmp_path / "a.tar")
    assert (source.class_names, everything(source).labels.tolist()) == (("ape", "dog"), [1, 0])


def test_classes_that_are_codes_with_leading_zeros_are_names(tmp_path):
    tar(tmp_path / "a.tar", [("a.jpg", picture(1)), ("a.cls", "012"), ("b.jpg", picture(2)), ("b.cls", "007")])
    source = opened(tmp_path / "a.tar")
    assert (source.class_names, everything(source).labels.tolist()) == (("007", "012"), [1, 0])


def test_the_label_may_be_a_field_of_json_and_others_are_kept(tmp_path):
    def info(row):
        return {"kind": "ab"[row % 2], "score": row / 2, "id": f"n{row}", "tags": ["x"] * (row % 2)}

    more = {"json": info, "txt": lambda row: f" caption {row}\n", "npy": lambda row: b"\x93npy"}
    members = samples(range(6), **more)
    tar(tmp_path / "a.tar", [("deep/er/" + name, content) for name, content in members])
    kept = ("score", "txt", "npy", "cls")
    source = opened(tmp_path, label_column="kind", keep_columns=kept, key_column="id")
    block = everything(source)
    assert (source.class_names, block.labels.tolist()) == (("a", "b"), [0, 1] * 3)
    assert [bytes(key) for key in block.keys] == [f"n{row}".encode() for row in range(6)]
    assert {name: np.array(values).tolist() for name, values in block.extra.items()} == {
        "score": [row / 2 for row in range(6)],
        "txt": [f"caption {row}".encode() for row in range(6)],
        "npy": [b"\x93npy"] * 6,
        "cls": [0, 1, 2] * 2,
    }
    assert everything(opened(tmp_path, label_column="tags")).labels.tolist() == [[0], [1]] * 3
    assert [bytes(key) for key in everything(opened(tmp_path, key_column="__key__")).keys][:1] == [b"deep/er/0000"]
    assert opened(tmp_path, label_column="score", float_labels=True).label == Feature("float32")


def test_images_of_several_formats_are_one_column_and_others_are_chosen(tmp_path):
    tar(tmp_path / "a.tar", [("a.JPG", picture(1)), ("a.cls", 0), ("b.png", picture(2)), ("b.cls", 1)])
    assert everything(opened(tmp_path)).images == [picture(1), picture(2)]
    tar(
        tmp_path / "a.tar",
        samples(range(2), **{"left.png": lambda row: picture(row + 5), "jpg": lambda row: picture(row + 7)}),
    )
    with pytest.raises(DataError, check=at("a.tar", "second image", "'0000'", part="member 0000.jpg")):
        opened(tmp_path)
    assert everything(opened(tmp_path, image_column="jpg")).images == [picture(7), picture(8)]


def test_images_may_all_have_longer_endings_and_masks_are_beside_them(tmp_path):
    two = {"left.png": lambda row: picture(row + 5), "right.png": lambda row: picture(row + 7)}
    members = [member for member in samples(range(2), **two) if member[0] not in ("0000.png", "0001.png")]
    tar(tmp_path / "a.tar", members)
    with pytest.raises(DataError, check=said("--image_column=left.png or --image_column=right.png")):
        opened(tmp_path)
    assert everything(opened(tmp_path, image_column="right.png")).images == [picture(7), picture(8)]
    mask = io.BytesIO()
    PIL.Image.new("L", PIL.Image.open(io.BytesIO(picture(0))).size, 2).save(mask, "PNG")
    tar(tmp_path / "a.tar", samples(range(2), **{"seg.png": lambda row: mask.getvalue()}))
    assert everything(opened(tmp_path)).images == [picture(0), picture(1)]
    source = opened(tmp_path, mask_column="seg.png")
    assert source.features["mask"].encoding == "png"
    out = convert_in_process(
        "--dataset=webdataset", f"--source={tmp_path}", f"--data_dir={tmp_path}/out", "--mask_column=seg.png"
    )
    masks = [record["mask"][0] for record in examples_in(out / "train-00000-of-00001.tfrecord")]
    assert [np.unique(PIL.Image.open(io.BytesIO(mask))).tolist() for mask in masks] == [[2], [2]]


def test_numbers_to_predict_may_have_fractions_and_a_number_below_0_is_no_class(tmp_path):
    tar(tmp_path / "a.tar", [("a.png", picture(1)), ("a.cls", 1.5), ("b.png", picture(2)), ("b.cls", "2\n")])
    block = everything(opened(tmp_path, float_labels=True))
    assert (block.labels.tolist(), block.bad) == ([1.5, 2.0], {})
    assert opened(tmp_path).class_names == ("1.5", "2")
    tar(tmp_path / "a.tar", [("a.png", picture(1)), ("a.cls", "1,5"), ("b.png", picture(2)), ("b.cls", 2)])
    with pytest.raises(DataError, check=at("a.tar", "is not a number: '1,5'", part="member a.cls")):
        opened(tmp_path, float_labels=True)
    tar(tmp_path / "a.tar", [("a.png", picture(1)), ("a.cls", 3), ("b.png", picture(2)), ("b.cls", -1)])
    block = everything(opened(tmp_path))  # and not the class 1 of the names -1 and 3
    assert block.labels.tolist() == [3, -1]
    assert list(block.without_class(4)) == [1]


def test_samples_without_a_label_or_an_image_are_invalid_rows_or_have_a_default(tmp_path):
    members = dict(samples(range(5)))
    del members["0001.cls"], members["0003.png"]
    members["0004.png"] = b"no image"
    tar(tmp_path / "a.tar", members.items())
    block = everything(opened(tmp_path))
    assert block.bad == {1: "cls is null", 3: "image is null"}
    block = everything(opened(tmp_path, default=("cls:2",)))
    assert (block.bad, block.labels[1]) == ({3: "image is null"}, 2)
    given = ["--dataset=webdataset", f"--source={tmp_path}", f"--data_dir={tmp_path}/out"]
    with pytest.raises(DataError, check=said("--max_rejects", "3")):
        convert_in_process(*given)
    out = convert_in_process(*given, "--max_rejects=3")
    assert manifest.load(out).splits["train"].num_examples == 2
    rejects = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert [(each["file"], each["row"]) for each in rejects] == [("a.tar", 1), ("a.tar", 3), ("a.tar", 4)]


@pytest.mark.parametrize(
    ("members", "part", "facts"),
    [
        ([("a.txt", "x"), ("b.cls", 1)], "", ["no member that is an image", "a.txt"]),
        ([], "", ["no member that is an image"]),
        ([("a.jpg", b""), ("a.json", b"{")], "member a.json", ["is not JSON", "{"]),
        ([("a.jpg", b""), ("a.json", [1])], "member a.json", ["not a JSON object", "[1]"]),
        ([("a.jpg", b""), ("a.cls", b"\xff")], "member a.cls", ["not UTF-8", "xff"]),
        ([("a.jpg", b""), ("b.jpg", b""), ("a.cls", 1)], "member a.cls", ["'a'", "not next to it"]),
        ([("a.jpg", b""), ("a.cls", 1), ("a.CLS", 1)], "member a.CLS", ["second .cls", "'a'"]),
        ([("a.jpg", b""), ("a.cls", b"x" * (17 << 20))], "member a.cls", ["17,825,792 bytes", "16,777,216"]),
    ],
)
def test_a_tar_that_lacks_what_is_needed_is_named_with_the_member(tmp_path, members, part, facts):
    tar(tmp_path / "a.tar", members)
    with pytest.raises(DataError, check=at("a.tar", *facts, part=part)):
        opened(tmp_path)


def test_a_missing_label_column_is_told_with_the_columns_there_are(tmp_path):
    tar(tmp_path / "a.tar", [("a.jpg", picture(1)), ("a.json", {"kind": "x", "n": 1})])
    with pytest.raises(UsageError, check=said("--label_column", "a.tar", "kind", "n (int64)")):
        opened(tmp_path)
    tar(tmp_path / "b.tar", [("a.jpg", picture(1)), ("a.json", {"n": 1})])
    with pytest.raises(DataError, check=said("b.tar", "'kind'")):
        opened(tmp_path, label_column="kind")


def test_tars_that_differ_are_refused(tmp_path):
    tar(tmp_path / "a.tar", samples(range(2)))
    tar(tmp_path / "b.tar", [("a.jpg", picture(1)), ("a.cls", "dog")])
    with pytest.raises(DataError, check=at("b.tar", "a.tar", "int64")):
        opened(tmp_path)


def test_other_files_are_refused(tmp_path):
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(tar(tmp_path / "x" / "a.tar", samples(range(2))).read_bytes()))
    for source in (tmp_path, packed):
        with pytest.raises(DataError, check=at("a.tar.gz", "gzipped")):
            opened(source)
    (tmp_path / "b.tar").write_bytes(b"hello" * 500)
    with pytest.raises(DataError, check=at("b.tar", "not a whole tar")):
        opened(tmp_path / "b.tar")
    with pytest.raises(UsageError, check=said("--source")):
        opened("")


def test_links_to_tars_are_followed_and_hidden_members_skipped(tmp_path):
    hidden = [("._0000.png", b"x"), ("__MACOSX/._0000.png", b"x"), ("__meta__.png", b"x")]
    members = [*hidden, *samples(range(2)), ("README", "hello")]
    tar(tmp_path / "blobs" / "3f", members)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar").symlink_to(tmp_path / "blobs" / "3f")
    assert everything(opened(tmp_path / "in")).images == [picture(0), picture(1)]


def test_a_member_that_is_a_link_is_an_error_as_tar_writes_files_with_two_names(tmp_path):
    tar(tmp_path / "a.tar", samples(range(2)))
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        for ending in ("cls", "png"):
            link = tarfile.TarInfo(f"0002.{ending}")
            link.type, link.linkname = tarfile.LNKTYPE, f"0001.{ending}"
            archive.addfile(link)
    with pytest.raises(DataError, check=at("a.tar", "is a link in its tar; unpack the tar", part="member 0002.cls")):
        opened(tmp_path / "a.tar")


def test_folders_and_a_field_tell_the_splits(tmp_path):
    for split in ("train", "test"):
        tar(tmp_path / split / "0.tar", samples(range(3)))
    assert opened(tmp_path).splits == {"train": 3, "test": 3}
    tar(tmp_path / "a.tar", samples(range(4), json=lambda row: {"split": ["train", "val"][row % 2]}))
    assert opened(tmp_path / "a.tar").splits == {"train": 2, "validation": 2}


def test_the_shards_are_those_of_the_same_table_of_files(tmp_path, contents, capsys):
    tar(tmp_path / "a.tar", samples(range(12), json=lambda row: {"score": row / 4}))
    flags = ["--num_shards=3", "--keep_columns=score", "--seed=5"]
    out = convert_in_process("--dataset=webdataset", f"--source={tmp_path}/a.tar", f"--data_dir={tmp_path}/out", *flags)
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "a" / "a.tar", filter="data")
    rows = [{"file": f"a.tar/{row:04}.png", "label": row % 3, "score": row / 4} for row in range(12)]
    (tmp_path / "a" / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = ["--dataset=image_table", f"--source={tmp_path}/a/t.jsonl", f"--data_dir={tmp_path}/plain"]
    plain = convert_in_process(*table, *flags)
    one, other = ({n: d for n, d in contents(each).items() if ".tfrecord" in n} for each in (out, plain))
    assert one == other
    validate.main([str(out)])
    assert "the data set matches its manifest" in capsys.readouterr().out
