"""The chief's side of a job, with sockets of the test for the other processes."""

import contextlib
import json
import signal
import socket
import time

import pytest

from pipeline.errors import DataError, RerunError, UsageError
from trainer.cluster import tf_config
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.tf_config import CHIEF, PS, WORKER, Cluster, Task
from trainer.parameter_server import coordinator as module
from trainer.parameter_server.coordinator import Coordinator

SECONDS = 30.0  # within which anything happens, on a busy machine
SAME = [{"cluster": "of four"}, {"--seed": "--seed=0"}]
OTHER = [{"cluster": "of four"}, {"--seed": "--seed=1"}]
TOLD = {"exit_code": 0, "error": ""}


class Other:
    """A process of the job: it introduces itself, and reads the chief's messages."""

    def __init__(self, chief, task, description=SAME, failure=None):
        self._socket = socket.create_connection(
            tf_config.split_address(chief.roles.address(Task(CHIEF))), timeout=SECONDS
        )
        self._lines = self._socket.makefile("rb")
        rank, name = chief.roles.others.index(task) + 1, chief.roles.name(task)
        self.send({"rank": rank, "name": name, **(failure or {"description": description})})

    def send(self, message):
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hears(self, wanted=lambda message: "exit_code" in message):
        """Returns the next message that is wanted; None at the end of the connection."""
        for line in self._lines:
            if wanted(message := json.loads(line)):
                return message
        return None

    def goes(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()


class Chief:
    """A coordinator that has begun to serve, and the lines that it says."""

    def __init__(self, roles, interrupt, timeout=SECONDS, silence=SECONDS, least=1):
        self.roles, self.lines, self.lost = roles, [], []
        port = tf_config.listen(roles.address(Task(CHIEF)), "the chief", "a test")
        expected = lambda task: SAME  # noqa: E731
        self.coordinator = Coordinator(
            roles, expected, port, timeout, silence, least, interrupt, self.lines.append, self.lost.append
        )

    def all_come(self):
        """Begins the job with all processes, which have equal descriptions; returns them by task."""
        self.others = {task: Other(self, task) for task in self.roles.others}
        self.coordinator.wait()
        assert [one.hears() for one in self.others.values()] == [TOLD] * len(self.others)
        return self.others

    def run(self, *others):
        """Waits for the job to begin with some others, by task and what else `Other` takes."""
        with self.coordinator as coordinator:
            self.others = [Other(self, *one) for one in others]
            coordinator.wait()

    def until(self, holds):
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, self.lines
            time.sleep(0.005)

    def said(self, words):
        return any(words in line for line in self.lines)


@pytest.fixture
def interrupt():
    """One that a signal to another process does not end the test by."""
    with Interrupt("trainer.run") as interrupt, interrupt.deferred():
        yield interrupt


@pytest.fixture
def chief_of(interrupt, monkeypatch):
    """Returns a function that makes the chief of workers 0 and 1 and ps 0; it serves in the coordinator's context."""
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(module, "FIRST_NOTICE_SECONDS", 0.05)

    def chief_of(works=False, **options):
        address = f"localhost:{tf_config.free_port()}"
        workers = (address if works else "localhost:1", "localhost:2")
        return Chief(Cluster(workers, 0, ("localhost:3",), None if works else address), interrupt, **options)

    return chief_of


FIRST, SECOND, SERVER = Task(WORKER, 0), Task(WORKER, 1), Task(PS, 0)


def test_all_that_are_alike_begin_and_learn_how_the_job_ends(chief_of):
    chief = chief_of()
    with chief.coordinator as coordinator:
        assert (coordinator.workers, coordinator.has_workers, len(coordinator.never_came)) == ({}, False, 2)
        others = chief.all_come()
        assert (coordinator.workers, coordinator.has_workers, coordinator.never_came) == ({0: 1, 1: 1}, True, [])
        coordinator.check()
        coordinator.print_at(1, "After 10 steps")
        assert others[SECOND].hears(lambda message: "line" in message) == {"line": "After 10 steps"}
    assert [one.hears() for one in others.values()] == [TOLD] * 3


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataError("shard 3 is corrupt"), {"exit_code": 1, "error": "shard 3 is corrupt", "lost": []}),
        (RerunError("lost ps 0", lost=["ps 0"]), {"exit_code": 75, "error": "lost ps 0", "lost": ["ps 0"]}),
        (KeyError("a bug"), None),  # they see that the chief is gone
    ],
)
def test_an_error_ends_the_others_with_its_words(chief_of, error, told):
    chief = chief_of()
    with contextlib.suppress(type(error)), chief.coordinator:
        others = chief.all_come()
        raise error
    assert [one.hears() for one in others.values()] == [told] * 3


