import dataclasses

import pytest

from pipeline.errors import UsageError
from trainer.config import TrainConfig, file, parse

PATHS = {"data_dir": "D", "model_dir": "M"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recipe.yaml"


def test_flags_of_the_command_line_override_those_of_the_file_and_both_the_models(path):
    path.write_text("data_dir: D\nmodel: resnet20\nlearning_rate: 0.3\nresize: null\njit_compile: true\n")
    config = parse([f"--config={path}", "--model_dir=M", "--learning_rate=0.2"])
    assert config == TrainConfig.of(**PATHS, model="resnet20", learning_rate=0.2, jit_compile=True)
    assert config.optimizer.decay_at == "91,136.5"  # the model's


def test_lists_and_groups(path):
    path.write_text("optimizer:\n  schedule: piecewise\n  decay_at: [3, 4.5]\nrun: {model_dir: M}\ndata_dir: D\n")
    assert parse(["--config", str(path)]) == TrainConfig.of(**PATHS, schedule="piecewise", decay_at="3,4.5")


def test_what_is_dumped_is_the_same_config(path, capsys):
    flags = ["--model=cifar10_cnn", "--ema=0.99", "--optimizer=adam(beta_2=0.95)", "--seed=3", "--resize=8x8"]
    given = [*(f"--{name}={value}" for name, value in PATHS.items()), *flags]
    with pytest.raises(SystemExit) as ended:
        parse([*given, "--dump_config"])
    assert ended.value.code == 0
    path.write_text(capsys.readouterr().out)
    assert parse([f"--config={path}"]) == parse(given)


def test_a_config_is_written_whole(tmp_path):
    config = TrainConfig.of(**PATHS, label_smoothing=0.1)
    file.write(tmp_path, dataclasses.asdict(config))
    file.write(tmp_path, dataclasses.asdict(config))
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]
    assert parse([f"--config={tmp_path / 'config.yaml'}"]) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 0.1", "recipe.yaml: flag: unknown 'learning_rat'; did you mean 'learning_rate'"),
        ("- 1", "must hold flags, as in .*; got list"),
        ("", "got NoneType"),
        ("a: [", "is not YAML: "),
        ("learning_rate: {a: 1}", "flag: unknown 'a'"),
        ("optimizer: {learning_rat: 1}", "unknown 'learning_rat'"),
        ("learning_rate: fast", "learning_rate.*fast"),
    ],
)
def test_a_file_that_cannot_work_is_one_line(text, message, path):
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        parse([f"--config={path}", "--data_dir=D", "--model_dir=M"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"), [(["--config=no.yaml"], "no.yaml: cannot be read"), (["--config"], "value")]
)
def test_no_file(given, message):
    with pytest.raises(UsageError, match=message):
        parse(given)


@pytest.mark.parametrize(
    ("flags", "message"),
    [({"model_dir": "M"}, "data_dir: is missing"), ({**PATHS, "epoch": 3}, "unknown 'epoch'; did you mean 'epochs'")],
)
def test_keywords_that_cannot_work(flags, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig.of(**flags)
