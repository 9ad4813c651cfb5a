"""The launcher's own lines, and the file of events that they make."""

import dataclasses
import io
import json
import math
import types

from rich.console import Console

from trainer import journal
from trainer.config import TrainConfig
from trainer.journal import STATUS, JobReport, ProcessReport
from trainer.launching.local import screen
from trainer.launching.local.process import Task
from trainer.launching.local.restarts import Records
from trainer.launching.local.screen import Screen
from trainer.run_folder import RunFolder


def test_the_launchers_own_lines_are_events(tmp_path, capsys):
    path = tmp_path / "events.jsonl"
    for _ in range(2):  # a later launcher appends
        screen = Screen(events=path)
        screen.line("worker 0", "a line of a process", is_error=False)
        screen.say("2 workers")
        screen.say("worker 1 was killed", "failure")
        screen.note("done", "end")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    said = [("job", "2 workers"), ("failure", "worker 1 was killed"), ("end", "done")]
    assert [(one["kind"], one["text"]) for one in found] == 2 * said
    times = [one["time"] for one in found]
    assert times == sorted(times)
    assert times[0] > 1.7e9
    shown = capsys.readouterr().err
    assert ("worker 1 was killed" in shown, "done" in shown) == (True, False)


def test_where_events_cannot_be_written_the_job_goes_on(tmp_path, capsys):
    Screen(events=tmp_path / "none" / "events.jsonl").say("2 workers")
    assert "2 workers" in capsys.readouterr().err


PROCESS = ProcessReport(
    "worker 1", "worker", 1, 2, ("2",), 4711, "running", "training", 1200, 51234.5, 0.034, 3, None, "out", "err"
)
JOB = JobReport(
    time=1.0, pid=1, command=("python",), state="training", step=1200, last_step=5000, saved_step=1000, num_workers=2,
    elastic=(1, 4), lost=(1,), restarts=3, max_restarts=10, error="gone",
    processes=(
        PROCESS, dataclasses.replace(PROCESS, name="worker 0", last_error="was [killed] by SIGKILL", state="ended")
    ),
)  # fmt: skip


def test_the_table():
    console = Console(file=io.StringIO(), width=120)
    console.print(screen.table_of(JOB))
    lines = console.file.getvalue().splitlines()
    assert lines[0].rstrip() == "training, step 1,200 of 5,000, restarts 3, slots given up: 1"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells == [
        ["worker 1", "4711", "training", "1,200", "51,234", "3%", "3", ""],
        ["worker 0", "4711", "ended", "1,200", "51,234", "3%", "3", "was [killed] by SIGKILL"],
    ]


def test_the_status_is_written_whole(tmp_path):
    (tmp_path / STATUS).write_text("{")
    journal.write(JOB, tmp_path / STATUS)
    content = json.loads((tmp_path / STATUS).read_text())
    assert content == json.loads(json.dumps(dataclasses.asdict(JOB)))
    assert (content["step"], content["elastic"], content["processes"][0]["gpus"]) == (1200, [1, 4], ["2"])
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]
    journal.write(JOB, tmp_path / "none" / STATUS)  # a folder that is gone does not end the job


def test_each_field_of_the_report_is_what_its_name_says(tmp_path):
    beat = types.SimpleNamespace(
        step=7, last_step=90, phase="training", examples_per_second=5.0, input_wait=0.25, made=3
    )
    process = types.SimpleNamespace(
        task=Task("worker", 1, 3), pid=11, exit_status=None, monitor=types.SimpleNamespace(beat=beat),
        out=types.SimpleNamespace(path="o"), err=types.SimpleNamespace(path="e"),
    )  # fmt: skip
    group = types.SimpleNamespace(processes=[process], slots=[0, 3], step=7, has_stepped=True)
    job = types.SimpleNamespace(folder=RunFolder(tmp_path), elastic=(1, 4), max_restarts=10, num_workers=4)
    job.restarts = types.SimpleNamespace(max_restarts=10, elastic_range=(1, 4))
    job.config = TrainConfig.of(data_dir="digits", model_dir=str(tmp_path), checkpoint_secs=math.inf)
    records = Records(types.SimpleNamespace(job=job, id="a1b2", command=("python",), gpus_of=lambda task: ("2",)))
    records.started(group)
    records.watch()
    group.step = 5  # the next group resumed from a checkpoint
    records.failed(process.task, "gone")
    waiting, training = records.report("waiting", [2]), records.report("training", [2])
    assert (waiting.step, training.step, training.last_step, training.num_workers) == (7, 5, 90, 2)
    assert (training.lost, training.elastic, training.max_restarts, training.exit_code) == ((2,), (1, 4), 10, None)
    assert (training.job, training.flags["data"]["data_dir"], training.command) == ("a1b2", "digits", ("python",))
    assert "checkpoint_secs" not in training.flags["steps"]  # JSON has no infinity
    one = training.processes[0]
    assert (one.name, one.index, one.slot, one.gpus, one.pid, one.step) == ("worker 1", 1, 3, ("2",), 11, 7)
    assert (one.examples_per_second, one.input_wait, one.last_error) == (5.0, 0.25, "gone")
    assert (one.stdout, one.stderr, one.state, one.phase) == ("o", "e", "running", "training")
