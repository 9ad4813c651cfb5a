"""Which process failed first, and the line that says so."""

import types

import pytest

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
