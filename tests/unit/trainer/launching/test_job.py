import json

import pytest

from pipeline.commands import commandline
from pipeline.errors import UsageError
from trainer.launching.flags import LaunchFlags
from trainer.launching.job import Job, tf_config

TRAINER = ("--data_dir=D", "--model_dir=M", "--global_batch_size=24")


def job_of(*flags, trainer=()):
    return Job.of(commandline.parse("launch", "", LaunchFlags, flags), (*TRAINER, *trainer))


def test_a_job_of_workers():
    job = job_of("--num_workers=2", "--max_restarts=3")
    assert (job.strategy, job.roles, job.model_dir, job.max_restarts) == ("multiworker", {"worker": 2}, "M", 3)
    assert job.flags == (*TRAINER, "--strategy=multiworker")
    assert job.command == ("python", "-m", "trainer.run", *job.flags)
    assert job.config.order.global_batch_size == 24


@pytest.mark.parametrize("given", [("--strategy=multiworker",), ("--strategy", "multiworker")])
def test_the_strategy_may_be_given_if_it_fits(given):
    assert job_of("--num_workers=2", trainer=given).flags == (*TRAINER, "--strategy=multiworker")
    assert job_of("--num_workers=1", trainer=("--strategy=mirrored",)).strategy == "mirrored"


def test_a_strategy_in_a_file_gives_way(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("run: {strategy: mirrored}\nlearning_rate: 0.5\n")
    job = job_of("--num_workers=2", trainer=(f"--config={path}",))
    assert (job.config.run.strategy, job.config.optimizer.learning_rate) == ("multiworker", 0.5)


def test_elastic_starts_with_the_most_workers_that_can_share_a_batch():
    assert job_of("--elastic=1:4").num_workers == 4
    job = job_of("--elastic=2:5")
    assert (job.num_workers, job.elastic) == (4, (2, 5))
    with pytest.raises(UsageError, match="--num_workers=5: must divide --global_batch_size=24; .* 4 and 6"):
        job_of("--elastic=5:5")


@pytest.mark.parametrize(
    ("flags", "trainer", "said"),
    [
        (("--num_ps=1",), ("--strategy=multiworker",), "parameter servers need --strategy=parameter_server"),
        ((), ("--strategy=parameter_server",), "needs a parameter server; give --num_ps=1 or more"),
        (
            ("--elastic=1:1",),
            ("--strategy=mirrored",),
            "--elastic=1:1 with --strategy=mirrored: needs --strategy=multi",
        ),
        (("--elastic=1:4", "--num_workers=2"), (), "leave --num_workers out, or give --elastic=1:2"),
    ],
)
def test_what_does_not_fit_together(flags, trainer, said):
    with pytest.raises(UsageError, match=said):
        job_of(*flags, trainer=trainer)


def test_tf_config():
    found = json.loads(tf_config({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", 1))
    assert found == {
        "cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]},
        "task": {"type": "worker", "index": 1},
    }
