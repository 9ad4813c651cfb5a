"""The lines of docs/clusters.md that start training elsewhere print what the page shows."""

import shlex

import pytest
import yaml

from tests.engines import manual
from tests.helpers import manifests
from trainer import launch

PROGRAM = "python -m trainer.launch "
LINES = [line.strip() for line in manual.commands() if PROGRAM in line and "NAME" not in line]
OUT = ("|", ">")  # what follows is for the shell


@pytest.fixture
def printed(capsys):
    """Returns a function that runs a line of the page as it stands, and returns what it prints."""

    def printed(line):
        words = shlex.split(line.removeprefix(PROGRAM))
        end = min([words.index(word) for word in OUT if word in words])
        launch.main(words[:end])
        return capsys.readouterr().out

    return printed


def line_with(*parts):
    (line,) = [line for line in LINES if all(part in line for part in parts)]
    return line


def test_there_is_a_line_for_each_kind():
    assert len(LINES) == 3


def test_the_jobset_is_the_one_that_the_page_shows(printed):
    line = next(line for line in LINES if "--target=kubernetes" in line and "--kind" not in line)
    (shown,) = [manifest for manifest in manual.manifests() if manifest["kind"] == "JobSet"]
    assert yaml.safe_load(printed(line)) == shown
    manifests.check(shown)


def test_the_other_kind_is_named(printed):
    found = yaml.safe_load_all(printed(line_with("--kind=trainjob")))
    assert [(each["kind"], each["metadata"]["name"]) for each in found] == [
        ("TrainingRuntime", "mnist"),
        ("TrainJob", "mnist"),
    ]


def test_the_batch_script_has_what_the_line_asks_for(printed):
    script = printed(line_with("--target=slurm"))
    wanted = ("--time=12:00:00", "--nodes=4", "--partition=gpu", "--exclude=n[7-9]", "--output=mnist-%j.log")
    for option in wanted:
        assert f"#SBATCH {option}\n" in script
    assert "\n. venv/bin/activate\n" in script
