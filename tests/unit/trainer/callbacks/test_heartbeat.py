import contextlib
import json
import os
import socket
import threading
import time

import pytest

from pipeline.errors import RerunError
from pipeline.files import write
from trainer import journal
from trainer.callbacks import heartbeat
from trainer.callbacks.base import Phase
from trainer.callbacks.heartbeat import Heartbeat
from trainer.journal import Beat
from trainer.loop import Progress, Spent
from trainer.run_folder import RunFolder


def progress(step, made, seconds, waited=0.0, exchanged=0.0):
    spent = Spent(made, seconds, waited, exchanged)
    return Progress(step, {"total_loss": 0.5}, spent, Spent(1, 1.0), result=None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "beat.json"


def written(path, predicate, seconds=5.0):
    """Waits until a beat for which the predicate holds is in the file, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (beat := Beat.read(path)) and predicate(beat):
            return beat
        time.sleep(0.01)
    raise AssertionError(f"after {seconds} s: {Beat.read(path)}")


@pytest.mark.parametrize("lost", [["worker 1", "ps 0"], []])
def test_the_last_beat_says_whose_end_ended_the_process(path, lost):
    with pytest.raises(RerunError), Heartbeat(str(path)):
        raise RerunError("it cannot continue", lost=lost)
    assert Beat.read(path).lost == tuple(lost)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, None),
        (RerunError("stopped by SIGTERM"), 75, "stopped by SIGTERM"),
        (ValueError("one\ntwo"), 1, "one"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt"),
    ],
)
def test_the_last_beat_says_how_the_process_ends(path, error, code, said):
    with contextlib.suppress(BaseException), Heartbeat(str(path)) as beats:
        assert Beat.read(path).exit_code is None
        beats.on_devices(["CPU:0", "CPU:1"])
        if error:
            raise error
    last = Beat.read(path)
    assert (last.exit_code, last.error, last.devices) == (code, said, ("CPU:0", "CPU:1"))
    assert (last.host, last.pid) == (socket.gethostname(), os.getpid())
    assert 0 <= last.time - last.started < 60


def test_a_run_also_beats_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    monkeypatch.setattr(heartbeat, "_BETWEEN", 0.01)
    folder = RunFolder(tmp_path / "run")
    with Heartbeat.of_environment() as worker, Heartbeat.of_environment() as chief:
        worker.keep_in(folder, "worker-1", is_chief=False)
        assert not (tmp_path / "run").exists()  # the chief makes it, once it is sure of the flags
        folder.path.mkdir()
        chief.keep_in(folder, "worker-0", is_chief=True)
        written(folder.heartbeats / "worker-1.json", lambda beat: beat.beats > 1)
        written(folder.heartbeats / "worker-0.json", lambda beat: beat.beats > 1)


def test_the_launchers_file_and_that_of_the_folder_may_be_one(tmp_path):
    folder = RunFolder(tmp_path)
    folder.heartbeats.mkdir(parents=True)
    path = folder.heartbeats / "worker-0.json"
    with Heartbeat(str(path)) as beats:
        before = Beat.read(path).beats
        beats.keep_in(folder, "worker-0", is_chief=True)
        assert Beat.read(path).beats == before
    probed = tmp_path / "probed.json"
    with Heartbeat(str(probed)) as beats:  # as on Kubernetes
        beats.keep_in(folder, "worker-0", is_chief=True)
        beats.on_phase(Phase("saving", quiet=1.0))
    assert Beat.read(path) == Beat.read(probed)
    assert (Beat.read(path).phase, Beat.read(path).exit_code) == ("saving", 0)


def test_a_file_system_that_hangs_holds_up_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_BETWEEN", 0.01)
    monkeypatch.setattr(heartbeat, "_HANGS", 0.1)
    path, hangs = tmp_path / "probed.json", threading.Event()

    def replace(file, *rest):
        if file != path:
            hangs.wait(60)
        write.replace(file, *rest)

    monkeypatch.setattr(journal, "replace", replace)
    with Heartbeat(str(path)) as beats:
        beats.keep_in(RunFolder(tmp_path / "run"), "worker-0", is_chief=True)
        began = time.monotonic()
        beats.on_loop(progress(7, 7, 1.0))
        written(path, lambda beat: beat.step == 7)
    assert time.monotonic() - began < 30  # it ends, too
    hangs.set()


def test_a_file_system_that_hangs_at_the_end_holds_up_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_HANGS", 0.1)
    folder, hangs, is_written = RunFolder(tmp_path), threading.Event(), threading.Event()

    def replace(file, text, *rest):
        if json.loads(text)["exit_code"] is not None:
            hangs.wait(20)
        write.replace(file, text, *rest)
        is_written.set()

    monkeypatch.setattr(journal, "replace", replace)
    with Heartbeat() as beats:
        beats.keep_in(folder, "worker-0", is_chief=True)
        assert is_written.wait(10)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    hangs.set()
    written(folder.heartbeats / "worker-0.json", lambda beat: beat.exit_code == 0)


@pytest.mark.parametrize(("exchanged", "per_step"), [(0.5, 0.025), (0.0, None)])
def test_seconds_of_a_step_and_the_waits_in_it(path, exchanged, per_step):
    with Heartbeat(str(path)) as beats:
        beats.job(last_step=100, rows=10)
        beats.on_loop(progress(1, 1, 1.0))
        beats.on_loop(progress(21, 21, 5.0, waited=1.0, exchanged=exchanged))
        beats.on_phase(Phase("saving", quiet=1.0))
    last = Beat.read(path)
    assert (last.seconds_per_step, last.waited_per_step, last.examples_per_second) == (0.2, 0.05, 50.0)
    assert last.exchanged_per_step == per_step


def test_without_a_launcher_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with Heartbeat.of_environment() as beats:
        beats.on_phase(Phase("loading"))
        beats.on_loop(progress(3, 1, 1.0))
    assert list(tmp_path.iterdir()) == []


def test_a_thread_beats_while_nothing_is_achieved(monkeypatch, path):
    monkeypatch.setenv(heartbeat.VARIABLE, str(path))
    monkeypatch.setenv(journal.JOB, "a1b2")
    monkeypatch.setattr(heartbeat, "_BETWEEN", 0.01)
    with Heartbeat.of_environment() as beats:
        beats.on_phase(Phase("compiling the step"))
        first = written(path, lambda beat: beat.phase == "compiling the step")
        later = written(path, lambda beat: beat.beats >= first.beats + 3)
    assert (first.achieved, first.expects, later.job) == (later.achieved, "end", "a1b2")
    assert later.time > first.time


def test_the_first_step_is_written_at_once_and_then_about_one_beat_per_second(path):
    with Heartbeat(str(path)) as beats:
        beats.on_phase(Phase("compiling the step"))
        beats.job(last_step=100, rows=64)
        beats.on_loop(progress(31, 1, 1.0))
        first = Beat.read(path)
        assert (first.phase, first.step, first.last_step, first.made) == ("training", 31, 100, 1)
        assert first.seconds_per_step is None  # it was compiled
        for made in range(2, 1000):
            beats.on_loop(progress(30 + made, made, 1.0 + made / 100))
        assert Beat.read(path) == first
    last = Beat.read(path)
    assert (last.step, last.made, last.beats) == (1029, 999, first.beats + 1)
    assert last.achieved == first.achieved + 998


def test_speeds_are_those_of_the_last_beats(path):
    with Heartbeat(str(path)) as beats:
        beats.job(100, rows=64)
        beats.on_loop(progress(1, 1, 1.0))
        beats.on_loop(progress(11, 11, 3.0, waited=0.5))
    beat = Beat.read(path)
    assert beat.examples_per_second == 10 * 64 / 2.0
    assert beat.input_wait == 0.25


def test_what_shows_progress_is_another_thing_in_each_phase(path):
    with Heartbeat(str(path)) as beats:
        beats.job(100, rows=64, steps_per_loop=20)
        beats.on_phase(Phase("joining", quiet=120.0))
        assert (Beat.read(path).expects, Beat.read(path).quiet) == ("end", 120.0)
        beats.on_loop(progress(1, 1, 1.0))
        assert (Beat.read(path).expects, Beat.read(path).quiet) == ("steps", 0.0)
        assert Beat.read(path).patience == 20.0  # a loop of 20 steps, by the first one
        time.sleep(0.05)
        beats.on_loop(progress(2, 2, 1.0))
        with beats.saving():
            assert beats._beat.expects == "end"
            time.sleep(0.3)
        assert (beats._beat.phase, beats._beat.expects) == ("training", "steps")
        beats.on_loop(progress(3, 3, 1.0))
        assert 5 * 0.05 <= beats._beat.patience < 5 * 0.3  # saving is not part of it
        beats.on_phase(Phase("evaluating"))
        beats.on_evaluation_loop()
        assert beats._beat.expects == "end"  # its first batches are compiled
        beats.on_evaluation_loop()
        assert beats._beat.expects == "steps"


def test_a_file_that_is_not_a_beat_is_none(path):
    assert Beat.read(path) is None
    path.write_text('{"pid": 1')
    assert Beat.read(path) is None
    path.write_text('{"pid": 1}')
    assert Beat.read(path) is None
    path.write_text(json.dumps({"pid": 1, "time": 2.0}))
    assert Beat.read(path).phase == "starting"


def test_a_beat_costs_little(path):
    beats = Heartbeat(str(path))
    began = time.process_time()
    for made in range(1, 10_001):
        beats.on_loop(progress(made, made, made / 100))
    assert time.process_time() - began < 1.0  # 100 microseconds each, on a busy machine; 10 on an idle one
