"""What is told of a run by its files: whole ones, missing ones, half written ones, and rubbish."""

import dataclasses
import json
import os
import pathlib
import socket
import threading
import time

import pytest

from tests.helpers.datasets import write_dataset
from trainer.callbacks.tensorboard import EventFile
from trainer.config import TrainConfig, file
from trainer.journal import Beat
from trainer.watching import reading
from trainer.watching.source import RunSource

NOW = 1_000_000.0


@pytest.fixture
def run(tmp_path):
    """Returns the folder of a run."""
    folder = tmp_path / "run"
    (folder / "launch" / "heartbeats").mkdir(parents=True)
    return folder


@pytest.fixture
def flags(run, tmp_path):
    """Returns the flags of the run by group, whose data set is there."""
    write_dataset(tmp_path / "data", (13, 7, 20, 8))
    config = TrainConfig.of(data_dir=str(tmp_path / "data"), model_dir=str(run), global_batch_size=12, epochs=3)
    return json.loads(json.dumps(dataclasses.asdict(config)))


def beat(run, name, ago=1.0, **fields):
    """Writes a heartbeat."""
    values = {"pid": os.getpid(), "time": NOW - ago, "phase": "training", "host": "other", "devices": ["CPU:0"]}
    one = Beat(**{**values, "started": NOW - 100, **fields})
    (run / "launch" / "heartbeats" / f"{name}.json").write_text(json.dumps(dataclasses.asdict(one)))


def process(name, **fields):
    """Returns a process in the launcher's status."""
    role, _, index = name.partition(" ")
    known = {"name": name, "role": role, "index": int(index or 0), "pid": os.getpid(), "state": "running"}
    return {**known, "phase": "training", "step": None, "restarts": 0, "last_error": None, **fields}


def status(run, *processes, ago=1.0, **fields):
    """Writes the launcher's status."""
    known = {"version": 1, "time": NOW - ago, "state": "training", "step": 5, "last_step": 12, "restarts": 0}
    content = {**known, "max_restarts": 10, "error": None, "processes": processes, "lost": [], **fields}
    (run / "launch" / "status.json").write_text(json.dumps(content))


def snapshot(run):
    return RunSource(run, clock=lambda: NOW).snapshot()


def test_a_folder_that_is_not_there(tmp_path):
    found = snapshot(tmp_path / "none")
    assert (found.run, found.state, found.step, found.members) == ("none", "nothing", None, ())
    assert found.problems == (f"{tmp_path / 'none'} is not there",)
    assert RunSource(tmp_path / "none").curves() == {}


def test_a_job_of_the_launcher(run, flags):
    beat(run, "worker-0", step=6, last_step=12, examples_per_second=60.0, seconds_per_step=0.2, waited_per_step=0.02)
    beat(run, "worker-1", step=5, last_step=12, examples_per_second=59.0, seconds_per_step=0.2, waited_per_step=0.09)
    status(run, process("worker 0", step=6, restarts=2), process("worker 1", last_error="it died"), restarts=1)
    (run / "launch" / "events.jsonl").write_text(
        '{"time": 999990.0, "kind": "job", "text": "2 workers"}\n'
        '{"time": 999995.0, "kind": "failure", "text": "worker 1 was killed"}\n'
        '{"time": 999996.0, "kin'  # a line that is being written
    )
    EventFile(run / "logs", 0).text(1, "flags", json.dumps(flags))
    found = snapshot(run)
    assert (found.state, found.kind, found.step, found.last_step) == ("training", "one_device", 6, 12)
    assert (found.restarts, found.max_restarts) == (1, 10)
    assert (found.epoch, found.epochs) == (1.5, 3.0)
    assert (found.examples_per_second, round(found.input_wait, 3)) == (
        60.0,
        0.45,
    )  # the wait of the one that waits most
    assert found.seconds_left == 6 * 12 / 60
    first, second = found.members
    assert (first.name, first.role, first.host, first.devices, first.state) == (
        *("worker 0", "worker", "other"),
        *(("CPU:0",), "running"),
    )
    assert (first.heartbeat, first.restarts, first.error) == (NOW - 1.0, 2, None)
    assert (second.step, second.error, found.straggler.name) == (5, "it died", "worker 1")
    assert [(one.name, one.rows) for one in found.data[0].workers] == [("worker 0", (0, 6)), ("worker 1", (6, 12))]
    assert (found.data[0].steps, found.data[0].seen) == ((2, 4), 24)
    assert [(one.kind, one.text) for one in found.events][:2] == [
        ("job", "2 workers"),
        ("failure", "worker 1 was killed"),
    ]
    assert found.flags["global_batch_size"] == "12"


