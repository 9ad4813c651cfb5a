import dataclasses
import pathlib
import re

import pytest
import tensorflow as tf

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.index.__main__ import main as index
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo
from tests.helpers.datasets import write_dataset
from trainer import plan
from trainer.task import Task


def split(name, examples):
    shard = ShardInfo(f"{name}-00000-of-00001.tfrecord", examples, 64 * examples, "00000000", 64)
    return SplitInfo((shard,), (examples, 0))


@pytest.fixture
def data_dir(tmp_path):
    """A manifest of 250 training and 33 test examples of 4x4x1 in two classes; no shard is read."""
    features = {"image": Feature("uint8", (4, 4, 1), "raw"), "label": Feature("int64"), "key": Feature("string")}
    splits = {"train": split("train", 250), "test": split("test", 33)}
    manifest = Manifest("tiny", ("a", "b"), features, splits, (0.0,), (1.0,), (), {})
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    return tmp_path


@pytest.mark.parametrize(("remainder", "steps", "last_step"), [("pad", 13, 52), ("drop", 12, 48)])
def test_numbers(remainder, steps, last_step, data_dir, config_of):
    made = plan.make(config_of(data_dir=data_dir, epochs=4, global_batch_size=20, remainder=remainder))
    assert (made.training.steps_per_epoch, made.last_step) == (steps, last_step)
    evaluation, spec = made.evaluation["test"], made.training.spec
    assert (evaluation.order.num_records, evaluation.order.steps_per_epoch, made.may_skip) == (33, 2, 0)
    assert (spec.seed, spec.streams, spec.training) == (0, 1, True)


def test_a_split_without_labels_is_not_evaluated_on(data_dir, config_of):
    made = manifests.load(data_dir)
    features = {**made.features, "label": Feature("int64", stored_as="class")}
    unlabelled = dataclasses.replace(made.splits["test"], label_histogram=())
    splits = {"train": made.splits["train"], "test": unlabelled, "val": split("val", 20)}
    made = dataclasses.replace(made, features=features, splits=splits, format_version=4)
    (data_dir / "manifest.json").write_bytes(made.to_bytes())
    found = plan.make(config_of(data_dir=data_dir, global_batch_size=20))
    assert [*found.evaluation] == ["val"]
    for flags in ({"eval_split": "test"}, {"train_split": "test+val"}):
        with pytest.raises(UsageError, match="split 'test' has no labels: .*: train, val"):
            plan.make(config_of(data_dir=data_dir, global_batch_size=20, **flags))


def test_a_source_of_a_mixture_has_its_own_view_by_a_flag(data_dir, config_of):
    a, b = f"{data_dir}:train", f"{data_dir}:test"
    given = {"data_dir": f"{a}=1,{b}=1", "global_batch_size": 20, "eval_split": "none"}
    made = plan.make(config_of(**given, limit=f"{b}: 10", where=f"{a}: width > 3")).training
    assert [part.order.num_records for part in made.parts] == [250, 10]
    assert [part.spec.view for part in made.parts] == ["where: width > 3", "limit: 10"]
    for wrong, message in (
        ({"where": f"{a}: width >"}, "where='width >': is not an expression"),
        ({"limit": f"{b}: none"}, "limit='none': must be a number of records"),
        ({"where": "c: width > 3"}, "where=c: width > 3: .*does not begin with a source's name.*; the sources are "),
    ):
        with pytest.raises(UsageError, match=message):
            config_of(**{**given, **wrong})


def test_a_source_is_evaluated_on_the_classes_that_it_is_trained_on(tmp_path, config_of):
    folders = [str(tmp_path / name) for name in ("one", "two")]
    for folder, classes in zip(folders, (3, 2), strict=True):
        write_dataset(pathlib.Path(folder), (20,), classes=classes)
        index([folder, "--add_columns=records"])
    given = {"data_dir": f"{folders[0]}=1,{folders[1]}=1", "global_batch_size": 20, "eval_split": "test"}
    for classes in ("class 1,class 0", "; ".join(f"{folder}: class 1,class 0" for folder in folders)):
        made = plan.make(config_of(**given, classes=classes))
        assert made.training.first.class_names == ("class 1", "class 0")
        assert [part.class_names for part in made.evaluation.values()] == [("class 1", "class 0")] * 2


def test_workers_that_share_streams_are_told_what_it_costs(data_dir, config_of):
    for flags, note in (
        ({"streams": 2, "shuffle_bytes": 320}, r"4 workers .*--streams=2 .*2\.00 times .* --streams=4 "),
        ({"streams": 4, "shuffle_bytes": 320}, None),
        ({}, None),  # in memory
    ):
        made = plan.make(config_of(data_dir=data_dir, global_batch_size=20, **flags), 4)
        assert (note is None and not made.notes) or re.search(note, *made.notes), made.notes


