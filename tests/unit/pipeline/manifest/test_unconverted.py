"""What is said of a folder that is not a data set yet: the whole command, by what lies in it."""

import shlex
import tarfile

import pytest

from beam_jobs.config import ConvertConfig
from pipeline.commands import commandline
from pipeline.errors import DataError
from pipeline.manifest import load


@pytest.mark.parametrize(
    ("files", "flags"),
    [
        (
            ["cats/1.jpg", "dogs/2.PNG"],
            "--dataset=image_folder --source=F --split=train:0.8,validation:0.2 --data_dir=F-data",
        ),
        (["train/cats/1.jpg", "test/cats/2.jpg"], "--dataset=image_folder --source=F --data_dir=F-data"),
        (["labels.csv", "images/1.webp"], "--dataset=image_table --source=F/labels.csv --data_dir=F-data"),
        (["labels.jsonl.gz", "1.jpg"], "--dataset=image_table --source=F/labels.jsonl.gz --data_dir=F-data"),
        (["part-0.parquet"], "--dataset=parquet --source=F --data_dir=F-data"),
        (["train/data-00000-of-00001.arrow", "dataset_dict.json"], "--dataset=arrow --source=F --data_dir=F-data"),
        (["a.feather"], "--dataset=arrow --source=F --data_dir=F-data"),
        (
            ["labels.csv", "images.zip"],
            "--dataset=image_table --source=F/labels.csv --image_dir=F/images.zip --data_dir=F-data",
        ),
    ],
)
def test_images_and_tables_are_converted_by_the_command_that_is_printed(tmp_path, monkeypatch, files, flags):
    monkeypatch.chdir(tmp_path)
    for file in files:
        (tmp_path / "F" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "F" / file).touch()
    with pytest.raises(DataError) as caught:
        load("F")
    command = str(caught.value).partition("python -m beam_jobs.convert ")[2]
    assert command == flags
    commandline.parse("a", "", ConvertConfig, shlex.split(command))


@pytest.mark.parametrize(
    ("members", "flags"),
    [
        (["a/1.jpg", "a/1.cls"], "--dataset=webdataset --source=F --data_dir=F-data"),
        (["1.json", "1.PNG"], "--dataset=webdataset --source=F --data_dir=F-data"),
        (["1.jpg", "2.cls"], ""),
        (["1.txt", "1.cls"], ""),
    ],
)
def test_tars_of_samples_are_told_by_their_members(tmp_path, monkeypatch, members, flags):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "F").mkdir()
    with tarfile.open(tmp_path / "F" / "train-0.tar", "w") as archive:
        for name in members:
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError) as caught:
        load("F")
    assert str(caught.value).partition("python -m beam_jobs.convert ")[2] == flags


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["train-00000-of-00002"], "it has TFRecords; use them where they are: python -m pipeline.index "),
        (["train.tfrecord.gz", "a/1.jpg"], "it has TFRecords; use them where they are: python -m pipeline.index "),
        ([".converting.tmp-0123456789abcdef/x", "a"], "its conversion did not finish: run the same command again"),
        (["a.csv", "b.zip", "c.zip"], "make one with: python -m beam_jobs.convert; from existing TFRecords: "),
        (["a.tar"], "make one with: python -m beam_jobs.convert; from existing TFRecords: "),
        ([".hidden/1.jpg"], "make one with: python -m beam_jobs.convert; from existing TFRecords: "),
    ],
)
def test_what_else_lies_there(tmp_path, files, said):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert f"{tmp_path}/manifest.json: no manifest, so " in str(caught.value)
    assert said in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=f"^{tmp_path}/nowhere: there is no such folder; make one with: "):
        load(tmp_path / "nowhere")