@pytest.mark.parametrize(("state", "speed"), [("starting", None), ("waiting", None), ("training", 80.0)])
def test_a_job_that_starts_again_has_not_the_speed_that_it_had(run, state, speed):
    EventFile(run / "logs", 0).scalars(4, {"train/examples_per_second": 80.0, "train/input_wait": 0.25})
    beat(run, "worker-0", phase="loading TensorFlow")
    status(run, process("worker 0"), state=state)
    found = snapshot(run)
    assert (found.state, found.examples_per_second, found.input_wait) == (state, speed, speed and 0.25)


def test_a_worker_whose_gradients_come_last(run):
    for index, seconds in enumerate((0.05, 0.01)):
        beat(run, f"worker-{index}", step=6, seconds_per_step=0.2, waited_per_step=0.0, exchanged_per_step=seconds)
    found = snapshot(run)
    assert [one.exchanged_per_step for one in found.members] == [0.05, 0.01]
    assert (found.straggler.name, "40.0 ms per step later" in found.straggler.why) == ("worker 1", True)


@pytest.mark.parametrize(
    ("beats", "state", "members"),
    [
        ({"worker-0": {"step": 3}}, "training", ["running"]),
        ({"worker-0": {"step": 3}, "slurm": {"step": 3}}, "training", ["running"]),
        ({"worker-0": {"phase": "loading TensorFlow"}}, "starting", ["running"]),
        ({"worker-0": {"ago": 20.0}}, "silent", ["silent"]),
        ({"worker-0": {"ago": 20.0, "quiet": 60.0}}, "starting", ["running"]),
        ({"worker-0": {"ago": 20.0, "host": socket.gethostname(), "pid": 1 << 22}}, "gone", ["gone"]),
        ({"worker-0": {"ago": 20.0, "host": socket.gethostname()}}, "silent", ["silent"]),  # it is stopped
        ({"worker-0": {"ago": 20.0, "exit_code": 0}}, "done", ["done"]),
        ({"worker-0": {"ago": 20.0, "exit_code": 75, "error": "stopped"}}, "stopped", ["stopped"]),
        ({"worker-0": {"ago": 20.0, "exit_code": 1, "error": "NaN"}, "worker-1": {"exit_code": 75}}, "failed", None),
        ({"chief": {"step": 3}, "ps-0": {}, "worker-0": {}, "worker-10": {}, "worker-2": {}}, "training", None),
        # Of an earlier job: they ended before any that runs now began.
        ({"worker-0": {"step": 3}, "worker-1": {"ago": 500.0, "exit_code": 0}}, "training", ["running"]),
    ],
)
def test_processes_without_a_launcher(run, beats, state, members):
    for name, fields in beats.items():
        beat(run, name, **fields)
    found = snapshot(run)
    assert found.state == state
    if members is None:
        assert [one.name.replace(" ", "-") for one in found.members] == sorted(
            beats, key=lambda name: (name.partition("-")[0], int(name.partition("-")[2] or 0))
        )
    else:
        assert [one.state for one in found.members] == members


def test_heartbeats_of_an_earlier_topology_do_not_decide_the_state(run):
    beat(run, "worker-0", started=NOW - 100, ago=20.0, step=12, last_step=12, exit_code=0)
    yesterday = {"started": NOW - 90_000, "ago": 86_400.0}
    beat(run, "worker-1", **yesterday, step=500, last_step=999, exit_code=1, error="step 500: loss is nan")
    found = snapshot(run)
    assert (found.state, found.step, found.last_step, found.error) == ("done", 12, 12, None)
    assert ([one.name for one in found.members], [one.text for one in found.events]) == (
        ["worker 0"],
        ["worker 0 is done"],
    )
    beat(run, "worker-0", step=5, last_step=12)  # and while one runs
    assert (snapshot(run).state, snapshot(run).last_step) == ("training", 12)
    status(run, process("worker 0"), last_step=None)
    assert snapshot(run).last_step == 12


def test_the_last_error_of_a_process_is_told_with_its_end(run):
    beat(run, "worker-0", ago=30.0, exit_code=1, error="step 7: loss is nan")
    found = snapshot(run)
    assert found.error == "step 7: loss is nan"
    assert [(one.kind, one.text) for one in found.events] == [("failure", "worker 0 ended: step 7: loss is nan")]


