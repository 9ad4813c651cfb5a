"""What a run trains that names neither a model nor a task."""

import dataclasses

import pytest

from pipeline.errors import UsageError
from pipeline.manifest import FORMAT_VERSION, Feature, Manifest, ShardInfo, SplitInfo, load
from trainer import config as configs
from trainer import plan
from trainer.config import file
from trainer.run_folder import RunFolder

LABEL = Feature("int64")


def split(name, examples, size):
    shard = ShardInfo(f"{name}-00000-of-00001.tfrecord", examples, examples * 2048, "00000000", 2048)
    return SplitInfo((shard,), (examples,), {size: examples}, 0, is_labelled=True)


@pytest.fixture
def data(tmp_path):
    """Writes the manifest of a data set with a shape of images, and numbers of examples by split."""

    def write(shape=(28, 28, 1), label=LABEL, version=FORMAT_VERSION, options=None, **splits):
        size, channels = f"{shape[0] or 9}x{shape[1] or 10}", shape[2] or 3
        made = Manifest(
            "mine",
            ("a",),
            {"image": Feature("uint8", shape, "png"), "label": label, "key": Feature("string")},
            {name: split(name, count, size) for name, count in (splits or {"train": 1536, "test": 512}).items()},
            *((0.0,) * channels, (1.0,) * channels, (), options or {}, "", version),
        )
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/manifest.json").write_bytes(made.to_bytes())
        load(tmp_path / "data")
        return str(tmp_path / "data")

    return write


def chosen(*arguments):
    config = configs.parse(arguments)
    return config.of_data.partition(": ")[2]


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        ((32, 32, 3), "--model=cifar10_cnn"),
        ((28, 28, 1), "--model=lenet"),
        ((16, 16, 3), "--model=lenet"),
        ((8, 8, 1), "--model=mlp"),
        ((48, 48, 3), "--resize=32x32 --model=cifar10_cnn"),
        ((10, 200, 3), "--resize=32x32 --model=cifar10_cnn"),
        ((None, 500, 3), "--resize=32x32 --model=cifar10_cnn"),
        ((None, None, None), "--resize=32x32 --model=cifar10_cnn"),
        ((None, None, 1), "--resize=32x32 --model=lenet"),
    ],
)
def test_the_model_fits_the_images(data, shape, flags):
    assert chosen(data(shape)) == f"{flags} --optimizer=adamw --global_batch_size=32 --epochs=40"


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (["train", "test"], ""),
        (["train", "validation", "test"], ""),
        (["train", "test2", "validation"], ""),
        (["train", "first", "second"], " --eval_split=first"),
        (["train"], " --eval_split=none"),
        (["all"], " --train_split=all --eval_split=none"),
        (["test"], " --train_split=test --eval_split=none"),
        (["letters", "digits"], " --train_split=letters"),
    ],
)
def test_the_splits_are_those_that_there_are(data, names, flags):
    assert chosen(data(**{name: 100 - place for place, name in enumerate(names)})).endswith(f" --epochs=40{flags}")


def test_folds_are_trained_on_but_for_the_last(data):
    folds = data(fold0=100, fold1=101, fold2=99, options={"folds": 3})
    assert chosen(folds).endswith(" --epochs=40 --train_split=fold0+fold1")
    assert chosen(folds, "--train_split=fold1+fold2").endswith(" --epochs=40")


@pytest.mark.parametrize(
    ("count", "flags"),
    [
        (208, "--global_batch_size=32 --epochs=40"),
        (4_999, "--global_batch_size=32 --epochs=40"),
        (5_000, "--global_batch_size=64 --epochs=20"),
        (60_000, "--global_batch_size=128 --epochs=10"),
    ],
)
def test_few_images_are_trained_on_longer_in_smaller_batches(data, count, flags):
    assert chosen(data(train=count, test=1_000_000)).endswith(f" {flags}")


def test_a_slice_counts_as_what_it_selects(data):
    assert "--global_batch_size=32 " in chosen(data(train=60_000), "--train_split=train[:1000]")


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ("--optimizer=sgd", "--resize=32x32 --model=cifar10_cnn --global_batch_size=32 --epochs=40"),
        ("--resize=16x12", "--model=lenet --optimizer=adamw --global_batch_size=32 --epochs=40"),
        ("--resize=64x64", "--model=cifar10_cnn --optimizer=adamw --global_batch_size=32 --epochs=40"),
        (
            "--augment=random_resized_crop",
            "--model=cifar10_cnn --optimizer=adamw --global_batch_size=32 --epochs=40",
        ),
        ("--train_steps=9", "--resize=32x32 --model=cifar10_cnn --optimizer=adamw --global_batch_size=32"),
        (
            "--eval_split=none",
            "--resize=32x32 --model=cifar10_cnn --optimizer=adamw --global_batch_size=32 --epochs=40",
        ),
        ("--model=resnet20", ""),
        ("--strategy=parameter_server", ""),
    ],
)
def test_what_the_user_gives_is_not_chosen(data, given, flags):
    assert chosen(data((48, 48, 3)), given) == flags


