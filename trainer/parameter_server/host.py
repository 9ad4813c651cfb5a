"""The chief's side of the connections that hold a job together: all meet, are compared, and learn how it ends.

The chief listens on its address for as long as it lives, so that a worker can come back. TensorFlow's own server of the
chief is elsewhere, on a port that the system chooses.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from pipeline.errors import PipelineError, RerunError, UsageError
from trainer.cluster import messages
from trainer.cluster.difference import Description, difference, shortened
from trainer.cluster.messages import Hello
from trainer.cluster.rendezvous import ANSWER_SECONDS, NOTICE_SECONDS, late
from trainer.parameter_server.roles import PS, WORKER, Roles, Task

_FIRST_NOTICE_SECONDS = 0.5
_LOSS_SECONDS, _POLL_SECONDS = 2.0, 0.05
_ALIKE = "start all processes with the same flags, data, code and versions"
_AGAIN = "rerun the same commands to resume from the last checkpoint"


class Host:
    """A context in which the other processes may connect; a thread serves them.

    Attributes:
      lost: a parameter server that is gone, and the weights with it.
    """

    def __init__(
        self,
        roles: Roles,
        expected: Callable[[Task], Description],
        port: socket.socket,
        timeout: float,
        say: Callable[[str], None],
    ) -> None:
        """Serves nobody yet.

        Args:
          roles: the processes.
          expected: what has to be equal in a process.
          port: listens on the chief's address.
          timeout: seconds to wait for all.
          say: prints a line.
        """
        self.lost: Task | None = None
        self._roles, self._expected, self._port, self._timeout, self._say = roles, expected, port, timeout, say
        self._present: dict[Task, tuple[Hello, asyncio.StreamWriter]] = {}
        self._changed = threading.Condition()
        self._error: PipelineError | None = None
        self._begun = self._ended = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: collections.Counter[Task] = collections.Counter()

    def __enter__(self) -> Self:
        """Begins to serve."""
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Tells all how the job ended."""
        told = error if isinstance(error, PipelineError) else None
        is_known = error is None or told is not None  # else they see that the chief is gone
        asyncio.run_coroutine_threadsafe(self._end(told, is_known), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self) -> None:
        """Waits until all are there, and lets them begin; says every now and then for whom it waits.

        Raises:
          UsageError: a process differs from the chief.
          RerunError: one did not come in time.
        """
        end, pause = time.monotonic() + self._timeout, _FIRST_NOTICE_SECONDS
        with self._changed:
            while not self._changed.wait_for(lambda: self._error or self._begun, min(pause, end - time.monotonic())):
                if time.monotonic() >= end:
                    self._error = late(self._absent(), self._timeout)
                    break
                self._say(f"waiting for {self._absent()}")
                pause = NOTICE_SECONDS
            if self._error:
                raise self._error

    def check(self) -> None:
        """Raises RerunError where a parameter server was lost."""
        if self.lost:
            raise RerunError(f"lost {self._roles.name(self.lost)}, and the weights there; {_AGAIN}")

    def check_soon(self) -> None:
        """Raises as `check`, also where the loss shows in a moment: TensorFlow may have seen it first."""
        end = time.monotonic() + _LOSS_SECONDS
        while not self.lost and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self.check()

    @property
    def has_workers(self) -> bool:
        """Whether a worker is there, or may be in this process."""
        return self._roles.chief_works or any(task.job == WORKER for task in self._present)

    def starts(self, worker: int) -> int:
        """Returns how often a worker has come."""
        return self._starts[Task(WORKER, worker)]

    def print_at(self, worker: int, line: str) -> None:
        """Prints a line in a worker's terminal."""
        task = Task(WORKER, worker)
        if self._roles.chief_works and worker == 0:
            self._say(line)
        elif task in self._present:
            self._loop.call_soon_threadsafe(messages.write_line, self._present[task][1], line)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> None:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._server = await asyncio.start_server(serve, sock=self._port, limit=messages.MOST_BYTES)
        with self._changed:
            self._decide()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a process in until it is gone."""
        with contextlib.closing(writer):
            messages.expect_signs_of_life(writer)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    hello = await messages.read_hello(reader)
            except messages.NOT_OURS:  # a health check, a port scanner
                return
            others = self._roles.others
            task = others[hello.rank - 1] if hello.rank <= len(others) else None
            if refused := self._refused(task, hello, writer):
                messages.write_end(writer, refused)
                return
            assert task is not None
            with self._changed:
                self._present[task] = hello, writer
                self._starts[task] += 1
                self._came(task, writer)
            waits_no_longer = await messages.waits_no_longer(reader)  # or it is gone
            with self._changed:
                if waits_no_longer:  # it will not be there for the others
                    self._fail(late(self._absent(), self._timeout))
                del self._present[task]
                self._left(task)

    def _refused(self, task: Task | None, hello: Hello, writer: asyncio.StreamWriter) -> PipelineError | None:
        """Returns why a process cannot take part now."""
        mine = self._expected(task or Task(WORKER))
        parts = slice(None if self._begun else 1)
        if found := difference(mine[parts], {hello.name: hello.description[parts]}):
            error = UsageError(f"{found}; {_ALIKE}")
            with self._changed:
                self._fail(error)
            return error
        if task in self._present:
            return self._taken(hello, writer, task)
        return None

    def _taken(self, hello: Hello, writer: Any, task: Task) -> RerunError:
        peers = ((one.get_extra_info("peername") or "?")[0] for one in (writer, self._present[task][1]))
        here, there = (peer.removeprefix("::ffff:") for peer in peers)
        return RerunError(
            f"{hello.name} is there already, a process on {there}; this one, on {here}, has the same task in "
            f"{self._roles.source}; give each process a task of its own, or try again in a minute if the other machine "
            "is gone"
        )

    def _came(self, task: Task, writer: asyncio.StreamWriter) -> None:
        if not self._begun:
            self._decide()
        elif not self._ended:
            messages.write_end(writer, None)
            self._say(f"{self._roles.name(task)} is back")

    def _left(self, task: Task) -> None:
        if not self._begun:
            self._decide()
        elif self._ended:
            self._changed.notify_all()
        elif task.job == PS:
            self.lost = self.lost or task
        else:
            others = "with the other workers" if self.has_workers else "once it is back"
            self._say(f"lost {self._roles.name(task)}; training goes on {others}")

    def _decide(self) -> None:
        """Lets all begin once they are there and equal."""
        absent = self._absent()
        if absent or self._error:
            for _, writer in self._present.values():
                messages.write_waiting(writer, absent)
            return
        differences = [
            difference(self._expected(task), {hello.name: hello.description})
            for task, (hello, _) in self._present.items()
        ]
        if found := "; ".join(filter(None, differences)):
            self._fail(UsageError(f"{found}; {_ALIKE}"))
            return
        self._begun = True
        for _, writer in self._present.values():
            messages.write_end(writer, None)
        self._changed.notify_all()

    def _fail(self, error: PipelineError) -> None:
        if not self._begun:
            self._error = self._error or error
            self._changed.notify_all()

    def _absent(self) -> str:
        return shortened([self._roles.name(task) for task in self._roles.others if task not in self._present])

    async def _end(self, error: PipelineError | None, is_known: bool) -> None:
        self._ended = True
        self._server.close()
        for _, writer in list(self._present.values()) if is_known else []:
            with contextlib.suppress(OSError, TimeoutError):
                messages.write_end(writer, error)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await writer.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
