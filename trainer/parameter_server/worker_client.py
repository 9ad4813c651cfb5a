"""A worker's or parameter server's side: it joins the chief, serves it, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import tensorflow as tf

from pipeline.errors import PipelineError, RerunError, name_of
from trainer.callbacks.base import Phase
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.terminal import Output
from trainer.cluster import messages, rendezvous, tf_config
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.messages import Description, Hello
from trainer.cluster.rendezvous import Client
from trainer.cluster.stops import Stops, given_up
from trainer.cluster.tf_config import PS, WORKER, Cluster, Task

_POLL_SECONDS = 0.1  # between checks for a signal
# Runs in another process, so that stopping the worker does not stop it. It reads a byte per sign of life. If none
# comes, it waits once more, because the whole machine may have been suspended, and then kills the worker: TensorFlow's
# calls to a stopped process wait forever, but calls to a dead one fail immediately.
_GUARD = """
import os, select, signal, sys
parent, seconds, line = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
missed = 0
while missed < 2 and os.getppid() == parent:
    if select.select([0], [], [], seconds if not missed else min(1.0, seconds))[0]:
        missed = 0
        if not os.read(0, 4096):
            break
    else:
        missed += 1
if missed == 2 and os.getppid() == parent:
    os.write(2, line.encode())
    os.kill(parent, signal.SIGKILL)
