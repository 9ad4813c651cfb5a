"""`stepfeed COMMAND`: the same code as `python -m MODULE`, under the name that was typed."""

import os
import shutil
import subprocess
import sys

import pytest

from pipeline import errors
from pipeline.commands import commandline
from stepfeed import command
from stepfeed.command import COMMANDS
from tests.helpers.datasets import write_dataset
from tests.helpers.forked import ROOT
from trainer.config.trained import EvaluateConfig, ExportConfig, PredictConfig
from trainer.launching.local.screen import Screen
from trainer.replay import ReplayConfig


def stepfeed(*arguments, cwd=ROOT):
    command = [sys.executable, "-P", "-m", "stepfeed", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_help_lists_every_command_and_imports_none():
    done = stepfeed()
    assert done.returncode == 0
    assert done.stdout == stepfeed("--help").stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")] == [*COMMANDS, "completion"]
    code = "import sys\nsys.argv = ['stepfeed']\nfrom stepfeed.command import main\ntry: main()\nexcept SystemExit: "
    loaded = subprocess.run(
        [sys.executable, "-c", f"{code}print({{'pipeline', 'argparse', 'numpy'}} & set(sys.modules))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.quick(1)
def test_every_command_is_called_as_it_was_typed(name):
    helped = stepfeed(name, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith(f"usage: stepfeed {name} ")
    wrong = stepfeed(name, "--no_such_flag=1")
    assert wrong.returncode == 2
    lines = wrong.stderr.splitlines()  # one per mistake: what the command needs is missing, too
    assert all(line.startswith(f"stepfeed {name}: ") for line in lines)
    assert len(lines) >= 2
    assert sum("'--no_such_flag'" in line for line in lines) == 1


def test_several_mistakes_are_a_line_each():
    done = stepfeed("train", "--model_dir=run", "--global_batch_size=0", "--lr=1", "--epochs=1", "--train_steps=3")
    assert done.returncode == 2
    said = [line.removeprefix("stepfeed train: ") for line in done.stderr.splitlines()]
    assert [line.split()[0] for line in said] == ["--data_dir", "--global_batch_size=0:", "--train_steps=3", "flag:"]


def test_an_unknown_command_has_a_hint():
    done = stepfeed("trian")
    assert done.returncode == 2
    assert done.stderr.startswith("stepfeed: unknown command 'trian'; did you mean 'train'? known: convert, validate, ")


def test_data_is_given_as_a_flag_or_as_the_first_argument(tmp_path):
    write_dataset(tmp_path / "data", (20, 7))
    flags = ["--global_batch_size=9", "--workers=3"]
    given = [["data", *flags], ["--data_dir=data", *flags], [*flags, "--data_dir", "data"]]
    found = [stepfeed("audit", *one, cwd=tmp_path) for one in given]
    assert [one.returncode for one in found] == [0, 0, 0], found[0].stderr
    assert "27 records" in found[0].stdout
    assert len({one.stdout.split("proof holds")[1] for one in found}) == 1
    dumped = [
        stepfeed("train", *one, "--model_dir=run", "--dump_config", cwd=tmp_path)
        for one in (["data"], ["--data_dir=data"])
    ]
    assert dumped[0].stdout == dumped[1].stdout
    assert "data_dir: data\n" in dumped[0].stdout


def test_advice_names_the_form_that_was_typed(tmp_path):
    assert "make one with: stepfeed convert;" in stepfeed("inspect", tmp_path).stderr
    plain = subprocess.run(
        [sys.executable, "-m", "pipeline.inspect", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "make one with: python -m beam_jobs.convert;" in plain.stderr


def test_the_launcher_and_what_it_says_of_the_trainer_have_the_names_that_were_typed(monkeypatch, capsys):
    for wrong in (["--num_workers=2"], ["--seed=3"]):
        said = stepfeed("launch", *wrong).stderr
        assert "stepfeed train" in said
        assert "stepfeed launch --num_workers=2 -- " in said
        assert "trainer." not in said
    said = stepfeed("evaluate", "--model_dir=nothing").stderr
    assert said.endswith("there is no such folder; give the --model_dir of a run of stepfeed train\n")
    monkeypatch.setattr(errors, "SUBCOMMANDS", {"trainer.launch": "stepfeed launch"})
    Screen().say("2 workers")
    assert capsys.readouterr().err == "stepfeed launch: 2 workers\n"


@pytest.mark.parametrize(
    ("command", "place", "named"),
    [
        ("inspect", "pipeline.py", "pipeline.py"),
        ("inspect", "pipeline/__init__.py", "pipeline"),
        ("train", "pipeline/__init__.py", "pipeline"),
        ("train", "trainer/__init__.py", "trainer"),
        ("convert", "beam_jobs.py", "beam_jobs.py"),
    ],
)
def test_a_file_or_package_with_the_name_of_one_of_ours_is_named(command, place, named, tmp_path):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.touch()
    program = [sys.executable, "-m", "stepfeed", command, "data"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{tmp_path}/{named} has the same name" in done.stderr


@pytest.mark.parametrize("arguments", [("stepfeed", "train"), ("trainer.run",), ("beam_jobs.convert",)])
def test_a_package_that_was_installed_over_ours_is_named_in_one_line(arguments, tmp_path):
    for name in ("stepfeed", "trainer", "beam_jobs", "pipeline"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    file = tmp_path / "pipeline" / "__init__.py"
    file.write_text('"""Pipelines for everybody."""\n')
    program = [sys.executable, "-m", *arguments, "--data_dir=d"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert (
        f"'pipeline', but {file} belongs to another package of that name, installed over ours; uninstall" in done.stderr
    )


@pytest.mark.parametrize("module", ["trainer.run", "trainer.evaluate", "beam_jobs.convert"])
def test_a_module_of_ours_names_a_file_that_comes_first(module, tmp_path):
    (tmp_path / "pipeline.py").touch()
    program = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert (
        f"{module.partition('.')[0]}: stepfeed needs its package 'pipeline', but {tmp_path}/pipeline.py" in done.stderr
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["completion", "bash"], ["inspect", "--flags"], ["train", "--help"]]
)
@pytest.mark.parametrize("reader", ["gone", "full"])
@pytest.mark.quick(4)
def test_an_output_that_nobody_reads_or_that_cannot_be_written(arguments, reader):
    if reader == "gone":
        ours, theirs = os.pipe()
        os.close(ours)
    else:
        theirs = os.open("/dev/full", os.O_WRONLY)
    program = [sys.executable, "-P", "-m", "stepfeed", *arguments]
    try:
        done = subprocess.run(program, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(theirs)
    # What `stepfeed` itself prints comes before anything of ours is imported, and so before the remedies.
    name, remedy = (f"stepfeed {arguments[0]}", "; make room") if arguments[0] in COMMANDS else ("stepfeed", "")
    full = f"{name}: the output cannot be written: No space left on device{remedy}\n"
    assert (done.returncode, done.stderr) == ((141, "") if reader == "gone" else (1, full))


def completions(words):
    """Returns bash's completions after these words."""
    script = stepfeed("completion", "bash").stdout
    quoted = " ".join(f"'{word}'" for word in ["stepfeed", *words])
    program = f'{script}\nCOMP_WORDS=({quoted}) COMP_CWORD={len(words)}\n_stepfeed\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_bash_completes_commands_and_their_flags():
    assert completions(["ev"]) == ["evaluate"]
    assert completions(["comp"]) == ["completion"]
    assert stepfeed("complete").stderr.startswith("stepfeed: unknown command 'complete'; did you mean 'completion'? ")
    assert completions(["train", "--model"]) == ["--model_dir", "--model"]
    assert "--image_encoding" in completions(["convert", "--image"])


def test_commands_whose_packages_are_not_installed_are_completed_without_their_flags():
    hidden = "import sys\nsys.modules |= dict.fromkeys(('pyarrow', 'apache_beam', 'tensorflow'))\n"
    code = f"{hidden}sys.argv = ['stepfeed', 'completion', 'fish']\nfrom stepfeed.command import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "-a convert " in done.stdout
    assert "seen_subcommand_from convert' -l" not in done.stdout
    assert "seen_subcommand_from train' -l model_dir" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_a_script_with_every_command(shell):
    script = stepfeed("completion", shell).stdout
    assert all(name in script for name in COMMANDS)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    assert stepfeed("completion", "csh").stderr == "stepfeed: completion: give one of bash, zsh, fish\n"


def test_an_interrupt_while_a_command_loads_is_one_line(monkeypatch, capsys):
    def interrupted(module):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.importlib, "import_module", interrupted)
    monkeypatch.setenv("STEPFEED_COMMANDS", "")  # which the command sets for its children, not for later tests
    monkeypatch.setattr(sys, "argv", ["stepfeed", "train", "data"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stepfeed train: interrupted\n"


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.quick(4)
def test_an_interrupt_while_a_command_works_is_one_line(name):
    """Of a real signal, which comes when the command begins to read its flags."""
    program = f"""
import argparse, os, signal, sys
from stepfeed.command import main
argparse.ArgumentParser.__init__ = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["stepfeed", {name!r}, "--no_such_flag"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, f"stepfeed {name}: interrupted\n")


@pytest.mark.slow
def test_child_processes_use_the_names_that_were_typed(tmp_path):
    """Their environment says so: workers of a job, and Beam's."""
    code = "from pipeline import errors; print(errors.name_of('trainer.run'), errors.to_run('beam_jobs.validate'))"
    names = "trainer.run=stepfeed train;beam_jobs.validate=stepfeed validate"
    for given, said in ((names, "stepfeed train stepfeed validate"), ("", "trainer.run python -m beam_jobs.validate")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"STEPFEED_COMMANDS": given},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == said
    write_dataset(tmp_path / "data", (20, 7))
    (tmp_path / "data" / "train-00000-of-00002.tfrecord").write_bytes(b"")
    for flags in (["audit", "data", "--content", "--global_batch_size=9"], ["validate", "data", "--deep"]):
        done = stepfeed(*flags, cwd=tmp_path)
        assert done.returncode == 1
        assert "python -m" not in done.stdout + done.stderr
        assert flags[0] == "validate" or "(stepfeed convert ... --overwrite)" in done.stderr


def test_the_folder_of_a_run_may_come_first(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ckpt-7.index").touch()
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "export.json").touch()
    monkeypatch.chdir(tmp_path)
    for kind in (EvaluateConfig, ExportConfig, ReplayConfig):
        more = {ExportConfig: ["--output=out"], ReplayConfig: ["--step=3"]}.get(kind, [])
        given = [commandline.parse("x", "x", kind, [first, *more]) for first in ("run", "--model_dir=run")]
        assert given[0] == given[1]
        assert given[0].model_dir == "run"
    found = commandline.parse("x", "x", PredictConfig, ["run", "a.png", "b.png", "--top=2"])
    assert (found.model_dir, found.exported, found.inputs) == ("run", None, ["a.png", "b.png"])
    found = commandline.parse("x", "x", PredictConfig, ["exported", "a.png"])
    assert (found.model_dir, found.exported, found.inputs) == (None, "exported", ["a.png"])
    found = commandline.parse("x", "x", PredictConfig, ["run", "a.png", "--model_dir=run"])
    assert (found.model_dir, found.inputs) == ("run", ["run", "a.png"])
    for wrong, what in (
        (["run"], "missing"),
        (["a.png", "b.png"], "a.png: no such file or folder; give the folder of a run first"),
    ):
        with pytest.raises(errors.UsageError, match=what):
            commandline.parse("x", "x", PredictConfig, wrong)
