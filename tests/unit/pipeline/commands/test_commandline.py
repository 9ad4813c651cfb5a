import dataclasses
import errno
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from pipeline import errors
from pipeline.commands import commandline
from pipeline.commands.flags import flag


@dataclasses.dataclass(frozen=True)
class Config:
    """A command's flags."""

    data_dir: str  # where
    steps: int = 5  # how many
    most: int | None = None  # at most


def parse(*argv):
    return commandline.parse("made", "A command.", Config, argv)


def test_flags_come_from_the_dataclass():
    assert parse("--data_dir=a", "--steps", "7") == Config("a", 7)
    assert parse("--data_dir=a") == Config("a", 5)


@pytest.mark.parametrize(
    ("text", "number"), [("1e3", 1000), ("1.5e3", 1500), ("2.0", 2), ("-1E2", -100), ("1_000", 1000)]
)
def test_whole_numbers_may_have_an_exponent(text, number):
    assert parse("--data_dir=a", f"--steps={text}", f"--most={text}") == Config("a", number, number)


@pytest.mark.parametrize("text", ["1.5", "1e-3", "1e400", "inf", "nan", "many", ""])
@pytest.mark.parametrize("flag", ["--steps", "--most"])
def test_other_numbers_are_refused(flag, text):
    with pytest.raises(errors.UsageError, match=f"^{flag}: '{text}' "):
        parse("--data_dir=a", f"{flag}={text}")


@pytest.mark.parametrize("argv", [["--data_dir=~/a b"], ["--data_dir", "~/a b"]])
def test_a_tilde_is_the_home_folder(argv, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/mine")
    assert parse(*argv).data_dir == "/home/of/mine/a b"
    assert parse("--data_dir=s3://bucket/~/a").data_dir == "s3://bucket/~/a"


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["--data_dri=a"], "--data_dir"),
        (["--data_dir=a", "--stps=3"], "'--stps'.*'--steps'"),
        (["--data_dir=a", "--step=3"], "'--steps'"),  # no abbreviations: they break when a flag is added
        (["--data_dir=a", "--steps=x"], "^--steps: 'x' "),
        (["--data_dir=a", "7"], "'7'"),
        (["--data_dir=a", "--most"], "^--most: expected a value, as in --most=VALUE"),
        (["--data_dir=a", "--most", "--steps=3"], "^--most: expected a value"),
        (["--datadir=a"], "'--datadir'; did you mean '--data_dir'"),
        (["--steps=3"], "--data_dir is missing; see --help"),
        (["--data_dir=s3:/bucket/a"], "--data_dir=s3:/bucket/a: not a URL; write --data_dir=s3://bucket/a"),
        (["--data_dir", "gs//bucket"], "gs//bucket: not a URL; write gs://bucket"),
        (["--data_dir=~nobody-here/a"], "--data_dir=~nobody-here/a: there is no home folder ~nobody-here"),
    ],
)
def test_wrong_flags_are_usage_errors(argv, facts):
    with pytest.raises(errors.UsageError, match=facts):
        parse(*argv)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DataError("the file a is cut"), 1),
        (errors.UsageError("--a=1: must be 2"), 2),
        (errors.RerunError("stopped at step 7"), 75),
        (KeyboardInterrupt("interrupted"), 130),
    ],
)
def test_errors_are_one_line_and_an_exit_code(error, code, capsys):
    def main(argv):
        raise error

    with pytest.raises(SystemExit) as stop:
        commandline.run("made", main)
    assert stop.value.code == code
    assert capsys.readouterr().err == f"made: {error}\n"


@pytest.mark.parametrize(("given", "code"), [("", 1), ("0", 1), ("3", 3), ("'no data'", 1)])
def test_a_module_of_the_user_that_exits_is_no_success(given, code, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(f"import sys\nsys.exit({given})\n")

    def main(argv):
        runpy.run_path(str(tmp_path / "mine.py"))

    with pytest.raises(SystemExit) as stop:
        commandline.run("made", main)
    assert stop.value.code == code
    assert "mine.py:2 ended the command: SystemExit" in capsys.readouterr().err


def test_a_newline_in_a_name_stays_on_the_line(capsys):
    def main(argv):
        raise errors.DataError("a\nb\x1b[0m: is missing; Zürich is not")

    with pytest.raises(SystemExit):
        commandline.run("made", main)
    assert capsys.readouterr().err == "made: a\\nb\\x1b[0m: is missing; Zürich is not\n"


def test_success_is_0():
    with pytest.raises(SystemExit) as stop:
        commandline.run("made", lambda argv: None)
    assert stop.value.code == 0


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.UsageError, match=r"apache_beam.*pip install 'stepfeed\[convert\]'"):
        commandline.require("apache_beam")
    monkeypatch.undo()
    commandline.require("numpy")


