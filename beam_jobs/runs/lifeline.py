"""Ends the command's workers, job servers and cluster jobs when the command ends, however it ends.

For each of them, a process holds a connection to the command, which closes when the command ends. An orphaned worker
would keep writing shards alongside a restarted conversion, and so would a job on Flink, which Beam does not cancel.

    python -m beam_jobs.runs.lifeline worker PORT                   Beam's own harness, for worker processes
    python -m beam_jobs.runs.lifeline program PORT FOLDER PROGRAM   runs a job server, which holds no line itself
    python -m beam_jobs.runs.lifeline flink PORT URL NAME           cancels a job on a Flink cluster
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any, NoReturn

_WAIT_SECONDS = 5.0  # for a worker to exit; it has nothing to finish
OUTPUT = "output.txt"  # in a program's folder: its output, to report why it ended
ENDED = "exit_code.txt"  # exists once the program has ended by itself
_WRITE_SECONDS = 1.0
_ENDED = {"FINISHED", "CANCELED", "FAILED"}
_CALL_SECONDS = 2.0
_CANCEL_SECONDS = 4.0  # shorter than the command's wait for its workers
_POLL_SECONDS = 0.1


class Lifeline:
    """The command's side of the connections.

    Attributes:
      port: the port on the loopback interface that workers connect to.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._workers: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True, name="lifeline").start()

    def command(self, role: str, *arguments: str) -> list[str]:
        """Returns the command line of a process that holds this line; for roles, see the module's docstring."""
        return [sys.executable, "-m", __name__, role, str(self.port), *arguments]

    def cut(self) -> None:
        """Ends all workers and returns once they are gone."""
        with self._lock:
            self._is_cut = True
            with contextlib.suppress(OSError):
                # close() alone would leave the thread in accept() and the port open.
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.shutdown(socket.SHUT_WR)
                    worker.settimeout(_WAIT_SECONDS)
                    worker.recv(1)  # nothing is ever sent: returns when the worker's end closes
                worker.close()
            self._workers.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                worker, _ = self._listener.accept()
                with self._lock:
                    if self._is_cut:
                        worker.close()
                    else:
                        self._workers.append(worker)


def hold(port: int, at_end: Callable[[], None] | None = None) -> None:
    """Ends this process when the command that listens on `port` cuts the line or ends.

    `at_end` is called first; the command waits for it.
    """
    try:
        connection = socket.create_connection(("127.0.0.1", port))
    except OSError:  # the command has ended already
        _end(at_end)

    def wait() -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        _end(at_end)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def _end(at_end: Callable[[], None] | None) -> NoReturn:
    try:
        if at_end:
            at_end()
    finally:
        os._exit(1)


def _serve_bundles(port: int) -> None:
    # Ctrl-C reaches the terminal's whole process group; the command handles it, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold(port)
    # An existing handler keeps Beam from logging to stderr; errors reach the runner through its own channel.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main  # noqa: PLC0415 (2 s, in which the command may end)

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its threads print tracebacks when the command is killed
    sdk_worker_main.main(sys.argv)


def _supervise(port: int, folder: pathlib.Path, program: list[str]) -> NoReturn:
    """Runs a program with its output and temporary files in a folder, which is removed at the end."""
    # Ctrl-C reaches the terminal's whole process group; the command handles it and ends this process and its child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(folder / OUTPUT, "wb") as output:
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    said = threading.Event()

    def end() -> None:
        process.kill()
        process.wait()
        said.wait(_WRITE_SECONDS)  # or that file could appear while the folder is being removed
        shutil.rmtree(folder, ignore_errors=True)

    hold(port, end)
    code = process.wait()
    with contextlib.suppress(OSError):
        (folder / ENDED).write_text(str(code))
    said.set()
    threading.Event().wait()  # the line's thread ends this process
    raise AssertionError


def _cancel_at_end(port: int, url: str, name: str) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the command ends this process
    hold(port, functools.partial(cancel_flink_job, url, name))
    threading.Event().wait()  # the line's thread ends this process
    raise AssertionError


def cancel_flink_job(url: str, name: str) -> None:
    """Cancels a job if it is running, and returns once it has ended, or after a few seconds.

    Args:
      url: URL of the job manager's REST interface.
      name: unique name of the job.
    """
    deadline = time.monotonic() + _CANCEL_SECONDS
    with contextlib.suppress(OSError, ValueError):  # the cluster itself is gone
        while job := _running(url, name):
            if job["state"] != "CANCELLING":
                _call("PATCH", f"{url}/v1/jobs/{job['jid']}?mode=cancel")
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)


def _running(url: str, name: str) -> dict[str, Any] | None:
    jobs = json.loads(_call("GET", f"{url}/v1/jobs/overview"))["jobs"]
    return next((job for job in jobs if job["name"] == name and job["state"] not in _ENDED), None)


def _call(method: str, url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=_CALL_SECONDS) as answer:
        content: bytes = answer.read()
    return content


if __name__ == "__main__":
    role, port, *rest = sys.argv[1:]
    if role == "worker":
        _serve_bundles(int(port))
    elif role == "program":
        _supervise(int(port), pathlib.Path(rest[0]), rest[1:])
    else:
        _cancel_at_end(int(port), *rest)
