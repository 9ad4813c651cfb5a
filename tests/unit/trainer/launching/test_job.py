import os

import pytest

from pipeline.commands import commandline
from pipeline.errors import PipelineError, UsageError
from tests.helpers.datasets import write_dataset
from trainer import launch
from trainer.launching.flags import launch_flags
from trainer.launching.job import Job

TRAINER = ("--data_dir=D", "--model_dir=M", "--global_batch_size=24")


def job_of(*flags, trainer=()):
    return Job.of(commandline.parse("launch", "", launch_flags(), flags), (*TRAINER, *trainer))


def test_a_job_of_workers():
    job = job_of("--num_workers=2", "--max_restarts=3")
    assert (job.strategy, job.roles, str(job.folder.path), job.restarts.max_restarts) == (
        "multiworker",
        {"worker": 2},
        "M",
        3,
    )
    assert job.flags == (*TRAINER, "--strategy=multiworker")
    assert job.command == ("python", "-m", "trainer.run", *job.flags)
    assert job.config.order.global_batch_size == 24


@pytest.mark.parametrize("given", [("--strategy=multiworker",), ("--strategy", "multiworker")])
def test_the_strategy_may_be_given_if_it_fits(given):
    assert job_of("--num_workers=2", trainer=given).flags == (*TRAINER, "--strategy=multiworker")
    assert job_of("--num_workers=1", trainer=("--strategy=mirrored",)).strategy == "mirrored"


@pytest.mark.parametrize(
    ("arguments", "at_fault"),
    [
        (["--num_workers=x", "--max_restarts=-1", "--lr=3", "--seed=3"],
         ["--num_workers", "--max_restarts=-1", "--seed=3", "'--lr'", "-- "]),
        (["--num_worker=2", "--elastic=4", "--", "--data_dir=D", "--sed=1", "--task_index=2", "--sync", "--epochs=0"],
         ["--elastic=4", "'--num_worker'", "--task_index=2", "--epochs=0", "'--sed'"]),
    ],
)  # fmt: skip
def test_mistakes_of_the_launcher_and_of_the_trainer_are_told_together(arguments, at_fault):
    with pytest.raises(UsageError) as caught:
        launch.main(arguments)
    said = [str(mistake) for mistake in caught.value.mistakes]
    assert [name for name in at_fault if sum(one.startswith(name) or name in one[:40] for one in said) < 1] == []
    assert len(said) == len(at_fault), said


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--num_workers=0 -- {}", "--num_workers=0: must be 1 or more"),
        ("--num_workers=1e9 --num_ps=1 -- {}", "--num_workers=1000000000: must be 10000 or less"),
        ("--num_ps=1e9 -- {}", "--num_ps=1000000000: must be 10000 or less"),
        ("--elastic=1:1000000000 -- {}", "--elastic=1:1000000000: must be MIN:MAX workers"),
        ("--max_restarts=1e12 -- {}", "--max_restarts=1000000000000: must be 2147483647 or less"),
        ("--stop_timeout=1e12 -- {}", "--stop_timeout=1000000000000.0: must be 2147483647 or less"),
        ("--restart_delay=inf -- {}", "--restart_delay=inf: must be 2147483647 or less"),
        ("--stop_timeout=nan -- {}", "--stop_timeout=nan: must be a number above 0"),
        ("--num_ps=500 -- {}", "--num_workers=1, --num_ps=500: 502 processes, and this machine with"),
        ("--num_workers=1 --", "--data_dir and --model_dir are missing"),
        ("--num_workers=1 -- {} --max_restarts=3", "--max_restarts=3: is a flag of the launcher; give it before --"),
        ("--num_workers=1 -- {} --num_workers=3", "--num_workers=3: is a flag of the launcher; give it before --"),
        ("--num_workers=1 -- {} --task_index 0", "--task_index: the launcher tells each process which one it is"),
        ("--num_workers=1 -- {} --task_id 0", "--task_id: the launcher tells each process which one it is"),
        ("--data_dir=D", "--data_dir=D: is a flag of trainer.run; give it after --"),
        ("--data_dr=D -- {}", "flag: unknown '--data_dr'"),
        ("D", "unexpected argument 'D'"),
    ],
)
def test_misuse(arguments, said, tmp_path, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(UsageError) as error:
        launch.main(arguments.format(f"--data_dir=D --model_dir={tmp_path}/m --global_batch_size=24").split())
    assert str(error.value).startswith(said)
    assert not (tmp_path / "m").exists()


ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


@pytest.mark.parametrize(
    ("place", "why"), [pytest.param("shut", "Permission denied", marks=ROOT), ("file", "Not a directory")]
)
def test_a_folder_that_cannot_be_made(place, why, tmp_path):
    write_dataset(tmp_path / "data", (40,), (4, 4, 1), test_counts=(4,))
    (tmp_path / "shut").mkdir(mode=0o500)
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=rf"--model_dir=.*{place}/m.*: cannot be created: {why}"):
        launch.main(["--", f"--data_dir={tmp_path}/data", f"--model_dir={tmp_path}/{place}/m", "--global_batch_size=8"])
