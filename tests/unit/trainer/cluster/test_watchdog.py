"""A thread ends what waits for another worker for too long, and nothing else."""

import re
import threading
import time
import types

import pytest
import tensorflow as tf

from trainer.cluster import stops, watchdog
from trainer.cluster.rendezvous import LostError
from trainer.cluster.tf_config import ALONE
from trainer.cluster.watchdog import Watchdog

TIMEOUT = 0.5


class Launcher:
    """Stands for TensorFlow's launcher of collective operations; `seconds` is how long each of them waits."""

    def __init__(self, seconds):
        self.seconds, self.free = seconds, threading.Event()

    def all_reduce(self, tensor, *others):
        waited = tf.numpy_function(lambda: float(self.free.wait(self.seconds)), [], tf.float64)
        with tf.control_dependencies([waited]):
            return tf.identity(tensor)

    _all_gather = all_reduce


@pytest.fixture
def ended(monkeypatch):
    """What ended operations, as (code, reason)."""
    found = []
    monkeypatch.setattr(watchdog.context.context(), "abort_collective_ops", lambda *given: found.append(given))
    return found


def strategy_of(*launchers):
    operations = [types.SimpleNamespace(_launchers=[one]) for one in launchers]
    extended = types.SimpleNamespace(_cross_device_ops=operations[0], _host_cross_device_ops=operations[1])
    return types.SimpleNamespace(extended=extended)


def step(launcher, gathers=False):
    operation = launcher._all_gather if gathers else launcher.all_reduce
    return tf.function(lambda: operation(tf.constant(3.0)) + 1.0, autograph=False)


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("on_host", [False, True])
def test_an_operation_that_waits_too_long_is_ended(ended, on_host, gathers):
    waits, other = Launcher(3.0), Launcher(0.0)
    with Watchdog(TIMEOUT, ALONE) as dog:
        dog.watch(strategy_of(other, waits) if on_host else strategy_of(waits, other))
        began = time.monotonic()
        threading.Thread(target=step(waits, gathers), daemon=True).start()
        while not ended and time.monotonic() - began < 3.0:
            time.sleep(0.01)
        assert TIMEOUT - 0.1 < time.monotonic() - began < 3.0
        waits.free.set()
    assert ended == [(tf.errors.DEADLINE_EXCEEDED, "no answer for 0.5 s, --collective_timeout")]


def test_many_operations_that_each_wait_for_less_are_not(ended):
    short, other = Launcher(TIMEOUT / 10), Launcher(0.0)
    with Watchdog(TIMEOUT, ALONE) as dog:
        dog.watch(strategy_of(short, other))
        run = step(short)
        assert [float(run()) for _ in range(30)] == [4.0] * 30
    assert not ended


def test_nothing_is_ended_while_none_waits(ended):
    with Watchdog(TIMEOUT, ALONE) as dog:
        dog.watch(strategy_of(Launcher(0.0), Launcher(0.0)))
        time.sleep(3 * TIMEOUT)
    assert not ended


def test_the_time_in_which_this_process_was_stopped_does_not_count(ended, monkeypatch):
    waits, now = Launcher(2.0), time.monotonic
    stopped = []
    monkeypatch.setattr(stops.time, "monotonic", lambda: now() + sum(stopped))
    with Watchdog(20 * TIMEOUT, ALONE) as dog:
        dog.watch(strategy_of(waits, Launcher(0.0)))
        waiting = threading.Thread(target=step(waits), daemon=True)
        waiting.start()
        time.sleep(0.7)
        stopped.append(1000.0)
        waiting.join()
    assert not ended


def raised_after(seconds, monkeypatch):
    """Returns the error for a lost peer if this process has just been stopped for a number of seconds."""
    now, stopped = time.monotonic, []
    monkeypatch.setattr(stops.time, "monotonic", lambda: now() + sum(stopped))
    lost = tf.errors.UnavailableError(None, None, "Socket closed")
    try:
        with Watchdog(120.0, ALONE) as dog:
            dog.watch(strategy_of(Launcher(0.0), Launcher(0.0)))
            stopped.append(seconds)
            raise lost
    except (LostError, tf.errors.UnavailableError) as error:
        return error


def test_a_worker_that_was_stopped_says_so_instead_of_blaming_another_one(monkeypatch):
    found = raised_after(8.0, monkeypatch)
    assert isinstance(found, LostError)
    assert not found.lost
    assert re.match(
        r"the chief \(.*\) was stopped, or stuck, for [89] s, and has lost the others since \(Socket closed\); ",
        str(found),
    )
    assert isinstance(raised_after(3.0, monkeypatch), tf.errors.UnavailableError)


def test_a_stop_of_long_ago_explains_nothing(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(stops.time, "monotonic", lambda: clock[0])
    found, seconds = stops.Stops(), []
    for passed in (1.0, 8.0, 1.0, 1.0, *[1.0] * 30):
        clock[0] += passed
        found.tick(5.0)
        seconds.append(found.recent(5.0))
    assert seconds[:4] == [0.0, 8.0, 8.0, 8.0]
    assert seconds[-1] == 0.0


def test_its_thread_ends_with_it():
    with Watchdog(TIMEOUT, ALONE) as dog:
        dog.watch(strategy_of(Launcher(0.0), Launcher(0.0)))
        assert "watchdog" in [one.name for one in threading.enumerate()]
    assert "watchdog" not in [one.name for one in threading.enumerate()]