def test_who_differs_is_refused_and_ends_a_job_that_has_not_begun(chief_of):
    chief = chief_of()
    with pytest.raises(UsageError) as error:
        chief.run((FIRST,), (SECOND, OTHER), (SERVER,))
    assert "worker 1 (localhost:2) has --seed=1" in str(error.value)
    assert [one.hears()["exit_code"] for one in chief.others] == [2] * 3


def test_who_differs_does_not_end_a_job_that_has_begun(chief_of):
    chief = chief_of()
    with chief.coordinator as coordinator:
        others = chief.all_come()
        others[SECOND].goes()
        chief.until(lambda: coordinator.workers == {0: 1})
        assert Other(chief, SECOND, OTHER).hears()["exit_code"] == 2
        assert chief.said("refused worker 1")
        coordinator.check()


def test_a_second_process_with_the_same_task_is_refused(chief_of):
    chief = chief_of()
    with chief.coordinator as coordinator:
        chief.all_come()
        assert Other(chief, FIRST).hears()["exit_code"] == 75
        assert coordinator.workers == {0: 1, 1: 1}


def test_who_is_needed_and_does_not_come_in_time_is_named(chief_of):
    chief = chief_of(timeout=0.3)
    with chief.coordinator as coordinator:
        chief.others = [Other(chief, FIRST)]
        chief.until(lambda: coordinator.workers == {0: 1})
        with pytest.raises(RerunError) as error:
            coordinator.wait()
    assert str(error.value).startswith("worker 1 (localhost:2), ps 0 (localhost:3) ")
    assert chief.said("waiting for worker 1 (localhost:2), ps 0 (localhost:3)")


def test_it_begins_without_workers_that_are_not_needed_and_takes_them_in_later(chief_of):
    chief = chief_of()
    with chief.coordinator as coordinator:
        chief.others = [Other(chief, FIRST), Other(chief, SERVER)]
        coordinator.wait()
        assert (coordinator.workers, coordinator.never_came) == ({0: 1}, ["worker 1 (localhost:2)"])
        for number in (1, 2):
            late = Other(chief, SECOND)
            assert late.hears() == TOLD
            chief.until(lambda number=number: coordinator.workers == {0: 1, 1: number})
            late.goes()
            chief.until(lambda: coordinator.workers == {0: 1})
        assert [line.partition(" (")[0] for line in chief.lines if "worker 1" in line][-4:] == [
            "worker 1", "lost worker 1", "worker 1", "lost worker 1",
        ]  # fmt: skip
        assert coordinator.starts(1) == 2


def test_the_chiefs_own_worker_is_always_there(chief_of):
    chief = chief_of(works=True, least=2)
    with chief.coordinator as coordinator:
        others = chief.all_come()
        assert (list(others), coordinator.workers) == ([SECOND, SERVER], {0: 0, 1: 1})
        coordinator.print_at(0, "After 5 steps")
        assert chief.lines[-1] == "After 5 steps"
        others[SECOND].goes()
        chief.until(lambda: coordinator.workers == {0: 0})
        assert coordinator.has_workers


