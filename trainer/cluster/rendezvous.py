"""The meeting of a job's workers before TensorFlow connects them, to check that all are there and train the same.

When TensorFlow connects workers, it waits silently, holds the interpreter's lock, takes SIGTERM, and compares nothing.
Here the chief listens on its own port of TF_CONFIG, where TensorFlow's server will listen later, and the others connect
to it. A worker sends its name and the description of its run. The chief answers with the names that all are waiting
for, and finally with permission to continue or the error that ends them all. Anything else that connects to the port
gets no answer.

The connections stay open. A worker that fails says why before it leaves, so that the others end with its error rather
than TensorFlow's message about a lost worker. A worker that fails before it meets the others tries to tell them for a
while, as they would otherwise wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import selectors
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeAlias

from pipeline.errors import EXIT_RERUN, DataError, PipelineError, RerunError, UsageError, reason_of
from trainer.cluster import messages, tf_config
from trainer.cluster.messages import Description, Failure, Hello, difference, shortened
from trainer.cluster.tf_config import Cluster

NOTICE_SECONDS = 10.0  # between lines about whom a worker is waiting for
FIRST_NOTICE_SECONDS = 0.5  # until the first of these lines
_RETRY_SECONDS = 0.3
ANSWER_SECONDS = 10.0  # for a machine to answer, and for a worker's first message
_EXPLAINING_SECONDS = 15.0  # for reaching the others, who may be loading TensorFlow
_TOLD_SECONDS = 2.0  # in which the chief learns why a lost worker left, if it said so
_PASSED_ON_SECONDS = 10.0  # in which the others learn it from the chief, which may notice the loss later
_MOST_CHARACTERS = 300  # characters of an error sent to others
_ALIKE = "start all workers with the same flags, data, code and versions"

_Connection: TypeAlias = tuple[socket.socket, bytes]  # socket, and bytes already read from it
Outcome: TypeAlias = PipelineError | None  # error that ends all workers; None to let them continue
_Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
SOMEBODY = "another worker"  # name of a lost worker that TensorFlow does not name


class LostError(RerunError):
    """Another worker no longer responds; `lost` has its name."""


def meet(cluster: Cluster, description: Description, timeout: float) -> Ties:
    """Waits until all workers are there and compares them; prints whom it is waiting for.

    Args:
      cluster: workers of the job, including this process.
      description: description that must be the same on all workers.
      timeout: longest time to wait in seconds.

    Returns:
      Connections between the workers.

    Raises:
      UsageError: the workers differ, another process has this worker's rank, or its port cannot be used.
      RerunError: a worker did not join in time.
    """
    listed = f"{cluster.size} workers in {cluster.source} ({', '.join(cluster.addresses)})"
    jobs = {cluster.source: f"{listed}{', the first as chief' if cluster.chief_address else ''}"}
    hello = Hello(cluster.rank, cluster.name(cluster.mine), [jobs, *description])
    with explaining(cluster, timeout):
        port = tf_config.listen(cluster.address(cluster.mine), hello.name, cluster.source)
    with port:  # a worker keeps its port until TensorFlow takes it
        side = _Chief(cluster, hello, timeout, port) if cluster.is_chief else _Worker(cluster, hello, timeout)
        outcome = asyncio.run(side.meet())
    if outcome:
        if isinstance(side, _Chief):
            tell_the_rest(cluster, outcome, side.told, timeout)
        raise outcome
    return Ties(cluster, side.kept)


@contextlib.contextmanager
def explaining(
    cluster: Cluster,
    timeout: float,
    aside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[None]:
    """Context for work before a process meets the others: if it fails, they are told why.

    The chief tells all that connect; any other process tells the chief, which ends all. Those told end immediately.
    Processes that come too late wait for --join_timeout, as they would for one that was never started.

    Args:
      cluster: processes of the job.
      timeout: seconds that the others wait; nobody is told after that.
      aside: context in which a line may be printed.
    """
    try:
        yield
    except Exception as error:
        if cluster.size > 1:
            with contextlib.suppress(OSError, UsageError):  # another process has the chief's port
                asyncio.run(_explain(_of_any(error), cluster, timeout, aside))
        raise


def tell_the_rest(cluster: Cluster, error: PipelineError, told: Collection[int], timeout: float) -> None:
    """Tells late workers, who would wait for --join_timeout, why the chief has given up the job.

    Args:
      cluster: processes of the job.
      error: error that ended the others; if it asks for a rerun, nobody is told.
      told: ranks of the workers that know.
      timeout: seconds that the others wait, as in `explaining`.
    """
    if error.exit_code != EXIT_RERUN and len(told) < cluster.size - 1:
        with contextlib.suppress(OSError, UsageError):  # another process has taken the port
            asyncio.run(_explain(error, cluster, timeout, contextlib.nullcontext, error, told))


async def _explain(
    error: PipelineError,
    cluster: Cluster,
    timeout: float,
    aside: Callable[[], contextlib.AbstractContextManager[None]],
    for_others: PipelineError | None = None,
    told: Collection[int] = (),
) -> None:
    """Tells the others why the job cannot begin, for a bounded time; prints a line if that takes a while."""
    mine = cluster.mine
    failure = Failure(cluster.rank, cluster.name(mine), error)
    if cluster.is_chief:
        port = tf_config.listen(cluster.address(mine), cluster.name(mine), cluster.source_of(mine))
        untold = set(range(1, cluster.size)) - set(told)
        telling = asyncio.create_task(_tell_others(for_others or failure.told, untold, port))
    else:
        telling = asyncio.create_task(_tell_chief(failure, cluster.addresses[0]))
    seconds = min(timeout, _EXPLAINING_SECONDS)
    notice = min(seconds, FIRST_NOTICE_SECONDS)
    if not (await asyncio.wait([telling], timeout=notice))[0] and seconds > notice:
        with aside():
            print(f"telling the others why the job cannot begin, for at most {seconds:g} s: {error}", flush=True)
        await asyncio.wait([telling], timeout=seconds - notice)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)


async def _tell_chief(failure: Failure, address: str) -> None:
    while True:
        with contextlib.suppress(*messages.NOT_OURS):  # not listening yet, or another program has its port
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection(*tf_config.split_address(address))
                with contextlib.closing(writer):
                    said = {"rank": failure.rank, "name": failure.name, **messages.fields_of(failure.error)}
                    messages.write(writer, said)
                    await messages.read_answer(reader)
                    return
        await asyncio.sleep(_RETRY_SECONDS)


async def _tell_others(error: PipelineError, untold: set[int], port: socket.socket) -> None:
    all_told = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if one := await greeting(reader, writer):
            with contextlib.suppress(*messages.NOT_OURS):
                async with asyncio.timeout(ANSWER_SECONDS):
                    messages.write_end(writer, error)
                    await writer.drain()
                untold.discard(one.rank)
                if not untold:
                    all_told.set()

    server = Server(answer)
    await server.start(port)
    try:
        await all_told.wait()
    finally:
        await server.close()


def _of_any(error: Exception) -> PipelineError:
    if isinstance(error, PipelineError):
        return error
    return DataError(f"{type(error).__name__}: {' '.join(str(error).split())[:_MOST_CHARACTERS]}")


class Ties:
    """Connections between workers that have met: the chief has one to each other worker."""

    def __init__(self, cluster: Cluster, connections: Mapping[int, _Connection] = {}) -> None:
        """Takes over connections, by rank of the other side; a single worker has none."""
        self._cluster = cluster
        self._peers = {rank: _Peer(cluster.names[rank], *connection) for rank, connection in connections.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        for peer in self._peers.values():
            peer.connection.close()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Context that tells the others why this worker fails, and replaces a LostError with the lost worker's error.

        Raises:
          PipelineError: in place of LostError, the error that ended the lost worker, with its name.
        """
        try:
            yield
        except LostError:
            if said := self._heard():
                raise said from None
            raise
        except PipelineError as error:
            if error.exit_code != EXIT_RERUN:  # otherwise all stop together
                self._tell(error)
            raise
        except Exception as error:
            self._tell(_of_any(error))
            raise

    def compare(self, mine: Any, difference: Callable[[Any, Any], str | None], timeout: float) -> None:
        """Compares each worker's value with the chief's. All workers call it.

        Args:
          mine: this worker's value, as JSON.
          difference: function that returns text on how another worker's value differs from the chief's, or None.
          timeout: seconds to wait for each of the others.

        Raises:
          UsageError: a worker differs.
          LostError: a worker is gone, or does not respond.
          PipelineError: a worker has failed.
        """
        if not self._cluster.is_chief:
            (chief,) = self._peers.values()
            chief.send({"has": mine})
            if error := messages.error_of(self._answer(chief, timeout)["outcome"]):
                raise error
            return
        theirs = {rank: self._answer(peer, timeout)["has"] for rank, peer in self._peers.items()}
        said = [
            f"{self._cluster.names[rank]} has {found}"
            for rank, one in theirs.items()
            if (found := difference(mine, one))
        ]
        error = UsageError(f"{'; '.join(said)}; {_ALIKE}") if said else None
        for peer in self._peers.values():
            peer.send({"outcome": messages.fields_of(error)})
        if error:
            raise error

    def _answer(self, peer: _Peer, timeout: float) -> dict[str, Any]:
        message = peer.read(time.monotonic() + timeout)
        if message is None:
            reason = f"lost {peer.name}: it did not build its model within {timeout:g} s, or is gone"
            raise LostError(reason, lost=[peer.name])
        if "left" in message:
            raise self._passed_on(peer, message)
        return message

    def _heard(self) -> PipelineError | None:
        """Returns why another worker left; None if none said why."""
        end = time.monotonic() + (_TOLD_SECONDS if self._cluster.is_chief else _PASSED_ON_SECONDS)
        with selectors.DefaultSelector() as selector:
            for peer in self._peers.values():
                if peer.has_message and (said := peer.read(end)) and "left" in said:
                    return self._passed_on(peer, said)
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while (left := end - time.monotonic()) > 0 and selector.get_map():
                for key, _ in selector.select(left):
                    message = key.data.read(end)
                    if message is None:  # killed
                        return None
                    if "left" in message:
                        return self._passed_on(key.data, message)
        return None

    def _passed_on(self, peer: _Peer, message: Mapping[str, Any]) -> PipelineError:
        """Returns the error of a worker that left, with its name; the chief passes the message on to the others."""
        for other in self._peers.values() if self._cluster.is_chief else ():
            if other is not peer:
                other.send(message)
        error = messages.error_of(message["left"])
        assert error is not None
        return type(error)(f"lost {message['name']}: {error}", lost=[message["name"]])

    def _tell(self, error: PipelineError) -> None:
        for peer in self._peers.values():
            peer.send({"left": messages.fields_of(error), "name": self._cluster.name(self._cluster.mine)})