def test_a_launcher_that_has_gone(run):
    status(run, process("worker 0"), ago=60.0)
    assert snapshot(run).state == "silent"
    status(run, process("worker 0", state="ended"), ago=60.0, state="failed", error="worker 0 was killed")
    found = snapshot(run)
    assert (found.state, found.error, found.members[0].state) == ("failed", "worker 0 was killed", "ended")


@pytest.mark.parametrize("job", ["a1b2", ""])  # earlier releases wrote none, but the processes of the launcher
@pytest.mark.parametrize("ago", [600.0, 3.0])
def test_a_status_of_an_earlier_job_says_nothing_about_this_one(run, job, ago):
    processes = process("worker 0", pid=77), process("worker 1", pid=78)
    status(run, *processes, job=job, ago=ago, state="done", restarts=4, step=12)
    beat(run, "worker-0", step=3)
    found = snapshot(run)
    assert (found.state, found.step, found.restarts, len(found.members)) == ("training", 3, None, 1)


@pytest.mark.parametrize("job", ["a1b2", ""])
@pytest.mark.parametrize(("ago", "state", "restarts"), [(5.0, "stopping", 4), (60.0, "training", None)])
def test_processes_that_outlive_their_launcher_tell_of_themselves(run, job, ago, state, restarts):
    status(run, process("worker 0"), job=job, ago=ago, state="stopping", restarts=4)
    beat(run, "worker-0", job=job, step=3)
    found = snapshot(run)
    assert (found.state, found.restarts, found.members[0].step) == (state, restarts, 3)


def test_the_beat_of_the_process_before_is_not_that_of_this_one(run):
    beat(run, "worker-0", pid=77, step=900)
    status(run, process("worker 0", pid=78, phase="starting"))
    (one,) = snapshot(run).members
    assert (one.pid, one.step, one.heartbeat, one.phase) == (78, None, None, "starting")


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '"text"', "{}", '{"time": "x", "processes": [1, {"name": 2}]}'])
@pytest.mark.parametrize("name", ["launch/status.json", "launch/heartbeats/worker-0.json", "config.yaml"])
def test_half_written_files_and_rubbish_hide_nothing_else(run, name, content):
    EventFile(run / "logs", 0).scalars(7, {"train/epoch_total_loss": 0.5})
    beat(run, "worker-1", step=7)
    (run / name).write_text(content)
    found = snapshot(run)
    assert (found.step, found.loss, found.members[-1].name) == (7, 0.5, "worker 1")
    said = " ".join(found.problems)
    assert name.rpartition("/")[2] in said


@pytest.mark.parametrize(
    ("field", "value"),
    [("examples_per_second", {}), ("host", ["a"]), ("devices", "CPU:0"), ("step", "7"), ("quiet", None), ("error", 5)],
)
def test_a_heartbeat_with_a_field_of_another_kind_is_named(run, field, value):
    beat(run, "worker-0", step=7)
    beat(run, "worker-1", step=7)
    path = run / "launch" / "heartbeats" / "worker-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    found = snapshot(run)
    assert [one.name for one in found.members] == ["worker 0"]
    assert "heartbeats/worker-1.json is not a heartbeat" in found.problems


@pytest.mark.parametrize(
    "fields",
    [{"lost": 5}, {"elastic": [1]}, {"elastic": "1:2"}, {"error": {"a": 1}}, {"restarts": "x"}, {"command": 7}]
    + [{"flags": {"order": 7}}, {"job": 7}]
    + [{"processes": [{**process("worker 0"), name: value}]} for name, value in (("pid", "x"), ("last_error", 5))],
)
def test_a_status_with_a_field_of_another_kind_is_named(run, fields):
    beat(run, "worker-0", step=7)
    status(run, process("worker 0"), **fields)
    found = snapshot(run)
    assert (found.step, found.restarts, [one.name for one in found.members]) == (7, None, ["worker 0"])
    assert "status.json is not a status of trainer.launch" in " ".join(found.problems)


def test_a_status_of_another_release(run):
    """Which lacks fields of this one, and has others."""
    (run / "launch" / "status.json").write_text(
        json.dumps({"time": NOW, "state": "training", "mood": 5, "processes": [{"name": "worker 2", "hat": "red"}]})
    )
    found = snapshot(run)
    assert (found.state, found.step, found.restarts, found.elastic) == ("training", None, None, None)
    assert [(one.name, one.role, one.index, one.state) for one in found.members] == [
        ("worker 2", "worker", 2, "running")
    ]


