"""Jobs as the launcher describes them, and a cluster of stubs with Slurm's commands."""

import pytest

from pipeline.commands import commandline
from tests.helpers.slurm import Slurm
from trainer.launching.flags import launch_flags
from trainer.launching.job import Job

# Texts that a shell, YAML, Kubernetes or a template could take for something of theirs.
NASTY = [
    *("$$", "$(HOME)", "$(id)", "$HOME", "$$(HOME)", "`id`", "a'b\"c", "é$é", "back\\slash", "*", "a~", "!x"),
    *("two\nlines", "# no", "@TASKS@", " a: b, [c] {{ d }} ", "\x7f\u2028\U0001f600", ""),
]
KUBERNETES = ("--target=kubernetes", "--image=registry/stepfeed:1", "--volume=data:/data,runs:/runs")
TRAINER = ("--data_dir=/data/mnist", "--model_dir=/runs/one", "--global_batch_size=24")


@pytest.fixture
def job_of():
    """Returns a function that makes the job of the launcher's flags."""

    def job_of(*flags, trainer=TRAINER):
        return Job.of(commandline.parse("trainer.launch", "", launch_flags(), flags), trainer)

    return job_of


@pytest.fixture
def slurm(tmp_path):
    slurm = Slurm(tmp_path / "slurm")
    yield slurm
    slurm.end()
