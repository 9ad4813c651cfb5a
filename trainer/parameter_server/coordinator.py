"""The chief's side of a job's connections: processes join, are compared, and learn how the job ends.

The chief listens on its address for its whole life, so that a worker can come back. Its TensorFlow server listens on
another port, chosen by the system.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from pipeline.errors import PipelineError, RerunError, UsageError
from trainer.cluster import messages, rendezvous
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.messages import Description, Failure, Hello, difference, shortened
from trainer.cluster.rendezvous import ANSWER_SECONDS, FIRST_NOTICE_SECONDS, NOTICE_SECONDS, late, taken
from trainer.cluster.stops import Stops, given_up
from trainer.cluster.tf_config import PS, WORKER, Cluster, Task

_LOSS_SECONDS, _POLL_SECONDS = 2.0, 0.05
_GRACE_SECONDS = 10.0  # time that a job which could begin waits for more workers
_GUARD_SECONDS = 10.0  # for the guard to kill a silent worker; if it does not, the machine has stopped as well
_HANGING_SECONDS = 5.0  # for the main thread to end by itself: a call to a stopped server never returns
_ALIKE = "start all processes with the same flags, data, code and versions"
_AGAIN = "rerun the same commands to resume from the last checkpoint"


class Coordinator:
    """Context in which the other processes may connect; a thread serves them.

    Attributes:
      lost: parameter server that was lost together with its weights; None if all are present.
      silent: processes that were lost because they gave no sign of life.
    """

    def __init__(
        self,
        roles: Cluster,
        expected: Callable[[Task], Description],
        port: socket.socket,
        timeout: float,
        silence: float,
        least_workers: int,
        interrupt: Interrupt,
        say: Callable[[str], None],
        on_lost: Callable[[Sequence[str]], None],
    ) -> None:
        """Makes the coordinator; entering its context starts it.

        Args:
          roles: processes of the job.
          expected: function that returns the description that a process must match.
          port: socket that listens on the chief's address.
          timeout: seconds to wait for the processes without which the job cannot begin.
          silence: seconds without a sign of life after which a process is lost.
          least_workers: minimum number of workers before the job begins; all servers must be present.
          interrupt: interrupt to notify of signals to other processes that end the job.
          say: function that prints a line.
          on_lost: function that is called with the names of lost processes just before this process exits.
        """
        self.lost: Task | None = None
        self.silent: set[Task] = set()
        self._roles, self._expected, self._port, self._timeout, self._say = roles, expected, port, timeout, say
        self._silence, self._interrupt, self._on_lost = silence, interrupt, on_lost
        self._least = least_workers - roles.chief_works
        self._present: dict[Task, tuple[Hello, asyncio.StreamWriter]] = {}
        self._leaving: dict[Task, str] = {}  # workers that received a signal, and its name
        self._changed = threading.Condition()
        self._error: PipelineError | None = None
        self._begun = self._ended = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._server = rendezvous.Server(self._serve)
        self._told: set[int] = set()  # ranks that have been told why the job cannot begin
        self._starts: collections.Counter[Task] = collections.Counter()
        self._stops = Stops()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Tells all processes how the job ended."""
        told = error if isinstance(error, PipelineError) else None
        is_known = error is None or told is not None  # the others notice other errors when the chief ends
        asyncio.run_coroutine_threadsafe(self._end(told, is_known), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if told and not self._begun:
            rendezvous.tell_the_rest(self._roles, told, self._told, self._timeout)

    def wait(self) -> None:
        """Waits until the job can begin, and begins it with the present processes; regularly prints what it waits for.

        It needs all parameter servers and the minimum number of workers. It waits a little longer for the other
        workers, since processes are usually started together; a worker that comes later can still join.

        Raises:
          UsageError: a process differs from the chief.
          RerunError: a required process did not join in time.
        """
        now = time.monotonic
        end, notice, complete = now() + self._timeout, now() + FIRST_NOTICE_SECONDS, None
        with self._changed:
            while not self._changed.wait_for(lambda: self._error or self._begun, _POLL_SECONDS):
                complete = (complete or now()) if self._can_begin else None
                if complete and now() >= complete + _GRACE_SECONDS:
                    self._say(f"begins without {self._absent()}; a worker is taken in when it comes")
                    self._loop.call_soon_threadsafe(self._begin)
                    complete = None
                elif now() >= end and not complete:
                    self._error = late(self._absent(), self._timeout)
                    break
                elif now() >= notice:
                    self._say(f"waiting for {self._absent()}")
                    notice = now() + NOTICE_SECONDS
            if self._error:
                raise self._error

    def check(self) -> None:
        """Raises RerunError if a parameter server was lost."""
        if self.lost:
            raise self._loss(self.lost)

    def _loss(self, server: Task) -> RerunError:
        if stopped := self._stops.recent(self._silence):
            return given_up(self._roles.name(self._roles.mine), stopped, self._silence)
        why = f" (no sign of life for {self._silence:g} s, --collective_timeout)" if server in self.silent else ""
        name = self._roles.name(server)
        return RerunError(f"lost {name}{why}, and the weights there; {_AGAIN}", lost=[name])

    def check_soon(self) -> None:
        """Like `check`, but waits a moment: TensorFlow may have noticed a loss first."""
        end = time.monotonic() + _LOSS_SECONDS
        while not self.lost and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        self.check()

    @property
    def has_workers(self) -> bool:
        """Whether a worker is present; if worker 0 runs in this process, one always is."""
        return self._roles.chief_works or any(task.job == WORKER for task in self._present)

    @property
    def workers(self) -> dict[int, int]:
        """How many times each present worker has joined, by index; 0 for the worker in the chief's process."""
        with self._changed:
            found = {task.index: self._starts[task] for task in self._present if task.job == WORKER}
        return {0: 0, **found} if self._roles.chief_works else found

    @property
    def leaving(self) -> set[int]:
        """The workers that received a signal and will end once they are idle."""
        with self._changed:
            return {task.index for task in self._leaving}

    @property
    def is_ending(self) -> bool:
        """Whether the job is ending because of a signal; all workers are needed until the state is saved."""
        return self._interrupt.requested is not None

    @property
    def never_came(self) -> list[str]:
        """Names of the workers that never joined."""
        return [self._roles.name(task) for task in self._roles.others if task.job == WORKER and not self._starts[task]]

    def release(self, worker: int) -> None:
        """Lets an idle worker that received a signal end."""
        task = Task(WORKER, worker)

        def tell() -> None:
            if task in self._present and task in self._leaving:
                left = (
                    f"{self._roles.name(task)} has left after {self._leaving[task]}; it continues without this worker"
                )
                messages.write_end(self._present[task][1], RerunError(left))

        self._loop.call_soon_threadsafe(tell)

    def starts(self, worker: int) -> int:
        """Returns how many times a worker has joined."""
        return self._starts[Task(WORKER, worker)]

    def print_at(self, worker: int, line: str) -> None:
        """Prints a line on a worker's terminal."""
        task = Task(WORKER, worker)
        if self._roles.chief_works and worker == 0:
            self._say(line)
        elif task in self._present:
            self._loop.call_soon_threadsafe(messages.write, self._present[task][1], {"line": line})

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.start(self._port))
        with self._changed:
            self._decide()  # the chief may be the job's only process
        living = self._loop.create_task(self._live())
        self._loop.run_forever()
        living.cancel()
        self._loop.run_until_complete(asyncio.gather(living, return_exceptions=True))

    async def _live(self) -> None:
        while True:
            self._stops.tick(self._silence)
            for _, writer in list(self._present.values()):
                messages.write(writer, messages.SIGN)
            await asyncio.sleep(messages.sign_every(self._silence))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await rendezvous.greeting(reader, writer)
        if hello is None:
            return
        if isinstance(hello, Failure):
            self._failed(hello, writer)
            return
        task = self._roles.tasks[hello.rank] if hello.rank < self._roles.size else None
        if refused := self._refused(task, hello, writer):
            messages.write_end(writer, refused)
            self._told.add(hello.rank)
            return
        assert task is not None
        with self._changed:
            self._present[task] = hello, writer
            self._starts[task] += 1
            if not self._begun:
                self._decide()
            elif not self._ended:
                messages.write_end(writer, None)
                self._say(f"{self._roles.name(task)} {'is back' if self._starts[task] > 1 else 'has come'}")
        await self._follow(task, reader)
        with self._changed:
            del self._present[task]
            self._left(task)

    def _failed(self, failure: Failure, writer: asyncio.StreamWriter) -> None:
        """Ends the job because a process cannot begin; a job that has already begun continues without it."""
        present = {self._roles.tasks.index(task) for task in self._present}
        with self._changed:
            if failure.rank not in present:  # if it is, this is another process with the same task
                self._fail(failure.told)
            if self._begun:
                self._say(str(failure.told))
        messages.write_end(writer, None)
        self._told.add(failure.rank)

    async def _follow(self, task: Task, reader: asyncio.StreamReader) -> None:
        """Listens to a process until it is gone, or has been silent for so long that it counts as gone.

        A silent worker gets no more work, but stays in TensorFlow's cluster, as changing that would wait for the
        worker's calls. Its guard kills it. If it does not, its machine was stopped as well; the worker then counts as
        gone, and `connecting` closes TensorFlow's connections to it.
        """
        within = self._silence
        while True:
            try:
                kind, value = await messages.read_news(reader, within)
            except TimeoutError:
                is_frozen, within = task in self.silent, _GUARD_SECONDS
                self.silent.add(task)
                if is_frozen or task.job == PS or not self._begun:
                    return
                with self._changed:
                    self._leaving.setdefault(task, f"{self._silence:g} s of silence")
                continue
            except messages.NOT_OURS:
                return
            with self._changed:
                if kind == "late":  # the job continues without it
                    self._fail(late(self._absent(), self._timeout))
                    return
                self._signalled(task, value)

    def _signalled(self, task: Task, name: str) -> None:
        """Lets a worker leave if others stay; a signal to a server or to the last worker ends the job."""
        self._leaving[task] = name
        workers = {other for other in self._present if other.job == WORKER}
        if task.job == PS or (not self._roles.chief_works and workers <= set(self._leaving)):
            self._interrupt.forwarded(signal.Signals[name], self._roles.name(task))

    def _refused(self, task: Task | None, hello: Hello, writer: asyncio.StreamWriter) -> PipelineError | None:
        """Returns why a process cannot take part now; None if it can."""
        mine = self._expected(task or Task(WORKER))
        parts = slice(None if self._begun else 1)
        if found := difference(mine[parts], {hello.name: hello.description[parts]}):
            error = UsageError(f"{found}; {_ALIKE}")
            with self._changed:
                self._fail(error)
                if self._begun:
                    self._say(f"refused {hello.name}: {error}")
            return error
        if task in self._present:
            return taken(hello.name, writer, self._present[task][1], self._roles.source_of(task))
        return None

    def _left(self, task: Task) -> None:
        signalled = self._leaving.pop(task, None)
        if not self._begun:
            self.silent.discard(task)
            self._decide()
        elif self._ended:
            self._changed.notify_all()
        elif task.job == PS:
            self.lost = self.lost or task
            if task in self.silent:
                self._loop.call_later(_HANGING_SECONDS, self._end_hanging, self.lost)
        else:
            why = f" (no sign of life for {self._silence:g} s, --collective_timeout)" if task in self.silent else ""
            name = self._roles.name(task)
            what = f"{name} has left after {signalled}" if signalled and not why else f"lost {name}{why}"
            if stopped := self._stops.recent(self._silence):
                what = f"{name} has left after {stopped:.0f} s in which the chief was stopped"
            self.silent.discard(task)
            self._say(
                f"{what}; training continues {'with the other workers' if self.has_workers else 'once it is back'}"
            )

    def _end_hanging(self, server: Task) -> None:
        """Exits the process if the main thread has not ended, because it waits for a stopped server."""
        if self._ended:
            return

        async def end() -> None:
            error = self._loss(server)
            await self._end(error, True)
            self._on_lost(error.lost)  # the main thread never gets there
            self._interrupt.end(str(error), error.exit_code)

        self._server.tasks.add(self._loop.create_task(end()))

    def _decide(self) -> None:
        """Begins the job once all processes are present; until then, tells them which are missing."""
        absent = self._absent()
        if absent or self._error:
            for _, writer in self._present.values():
                messages.write(writer, {"waiting": absent})
            return
        self._begin()

    @property
    def _can_begin(self) -> bool:
        workers = sum(task.job == WORKER for task in self._present)
        return workers >= self._least and len(self._present) - workers == len(self._roles.ps)

    def _begin(self) -> None:
        """Begins the job with the present processes, if they are enough and consistent."""
        with self._changed:
            if self._begun or self._error or not self._can_begin:
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
        await self._server.stop()
        for hello, writer in list(self._present.values()) if is_known else []:
            with contextlib.suppress(OSError, TimeoutError):
                messages.write_end(writer, error)
                self._told.add(hello.rank)
                async with asyncio.timeout(ANSWER_SECONDS):
                    await writer.drain()
        await self._server.close()
