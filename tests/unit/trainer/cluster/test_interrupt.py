import os
import signal
import subprocess
import sys
import time

import pytest

from pipeline.errors import UsageError
from trainer import run
from trainer.cluster.interrupt import Interrupt

# A child that holds the signals while its main thread is in one long call, as in a TensorFlow function.
CHILD = """
import ctypes, signal, sys
from trainer.cluster.interrupt import Interrupt
with Interrupt("child") as interrupt:
    def long_call():
        print("ready", flush=True)
        for _ in range(3):
            ctypes.CDLL(None).usleep(700000)
    if sys.argv[1] == "deferred":
        with interrupt.deferred(*sys.argv[2:]):
            long_call()
            print(interrupt.requested.name if interrupt.requested else None, flush=True)
    else:
        long_call()
"""


def child(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def wait_until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_noted_where_it_is_deferred(number):
    before = signal.getsignal(number)
    with Interrupt("test") as interrupt, interrupt.deferred():
        assert interrupt.requested is None
        os.kill(os.getpid(), number)
        wait_until(lambda: interrupt.requested is not None)
        assert interrupt.requested is number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("kind", "signals", "code", "said"),
    [
        ("deferred", [signal.SIGTERM], 0, ""),  # the long call ends by itself
        ("deferred", [signal.SIGTERM, signal.SIGINT], 128 + signal.SIGINT, "child: SIGINT"),
        ("deferred", [signal.SIGHUP, signal.SIGHUP], 0, ""),  # of a closed terminal and of its shell
        ("at once", [signal.SIGTERM], 75, "child: SIGTERM"),  # nothing to save
    ],
)
def test_the_first_signal_lets_the_long_call_end_if_there_is_something_to_save_and_the_second_never(
    kind, signals, code, said
):
    process = child(kind)
    began = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.2)
    out, err = process.communicate(timeout=10)
    assert (out, process.returncode) == ("" if code else f"{signals[0].name}\n", code)
    assert err.startswith(said) if code else not err
    assert not code or time.monotonic() - began < 1.5


def test_what_the_first_signal_leads_to_is_printed_during_the_long_call():
    process = child("deferred", "stops after the current step and saves")
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    assert process.poll() is None  # the call goes on
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    end = "a second signal ends it at once, without saving"
    assert said == f"child: SIGINT: stops after the current step and saves; {end}\n"
    assert (process.returncode, err) == (130, "child: SIGINT again: ended without saving\n")


def test_a_stderr_that_nobody_reads_keeps_no_signal_from_ending_the_run():
    process = child("deferred", "stops after the current step and saves")
    process.stderr.close()  # as after `2>&1 | head`
    began = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        time.sleep(0.2)
    assert process.wait(timeout=10) == 128 + signal.SIGINT
    assert time.monotonic() - began < 1.5
    process.stdout.close()


def test_a_closed_terminal_does_not_end_what_ignores_it():
    """As nohup makes a program do."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt("test") as interrupt, interrupt.deferred():
            os.kill(os.getpid(), signal.SIGHUP)
            with interrupt.left_to_the_system():
                os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: interrupt.requested is not None)
            assert interrupt.requested is signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_command_is_named_as_the_user_typed_it():
    code = CHILD.replace('"child"', '"trainer.run"')
    environment = os.environ | {"STEPFEED_COMMANDS": "trainer.run=stepfeed train"}
    with subprocess.Popen(
        [sys.executable, "-c", code, "at once"], stdout=-1, stderr=-1, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10)[1].startswith("stepfeed train: SIGINT")


def test_signals_can_be_left_to_the_system_for_a_while():
    with Interrupt("test") as interrupt:
        with interrupt.left_to_the_system():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with interrupt.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: interrupt.requested is not None)


def test_programs_that_a_run_starts_can_trap_the_signals_that_it_answers():
    with pytest.raises(UsageError):
        run.main(["--model_dir=run"])  # without data
    traps = "trap 'echo asked' USR1; trap 'echo saved' USR2; kill -USR1 $$; kill -USR2 $$"
    done = subprocess.run(["sh", "-c", traps], capture_output=True, text=True, check=True)
    assert done.stdout == "asked\nsaved\n"
    os.kill(os.getpid(), signal.SIGUSR2)  # nor does it end this process
