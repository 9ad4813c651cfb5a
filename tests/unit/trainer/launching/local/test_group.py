"""A group of processes: which of them failed first, and the line about it."""

import time
import types

import pytest

from pipeline.errors import DataError
from tests.helpers.launches import is_running
from tests.unit.trainer.launching.local.puppets import SECONDS, named
from trainer.launching.local.group import Cause, first_failure, is_awaited
from trainer.launching.local.process import ExitStatus, Task


def process(name, code=None, *lines, unheard=0.0, step=None, silence="", lost=()):
    beat = None if step is None else types.SimpleNamespace(step=step)
    monitor = types.SimpleNamespace(is_late=unheard > 0, unheard=unheard, beat=beat, has_stepped=bool(step), lost=lost)
    exit_status = None if code is None else ExitStatus(code, silence)
    err = types.SimpleNamespace(last=list(lines))
    return types.SimpleNamespace(
        task=Task("worker", name, name), pid=7, exit_status=exit_status, monitor=monitor, err=err
    )


def follower(name, code=75):
    return process(name, code, lost=["another"])


@pytest.mark.parametrize(
    ("others", "number"),
    [
        ([follower(0), process(1, 1)], 1),
        ([follower(0, 1), process(1, -9)], 1),
        ([process(0, 75), process(1, 1)], 1),
        ([process(0, 1), process(1, 2)], 0),
        ([follower(0), follower(1)], 0),
        ([follower(0), process(1, unheard=5.0), process(2, unheard=9.0), process(3)], 2),
        ([follower(0), process(1, -9), process(2, unheard=9.0)], 1),
        ([follower(0), process(1, 0, unheard=9.0)], 0),
    ],
    ids=[
        "one that followed, and the cause",
        "followed with the cause's code, and one that was killed",
        "one to be resumed, and an error",
        "of two errors the one that was seen first",
        "all followed: the first",
        "one that followed; the longest silent is the cause",
        "one that was killed, before a silent one",
        "one that is done is not silent",
    ],
)
def test_the_first_failure(others, number):
    failed = [one for one in others if one.exit_status and not one.exit_status.is_good]
    assert first_failure(others, failed).task.index == number


def test_the_cause_is_awaited_while_all_followed_and_none_is_silent():
    followed, failed = follower(0), process(1, 1)
    assert is_awaited([followed, process(1)], [followed])
    assert not is_awaited([followed, process(1, unheard=5.0)], [followed])
    assert not is_awaited([followed, failed], [followed, failed])


LOGS = (
    "E0000 00:00:1795172450.790845    2547 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
    "2026-11-23 20:15:00.123456: W tensorflow/core/framework/op.cc:52] could not",
    "WARNING:tensorflow:no gradients",
    "To enable the following instructions: AVX2 FMA, rebuild TensorFlow",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: leaked",
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((*LOGS[:3], "trainer.run: no such shard", *LOGS), ": trainer.run: no such shard"),
        ((*LOGS, "KeyError: 1", *LOGS), ": KeyError: 1"),
        (("trainer.run: --model=m:f: fails", "Exception ignored in: <x>"), ": trainer.run: --model=m:f: fails"),
        (("F0000 00:00:1.2  9 file.cc:3] Check failed", *LOGS), ": F0000 00:00:1.2  9 file.cc:3] Check failed"),
        (LOGS, ""),
    ],
)
def test_lines_of_logs_are_no_cause(lines, said):
    cause = cause_of(process(1, 2, *lines))
    assert str(cause) == f"worker 1 (process 7) ended with exit code 2 (a flag cannot work){said}"
    assert cause.context == lines


def cause_of(process):
    return Cause.of(process, process.exit_status)


def test_it_is_one_line_and_has_more_where_there_is_more():
    cause = cause_of(process(1, 1, "warning", "no such shard", step=12))
    ended = "ended with exit code 1 (bad data, or an error in the program)"
    assert str(cause) == f"worker 1 (process 7) {ended} after step 12: no such shard"
    assert (cause.at_start, cause.context) == (False, ("warning", "no such shard"))
    killed = cause_of(process(1, -9, "last words", step=0))
    assert str(killed) == "worker 1 (process 7) was killed by SIGKILL after step 0"
    assert (killed.at_start, killed.context) == (True, ("last words",))
    assert cause_of(process(1, 1, "no such shard")).context == ()
    silent = cause_of(process(1, -9, step=3, silence="gave no sign of life for 9 s"))
    assert str(silent) == "worker 1 (process 7) gave no sign of life for 9 s, and was killed"


