"""By which statistics a run's images are normalised outside of it, and what is said of those that do not fit."""

import dataclasses
import json
import shutil

import pytest

from pipeline.errors import DataError, UsageError
from tests.helpers.datasets import edit_manifest, write_dataset
from trainer import inference, plan
from trainer.checkpoint.reader import Record
from trainer.config.trained import CheckpointFlags
from trainer.task import Task

DARKER = (1.0, 2.0, 3.0)


@pytest.fixture
def data(tmp_path):
    """Data sets `own`, a `copy` of it, `darker`, which says that it has other means, and `grey` images."""
    for name, shape in {"own": (8, 6, 3), "darker": (8, 6, 3), "grey": (8, 6, 1)}.items():
        write_dataset(tmp_path / name, (12,), shape)
    edit_manifest(tmp_path / "darker", lambda content: content.update(image_mean=list(DARKER)))
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    return tmp_path


@pytest.fixture
def record_of(data, config_of):
    """Returns a function that makes what a checkpoint says of a run on the data of a flag."""

    def record_of(data_dir, augment="normalize"):
        config = config_of(data_dir=data_dir, augment=augment, global_batch_size=4)
        order = json.loads(plan.make(config).training.spec.to_json())
        return Record(data / "run" / "ckpt-3", 3, False, {"config": dataclasses.asdict(config), "order": order})

    return record_of


def means(record, **flags):
    """Returns the means that normalise what a command with these flags evaluates on."""
    given = CheckpointFlags("run", **{name: str(value) for name, value in flags.items()})
    config = record.config(**({} if given.data_dir is None else {"data_dir": given.data_dir}))
    return next(iter(inference._resolved(record, config, Task, given).values())).statistics.image_mean


def test_they_are_those_of_the_run_unless_others_are_given(data, record_of):
    record = record_of(data / "own")
    own = means(record)
    assert own != DARKER
    for name in ("copy", "darker"):
        assert means(record, data_dir=data / name) == own
        assert means(record, data_dir=data / name, statistics=data / "darker") == DARKER
    assert means(record, statistics=data / "darker") == DARKER
    mixture = record_of(f"{data / 'own'}=0.5,{data / 'darker'}=0.5")
    assert means(mixture, data_dir=data / "darker") == own


def test_a_run_whose_data_are_gone_needs_them_where_they_count(data, record_of):
    record, plain = record_of(data / "own"), record_of(data / "own", "none")
    shutil.rmtree(data / "own")
    assert means(plain, data_dir=data / "darker") == DARKER
    assert means(record, data_dir=data / "copy") != DARKER
    words = f"--data_dir={data}/darker: is not what .*ckpt-3 was trained on, and {data}/own .* give its folder"
    with pytest.raises(UsageError, match=words):
        means(record, data_dir=data / "darker")
    with pytest.raises(DataError, match=f"{data}/own: .*--data_dir"):
        means(record)


def test_what_does_not_fit_is_one_line_with_the_flag_at_fault(data, record_of):
    record, plain = record_of(data / "own"), record_of(data / "own", "none")
    grey = data / "grey"
    with pytest.raises(UsageError, match=f"^--statistics='{grey}': .* 1 channels.*/own .*3"):
        means(record, statistics=grey)
    with pytest.raises(UsageError, match=f"^--data_dir={grey}: .*/ckpt-3 .* 3 channels"):
        means(record, data_dir=grey)
    with pytest.raises(DataError, match=f"^--statistics={data}/none: {data}/none: "):
        means(record, statistics=data / "none")
    with pytest.raises(UsageError, match=f"^--statistics={grey}: --augment=none "):
        means(plain, statistics=grey)


def test_an_unknown_split_is_named_once_by_its_flag(data, record_of):
    record = record_of(data / "own")
    with pytest.raises(UsageError) as caught:
        inference._resolved(record, record.config(eval_split="valid"), Task, CheckpointFlags("run", split="valid"))
    assert str(caught.value).startswith("--split=valid: unknown 'valid'; ")


def test_data_whose_classes_have_other_numbers_are_refused(data, record_of):
    record, named = record_of(data / "own"), json.loads((data / "own" / "manifest.json").read_text())["class_names"]
    record.content["class_names"] = named
    edit_manifest(data / "copy", lambda content: content["class_names"].reverse())
    words = f"--data_dir={data}/copy: its class 0 is '{named[-1]}', but .*/ckpt-3 was trained with '{named[0]}'"
    with pytest.raises(UsageError, match=words):
        inference.build(record, CheckpointFlags("run", data_dir=str(data / "copy"), split="train"))
