"""docs/classics.md and docs/classics_book.md: their commands have flags that there are, and so has each row."""

import pathlib
import re
import shlex

import pytest

from pipeline.commands.flags import flags_of
from trainer import config
from trainer.config import TrainConfig

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
TEXT = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in ("classics.md", "classics_book.md"))
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


def of_sections(*titles):
    """Returns the text of some sections."""
    parts = re.split(r"^#+ (.*)$", TEXT, flags=re.MULTILINE)
    return "".join(body for title, body in zip(parts[1::2], parts[2::2], strict=True) if title in titles)


def test_the_rows_of_parameter_servers_offer_nothing_that_they_refuse():
    text = of_sections("Parameter servers", "Linear regression with Supervisor")
    offered = set(re.findall(r"`[^`]*?--(\w+)[^`]*`", text))
    refused = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata.get("parameter_server")}
    assert {"activation_every", "image_every", "deterministic"} <= refused
    assert len(offered) > 10
    assert offered & refused == set()


@pytest.mark.parametrize(("towers", "epochs"), [(1, 350), (2, 700), (4, 1400)])
def test_the_stairs_of_the_towers_are_those_of_the_program(towers, epochs):
    """50,000 / 128 batches per epoch of one tower, times 350, on any number of towers; ours has whole steps."""
    stair = epochs * -(-50_000 // (towers * 128))
    assert stair == pytest.approx(136_718, rel=0.005)
    assert str(epochs) in TEXT
    if towers == 2:
        (towers_of_page, *_) = [config.parse(arguments) for arguments in commands("train")]
        assert towers_of_page.optimizer.decay_epochs == epochs
        assert towers_of_page.order.global_batch_size == towers * 128


def test_what_the_page_says_of_defaults_is_so():
    for model, ema in (("mlp", "0.99"), ("cifar10_cnn", "0.9999")):
        found = config.parse(["--data_dir=D", "--model_dir=M", f"--model={model}"]).optimizer
        assert str(found.ema) == ema
        assert f"`--ema={ema}`" in TEXT
    assert (found.schedule, found.decay_epochs, found.decay_factor) == ("exponential", 350, 0.1)
    assert "`--schedule=exponential --decay_epochs=350 --decay_factor=0.1`" in TEXT