def test_a_lost_server_is_an_error_with_its_name(chief_of):
    chief = chief_of()
    with chief.coordinator as coordinator:
        others = chief.all_come()
        others[SERVER].goes()
        with pytest.raises(RerunError) as error:
            coordinator.check_soon()
    assert error.value.lost == ("ps 0 (localhost:3)",)


def test_a_worker_that_got_a_signal_leaves_once_it_is_idle(chief_of, interrupt):
    chief = chief_of()
    with chief.coordinator as coordinator:
        worker = chief.all_come()[SECOND]
        worker.send({"signal": "SIGTERM"})
        chief.until(lambda: coordinator.leaving == {1})
        coordinator.release(0)  # it got no signal
        coordinator.release(1)
        assert worker.hears()["exit_code"] == 75
        worker.goes()
        chief.until(lambda: coordinator.workers == {0: 1})
        assert coordinator.leaving == set()
        assert chief.said("worker 1 (localhost:2) has left after SIGTERM")
        assert (interrupt.requested, coordinator.is_ending) == (None, False)


@pytest.mark.parametrize("signalled", [[SERVER], [FIRST, SECOND]], ids=["a server", "the last worker"])
def test_a_signal_to_whom_the_job_needs_ends_it(chief_of, interrupt, signalled):
    chief = chief_of()
    with chief.coordinator as coordinator:
        others = chief.all_come()
        for task in signalled:
            assert not coordinator.is_ending
            others[task].send({"signal": "SIGINT"})
            chief.until(lambda: coordinator.leaving or coordinator.is_ending)
        chief.until(lambda: coordinator.is_ending)
    assert interrupt.requested == signal.SIGINT
    assert interrupt.receiver == chief.roles.name(signalled[-1])


def test_a_silent_worker_gets_no_work_and_is_lost_if_nobody_kills_it(chief_of, monkeypatch):
    monkeypatch.setattr(module, "_GUARD_SECONDS", 0.5)
    chief = chief_of(silence=1.0)
    with chief.coordinator as coordinator:
        others, seen = chief.all_come(), set()
        end = time.monotonic() + SECONDS
        while 1 in coordinator.workers:
            assert time.monotonic() < end
            seen |= coordinator.leaving
            for task in (FIRST, SERVER):
                others[task].send({"alive": True})
            time.sleep(0.05)
        assert (seen, coordinator.workers) == ({1}, {0: 1})
        assert chief.said("lost worker 1 (localhost:2) (no sign of life for 1 s")


def test_a_process_that_cannot_begin_ends_the_others_unless_they_have_begun(chief_of):
    failure = {"exit_code": 1, "error": "no such shard"}
    chief = chief_of()
    with pytest.raises(DataError) as error:
        chief.run((FIRST,), (SECOND, SAME, failure))
    assert str(error.value) == "worker 1 (localhost:2) cannot begin: no such shard"
    assert [one.hears()["error"] for one in chief.others] == [str(error.value), ""]
    chief = chief_of()
    with chief.coordinator as coordinator:
        chief.all_come()[SECOND].goes()
        chief.until(lambda: coordinator.workers == {0: 1})
        assert Other(chief, SECOND, failure=failure).hears() == TOLD
        assert chief.said("worker 1 (localhost:2) cannot begin: no such shard")
        coordinator.check()


def test_what_is_not_of_the_job_gets_no_answer(chief_of):
    chief = chief_of()
    with chief.coordinator as coordinator:
        stranger = socket.create_connection(tf_config.split_address(chief.roles.address(Task(CHIEF))), timeout=SECONDS)
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert stranger.recv(100) == b""
        assert coordinator.workers == {}


def test_a_worker_that_waits_no_longer_ends_the_job_before_it_begins(chief_of):
    chief = chief_of(timeout=2 * SECONDS)
    with chief.coordinator as coordinator:
        began = time.monotonic()
        Other(chief, FIRST).send({"late": ""})
        with pytest.raises(RerunError) as error:
            coordinator.wait()
        assert time.monotonic() - began < SECONDS  # not at the chief's own end of waiting
    assert "ps 0 (localhost:3)" in str(error.value)
