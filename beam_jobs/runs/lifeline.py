"""Ends worker processes with the command: each holds a connection that closes however the command ends.

A worker left alone would keep writing shards next to a conversion that was started again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import NoReturn

_WAIT_SECONDS = 5.0  # for a worker to end; it has nothing to finish


class Lifeline:
    """The command's side.

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

    def cut(self) -> None:
        """Ends all workers and returns once they are gone."""
        with self._lock:
            self._is_cut = True
            with contextlib.suppress(OSError):
                # A close alone would leave the thread in accept, and the port open.
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.shutdown(socket.SHUT_WR)
                    worker.settimeout(_WAIT_SECONDS)
                    worker.recv(1)  # nothing is ever sent: it returns when the worker's side is closed
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
    """Ends this process when the command that listens on `port` cuts the line, or itself ends in any way.

    `at_end` is called before that; the command waits for it.
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