def test_a_split_that_is_not_shuffled_as_one_has_many_streams(data_dir, config_of):
    """Its 250 images take 4,000 bytes."""
    made = [plan.make(config_of(data_dir=data_dir, global_batch_size=20, shuffle_bytes=b)) for b in (None, 2000)]
    assert [each.training.spec.streams for each in made] == [1, 20]


def test_every_worker_may_skip_corrupt_records(data_dir, config_of):
    config = config_of(data_dir=data_dir, on_corrupt="skip", max_corrupt=3, global_batch_size=20)
    assert plan.make(config, 2).may_skip == 6


def test_what_an_example_takes_in_memory_is_part_of_the_order(data_dir, config_of):
    """The windows are cut by it, so that a resume with another --resize is refused."""
    made = [plan.make(config_of(data_dir=data_dir, resize=resize)) for resize in (None, "4x4", "8x6")]
    assert [each.training.spec.record_bytes for each in made] == [16, 16, 48]
    assert list(made[0].training.spec.differences(dataclasses.asdict(made[2].training.spec))) == ["record_bytes"]


def test_raw_images_are_not_cropped_while_they_are_decoded(data_dir, config_of):
    with pytest.raises(UsageError, match="random_crop"):
        plan.make(config_of(data_dir=data_dir, augment="random_crop(size=3)"))


@pytest.mark.parametrize("name", ["none", ""])
def test_no_evaluation(name, data_dir, config_of):
    assert plan.make(config_of(data_dir=data_dir, eval_split=name)).evaluation == {}


def renamed(data_dir, test):
    """Gives the test split of a data set another name; returns its folder."""
    made = manifests.load(data_dir)
    splits = {test if name == "test" else name: split for name, split in made.splits.items()}
    (data_dir / "manifest.json").write_bytes(dataclasses.replace(made, splits=splits).to_bytes())
    return data_dir


@pytest.mark.parametrize(("test", "notes"), [("test", 0), ("validation", 1), ("held_out", 1)])
def test_the_split_to_evaluate_on_is_one_that_is_there(test, notes, data_dir, config_of):
    made = plan.make(config_of(data_dir=renamed(data_dir, test)))
    assert list(made.evaluation) == [test]
    assert len(made.notes) == notes
    assert all(repr(test) in note and "--eval_split" in note for note in made.notes)


def test_a_split_that_is_given_is_not_replaced(data_dir, config_of):
    renamed(data_dir, "validation")
    with pytest.raises(UsageError, match="--eval_split=test: .*validation"):
        plan.make(config_of(data_dir=data_dir, eval_split="test"))
    with pytest.raises(UsageError, match="--eval_split=test: .*--eval_split=none"):
        plan.make(config_of(data_dir=data_dir, model="mlp", train_split="train+validation[:9]"))  # none is left


def test_an_unknown_split_to_evaluate_on(data_dir, config_of):
    with pytest.raises(UsageError, match=r"^--eval_split=validation: unknown .*test, train.*--eval_split=none"):
        plan.make(config_of(data_dir=data_dir, eval_split="validation"))
    with pytest.raises(UsageError, match=r"^--train_split: unknown 'trian'; did you mean 'train'\? known: test, train"):
        plan.make(config_of(data_dir=data_dir, train_split="trian"))


class Parses(Task):
    parse = staticmethod(lambda records: (tf.zeros([1, 2]), tf.zeros([1])))


def test_what_a_task_parses_has_not_the_size_of_the_model(data_dir, config_of):
    config = config_of(data_dir=data_dir, model="keras:EfficientNetV2B3")
    assert (config.data.resize, plan.request_of(config, Parses).resize) == ("300x300", None)
    assert plan.request_of(config, Task).resize == (300, 300)
    with pytest.raises(UsageError, match="resize"):
        plan.request_of(config_of(data_dir=data_dir, model="keras:EfficientNetV2B3", resize="64x64"), Parses)


@pytest.fixture
def other_dir(data_dir):
    """A manifest of 21 held-out examples of the same classes; no shard is read."""
    made = dataclasses.replace(manifests.load(data_dir), splits={"held_out": split("held_out", 21)})
    (data_dir / "other").mkdir()
    (data_dir / "other" / "manifest.json").write_bytes(dataclasses.replace(made, image_mean=(9.0,)).to_bytes())
    return data_dir / "other"