class _Peer:
    """The other side of a connection, exchanging lines of JSON."""

    def __init__(self, name: str, connection: socket.socket, rest: bytes) -> None:
        self.name, self.connection, self._rest = name, connection, rest

    @property
    def has_message(self) -> bool:
        return b"\n" in self._rest

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message unless the other side is gone."""
        with contextlib.suppress(OSError):
            self.connection.settimeout(ANSWER_SECONDS)
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self, end: float) -> dict[str, Any] | None:
        """Returns the next message; None if none comes before the time `end`, or the other side is gone."""
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            self.connection.settimeout(max(end - time.monotonic(), 0.001))
            try:
                parts.append(self.connection.recv(1 << 16))
            except OSError:
                parts.append(b"")
            if not parts[-1]:
                return None
        line, _, self._rest = b"".join(parts).partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class _Chief:
    """The side that waits for all workers, compares them and decides."""

    def __init__(self, cluster: Cluster, hello: Hello, timeout: float, port: socket.socket) -> None:
        self._cluster, self._mine, self._timeout, self._port = cluster, hello.description, timeout, port
        self._others: dict[int, tuple[Hello, asyncio.StreamWriter]] = {}  # the other workers by rank
        self.kept: dict[int, _Connection] = {}
        self.told: set[int] = set()  # ranks of workers that know the outcome

    async def meet(self) -> Outcome:
        self._decision: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        server = Server(self._serve)
        await server.start(self._port)
        outcome = await decided(self._decision, self._timeout, self._absent)
        await server.stop()  # before a worker continues and its TensorFlow looks for the chief's on this port
        for rank, (_, writer) in self._others.items():
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # later messages are for the ties
            messages.write_end(writer, outcome)
            self.told.add(rank)
            if outcome is None:
                self.kept[rank] = writer.get_extra_info("socket").dup(), b""
        await server.close()
        return outcome

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await greeting(reader, writer)
        if hello is None:
            return
        if isinstance(hello, Failure):
            # A second process with the same task must not end the first.
            if hello.rank not in self._others and not self._decision.done():
                self._decision.set_result(hello.told)
            self.told.add(hello.rank)
            messages.write_end(writer, None)
            return
        if hello.rank in self._others:
            messages.write_end(writer, taken(hello.name, writer, self._others[hello.rank][1], self._cluster.source))
            return
        self._others[hello.rank] = hello, writer
        self._changed()
        if await messages.waits_no_longer(reader) and not self._decision.done():
            self._decision.set_result(late(self._absent(), self._timeout))  # the others will count it as absent
        del self._others[hello.rank]
        self._changed()

    def _changed(self) -> None:
        """Decides if possible; otherwise tells the workers who is still missing."""
        if self._decision.done():
            return
        absent = self._absent()
        parts = slice(1 if absent else None)  # if the TF_CONFIGs differ, absent workers may never come
        others = {hello.name: hello.description[parts] for _, (hello, _) in sorted(self._others.items())}
        if found := difference(self._mine[parts], others):
            self._decision.set_result(UsageError(f"{found}; {_ALIKE}"))
        elif not absent:
            self._decision.set_result(None)
        else:
            for _, writer in self._others.values():
                messages.write(writer, {"waiting": absent})

    def _absent(self) -> str:
        return shortened([name for rank, name in enumerate(self._cluster.names) if rank and rank not in self._others])


class Server:
    """Serves each connection to a port in its own task.

    Given a coroutine, `asyncio.start_server` would create the tasks itself, but Python 3.11 cannot cancel those without
    a traceback.

    Args:
      serve: coroutine function that serves a connection, which is closed when it returns.

    Attributes:
      tasks: tasks of the connections being served.
    """

    def __init__(self, serve: _Serve) -> None:
        self._serve = serve
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: socket.socket) -> None:
        """Accepts connections from now on."""
        self._port = port
        self._server = await asyncio.start_server(self._connected, sock=port, limit=messages.MOST_BYTES)

    async def stop(self) -> None:
        """Accepts no more connections, and closes the port."""
        if self._port.fileno() < 0:
            return
        # asyncio hands over a connection two turns of its loop after accepting it. If the server closes before that,
        # the connection is forgotten: it stays open until Python collects garbage, with its process waiting for an
        # answer.
        asyncio.get_running_loop().remove_reader(self._port)
        for _ in range(2):
            await asyncio.sleep(0)
        self._server.close()

    async def close(self) -> None:
        """Ends all connections except the calling task's own."""
        await self.stop()
        others = {task for task in self.tasks if task is not asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # even if it is cancelled before it begins


async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Hello | Failure | None:
    """Returns a process's first message; None if it is not of this job, such as a health check or a port scanner."""
    messages.expect_signs_of_life(writer)
    with contextlib.suppress(*messages.NOT_OURS):
        async with asyncio.timeout(ANSWER_SECONDS):
            return await messages.read_first(reader)
    return None


class Client:
    """The side that asks the chief whether all may continue. A subclass decides what to do with the connection.

    Args:
      hello: first message of this process.
      chief: name of the chief in messages.
      address: `host:port` of the chief.
      timeout: seconds to wait for the others.
    """

    def __init__(self, hello: Hello, chief: str, address: str, timeout: float) -> None:
        self.hello, self.chief, self.timeout = hello, chief, timeout
        self._address, self._awaited = tf_config.split_address(address), chief

    async def meet(self) -> Outcome:
        """Returns the chief's answer, or the error about workers that did not join in time."""
        return await decided(asyncio.create_task(self._ask()), self.timeout, lambda: self._awaited)

    async def _ask(self) -> Outcome:
        while True:
            try:
                return await self._ask_once()
            except socket.gaierror as error:
                self._awaited = f"{self.chief} [{reason_of(error)}]"
            except messages.NOT_OURS:  # not listening yet, or gone, or another program has its port
                self._awaited = self.chief
            await asyncio.sleep(_RETRY_SECONDS)

    async def _ask_once(self) -> Outcome:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address, limit=messages.MOST_BYTES)
        try:
            messages.expect_signs_of_life(writer)
            messages.write(writer, dataclasses.asdict(self.hello))
            return await self.answered(reader, writer)
        except BaseException:
            writer.close()
            raise

    async def answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Outcome:
        """Returns the chief's answer. If it raises, the connection is closed."""
        raise NotImplementedError

    async def outcome(self, reader: asyncio.StreamReader, silence: float | None = None) -> Outcome:
        """Waits for the chief's decision whether all may continue; `silence` is `within` for `read_answer`."""
        while isinstance(answer := await messages.read_answer(reader, silence), str):
            self._awaited = answer
        return answer


