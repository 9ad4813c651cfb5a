"""The workers of a job meet before TensorFlow joins them: all are there, and all have the same run.

TensorFlow's own joining waits without a word, holds the interpreter's lock and takes SIGTERM, and it compares nothing.

The chief listens on its own port of TF_CONFIG, where TensorFlow's server will listen later, and the others connect to
it. A worker says who it is and what shapes its run; the chief says for whom all wait, and at the end that all may go
on, or the error that ends them all. Whatever else connects to the port gets no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TypeAlias

from pipeline.errors import PipelineError, RerunError, UsageError
from trainer.cluster import messages, ports
from trainer.cluster.difference import Description, difference, shortened
from trainer.cluster.messages import Hello
from trainer.cluster.tf_config import Cluster

NOTICE_SECONDS = 10.0  # between two lines that say for whom a worker waits
_FIRST_NOTICE_SECONDS = 0.5
RETRY_SECONDS = 0.3
ANSWER_SECONDS = 10.0  # for a machine to answer, and for a worker to say who it is
_ALIKE = "start all workers with the same flags, data and versions"

Outcome: TypeAlias = PipelineError | None  # what ends all workers; None: they may go on


def meet(cluster: Cluster, description: Description, timeout: float) -> None:
    """Waits until all workers are there, and compares them. While it waits, it says for whom.

    Args:
      cluster: of this process.
      description: what has to be equal on all workers.
      timeout: seconds to wait at most.

    Raises:
      UsageError: the workers differ, another process has this worker's rank, or its port cannot be used.
      RerunError: a worker did not come in time.
    """
    listed = f"{cluster.size} workers in {cluster.source} ({', '.join(cluster.addresses)})"
    jobs = {cluster.source: f"{listed}{', the first as chief' if cluster.chief_job else ''}"}
    hello = Hello(cluster.rank, cluster.name(cluster.rank), [jobs, *description])
    with ports.listen(cluster) as port:  # a worker keeps its port until TensorFlow takes it
        side = _Chief(cluster, hello, timeout, port) if cluster.is_chief else _Worker(cluster, hello, timeout)
        outcome = asyncio.run(side.meet())
    if outcome:
        raise outcome


class _Chief:
    """The side that waits for all, compares and decides."""

    def __init__(self, cluster: Cluster, hello: Hello, timeout: float, port: socket.socket) -> None:
        self._cluster, self._mine, self._timeout, self._port = cluster, hello.description, timeout, port
        self._others: dict[int, tuple[Hello, asyncio.StreamWriter]] = {}  # by rank

    async def meet(self) -> Outcome:
        self._decision: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        tasks = []  # that Python 3.11's start_server would make for a coroutine, but not cancel without a traceback

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.create_task(self._serve(reader, writer)))

        server = await asyncio.start_server(serve, sock=self._port, limit=messages.MOST_BYTES)
        outcome = await decided(self._decision, self._timeout, self._absent)
        server.close()  # before a worker goes on, whose TensorFlow looks for the chief's on this port
        for _, writer in self._others.values():
            messages.write_end(writer, outcome)
        return outcome

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a worker in until it is gone."""
        with contextlib.closing(writer):
            messages.expect_signs_of_life(writer)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    hello = await messages.read_hello(reader)
            except messages.NOT_OURS:  # a health check, a port scanner
                return
            if hello.rank in self._others:
                messages.write_end(writer, self._taken(hello, writer))
                return
            self._others[hello.rank] = hello, writer
            self._changed()
            if await messages.waits_no_longer(reader) and not self._decision.done():
                self._decision.set_result(late(self._absent(), self._timeout))  # it will not be there for the others
            del self._others[hello.rank]
            self._changed()

    def _changed(self) -> None:
        """Decides where that is possible, else says for whom all wait."""
        if self._decision.done():
            return
        absent = self._absent()
        parts = slice(1 if absent else None)  # with another TF_CONFIG, those who are awaited may never come
        others = {hello.name: hello.description[parts] for _, (hello, _) in sorted(self._others.items())}
        if found := difference(self._mine[parts], others):
            self._decision.set_result(UsageError(f"{found}; {_ALIKE}"))
        elif not absent:
            self._decision.set_result(None)
        else:
            self._tell(absent)

    def _tell(self, absent: str) -> None:
        for _, writer in self._others.values():
            messages.write_waiting(writer, absent)

    def _absent(self) -> str:
        ranks = (rank for rank in range(1, self._cluster.size) if rank not in self._others)
        return shortened([self._cluster.name(rank) for rank in ranks])

    def _taken(self, hello: Hello, writer: asyncio.StreamWriter) -> RerunError:
        """Returns the error for a second process; a restart helps where the first one's machine is gone."""
        peers = ((one.get_extra_info("peername") or "?")[0] for one in (writer, self._others[hello.rank][1]))
        here, there = (peer.removeprefix("::ffff:") for peer in peers)  # an IPv4 address as IPv6 has it
        return RerunError(
            f"{hello.name} is there already, a process on {there}; this one, on {here}, has the same task in "
            f"{self._cluster.source}; give each process a task of its own, or try again in a minute if the other "
            "machine is gone"
        )


class _Worker:
    """The side that asks the chief."""

    def __init__(self, cluster: Cluster, hello: Hello, timeout: float) -> None:
        self._hello, self._timeout = hello, timeout
        self._chief, self._address = cluster.name(0), ports.split(cluster.addresses[0])
        self._awaited = self._chief

    async def meet(self) -> Outcome:
        return await decided(asyncio.create_task(self._ask()), self._timeout, lambda: self._awaited)

    async def _ask(self) -> Outcome:
        while True:
            try:
                return await self._ask_once()
            except socket.gaierror as error:
                self._awaited = f"{self._chief} [{error.strerror}]"
            except messages.NOT_OURS:  # it does not listen yet, or is gone, or its port is another program's
                self._awaited = self._chief
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_once(self) -> Outcome:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address, limit=messages.MOST_BYTES)
        with contextlib.closing(writer):
            messages.expect_signs_of_life(writer)
            messages.write_hello(writer, self._hello)
            try:
                while isinstance(answer := await messages.read_answer(reader), str):
                    self._awaited = answer
                return answer
            except asyncio.CancelledError:
                messages.write_waits_no_longer(writer)
                raise


async def decided(decision: asyncio.Future[Outcome], timeout: float, awaited: Callable[[], str]) -> Outcome:
    """Waits for a decision, for so long at most, and says every now and then for whom."""
    time = asyncio.get_running_loop().time
    end, pause = time() + timeout, _FIRST_NOTICE_SECONDS
    while True:
        await asyncio.wait([decision], timeout=min(pause, end - time()))
        if decision.done():
            return decision.result()
        if time() >= end:
            return late(awaited(), timeout)
        print(f"waiting for {awaited()}", flush=True)
        pause = NOTICE_SECONDS


def late(awaited: str, timeout: float) -> RerunError:
    """Returns the error for processes that did not come within so many seconds."""
    return RerunError(
        f"{awaited} did not come within {timeout:g} s (--join_timeout); rerun the same commands on all of them"
    )