"""


def start_server(roles: Cluster, address: str | None = None) -> tf.distribute.Server:
    """Returns TensorFlow's server of this process.

    Args:
      roles: processes of the job.
      address: address of worker 0 if it runs in the chief's process; None if this process listens at its own address.

    Raises:
      UsageError: the port cannot be used.
    """
    workers = [address, *roles.workers[1:]] if address else list(roles.workers)
    task = Task(WORKER, 0) if address else roles.mine
    name, where = roles.name(task), address or roles.address(task)
    tf_config.listen(where, name, roles.source_of(task)).close()
    # By default TensorFlow's server runs as many operations at a time as there are cores, but some wait for others: a
    # worker on one core would wait forever. It needs one more than workers (tutorial "Parameter server training").
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(cores, len(workers) + 1)
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec({WORKER: workers, PS: list(roles.ps)}),
            job_name=task.job,
            task_index=task.index,
            protocol="grpc",
            config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
        )
    except tf.errors.UnknownError:
        raise tf_config.unusable_port(
            where, name, roles.source_of(task), "was taken by another process; use another port"
        ) from None


class WorkerClient(Client):
    """A worker's or parameter server's end of the job: it serves the chief until the job ends.

    A signal is passed on to the chief, which saves; this process serves the chief until then.
    """

    def __init__(
        self,
        roles: Cluster,
        description: Description,
        join_timeout: float,
        silence: float,
        interrupt: Interrupt,
        heartbeat: Heartbeat,
        output: Output,
    ) -> None:
        """Makes the client of this process.

        Args:
          roles: processes of the job; this one is not the chief.
          description: description of this process, which the chief compares with its own.
          join_timeout: seconds to wait for the other processes.
          silence: seconds without a sign of life after which another process is lost; also seconds to keep serving
            after a signal.
          interrupt: interrupt that records signals.
          heartbeat: heartbeat of this process.
          output: output for lines.
        """
        self._roles, mine = roles, roles.mine
        hello = Hello(roles.rank, roles.name(mine), description)
        super().__init__(hello, roles.names[0], roles.addresses[0], join_timeout)
        self._silence, self._interrupt, self._heartbeat, self._output = silence, interrupt, heartbeat, output
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._stops = Stops()

    def serve(self) -> None:
        """Serves the chief until the job ends.

        Raises:
          PipelineError: the error that ended the job.
          RerunError: the chief did not appear or was lost, or this process received a signal.
          UsageError: this process differs from the chief, or its port cannot be used.
        """
        self._heartbeat.on_phase(Phase("waiting for all processes"))
        with rendezvous.explaining(self._roles, self.timeout):
            server = start_server(self._roles)
        asyncio.run(self._attend())
        del server  # keeps listening as long as the process lives

    async def _attend(self) -> None:
        if error := await self.meet():
            raise error
        assert self._streams is not None
        reader, writer = self._streams
        self._stops.tick(math.inf)  # there were no ticks while it waited for the job to begin
        self._heartbeat.on_phase(Phase("serving the chief", expects="nothing"))
        with contextlib.closing(writer), self._interrupt.deferred(), self._guarded() as guard:
            listening = asyncio.create_task(self._listen(reader))
            said = await self._speak(writer, guard, listening)
        if said:
            raise type(said)(f"the job has ended: {said}", lost=said.lost or [self.chief])

    async def _speak(
        self, writer: asyncio.StreamWriter, guard: int | None, listening: asyncio.Task[PipelineError | None]
    ) -> PipelineError | None:
        """Waits until the chief has said how the job ended, and tells it of a signal."""
        until = None
        while not listening.done():
            now = time.monotonic()
            self._stops.tick(self._silence)
            if guard is not None:
                with contextlib.suppress(OSError):  # the guard was killed or is stopped
                    os.write(guard, b".")
            if self._interrupt.requested and until is None:
                until = now + self._silence
                messages.write(writer, {"signal": self._interrupt.requested.name})
                self._output.print(
                    f"{self._interrupt.reason}: told the chief; a second signal ends this process at once"
                )
            if until is not None and now >= until:
                listening.cancel()
                raise RerunError(
                    f"{self._interrupt.reason}: the chief has not ended the job within {self._silence:g} s "
                    "(--collective_timeout); rerun the same commands to resume from the last checkpoint"
                )
            await asyncio.wait([listening], timeout=_POLL_SECONDS)
        return listening.result()

    async def _listen(self, reader: asyncio.StreamReader) -> PipelineError | None:
        """Prints what the chief sends, until it says how the job ended."""
        try:
            while isinstance(said := await messages.read_answer(reader, self._silence), str):
                self._output.print(said)
        except messages.NOT_OURS as error:
            raise self._loss(isinstance(error, TimeoutError)) from None
        return said

    def _loss(self, is_silent: bool) -> RerunError:
        if stopped := self._stops.recent(self._silence):
            return given_up(self._roles.name(self._roles.mine), stopped, self._silence)
        after = f" after {self._interrupt.reason}" if self._interrupt.requested else ""
        why = f": no sign of life for {self._silence:g} s (--collective_timeout)" if is_silent else after
        again = "rerun the same commands to resume from the last checkpoint"
        return RerunError(f"lost {self.chief}{why}; {again}", lost=[self.chief])

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[int | None]:
        """Context in which a guard kills this worker if it is stopped.

        Yields:
          The file descriptor for signs of life; None on a server, which has no guard.
        """
        mine = self._roles.mine
        if mine.job != WORKER:  # a silent server ends the job anyway, since its weights cannot be reached
            yield None
            return
        line = (
            f"{name_of('trainer.run')}: {self._roles.name(mine)} was stopped, or stuck, for {self._silence:g} s "
            "(--collective_timeout), and is killed: others make its steps; rerun the same command to take part again\n"
        )
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(self._silence), line]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        ) as guard:
            assert guard.stdin is not None
            os.set_blocking(guard.stdin.fileno(), False)  # a stopped guard must not block the worker
            try:
                yield guard.stdin.fileno()
            finally:
                guard.kill()

    async def answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> PipelineError | None:
        """Returns the chief's answer. The connection stays open as long as the job runs."""
        self._streams = reader, writer
        self._signs = asyncio.create_task(self._live(writer))
        try:
            return await self.outcome(reader, self._silence)
        except BaseException as error:
            self._signs.cancel()
            if isinstance(error, asyncio.CancelledError):
                messages.write(writer, {"late": ""})
            raise

    async def _live(self, writer: asyncio.StreamWriter) -> None:
        while True:
            messages.write(writer, messages.SIGN)
            await asyncio.sleep(messages.sign_every(self._silence))
