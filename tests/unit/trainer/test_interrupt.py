import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from trainer.interrupt import Interrupt

ROOT = pathlib.Path(__file__).parents[3]
# A child that holds the signals while its main thread is in one long call, as in a TensorFlow function.
CHILD = """
import ctypes, signal, sys
from trainer.interrupt import Interrupt
with Interrupt("child") as interrupt:
    def long_call():
        print("ready", flush=True)
        for _ in range(3):
            ctypes.CDLL(None).usleep(700000)
    if sys.argv[1] == "waited":
        with interrupt.waited_for():
            long_call()
            print(interrupt.requested.name if interrupt.requested else None, flush=True)
    else:
        long_call()
"""


def child(kind):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def wait_until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_where_it_is_waited_for(number):
    before = signal.getsignal(number)
    with Interrupt("test") as interrupt, interrupt.waited_for():
        assert interrupt.requested is None
        os.kill(os.getpid(), number)
        wait_until(lambda: interrupt.requested is not None)
        assert interrupt.requested is number
    assert signal.getsignal(number) is before


def test_the_first_signal_lets_the_long_call_end():
    process = child("waited")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert (out, err, process.returncode) == ("SIGTERM\n", "", 0)


def test_the_second_signal_ends_at_once():
    process = child("waited")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 1.5
    assert process.returncode == 128 + signal.SIGINT
    assert err == "child: SIGINT again: ended without saving\n"


def test_with_nothing_to_save_the_first_ends_at_once():
    process = child("unwaited")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 1.5
    assert process.returncode == 75
    assert err == "child: SIGTERM: ended with nothing to save; the same command goes on\n"


def test_signals_can_be_left_to_the_system_for_a_while():
    with Interrupt("test") as interrupt:
        with interrupt.left_to_the_system():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with interrupt.waited_for():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: interrupt.requested is not None)
