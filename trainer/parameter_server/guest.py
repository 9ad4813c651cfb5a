"""A worker's or parameter server's side: it meets the chief, serves it, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import tensorflow as tf

from pipeline.errors import PipelineError, RerunError
from trainer.actions.heartbeat import Heartbeat
from trainer.cluster import messages, ports
from trainer.cluster.difference import Description
from trainer.cluster.messages import Hello
from trainer.cluster.rendezvous import ANSWER_SECONDS, RETRY_SECONDS, decided
from trainer.parameter_server.roles import CHIEF, PS, WORKER, Roles, Task


def serve(roles: Roles, description: Description, timeout: float, heartbeat: Heartbeat) -> None:
    """Serves the chief until the job ends.

    Args:
      roles: the processes, of which this one is no chief.
      description: what has to be equal.
      timeout: seconds to wait for the others.
      heartbeat: says what is done.

    Raises:
      PipelineError: the error that ended the job.
      RerunError: the chief did not come, or was lost.
      UsageError: this process differs from the chief, or its port cannot be used.
    """
    heartbeat.phase("waiting for all processes")
    server = start_server(roles)
    asyncio.run(_Guest(roles, description, timeout, heartbeat).attend())
    del server


def start_server(roles: Roles, address: str | None = None) -> tf.distribute.Server:
    """Returns TensorFlow's server of this process.

    Args:
      roles: the processes.
      address: where it listens as worker 0, where that is the chief's process; None: at its own address.

    Raises:
      UsageError: its port cannot be used.
    """
    workers = [address, *roles.workers[1:]] if address else list(roles.workers)
    task = Task(WORKER, 0) if address else roles.mine
    name, where = roles.name(task), address or roles.address(task)
    ports.listen_at(where, name, roles.source).close()
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec({WORKER: workers, PS: list(roles.ps)}),
            job_name=task.job,
            task_index=task.index,
            protocol="grpc",
        )
    except tf.errors.UnknownError:
        raise ports.unusable_at(where, name, roles.source, "was taken by another process; use another port") from None


class _Guest:
    """Asks the chief."""

    def __init__(self, roles: Roles, description: Description, timeout: float, heartbeat: Heartbeat) -> None:
        mine = roles.mine
        self._hello = Hello(roles.others.index(mine) + 1, roles.name(mine), description)
        self._chief, self._address = roles.name(Task(CHIEF)), ports.split(roles.address(Task(CHIEF)))
        self._timeout, self._heartbeat, self._awaited = timeout, heartbeat, self._chief
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def attend(self) -> None:
        """Waits until the job begins, then until it ends."""
        meeting = asyncio.create_task(self._meet())
        if error := await decided(meeting, self._timeout, lambda: self._awaited):
            raise error
        assert self._streams is not None
        reader, writer = self._streams
        self._heartbeat.phase("serving the chief", expects="nothing")
        with contextlib.closing(writer):
            try:
                while isinstance(said := await messages.read_line(reader), str):
                    print(said, flush=True)
            except messages.NOT_OURS:
                raise RerunError(
                    f"lost {self._chief}; rerun the same commands to resume from the last checkpoint"
                ) from None
        if said:
            raise type(said)(f"the job has ended: {said}")

    async def _meet(self) -> PipelineError | None:
        while True:
            try:
                return await self._ask()
            except socket.gaierror as error:
                self._awaited = f"{self._chief} [{error.strerror}]"
            except messages.NOT_OURS:  # it does not listen yet, or is gone, or its port is another program's
                self._awaited = self._chief
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self) -> PipelineError | None:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address, limit=messages.MOST_BYTES)
        messages.expect_signs_of_life(writer)
        messages.write_hello(writer, self._hello)
        self._streams = reader, writer
        try:
            while isinstance(answer := await messages.read_answer(reader), str):
                self._awaited = answer
            return answer
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                messages.write_waits_no_longer(writer)
            writer.close()
            raise
