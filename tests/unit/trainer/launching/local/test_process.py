"""One process: its output, its heartbeats and its end."""

import dataclasses
import json
import time

import pytest

from tests.helpers.launches import is_running, left_within
from tests.unit.trainer.launching.local.puppets import SECONDS, named, state_of
from trainer.journal import Beat
from trainer.launching.local.process import _STARTING_SECONDS, ExitStatus, HeartbeatMonitor, Tail, Task


def test_lines_come_as_they_are_completed(tmp_path):
    path = tmp_path / "log"
    path.write_text("of an earlier run\n")
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.lines() == ["one"]
        file.write(b"o\r\n\nthr\xffee")
        assert tail.lines() == ["two", ""]
        assert tail.lines() == []
        assert tail.lines(is_end=True) == ["thr\ufffdee"]
        assert tail.lines(is_end=True) == []
    assert list(tail.last) == ["one", "two", "thr\ufffdee"]
    tail.close()


def test_only_the_last_lines_are_kept(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    path.write_text("".join(f"{i}\n" for i in range(100)))
    assert len(tail.lines()) == 100
    assert list(tail.last) == [str(i) for i in range(80, 100)]
    tail.close()


BEAT = Beat(pid=1, time=0.0, beats=1, phase="training", step=7, made=3, achieved=5, expects="steps")


@pytest.fixture
def beat(tmp_path):
    """Returns a function that writes a beat, and a monitor with a timeout of 10 s that began at 0."""
    path = tmp_path / "beat.json"
    beats = [0]

    def beat(**changes):
        beats[0] += 1
        path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(BEAT, beats=beats[0], **changes))))

    return beat, HeartbeatMonitor(path, 10.0, 0.0)


def silence(monitor, now):
    monitor.hear(now)
    return monitor.silence


def test_without_a_first_beat(beat):
    _, monitor = beat
    assert silence(monitor, 10.0 + _STARTING_SECONDS) == ""
    assert silence(monitor, 11.0 + _STARTING_SECONDS) == "gave no sign of life for 71 s"


def test_no_beats(beat):
    write, monitor = beat
    write()
    monitor.hear(100.0)
    assert monitor.has_stepped
    assert silence(monitor, 104.0) == ""
    assert not monitor.is_late
    assert silence(monitor, 105.0) == ""
    assert monitor.is_late
    assert silence(monitor, 111.0) == "gave no sign of life for 11 s after step 7 (training)"


def test_beats_may_stop_where_the_process_said_so(beat):
    write, monitor = beat
    write(phase="joining", quiet=120.0, expects="end", step=None)
    monitor.hear(0.0)
    assert silence(monitor, 124.0) == ""
    assert not monitor.is_late
    assert silence(monitor, 130.0) == ""
    assert silence(monitor, 131.0) == "gave no sign of life for 131 s (joining)"


def test_it_lives_but_gets_on_no_more(beat):
    write, monitor = beat
    for now in range(11):
        write()
        assert silence(monitor, float(now)) == ""
    write()
    assert silence(monitor, 11.0) == "made no progress for 11 s after step 7 (training)"
    write(achieved=6)
    assert silence(monitor, 12.0) == ""


@pytest.mark.parametrize(
    ("changes", "allowed"), [({"patience": 50.0}, 50.0), ({"expects": "end"}, 100.0), ({"expects": "nothing"}, 1e9)]
)
def test_what_takes_long_may_take_long(changes, allowed, beat):
    write, monitor = beat
    write(**changes)
    monitor.hear(0.0)
    write(**changes)
    assert silence(monitor, allowed) == ""
    write(**changes)
    assert bool(silence(monitor, allowed + 1)) == (allowed < 1e9)


@pytest.mark.parametrize(
    ("exit_status", "text", "restartable", "exit_code"),
    [
        (ExitStatus(0), "ended with exit code 0", False, 0),
        (ExitStatus(1), "ended with exit code 1 (bad data, or an error in the program)", False, 1),
        (ExitStatus(2), "ended with exit code 2 (a flag cannot work)", False, 2),
        (ExitStatus(75), "ended with exit code 75 (not done, to be resumed)", True, 75),
        (ExitStatus(3), "ended with exit code 3", True, 3),
        (ExitStatus(-9), "was killed by SIGKILL", True, 137),
        (ExitStatus(-6), "was killed by SIGABRT", True, 134),
        (ExitStatus(143), "was killed by SIGTERM", True, 143),
        (ExitStatus(-9, "gave no sign of life for 60 s"), "gave no sign of life for 60 s, and was killed", True, 137),
    ],
)
def test_endings(exit_status, text, restartable, exit_code):
    assert (str(exit_status), exit_status.is_restartable, exit_status.exit_code) == (text, restartable, exit_code)


def test_a_process_has_its_variables_its_files_and_its_end(puppets):
    launch = puppets("--num_workers=1", shares=[("7",)])
    folder = launch.placement.folder
    (folder / "heartbeats" / "worker-0.json").write_text(json.dumps(dataclasses.asdict(BEAT)))  # of an earlier run
    group = launch.start()
    process = named(group, "worker 0")
    assert (process.task, process.pid) == (Task("worker", 0, 0), process.pid)
    launch.order("worker 0", 'echo "$CUDA_VISIBLE_DEVICES $PYTHONUNBUFFERED"; echo no >&2; beat 3; printf part; exit 3')
    launch.wait(group, "worker 0")
    assert (process.exit_status, process.has_failed, process.poll()) == (ExitStatus(3), True, ExitStatus(3))
    assert (list(process.out.last), list(process.err.last)) == (["7 1", "part"], ["no"])
    assert process.out.path == folder / "logs" / "worker-0.stdout.log"
    assert (process.monitor.beat.beats, process.monitor.beat.step) == (1, 3)  # not the earlier one


def test_what_a_process_has_started_is_ended_with_it(puppets):
    launch = puppets("--num_workers=1")
    group = launch.start()
    launch.order("worker 0", "sleep 1000 & echo $!; exit 0")
    [process] = launch.wait(group, "worker 0")
    child = int(process.out.last[0])
    assert left_within(SECONDS, [child]) == []
    assert (process.exit_status.is_good, process.has_failed) == (True, False)


def test_a_process_that_is_stopped_is_woken_to_save_and_end(puppets):
    launch = puppets("--num_workers=1")
    group = launch.start()
    process = named(group, "worker 0")
    launch.order("worker 0", "kill -STOP $$")
    end = time.monotonic() + SECONDS
    while state_of(process.pid) != "T":
        assert time.monotonic() < end
        time.sleep(0.002)
    process.ask_to_end()
    launch.wait(group, "worker 0")
    assert (process.exit_status, process.is_ending, process.has_failed) == (ExitStatus(75), True, False)
    process.ask_to_end()  # it has ended; nobody else may get the signal
    process.kill()


@pytest.mark.parametrize(("silence", "failed"), [("gave no sign of life for 9 s", True), ("", False)])
def test_a_process_that_is_killed_has_failed_if_it_was_silent(puppets, silence, failed):
    launch = puppets("--num_workers=1")
    group = launch.start()
    process = named(group, "worker 0")
    process.kill(silence)
    launch.wait(group, "worker 0")
    assert (process.exit_status, process.has_failed) == (ExitStatus(-9, silence), failed)
    assert not is_running(process.pid)