def test_a_run_that_is_known_by_its_files_alone(run, flags):
    for step in (4, 8, 12):
        (run / f"ckpt-{step}.index").touch()
    (run / "best").mkdir()
    (run / "best" / "ckpt-8.index").touch()
    events = EventFile(run / "logs", 0)
    events.text(1, "flags", json.dumps(flags))
    for step, accuracy in ((4, 0.5), (8, 0.75), (12, 0.625)):
        events.scalars(step, {"train/total_loss": 1.0, "train/examples_per_second": 80.0, "train/input_wait": 0.25})
        events.scalars(step, {"eval/test/loss": 0.5, "eval/test/accuracy": accuracy})
    found = snapshot(run)
    assert (found.state, found.step, found.saved_step, found.last_step) == ("silent", 12, 12, 12)
    assert [(one.step, one.rank, one.kept) for one in found.evaluations] == [
        (4, 3, False),
        (8, 1, True),
        (12, 2, False),
    ]
    assert found.evaluations[1].values == {"loss": 0.5, "accuracy": 0.75}
    assert (found.ranked_by, found.checkpoints) == ("accuracy", (4, 8, 12))
    assert (found.examples_per_second, found.input_wait) == (80.0, 0.25)
    assert [one.text for one in found.events if one.kind == "best"] == [
        "step 4: best accuracy so far: 0.5000 (loss 0.5000)",
        "step 8: best accuracy so far: 0.7500 (loss 0.5000)",
    ]
    curves = RunSource(run).curves()
    assert curves["eval/test/accuracy"]["steps"] == [4, 8, 12]
    assert curves["eval/test/accuracy"]["values"] == [0.5, 0.75, 0.625]


def test_the_best_is_by_the_metric_and_the_mode_of_the_run(run, flags):
    flags["steps"] |= {"best_metric": "loss", "best_mode": "max", "keep_best": 1, "eval_every": 4}
    events = EventFile(run / "logs", 0)
    events.text(1, "flags", json.dumps(flags))
    for step, loss in ((4, 0.5), (8, 0.75)):
        events.scalars(step, {"eval/test/loss": loss, "eval/test/accuracy": 1 - loss})
    found = snapshot(run)
    assert (found.ranked_by, [one.rank for one in found.evaluations]) == ("loss", [2, 1])


def test_what_a_resume_has_changed(run, flags):
    data = {name: value for name, value in flags["data"].items() if name != "augment"}
    earlier = {**flags, "data": {**data, "distort": "none"}}  # by its earlier name
    EventFile(run / "logs", 0).text(1, "flags", json.dumps(earlier))
    flags["optimizer"]["learning_rate"], flags["steps"]["epochs"], flags["data"]["augment"] = 0.5, None, "shift"
    EventFile(run / "logs", 8).text(9, "flags", json.dumps(flags))
    EventFile(run / "logs", 9).text(10, "flags", json.dumps(flags))
    found = snapshot(run)
    (change,) = found.changes
    assert (change.step, {name: (was, now) for name, was, now in change.flags}) == (
        8,
        {"learning_rate": ("0.05", "0.5"), "epochs": ("3", "unset"), "augment": ("none", "shift")},
    )
    assert [one.text.partition(", on")[0] for one in found.events] == [
        "training begins",
        "training resumes from step 8",
        "training resumes from step 9",
    ]
    assert found.flags["learning_rate"] == "0.5"


def test_flags_come_from_the_last_save_or_the_launcher_where_events_lack_them(run, flags):
    status(run, process("worker 0"), flags={**flags, "order": {**flags["order"], "global_batch_size": 24}})
    assert snapshot(run).flags["global_batch_size"] == "24"
    file.write(run / "config.yaml", flags)
    assert snapshot(run).flags["global_batch_size"] == "12"


def test_a_run_without_files_of_tensorboard_is_told_by_its_metrics_file(run, flags):
    flags["output"]["metrics_jsonl"], flags["steps"]["summary_every"] = str(run / "metrics.jsonl"), 0
    file.write(run / "config.yaml", flags)
    (run / "metrics.jsonl").write_text('{"step": 4, "time": 1.0, "train/epoch_total_loss": 0.25}\n')
    found = snapshot(run)
    assert (found.step, found.loss, found.problems) == (4, 0.25, ())


