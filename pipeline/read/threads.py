"""The threads that read, for all inputs of a process together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipeline.errors import DataError

# Local reads are limited by the processor: more threads would wait for
# memory, or for the interpreter's lock without the compiled code. Remote reads wait for other machines.
LOCAL_THREADS, _REMOTE_THREADS = min(4, max(2, os.cpu_count() or 1)), 16

Task = TypeVar("Task")
Result = TypeVar("Result")


class _Pools:
    """The threads of this process; a forked process has none of its parent's, and starts its own."""

    def __init__(self) -> None:
        self.start()
        os.register_at_fork(after_in_child=self.start)

    def start(self) -> None:
        self.local = ThreadPoolExecutor(LOCAL_THREADS, thread_name_prefix="read")
        self.remote = ThreadPoolExecutor(_REMOTE_THREADS, thread_name_prefix="read-remote")


_pools = _Pools()


def in_parallel(function: Callable[[Task], Result], tasks: Iterable[Task], *, is_remote: bool = False) -> list[Result]:
    """Returns the function's results in order; it must not call this itself. The first error is raised.

    Args:
      function: does a task.
      tasks: its arguments.
      is_remote: whether it waits for other machines.

    Raises:
      DataError: the interpreter is exiting and starts no more threads.
    """
    pool = _pools.remote if is_remote else _pools.local
    try:
        done = pool.map(function, tasks)
    except RuntimeError as error:  # of the pool: the function's own come with the results
        raise DataError(f"nothing more can be read: {error}") from None
    return list(done)