class _Worker(Client):
    """A worker's side, which keeps the connection for its `Ties`."""

    def __init__(self, cluster: Cluster, hello: Hello, timeout: float) -> None:
        super().__init__(hello, cluster.names[0], cluster.addresses[0], timeout)
        self.kept: dict[int, _Connection] = {}

    async def answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Outcome:
        with contextlib.closing(writer):
            try:
                answer = await self.outcome(reader)
                if answer is None:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    self.kept = {0: (writer.get_extra_info("socket").dup(), await _rest_of(reader))}
                return answer
            except asyncio.CancelledError:
                writer.write(b"\n")  # for `messages.waits_no_longer`
                raise


async def _rest_of(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            return await reader.read(messages.MOST_BYTES)
    return b""


async def decided(decision: asyncio.Future[Outcome], timeout: float, awaited: Callable[[], str]) -> Outcome:
    """Waits at most `timeout` seconds for a decision; occasionally prints the names returned by `awaited`."""
    time = asyncio.get_running_loop().time
    end, pause = time() + timeout, FIRST_NOTICE_SECONDS
    while True:
        await asyncio.wait([decision], timeout=min(pause, end - time()))
        if decision.done():
            return decision.result()
        if time() >= end:
            return late(awaited(), timeout)
        print(f"waiting for {awaited()}", flush=True)
        pause = NOTICE_SECONDS


def late(awaited: str, timeout: float) -> RerunError:
    """Returns an error about processes that did not join within `timeout` seconds."""
    return RerunError(
        f"{awaited} did not come within {timeout:g} s (--join_timeout); rerun the same commands on all of them"
    )


def taken(name: str, writer: asyncio.StreamWriter, first: asyncio.StreamWriter, source: str) -> RerunError:
    """Returns an error about a second process with the same task; a retry helps if the first one's machine is gone.

    Args:
      name: name of the task.
      writer: stream to the second process.
      first: stream to the first process.
      source: origin of the task, for messages.
    """
    peers = ((one.get_extra_info("peername") or "?")[0] for one in (writer, first))
    here, there = (peer.removeprefix("::ffff:") for peer in peers)  # the IPv6 prefix of an IPv4 address
    return RerunError(
        f"{name} is there already, a process on {there}; this one, on {here}, has the same task in {source}; give each "
        "process a task of its own, or try again in a minute if the other machine is gone"
    )
