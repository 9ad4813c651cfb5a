"""`--fresh` as real processes: the run in the folder goes, whatever is killed; a restart does not start over again."""

import os
import shutil
import signal
import time

import pytest

from tests.helpers import forked
from tests.helpers.datasets import write_dataset
from tests.helpers.launches import Launch, left_within
from tests.helpers.runs import checkpoint_bytes, finish, saved_steps, start, start_workers, wait_for_step

FLAGS = (
    *("--model=softmax_regression", "--optimizer=momentum", "--global_batch_size=24", "--virtual_replicas=12"),
    *("--steps_per_loop=5", "--checkpoint_every=10", "--log_every=10", "--summary_every=10"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_dataset(path, (40, 26), (8, 8, 1), test_counts=(20,))
    return path


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    """The folder of a run of 30 steps, with metrics in it."""
    folder = tmp_path_factory.mktemp("first") / "run"
    metrics = f"--metrics_jsonl={folder}/metrics.jsonl"
    assert [one[0] for one in finish(start(data, folder, *FLAGS, metrics, "--train_steps=30"))] == [0]
    return folder


@pytest.fixture
def run(first, tmp_path):
    """A copy of the first run, whose flags have the copy's paths."""
    shutil.copytree(first, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(first), str(tmp_path / "run")))
    return tmp_path / "run"


def trained(*arguments, **environment):
    process = forked.Process(["-m", "trainer.run", *arguments], {"PYTHONUNBUFFERED": "1", **environment})
    return finish(process)[0]


@pytest.mark.slow
def test_the_folder_alone_begins_anew_with_the_flags_of_its_run(run, first):
    code, out, err = trained(f"--model_dir={run}", "--fresh")
    assert (code, err) == (0, "")
    assert "step 0 to 30 of 24 examples" in out
    assert "a new run" in out
    assert checkpoint_bytes(run, 30) == checkpoint_bytes(first, 30)
    events = [path.name for path in (run / "logs").iterdir()]
    assert len(events) == 1
    assert events != [path.name for path in (first / "logs").iterdir()]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len((first / "metrics.jsonl").read_text().splitlines())
    assert lines[0] not in (first / "metrics.jsonl").read_text()
    code, out, _ = trained(f"--model_dir={run}")
    assert (code, "already at step 30 of 30" in out) == (0, True)


@pytest.mark.slow
def test_stopped_it_says_how_to_resume_and_so_it_does(run):
    process = forked.Process(
        ["-m", "trainer.run", f"--model_dir={run}", "--fresh", "--train_steps=40000"], {"PYTHONUNBUFFERED": "1"}
    )
    wait_for_step(process, 50)
    process.terminate()
    [(code, _, err)] = finish(process)
    assert code == 75
    assert "--fresh" in err
    step = saved_steps(run)[-1]
    assert 50 <= step < 40000
    code, out, err = trained(f"--model_dir={run}", f"--train_steps={step + 10}")
    assert (code, f"step {step} to {step + 10} of" in out) == (0, True), err


def test_other_files_and_another_process_are_refused(run, data):
    (run / "notes.txt").write_text("mine")
    code, _, err = trained(f"--model_dir={run}", "--fresh")
    assert (code, str(run / "notes.txt") in err, err.count("\n")) == (2, True, 1)
    assert saved_steps(run)[-1] == 30
    (run / "notes.txt").unlink()
    trains = start(data, run, *FLAGS, "--train_steps=40000")
    wait_for_step(trains, 50)
    code, _, err = trained(f"--model_dir={run}", "--fresh")
    assert (code, f"process {trains.pid} on " in err, err.count("\n")) == (75, True, 1)
    trains.terminate()
    assert finish(trains)[0][0] == 75
    assert saved_steps(run)[-1] >= 50


@pytest.mark.slow
def test_killed_while_it_removes_the_next_start_goes_on_with_that(run):
    folder = run / "logs" / "plugins" / "profile"
    folder.mkdir(parents=True)
    for number in range(30_000):  # a removal of a second or so
        (folder / f"{number}.pb").touch()
    process = forked.Process(["-m", "trainer.run", f"--model_dir={run}", "--fresh"], {})
    note, end = run / ".trainer.fresh", time.monotonic() + forked.TIMEOUT
    while not note.exists() and time.monotonic() < end:
        time.sleep(0.001)
    process.kill()
    assert finish(process)[0][0] == -signal.SIGKILL
    assert note.read_text().startswith("removing")
    assert any(folder.iterdir())  # it was killed in the middle
    (run / "ckpt-25.index").touch()  # as if the checkpoints had been the last to go
    code, out, err = trained(f"--model_dir={run}")
    assert (code, "a new run" in out) == (0, True), err
    assert not folder.exists()


@pytest.mark.slow
def test_of_several_workers_the_chief_removes_and_all_begin_at_the_first_step(run, first, data):
    workers = start_workers(data, [run] * 2, *FLAGS, "--train_steps=30", "--fresh")
    (code, out, err), (other, said, _) = finish(*workers)
    assert (code, other) == (0, 0), err
    assert "a new run" in out
    assert "step 0 to 30; a new run" in said
    assert checkpoint_bytes(run, 30) == checkpoint_bytes(first, 30)


@pytest.mark.slow
def test_what_the_chief_refuses_ends_the_other_workers_with_its_words(run, data):
    (run / "notes.txt").write_text("mine")
    (code, _, err), (other, _, said) = finish(*start_workers(data, [run] * 2, *FLAGS, "--fresh"))
    assert (code, other) == (2, 2)
    assert str(run / "notes.txt") in err
    assert str(run / "notes.txt") in said


@pytest.mark.slow  # test_launch has the launcher's part, without TensorFlow
def test_the_launcher_removes_once_and_a_process_that_it_starts_again_resumes(run, data):
    flags = (f"--data_dir={data}", *FLAGS, "--train_steps=200", "--fresh")
    job = Launch(run, ("--num_workers=2", "--restart_delay=0.1"), flags)
    try:
        os.kill(job.wait_for_step(40)["processes"][1]["pid"], signal.SIGKILL)
        code, out, err = job.end()
    finally:
        job.process.kill()
        left_within(60, job.pids())
    assert code == 0, err
    assert job.status()["restarts"] >= 1
    begins = [line for line in out.splitlines() if "step 0 to 200 of 24" in line]
    assert len(begins) == 1
    assert "resumed from" in out
    assert saved_steps(run)[-1] == 200


@pytest.mark.slow
def test_a_job_that_a_scheduler_starts_again_resumes(run):
    flags = (f"--model_dir={run}", "--fresh")
    code, out, err = trained(*flags, "--train_steps=10", STEPFEED_FRESH="4711")
    assert (code, "step 0 to 10 of" in out) == (0, True), err
    code, out, err = trained(*flags, "--train_steps=20", STEPFEED_FRESH="4711")
    assert (code, "step 10 to 20 of" in out) == (0, True), err
