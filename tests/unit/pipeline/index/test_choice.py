"""Which files of a folder belong to which split."""

import gzip
import pathlib
import zlib

import pytest

from pipeline.errors import UsageError
from pipeline.index import choice
from pipeline.records import framing
from tests.helpers.raised import at, said

RECORDS = framing.frame(b"one") + framing.frame(b"two")


def write(folder, *names, data=RECORDS):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("**/*.tfrecord", ["a.tfrecord", "b/c.tfrecord", "b/d/e.tfrecord"]),
        ("**", ["a.tfrecord", "b/c.tfrecord", "b/d/e.tfrecord", "b/f"]),
        ("b/**/*.tfrecord", ["b/c.tfrecord", "b/d/e.tfrecord"]),
        ("*/*", ["b/c.tfrecord", "b/f"]),
        ("b/d/[e-g].*", ["b/d/e.tfrecord"]),
    ],
)
def test_patterns_match_as_those_of_a_shell(tmp_path, pattern, wanted):
    write(tmp_path, "a.tfrecord", "b/c.tfrecord", "b/d/e.tfrecord", "b/f")
    assert choice.of_flags(str(tmp_path), [f"train:{pattern}"]) == {"train": wanted}


HIDDEN = [".ipynb_checkpoints/train-copy.tfrecord", ".pipeline.index-x/train.tfrecord", "._train.tfrecord"]


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("own", ["train.tfrecord", "train/a.tfrecord"])
def test_hidden_files_are_never_chosen(tmp_path, hidden, own):
    write(tmp_path, own, "train/" + hidden, hidden)
    assert choice.of_names(str(tmp_path)) == {"train": [own]}
    assert choice.of_flags(str(tmp_path), ["train:**"]) == {"train": [own]}
    with pytest.raises(UsageError, check=said("no file in")):
        choice.of_flags(str(tmp_path), [f"train:{hidden}"])


def test_a_folder_of_hidden_files_alone_has_none(tmp_path):
    write(tmp_path, *HIDDEN)
    with pytest.raises(UsageError, check=said("it has 0 files")):
        choice.of_names(str(tmp_path))


def test_links_to_folders_are_not_followed_and_those_to_files_are(tmp_path):
    data, other = tmp_path / "data", tmp_path / "other"
    write(data, "train/a.tfrecord")
    write(other, "b.tfrecord")
    (data / "val").symlink_to(other)
    (data / "train" / "b.tfrecord").symlink_to(other / "b.tfrecord")
    wanted = {"train": ["train/a.tfrecord", "train/b.tfrecord"]}
    assert choice.of_names(str(data)) == wanted
    assert choice.of_flags(str(data), ["train:**"]) == wanted
    with pytest.raises(UsageError, check=said("'val/*'", "it has 2 files")):
        choice.of_flags(str(data), ["val:val/*"])


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (("train-00000-of-00002", "train-00001-of-00002"), ""),
        (("train-00000-of-00003", "train-00002-of-00003"), "train-00001-of-00003"),
        (("a/train-00000-of-00002.gz", "a/test-00000-of-00001.gz"), "a/train-00001-of-00002.gz"),
        (("train-00000-of-00002.gz", "train-00001-of-00002.zz"), ""),
    ],
)
def test_a_numbered_set_is_whole_however_its_files_are_compressed(tmp_path, names, missing):
    write(tmp_path, *names)
    if not missing:
        assert choice.of_names(str(tmp_path)) == {"train": [*names]}
        return
    advice = "get it, or --split=NAME:PATTERN takes the files that are there"
    with pytest.raises(UsageError, check=at(missing, "is missing", advice=advice)):
        choice.of_names(str(tmp_path))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress], ids=["plain", "GZIP", "ZLIB"])