def test_the_optimizers_defaults_are_those_of_the_model_that_was_chosen(data):
    one, other = data(), configs.parse([data(), "--model=lenet", "--optimizer=adamw"])
    assert configs.parse([one]).optimizer == other.optimizer
    assert configs.parse([one, "--optimizer=momentum"]).optimizer == configs.parse([one, "--model=lenet"]).optimizer


def test_labels_that_are_no_classes_need_a_task(data):
    path = data(label=Feature("int64", (1,), stored_as="tags"), version=5)
    with pytest.raises(UsageError, match="its labels are not a class per image: give a Task .*--task=MODULE:CLASS"):
        chosen(path)
    with pytest.raises(UsageError, match="its labels are not a class per image: give a Task .*--task=MODULE:CLASS"):
        plan.make(configs.parse([path, "--model=lenet"]))
    assert chosen(path, "--task=m:T") == ""


def test_a_folder_that_is_none_and_several_choose_nothing(data, tmp_path):
    assert chosen(str(tmp_path / "none")) == ""
    assert chosen(f"--data_dir={data()}=0.5,{data()}=0.5", "--model_dir=M") == ""


def test_the_run_lies_beside_the_data(data, tmp_path, monkeypatch):
    def folder(*arguments):
        return configs.parse(arguments).run.model_dir

    path = data()
    assert folder(path) == folder(f"{path}/") == f"{path}-run"
    assert folder(path, "--model_dir=M") == "M"
    assert folder("s3://bucket/some/digits?region=eu") == "digits-run"
    monkeypatch.chdir(path)
    assert folder(".") == f"{path}-run"
    with pytest.raises(UsageError, match="--model_dir is missing"):
        configs.parse([f"--data_dir={path}=0.5,{path}=0.5"])


def test_a_run_that_exists_goes_on_with_its_own_flags(data, tmp_path):
    """Though the data set has grown, and a run of an earlier version had the default model."""
    path = data(train=4_999)
    first = configs.parse([path, "--model_dir", str(tmp_path / "run"), "--learning_rate=0.5"])
    (tmp_path / "run").mkdir()
    file.write(RunFolder(tmp_path / "run").config, dataclasses.asdict(first))
    data((48, 48, 3), train=60_000)
    assert configs.parse([path, f"--model_dir={tmp_path / 'run'}", "--model=mlp"]).model.model == "mlp"
    again = configs.parse([path, f"--model_dir={tmp_path / 'run'}"])
    assert (again.model.model, again.order.global_batch_size, again.steps.epochs) == ("lenet", 32, 40)
    assert again.of_data == ""
    assert again.optimizer.learning_rate != 0.5  # a flag of the user's own, which is to be repeated
    assert configs.parse([path, f"--model_dir={tmp_path / 'run'}", "--fresh"]).model.model == "cifar10_cnn"
    task = dataclasses.replace(first, model=dataclasses.replace(first.model, task="m:T"))
    file.write(RunFolder(tmp_path / "run").config, dataclasses.asdict(task))
    assert configs.parse([path, f"--model_dir={tmp_path / 'run'}"]).model.task == "m:T"
    shorter = configs.parse([path, f"--model_dir={tmp_path / 'run'}", "--train_steps=7"])
    assert (shorter.steps.train_steps, shorter.steps.epochs) == (7, None)


@pytest.mark.parametrize("more", [[], ["--model=lenet"], ["--model=mlp"], ["--optimizer=adamw"]])
def test_a_run_of_a_task_that_exists_has_the_defaults_that_it_began_with(data, tmp_path, more):
    """Not those of the default model, which is stored beside the task: they have an average of the weights."""
    path, folder = data(), tmp_path / "run"
    first = configs.parse([path, f"--model_dir={folder}", "--task=m:T", *more])
    folder.mkdir()
    file.write(RunFolder(folder).config, dataclasses.asdict(first))
    again = configs.parse([path, f"--model_dir={folder}"])
    assert again == first


def test_help_says_what_decides_on_the_model_and_defaults_beside_a_task_hold(data, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        configs.parse(["--help"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  --model str"))
    instead = "mlp with --optimizer=momentum --learning_rate=0.01"
    assert line.endswith(f"(not given: the data set's images decide; with --task, {instead})")
    beside = configs.parse([f"--data_dir={data()}", "--model_dir=run", "--task=mine:Task"])
    assert (beside.model.model, beside.optimizer.optimizer, beside.optimizer.learning_rate) == ("mlp", "momentum", 0.01)