def test_synchronous_workers_fail_together_and_all_have_to_be_done(puppets):
    launch = puppets("--num_workers=2")
    group = launch.start()
    assert (group.leading, group.serving, group.is_done) == (group.processes, [], False)
    launch.order("worker 0", "exit 0")
    launch.wait(group, "worker 0")
    assert (group.failed, group.is_done, [one.task.name for one in group.running]) == ([], False, ["worker 1"])
    launch.order("worker 1", "exit 3")
    [failed] = launch.wait(group, "worker 1")
    assert (group.failed, group.is_done, group.running) == ([failed], False, [])


def test_the_chief_of_asynchronous_workers_ends_the_job_and_a_worker_fails_alone(puppets):
    launch = puppets("--num_workers=2", "--num_ps=1")
    group = launch.start()
    assert [one.task.name for one in group.leading] == ["chief"]
    assert [one.task.name for one in group.serving] == ["worker 0", "worker 1", "ps 0"]
    launch.order("worker 1", "exit 3")
    [worker] = launch.wait(group, "worker 1")
    assert (worker.has_failed, group.failed) == (True, [])
    launch.order("chief", "exit 0")
    launch.wait(group, "chief")
    assert group.is_done
    launch.order("ps 0", "exit 3")
    [server] = launch.wait(group, "ps 0")
    assert group.failed == [server]


def test_a_process_is_started_again_in_its_place(puppets):
    launch = puppets("--num_workers=2", "--num_ps=1")
    group = launch.start()
    launch.records.started(group)
    launch.order("worker 0", "exit 3", "beat 5")
    [before] = launch.wait(group, "worker 0")
    group.replace(before)
    after = group.processes[1]
    assert (after.task, after.exit_status, after is before) == (before.task, None, False)
    launch.wait_for_step(group, 5)
    assert (group.step, group.has_stepped, launch.records.best) == (5, True, 5)


def test_who_is_told_to_end_has_not_failed_and_who_is_silent_has(puppets):
    launch = puppets("--num_workers=2", "--silent_timeout=0.3")
    group = launch.start()
    told, silent = group.processes
    launch.order("worker 1", "beat 7")
    launch.wait_for_step(group, 7)
    end = time.monotonic() + SECONDS
    told.ask_to_end()
    while silent.exit_status is None:  # it gives no more beats
        assert time.monotonic() < end
        time.sleep(0.01)
        group.poll()
        group.kill_silent()
    launch.wait(group, "worker 0")
    assert (told.exit_status.code, silent.exit_status.code, group.failed) == (75, -9, [silent])
    assert silent.exit_status.silence.endswith(" after step 7 (training)")


def test_lines_are_held_back_until_the_cause_is_said(puppets, capfd):
    launch = puppets("--num_workers=2")
    group = launch.start()
    launch.order("worker 1", "echo before")
    launch.order("worker 0", "beat 3 'worker 1'; echo lost >&2; echo told")
    end = time.monotonic() + SECONDS
    while list(named(group, "worker 0").out.last) != ["told"] or list(named(group, "worker 1").out.last) != ["before"]:
        assert time.monotonic() < end
        group.poll()
    launch.order("worker 1", "echo after; exit 3")
    launch.wait(group, "worker 1")
    launch.screen.say("the cause")
    assert "lost" not in capfd.readouterr().err
    group.cause_is_said()
    out, err = capfd.readouterr()
    assert (out.splitlines()[-1], err.splitlines()) == ("worker 1 | after", ["worker 0 | lost"])
    launch.order("worker 0", "echo more; exit 0")
    launch.wait(group, "worker 0")
    assert capfd.readouterr().out == "worker 0 | more\n"  # at once


def test_lines_after_a_failure_are_held_back_too(puppets, capfd):
    launch = puppets("--num_workers=2")
    group = launch.start()
    launch.order("worker 0", "exit 3")
    launch.wait(group, "worker 0")
    launch.order("worker 1", "echo after; exit 0")
    launch.wait(group, "worker 1")
    assert capfd.readouterr().out == ""
    group.cause_is_said()
    assert capfd.readouterr().out == "worker 1 | after\n"


def test_a_group_that_cannot_start_leaves_no_process(puppets, monkeypatch):
    launch = puppets("--num_workers=2")
    started, guard = [], launch.guardian.guard
    monkeypatch.setattr(launch.guardian, "guard", lambda pid: (started.append(pid), guard(pid)))
    launch.placement.folder.joinpath("heartbeats", "worker-1.json").mkdir()  # where a file should be
    with pytest.raises(DataError) as error:
        launch.start()
    assert error.value.path == str(launch.placement.folder)
    assert len(started) == 1
    assert not is_running(started[0])