@pytest.mark.parametrize(
    ("given", "facts"), [("lent", "'lent'.* 'lenet'.* lenet, mlp"), ("xyz", "'xyz'; .*lenet, mlp")]
)
def test_unknown_names_suggest_the_nearest_or_none(given, facts):
    text = str(errors.unknown("--model", given, ["mlp", "lenet"]))
    assert re.match(f"--model.*{facts}$", text)
    assert ("mean" in text) == (given == "lent")


PROGRAM = """
import os, sys
from pipeline.commands import commandline
from pipeline.commands.flags import flag
from pipeline.errors import UsageError

def main(argv):
    # Programs that are started have the streams, too.
    assert os.system("test -e /dev/fd/0 && test -e /dev/fd/1 && test -e /dev/fd/2") == 0
    {}

commandline.run("pipeline.inspect", main)
"""


@pytest.mark.parametrize(("closed", "said"), [(">&-", "pipeline.inspect: "), ("2>&-", ""), (">&- 2>&- <&-", "")])
def test_no_file_takes_the_number_of_a_closed_stream(closed, said):
    code = PROGRAM.format("assert os.open('/', os.O_RDONLY) > 2; print('hidden'); raise UsageError('wrong')")
    script = f"{sys.executable} -c {shlex.quote(code)} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (f"{said}wrong\n" if said else "")
    assert done.stdout == ("hidden\n" if closed == "2>&-" else "")


@pytest.mark.parametrize(
    ("stream", "body", "code"),
    [
        ("stdout", "print('text')", 141),
        ("stdout", "print('text', flush=True)", 141),
        ("stderr", "raise UsageError('wrong')", 2),
        ("stderr", "raise KeyboardInterrupt", 130),
    ],
)
def test_a_reader_that_is_gone_changes_no_code_and_is_no_traceback(stream, body, code):
    read, write = os.pipe()
    os.close(read)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(body)], text=True, check=False, **streams)
    os.close(write)
    assert (done.returncode, done.stdout or "", done.stderr or "") == (code, "", "")


@pytest.mark.parametrize("body", ["print('text')", "print('text', flush=True)"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_one_line(body, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", PROGRAM.format(body)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    said = f"pipeline.inspect: the output cannot be written: {os.strerror(errno.ENOSPC)}; make room\n"
    assert (done.returncode, done.stderr) == (1, said)


REPLACING = ["--overwrite", "--nooverwrite", "overwrite", "--allow_order_change", "--allow_model_change", "--update"]


@pytest.mark.parametrize(
    "given",
    [
        *("--overwite", "--overwrit", "--ovrwrite", "--nooverwrit", "overwrit"),
        *("--allow_order_chnge", "--allow_model_chnge", "--updat"),
    ],
)
def test_a_flag_that_replaces_something_is_not_suggested(given):
    assert "mean" not in str(errors.unknown("flag", given, REPLACING))


@dataclasses.dataclass(frozen=True)
class Placed:
    """A command with a positional argument."""

    data_dir: str = flag(text="where", positional=True, metavar="DATA_DIR")
    deep: bool = False  # more
    json: bool = True  # as JSON
    png: str | None = None  # a picture


@pytest.mark.parametrize(
    ("argv", "deep", "json"),
    [
        (["--deep", "a"], True, True),
        (["a", "--deep"], True, True),
        (["--deep", "true", "a"], True, True),
        (["--deep", "False", "a"], False, True),
        (["--deep=false", "a"], False, True),
        (["--nojson", "a"], False, False),
        (["--deep", "--nojson", "a"], True, False),
        (["--nojson", "--deep", "--png", "b.png", "a"], True, False),
        (["--png", "b.png", "--deep", "a"], True, True),
    ],
)
def test_a_switch_does_not_take_the_positional_argument_after_it(argv, deep, json):
    config = commandline.parse("made", "A command.", Placed, argv)
    assert (config.data_dir, config.deep, config.json) == ("a", deep, json)


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["--deep", "a", "b"], "unexpected argument 'b'"),
        (["--workers", "2", "a"], r"^--workers 2: is '2' its value\? write --workers=2$"),
        (["--nodeep=true", "a"], "--nodeep"),
        (["--deep"], "DATA_DIR is missing"),
        (["--dep", "a"], "'--dep'.*'--deep'"),
    ],
)
def test_what_may_be_a_value_or_the_positional_argument_is_refused(argv, facts):
    with pytest.raises(errors.UsageError, match=facts):
        commandline.parse("made", "A command.", Placed, argv)


def test_a_flag_of_another_parser_has_its_value_behind_the_positional_argument():
    _, rest, _ = commandline.parse_known("made", "A command.", Placed, ["a", "--workers", "2"])
    assert rest == ["--workers", "2"]


@pytest.mark.parametrize(
    "argv", [["a"], ["--data_dir=a"], ["--data_dir", "a"], ["--deep", "--data_dir", "a"], ["--data_dir", "a", "--deep"]]
)
def test_a_positional_folder_may_be_given_as_a_flag(argv):
    assert commandline.parse("made", "A command.", Placed, argv).data_dir == "a"
