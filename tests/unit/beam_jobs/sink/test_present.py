"""A folder that holds a data set already: the command recognises it, names every difference and finds damage."""

import os
import shutil

import pytest

from beam_jobs import convert
from beam_jobs.sink import present
from pipeline import images, manifest
from pipeline.errors import DataError
from pipeline.manifest import PixelRule, naming
from tests.helpers.datasets import edit_manifest
from tests.helpers.made_source import Content
from tests.helpers.round_trips import fill, picture


def flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def data_set(converted_mnist, tmp_path, convert_without_beam):
    """A converted tiny MNIST: its source, its folder, and a function that converts again with other flags."""
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(converted_mnist, tmp_path, dirs_exist_ok=True)

    def again(*flags, **options):
        return convert_without_beam("--dataset=mnist", f"--source={source}", f"--data_dir={out}", *flags, **options)

    return source, out, again


def times(folder, contents):
    return {name: (folder / name).stat().st_mtime_ns for name in contents(folder)}


SAME = "--num_shards=train:3,test:2"


@pytest.mark.parametrize(
    "flags", [["--num_shards=test:2,train:3"], [SAME, "--max_rejects=7"], [SAME, "--max_shard_bytes=1048576"]]
)
def test_the_same_options_again_change_nothing(flags, data_set, contents):
    _, out, again = data_set
    before = times(out, contents)
    assert again(*flags).code == 0
    assert before == times(out, contents)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([SAME, "--split=train:0.5,test:0.5"], "--split is not given there and train:0.5,test:0.5 here"),
        (
            ["--seed=4", "--resize=14x14", "--scaled_decoding", "--channels=3", "--compression=GZIP"],
            "--channels is not given there and 3 here; --compression is not given there and GZIP here; "
            "--num_shards is test:2,train:3 there and train:1,test:1 here; --resize is not given there and 14x14 here; "
            "--scaled_decoding is not given there and True here; --seed is 0 there and 4 here",
        ),
    ],
)
def test_other_options_are_an_error_that_names_them_all(flags, text, data_set, contents):
    _, out, again = data_set
    before = contents(out)
    outcome = again(*flags)
    assert outcome.code == 2
    assert text in outcome.err
    assert "--overwrite" in outcome.err
    assert contents(out) == before


def test_another_source_is_an_error_that_names_the_file(data_set):
    source, _, again = data_set
    path = source / "t10k-labels-idx1-ubyte"
    data = bytearray(path.read_bytes())
    data[8] = (data[8] + 1) % 10
    path.write_bytes(data)
    outcome = again(SAME)
    assert outcome.code == 2
    assert "t10k-labels-idx1-ubyte" in outcome.err


def test_another_data_set_is_an_error(data_set, cifar_folder, convert_without_beam):
    outcome = convert_without_beam("--dataset=cifar10", f"--source={cifar_folder()[0]}", f"--data_dir={data_set[1]}")
    assert outcome.code == 2
    assert "--dataset is mnist there and cifar10 here" in outcome.err


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 8), flip_last_bit])
@pytest.mark.parametrize("name_of", [str, naming.offsets_name, naming.crcs_name])
def test_a_damaged_file_is_found_and_replaced_on_demand(name_of, damage, made, pixels, tmp_path, convert_without_beam):
    files = [images.encoded(pixels(1, (size, 9, 3))[0], "png") for size in (4, 9, 30)]
    flags = ("--dataset=made", f"--source={made({'train': Content(files)})}", f"--data_dir={tmp_path / 'out'}")
    assert convert_without_beam(*flags).code == 0
    name = name_of("train-00000-of-00001.tfrecord")
    damage(tmp_path / "out" / name)
    outcome = convert_without_beam(*flags)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert f"{name}: " in outcome.err
    assert "--overwrite" in outcome.err
    assert convert_without_beam(*flags, "--overwrite").code == 0
    assert convert_without_beam(*flags).code == 0