def test_asynchronous_workers_and_the_ledger(run, flags):
    flags["run"]["strategy"] = "parameter_server"
    events = EventFile(run / "logs", 0)
    events.text(1, "flags", json.dumps(flags))
    events.scalars(6, {"worker/0/steps": 5.0, "worker/0/seconds_per_step": 0.5, "worker/1/steps": 1.0})
    events.scalars(6, {"worker/1/seconds_per_step": 2.0, "ledger/once": 6.0, "ledger/twice": 0.0, "ledger/never": 0.0})
    for name in ("chief", "worker-0", "worker-1", "ps-0"):
        beat(run, name, started=0.0, step=6 if name == "chief" else None)
    found = snapshot(run)
    assert [(one.name, one.steps) for one in found.members] == [
        *(("chief", None), ("ps 0", None)),
        *(("worker 0", 5), ("worker 1", 1)),
    ]
    assert found.straggler.name == "worker 1"
    assert found.ledger == {"once": 6, "twice": 0, "never": 0}
    assert (found.data[0].workers[0].name, found.data[0].seen) == ("the job", 24)
    assert "each worker keeps the whole split in memory" in found.data_note
    beat(run, "worker-1", started=2e9)  # started again: the seconds of the process before say nothing about it
    assert snapshot(run).straggler is None


def test_no_code_of_the_user_is_run(run, flags):
    flags["model"]["task"] = "mine:Task"
    EventFile(run / "logs", 0).text(1, "flags", json.dumps(flags))
    found = snapshot(run)
    assert (found.data, found.data_note) == (
        (),
        "--task=mine:Task may parse its data itself, which a page does not run",
    )


def test_the_data_are_resolved_once_and_again_only_where_they_could_not_be_read(run, flags, monkeypatch):
    asked, now = [], [NOW]
    known = reading.Data.of
    monkeypatch.setattr(reading.Data, "of", lambda config: asked.append(config) or known(config))
    EventFile(run / "logs", 0).text(1, "flags", json.dumps(flags))
    data, away = pathlib.Path(flags["data"]["data_dir"]), run / "away"
    data.rename(away)
    sources = [RunSource(run, f"run {i}", clock=lambda: now[0]) for i in range(9)]

    def seen(after):
        now[0] += after
        asked.clear()
        return {bool(source.snapshot().data) for source in sources}, len(asked)

    assert [seen(0.0), seen(1.0), seen(60.0)] == [({False}, 9), ({False}, 0), ({False}, 9)]
    away.rename(data)
    assert [seen(60.0), seen(1.0), seen(60.0)] == [({True}, 9), ({True}, 0), ({True}, 0)]


def test_files_are_only_read(run, flags):
    beat(run, "worker-0", step=3)
    status(run, process("worker 0"))
    EventFile(run / "logs", 0).scalars(7, {"train/loss": 0.5})
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    source = RunSource(run)
    source.snapshot(), source.curves(), source.config()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_flags_of_another_version_do_not_hide_the_rest(run, flags):
    flags["order"]["global_batch_size"] = -3
    EventFile(run / "logs", 0).text(1, "flags", json.dumps(flags))
    beat(run, "worker-0", step=3)
    found = snapshot(run)
    assert (found.step, found.kind) == (3, None)
    assert any("flags cannot be used: " in one for one in found.problems)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), os.mkdir])
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "launch/status.json", "launch/events.jsonl", "launch/heartbeats/worker-0.json", "logs"],
)
def test_what_is_no_regular_file_does_not_block_and_is_named(run, name, make, monkeypatch):
    """Whoever opens a FIFO to read it waits for a writer."""
    path = run / name
    if name == "logs":
        path = path / "events.out.tfevents.1.host.1.0"
        path.parent.mkdir()
    monkeypatch.chdir(path.parent)  # the path of a socket has 108 characters at most
    make(path.name)
    found = answered_within(5, lambda: snapshot(run))
    assert found.state != "training"
    if name != "logs":  # has no bytes, so that there is nothing to read
        assert any(path.name in problem for problem in found.problems), found.problems


def answered_within(seconds, function):
    """Returns a function's result from a thread of its own, since it may hang."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"no answer within {seconds} s"
    return found[0]


@pytest.mark.slow
def test_long_files_are_read_in_portions_while_snapshots_are_answered(run, flags, tmp_path):
    path = run / "metrics.jsonl"
    flags["output"]["metrics_jsonl"] = str(path)
    (run / "config.yaml").write_text(json.dumps(flags))
    with path.open("w") as lines:
        for step in range(1, 150_001):
            lines.write(f'{{"step": {step}, "time": 5.0, "train/loss": 0.5}}\n')
    source = RunSource(run, clock=lambda: NOW, patience=0.05)
    began = time.monotonic()
    found = source.snapshot()
    assert time.monotonic() - began < 1.0
    assert any("still being read" in problem for problem in found.problems)
    while any("still being read" in problem for problem in found.problems):
        assert time.monotonic() - began < 60
        time.sleep(0.05)
        found = source.snapshot()
    assert found.step == 150_000
    assert source.curves()["train/loss"]["steps"][-1] == 150_000
