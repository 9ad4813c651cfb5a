"""docs/classics.md: its commands have flags that there are, and so has each row."""

import pathlib
import re
import shlex

from pipeline.commands.flags import flags_of
from trainer import config
from trainer.config import TrainConfig

TEXT = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "classics.md").read_text(encoding="utf-8")
OTHERS = {"config", "dump_config", "dataset", "target", "continuous"}  # of all commands, convert, launch, evaluate
KNOWN = {*flags_of(TrainConfig), "task_id", *OTHERS}


def commands(word):
    """Returns the arguments of the page's commands that begin with a word."""
    lines = re.findall(rf"^    stepfeed {word} ((?:.*\\\n)*.*)$", TEXT, re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


def test_the_commands_have_flags_that_there_are():
    trained = [config.parse(arguments) for arguments in commands("train")]
    assert [one.model.model for one in trained] == ["cifar10_cnn", "lenet", "mlp"]
    (launched,) = commands("launch")
    assert config.parse(launched[launched.index("--") + 1 :]).run.strategy == "parameter_server"


def test_every_flag_of_ours_in_a_row_is_one():
    rows = re.findall(r"^\| .* \| (.*) \|$", TEXT, re.MULTILINE)
    assert len(rows) > 70
    flags = {name for row in rows for name in re.findall(r"`[^`]*?--(\w+)[^`]*`", row)}
    assert len(flags) > 30
    assert flags - KNOWN == set()


def test_what_the_page_says_of_defaults_is_so():
    for model, ema in (("mlp", "0.99"), ("cifar10_cnn", "0.9999")):
        found = config.parse(["--data_dir=D", "--model_dir=M", f"--model={model}"]).optimizer
        assert str(found.ema) == ema
        assert f"`--ema={ema}`" in TEXT
    assert (found.schedule, found.decay_epochs, found.decay_factor) == ("exponential", 350, 0.1)
    assert "`--schedule=exponential --decay_epochs=350 --decay_factor=0.1`" in TEXT