def test_overwrite_removes_what_the_manifest_lists_and_nothing_else(data_set, contents):
    _, out, again = data_set
    others = {"train-00000-of-00009.tfrecord": b"mine", "notes.txt": b"mine", ".hidden": b"mine"}
    for name, data in others.items():
        (out / name).write_bytes(data)
    assert again("--num_shards=1", "--overwrite").code == 0
    found = contents(out)
    shards = [f"{split}-00000-of-00001.tfrecord" for split in ("train", "test")]
    ours = {"manifest.json", "croissant.json", *naming.TFDS_FILES, *shards, *map(naming.crcs_name, shards)}
    assert found.keys() == ours | others.keys()
    assert {name: found[name] for name in others} == others
    assert present.notes(out, present.existing_manifest(out)) == [
        "1 file that the manifest does not list (train-00000-of-00009.tfrecord)"
    ]


def test_overwrite_never_removes_a_file_that_is_no_shard(data_set):
    _, out, again = data_set
    (out / "notes.txt").write_bytes(b"mine")
    edit_manifest(out, lambda content: content["splits"]["test"]["shards"][0].update(file="notes.txt"))
    assert again("--overwrite").code == 0
    assert (out / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("text", ["{", '{"format_version": 99}', "[]"])
@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_damaged_manifest_removes_nothing_and_names_the_folder(data_set, contents, text, flags):
    _, out, again = data_set
    (out / "manifest.json").write_text(text)
    before = contents(out)
    outcome = again(*flags)
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert f"remove {out} " in outcome.err
    assert contents(out) == before


def test_a_missing_manifest_is_no_data_set_and_a_dangling_one_an_error(tmp_path):
    assert present.existing_manifest(tmp_path) is None
    (tmp_path / "manifest.json").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError):
        present.existing_manifest(tmp_path)


def test_classes_that_are_renumbered_by_overwrite_are_named(tmp_path, capsys):
    def convert_classes(*classes, flags=("--overwrite",)):
        shutil.rmtree(tmp_path / "in", ignore_errors=True)
        fill(tmp_path / "in", {f"{name}/0.png": picture(0) for name in classes})
        convert.main(
            ["--dataset=image_folder", f"--source={tmp_path / 'in'}", f"--data_dir={tmp_path / 'out'}", *flags]
        )
        return capsys.readouterr().out

    assert "other labels" not in convert_classes("cat", "dog", flags=())
    assert "other label" not in convert_classes("cat", "dog", "eel")  # the old ones keep theirs
    for flags in (["--overwrite", "--dry_run"], ["--overwrite"]):
        said = convert_classes("bee", "cat", "dog", flags=flags)
        assert "3 classes have other labels" in said
        assert "'cat' 0 -> 1, 'dog' 1 -> 2, 'eel' 2 -> none (new: 'bee')" in said


def test_a_data_set_of_an_older_pixel_rule_is_the_same_and_says_so(tmp_path, capsys):
    fill(tmp_path / "in", {f"{'ab'[row % 2]}/{row}.png": picture(row) for row in range(4)})
    flags = ["--dataset=image_folder", f"--source={tmp_path / 'in'}", f"--data_dir={tmp_path / 'out'}"]
    convert.main(flags)
    line = "note: its images are as stored, fast DCT; --overwrite converts them upright, exact DCT"
    for is_old in (False, True):
        if is_old:  # as releases wrote it that had no rule
            edit_manifest(tmp_path / "out", lambda content: content.pop("pixel_rule"))
        for more in ([], ["--dry_run"]):
            capsys.readouterr()
            convert.main([*flags, *more])
            said = capsys.readouterr().out
            assert "already holds this data set, made with the same options" in said
            assert (line in said.splitlines()) == is_old
    convert.main([*flags, "--overwrite"])
    assert manifest.load(tmp_path / "out").pixel_rule == PixelRule()