def test_without_a_usual_name_files_are_told_by_their_bytes(tmp_path, pack):
    write(tmp_path, "train", "x/test", data=pack(RECORDS))
    write(tmp_path, "README", "train.json", "empty", data=b"")
    write(tmp_path, "logs/events.out.tfevents.1700000000.host.1.0.v2")
    write(tmp_path, "notes.gz", data=gzip.compress(b"notes of any length, which are no records"))
    assert choice.of_names(str(tmp_path)) == {"train": ["train"]}
    (tmp_path / "train").unlink()
    assert choice.of_names(str(tmp_path)) == {"test": ["x/test"]}
    (tmp_path / "x" / "test").unlink()
    with pytest.raises(UsageError, check=said("no file like", "it has 5 files")):
        choice.of_names(str(tmp_path))


@pytest.mark.parametrize("arguments", [[], ["train:*"]], ids=["names", "patterns"])
def test_a_name_that_a_manifest_cannot_list_is_told_without_a_flag_that_nobody_gave(tmp_path, arguments):
    write(tmp_path, "train:a.tfrecord")
    with pytest.raises(UsageError, check=said("'train:a.tfrecord' cannot be listed", "rename it")) as error:
        choice.of_flags(str(tmp_path), arguments) if arguments else choice.of_names(str(tmp_path))
    assert ("--split=" in str(error.value)) is bool(arguments)


LAYOUTS = {
    "two levels deep": (
        ("train/part-1/a.tfrec", "train/part-2/a.tfrec", "val/part-1/a.tfrec"),
        {"train": ["train/part-1/a.tfrec", "train/part-2/a.tfrec"], "validation": ["val/part-1/a.tfrec"]},
    ),
    "a folder of its own": (
        ("data/train/part-1/a.tfrec", "data/test/b.tfrec"),
        {"train": ["data/train/part-1/a.tfrec"], "test": ["data/test/b.tfrec"]},
    ),
    "Kaggle's counts": (
        ("train00-1024.tfrec", "train01-998.tfrec", "test-512.tfrec"),
        {"train": ["train00-1024.tfrec", "train01-998.tfrec"], "test": ["test-512.tfrec"]},
    ),
    "Kaggle's numbers": (("00-192x192-798.tfrec", "01-192x192-798.tfrec"), None),
    "TFX": (
        ("Split-train/data_tfrecord-00000-of-00001.gz", "Split-eval/data_tfrecord-00000-of-00001.gz"),
        {
            "train": ["Split-train/data_tfrecord-00000-of-00001.gz"],
            "test": ["Split-eval/data_tfrecord-00000-of-00001.gz"],
        },
    ),
    "TFX, one split": (("data_tfrecord-00000-of-00001.gz",), None),
    "TF-Slim, ZLIB": (
        ("train-00000-of-00001.zz", "validation-00000-of-00001.zz"),
        {"train": ["train-00000-of-00001.zz"], "validation": ["validation-00000-of-00001.zz"]},
    ),
    "without endings": (("train_01", "train_02", "test_01"), {"train": ["train_01", "train_02"], "test": ["test_01"]}),
    "channels of SageMaker": (
        ("train/part-r-00000", "validation/part-r-00000"),
        {"train": ["train/part-r-00000"], "validation": ["validation/part-r-00000"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_others_need_no_flag(tmp_path, layout):
    names, wanted = LAYOUTS[layout]
    write(tmp_path, *names)
    assert choice.of_names(str(tmp_path)) == (wanted or {"train": [*names]})


def test_folders_are_one_split_if_patterns_say_so(tmp_path):
    write(tmp_path, "a/x.tfrec", "b/x.tfrec", "c/x.tfrec")
    flags = ["train:a/*", "train:b/*.tfrec", "test:c/*"]
    assert choice.of_flags(str(tmp_path), flags) == {"train": ["a/x.tfrec", "b/x.tfrec"], "test": ["c/x.tfrec"]}
    with pytest.raises(UsageError, check=said("3 folders", "a/", "tells no split")):
        choice.of_names(str(tmp_path))


def test_a_manifest_in_a_folder_above_the_files_is_that_of_another_data_set(tmp_path):
    write(tmp_path, "train/part-1/a.tfrec")
    write(tmp_path, "train/manifest.json", data=b"{}")
    with pytest.raises(UsageError, check=at(pathlib.Path("train/manifest.json"), "a data set of its own")):
        choice.of_names(str(tmp_path))