@pytest.mark.parametrize("given", [None, "held_out", "held_out[:20]"])
def test_another_data_set_may_be_evaluated_on(given, data_dir, other_dir, config_of):
    config = config_of(data_dir=data_dir, eval_data_dir=other_dir, eval_split=given, train_split="train+test")
    made = plan.make(config)
    [(name, evaluation)] = made.evaluation.items()
    assert (name, evaluation.order.num_records) == (given or "held_out", 20 if given and "[" in given else 21)
    assert [str(evaluation.request.folder), str(evaluation.request.statistics)] == [str(other_dir), str(data_dir)]
    assert str(made.training.first.request.folder) == str(data_dir)
    assert plan.splits_of(config) == ["held_out"]
    assert not any("stored" in note for note in made.notes)
    [(name, evaluation)] = plan.evaluation_of(plan.with_trained_split(config), None).items()
    assert (name, str(evaluation.request.folder)) == ("train+test", str(data_dir))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_names": ("a", "c")}, "differ in class names: a, b and a, c"),
        ({"features": {"image": Feature("uint8", (5, 4, 1), "raw")}}, "differ in the shape of images"),
        ({"splits": {"train": split("train", 9), "more": split("more", 9)}}, "--eval_split=test: .*more, train"),
    ],
)
def test_another_data_set_must_be_like_the_one_trained_on(change, message, data_dir, other_dir, config_of):
    made = manifests.load(other_dir)
    change = {name: {**made.features, **value} if name == "features" else value for name, value in change.items()}
    (other_dir / "manifest.json").write_bytes(dataclasses.replace(made, **change).to_bytes())
    with pytest.raises(UsageError, match=f"^--eval_data_dir={re.escape(str(other_dir))}.*{message}"):
        plan.make(config_of(data_dir=data_dir, eval_data_dir=other_dir))


def test_that_images_to_evaluate_on_are_stored_otherwise_is_noted(data_dir, other_dir, config_of):
    made = manifests.load(other_dir)
    features = {**made.features, "image": Feature("uint8", (4, 4, 1), "png")}
    splits = {"held_out": dataclasses.replace(split("held_out", 21), image_sizes={"4x4": 21})}
    (other_dir / "manifest.json").write_bytes(dataclasses.replace(made, features=features, splits=splits).to_bytes())
    notes = plan.make(config_of(data_dir=data_dir, eval_data_dir=other_dir)).notes
    [note] = [note for note in notes if "stored" in note]
    assert note.startswith(f"--eval_data_dir={other_dir}: its images are stored as png, ")
    assert note.endswith("those that are trained on as raw")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"eval_data_dir": "D", "eval_split": "none"}, "^--eval_data_dir=D with --eval_split=none: "),
        ({"eval_data_dir": " "}, "^--eval_data_dir: is empty"),
        ({"eval_data_dir": "D", "model_dir": "D/run"}, "^--model_dir=D/run: lies in .*--eval_data_dir=D"),
    ],
)
def test_flags_that_do_not_go_with_another_data_set(flags, message, data_dir, config_of):
    with pytest.raises(UsageError, match=message):
        config_of(data_dir=data_dir, **flags)


@pytest.mark.parametrize(
    ("values", "workers"),
    [
        ({"strategy": "mirrored", "num_replicas": 3}, 1),
        ({"strategy": "multiworker"}, 3),
    ],
)
def test_replicas_have_to_divide_the_batch(values, workers, data_dir, config_of):
    with pytest.raises(UsageError, match=r"global_batch_size=100 .* 3 replicas.* 99 and 102"):
        plan.make(config_of(data_dir=data_dir, model="mlp", **values), workers)


def test_no_data(tmp_path, config_of):
    with pytest.raises(DataError) as caught:
        plan.make(config_of(data_dir=tmp_path))
    assert caught.value.path == f"{tmp_path}/manifest.json"


def test_a_folder_is_made_with_its_parents(tmp_path):
    plan.prepare_folder("--model_dir", str(tmp_path / "a" / "b"))
    plan.prepare_folder("--model_dir", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be(name, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=r"--model_dir=.*file"):
        plan.prepare_folder("--model_dir", str(tmp_path / name))


def test_sources_with_the_same_records_are_noted(data_dir, config_of):
    for other, noted in ((data_dir, True), (f"{data_dir}/", True), (f"{data_dir}:train[:100]", False)):
        mixture = f"{data_dir}:train=0.6,{other}=0.4"
        notes = plan.make(config_of(data_dir=mixture, global_batch_size=20)).notes
        assert len(notes) == noted
        assert all(f"{data_dir}:train and " in note for note in notes)
    assert not plan.make(config_of(data_dir=data_dir, global_batch_size=20)).notes
