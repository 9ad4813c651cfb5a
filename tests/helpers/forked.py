"""Commands as real processes, forked from a server that has loaded TensorFlow, Keras and Beam.

Loading them takes 5 CPU seconds; a fork takes a few hundredths. Forking is safe because the server only loads them:
TensorFlow starts its threads, and reads its environment, at the first operation. A test that is about a fresh
interpreter (what it loads, how soon it answers, how it exits) starts one with `fresh` instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pathlib
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TextIO

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT = 300.0  # seconds

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.helpers.preload"])


class Process:
    """The interface of `subprocess.Popen` for a process with two pipes and text.

    Attributes:
      pid: process id of the process, which leads a session of its own.
      stdout: stdout, line by line as it comes.
      returncode: exit code, minus the signal that killed it; None until `poll`, `wait` or `communicate` has noticed the
        end.
    """

    def __init__(
        self, program: Sequence[object], environment: Mapping[str, str | None] = {}, cwd: str | os.PathLike[str] = ROOT
    ) -> None:
        """Starts the process.

        Args:
          program: arguments of `python`: `-m` and a module, `-c` and code, or a file; then the program's arguments.
          environment: variables to change; None removes one.
          cwd: working directory.
        """
        self.args = list(map(str, program))
        self.returncode: int | None = None
        merged = os.environ | environment
        variables = {name: value for name, value in merged.items() if value is not None}
        self._errors = tempfile.NamedTemporaryFile("r")  # noqa: SIM115, a file, since a full pipe would block it
        reader, writer = _context.Pipe(duplex=False)
        arguments = (self.args, variables, os.fspath(cwd), writer, self._errors.name)
        self._process = _context.Process(target=_become, args=arguments)
        self._process.start()
        writer.close()
        self.stdout: TextIO = open(os.dup(reader.fileno()))  # noqa: SIM115
        reader.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.kill, self.terminate = self._process.kill, self._process.terminate
        atexit.register(self._end)  # after a failed test; before multiprocessing waits for it

    def _end(self) -> None:
        if self.poll() is None:
            self.kill()

    @property
    def stderr(self) -> TextIO:
        """The stderr so far."""
        self._errors.seek(0)
        return self._errors

    def send_signal(self, number: int) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Waits for the process to end.

        Raises:
          TimeoutExpired: the process still runs.
        """
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout: float = TIMEOUT) -> tuple[str, str]:
        """Waits for the end; returns the rest of stdout, and stderr. Kills a process that does not end in time."""
        killer = threading.Timer(timeout, self.kill)
        killer.start()
        try:
            out = self.stdout.read()
            self.wait()
        finally:
            killer.cancel()
        self.stdout.close()
        return out, self.stderr.read()


def run(
    program: Sequence[object], environment: Mapping[str, str | None] = {}, cwd: str | os.PathLike[str] = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, like `subprocess.run` with text and `capture_output`."""
    process = Process(program, environment, cwd)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def free_ports(count: int) -> list[int]:
    """Returns ports that were free a moment ago, all different, for processes that stand in for machines."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def output(
    program: Sequence[object], environment: Mapping[str, str | None] = {}, cwd: str | os.PathLike[str] = ROOT
) -> str:
    """Returns the stdout of a program, which must end with exit code 0."""
    done = run(program, environment, cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """Returns the one line on stderr of a program that has ended with this exit code."""
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done
    return done.stderr


def fresh(
    program: Sequence[object],
    environment: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ROOT,
    timeout: float = TIMEOUT,
) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own, with these variables alone, or those of the tests."""
    command = [sys.executable, *map(str, program)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def _become(program: list[str], variables: dict[str, str], cwd: str, out: Connection, errors: str) -> None:
    """Runs a program in this process, which the server has just forked, like the interpreter."""
    assert "tests.helpers.preload" in sys.modules, "the server could not load what tests/helpers/preload.py imports"
    os.setsid()
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # TMPDIR may differ
    os.chdir(cwd)
    os.dup2(out.fileno(), 1)
    out.close()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    buffering, encoding = 1 if "PYTHONUNBUFFERED" in variables else -1, variables.get("PYTHONIOENCODING")
    sys.stdout = open(1, "w", buffering, encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    try:
        sys.argv = program[program[0] == "-m" :]
        if program[0] == "-m":
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        elif program[0] == "-c":
            sys.argv = ["-c", *program[2:]]
            exec(program[1], {"__name__": "__main__"})
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())  # before the exit handlers, one of which may end the process
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()
