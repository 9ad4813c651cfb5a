import dataclasses

import pytest

from pipeline import errors
from pipeline.commands import commandline


@dataclasses.dataclass(frozen=True)
class Config:
    """A command's flags."""

    data_dir: str  # where
    steps: int = 5  # how many


def parse(*argv):
    return commandline.parse("made", "A command.", Config, argv)


def test_flags_come_from_the_dataclass():
    assert parse("--data_dir=a", "--steps", "7") == Config("a", 7)
    assert parse("--data_dir=a") == Config("a", 5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data_dri=a"], "required: --data_dir"),
        (["--data_dir=a", "--stps=3"], "flag: unknown '--stps'; did you mean '--steps'"),
        (["--data_dir=a", "--step=3"], "did you mean '--steps'"),  # no abbreviations: they break when a flag is added
        (["--data_dir=a", "--steps=x"], "argument --steps: invalid int value: 'x'"),
        (["--data_dir=a", "7"], "unexpected argument '7'"),
    ],
)
def test_wrong_flags_are_usage_errors(argv, message):
    with pytest.raises(errors.UsageError, match=message):
        parse(*argv)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DataError("the file a is cut"), 1),
        (errors.UsageError("--a=1: must be 2"), 2),
        (errors.RerunError("stopped at step 7"), 75),
    ],
)
def test_errors_are_one_line_and_an_exit_code(error, code, capsys):
    def main(argv):
        raise error

    with pytest.raises(SystemExit) as stop:
        commandline.run("made", main)
    assert stop.value.code == code
    assert capsys.readouterr().err == f"made: {error}\n"


def test_a_newline_in_a_name_stays_on_the_line(capsys):
    def main(argv):
        raise errors.DataError("a\nb\x1b[0m: is missing; Zürich is not")

    with pytest.raises(SystemExit):
        commandline.run("made", main)
    assert capsys.readouterr().err == "made: a\\nb\\x1b[0m: is missing; Zürich is not\n"


def test_ctrl_c_is_one_line_and_130(capsys):
    def main(argv):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        commandline.run("made", main)
    assert stop.value.code == 130
    assert capsys.readouterr().err == "made: interrupted\n"


def test_success_is_0():
    with pytest.raises(SystemExit) as stop:
        commandline.run("made", lambda argv: None)
    assert stop.value.code == 0


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(commandline._EXTRA_OF, "no_such_package", "train")
    with pytest.raises(errors.UsageError, match=r"needs no_such_package, .*: pip install 'stepfeed\[train\]'"):
        commandline.require("no_such_package")
    commandline.require("numpy")


def test_unknown_names_suggest_the_nearest_or_none():
    assert str(errors.unknown("--model", "lent", ["mlp", "lenet"])) == (
        "--model: unknown 'lent'; did you mean 'lenet'? known: lenet, mlp"
    )
    assert str(errors.unknown("--model", "xyz", ["mlp"])) == "--model: unknown 'xyz'; known: mlp"
