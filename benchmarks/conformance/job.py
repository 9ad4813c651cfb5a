"""A job: ranks in processes of their own, in lockstep, as in synchronous training."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.conformance.adapter import Job

ROOT = pathlib.Path(__file__).parents[2]
START = 120.0  # seconds for a rank to load its libraries and begin


@dataclasses.dataclass(frozen=True)
class Peer:
    """An adapter and the interpreter that runs it."""

    name: str
    python: str


@dataclasses.dataclass
class Outcome:
    """The batches that a job's ranks delivered, and problems.

    Attributes:
      steps: numbers of the records in each batch, by epoch and rank, without padding.
      wrong: records whose bytes were wrong in any batch.
      uneven: ranks with fewer steps than others, which would hang a job that all-reduces gradients at every step.
      hung: ranks that did not answer, and at which point.
      error: first error, in the peer's words.
    """

    steps: dict[int, list[list[list[int]]]] = dataclasses.field(default_factory=dict)
    wrong: set[int] = dataclasses.field(default_factory=set)
    uneven: str = ""
    hung: str = ""
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether all epochs were completed."""
        return not self.hung and not self.error

    def batches(self, epoch: int) -> list[list[int]]:
        """Returns the global batches of an epoch: for each step, the records of all ranks that have the step."""
        ranks = self.steps.get(epoch, [])
        most = max(map(len, ranks), default=0)
        return [[number for rank in ranks if step < len(rank) for number in rank[step]] for step in range(most)]


_Lines = queue.SimpleQueue[tuple[int, dict[str, Any]]]


class _Rank:
    """A rank's process; a thread puts its lines into a queue shared by all ranks."""

    def __init__(
        self,
        number: int,
        lines: _Lines,
        peer: Peer,
        task: Sequence[str],
        environment: dict[str, str],
        log: pathlib.Path,
    ) -> None:
        command = [peer.python, "-m", "benchmarks.conformance.rank", peer.name, *task]
        with open(log, "w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                start_new_session=True,  # so that its own worker processes end with it
            )
        self._number, self._log, self._lines = number, log, lines
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put((self._number, json.loads(line)))
        last = (self._log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        self._lines.put((self._number, {"error": f"exit code {self.process.wait()}: {last}"}))

    def answer(self, save: str) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"save": save}) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _replies(lines: _Lines, waiting: Sequence[int], seconds: float) -> dict[int, dict[str, Any]]:
    """Returns the next reply of each rank; {"hung": ...} for a silent one, and only the first error."""
    found: dict[int, dict[str, Any]] = {}
    until = time.monotonic() + seconds
    while len(found) < len(waiting):
        try:
            rank, reply = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return found | {
                rank: {"hung": f"says nothing for {seconds:.0f} s"} for rank in waiting if rank not in found
            }
        if "error" in reply:  # a launcher would end the others, which may be waiting for this rank
            return {rank: reply}
        found[rank] = reply
    return found


def task(peer: Peer, arguments: Sequence[str], scratch: pathlib.Path, seconds: float = START) -> dict[str, Any]:
    """Runs `probe` or `write` and returns its reply; {"hung": ...} or {"error": ...} if it failed."""
    with _started(peer, [arguments], [{}], scratch) as (_, lines):
        return _replies(lines, [0], seconds)[0]


def run(peer: Peer, jobs: Sequence[Job], seconds: float, save_at: tuple[int, int] | None = None) -> Outcome:
    """Runs a job to its end.

    Args:
      peer: library to test.
      jobs: task of each rank.
      seconds: maximum number of seconds for a rank's next batch.
      save_at: epoch and number of its steps after which the ranks save their states in their scratch folder, under the
        names of `saved_in`.
    """
    arguments = [["read", json.dumps(dataclasses.asdict(job))] for job in jobs]
    scratch = pathlib.Path(jobs[0].scratch)
    with _started(peer, arguments, [_environment(job) for job in jobs], scratch) as (ranks, lines):
        return _Lockstep(ranks, lines, jobs[0], seconds, save_at).outcome()


def saved_in(scratch: str, ranks: int) -> tuple[str, ...]:
    """Returns the state files that a job with this number of ranks saves."""
    return tuple(f"{scratch}/state-{rank}" for rank in range(ranks))


@contextlib.contextmanager
def _started(
    peer: Peer, arguments: Sequence[Sequence[str]], environments: Sequence[dict[str, str]], scratch: pathlib.Path
) -> Iterator[tuple[list[_Rank], _Lines]]:
    ranks: list[_Rank] = []
    lines: _Lines = queue.SimpleQueue()
    try:
        for index, (given, environment) in enumerate(zip(arguments, environments, strict=True)):
            ranks.append(_Rank(index, lines, peer, given, environment, scratch / f"rank-{index}.log"))
        yield ranks, lines
    finally:
        for rank in ranks:
            rank.end()


def _environment(job: Job) -> dict[str, str]:
    """Returns the variables that torchrun sets, which some peers read."""
    return {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks),
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
        "CUDA_VISIBLE_DEVICES": "",
    }


def free_port() -> int:
    """Returns a port that is free at the moment."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class _Lockstep:
    """The collective: answers the ranks once each of them has its batch."""

    def __init__(
        self, ranks: list[_Rank], lines: _Lines, job: Job, seconds: float, save_at: tuple[int, int] | None
    ) -> None:
        self._ranks, self._lines, self._job, self._seconds, self._save_at = ranks, lines, job, seconds, save_at
        self._found = Outcome()

    def outcome(self) -> Outcome:
        """Runs all epochs; returns what was delivered until the end, the first error or a hang."""
        allowed = START + self._seconds
        for epoch in range(self._job.epoch, self._job.epochs):
            self._found.steps[epoch] = [[] for _ in self._ranks]
            if not self._epoch(epoch, allowed):
                break
            allowed = self._seconds
        return self._found

    def _epoch(self, epoch: int, seconds: float) -> bool:
        """Runs an epoch; returns whether all ranks completed it."""
        waiting = list(range(len(self._ranks)))
        step = 0
        while waiting:
            replies = _replies(self._lines, waiting, seconds)
            if self._failed(replies, epoch, step):
                return False
            stepped = [rank for rank, reply in replies.items() if "numbers" in reply]
            for rank in stepped:
                self._found.steps[epoch][rank].append(replies[rank]["numbers"])
                self._found.wrong |= set(replies[rank]["wrong"])
            self._note_uneven(stepped, epoch, step)
            waiting, step, seconds = stepped, step + 1, self._seconds
            for rank in stepped:
                save = self._save_at == (epoch, step)
                self._ranks[rank].answer(saved_in(self._job.scratch, len(self._ranks))[rank] if save else "")
        for rank in self._ranks:
            rank.answer("")
        return True

    def _failed(self, replies: dict[int, dict[str, Any]], epoch: int, step: int) -> bool:
        for rank, reply in replies.items():
            if "hung" in reply:
                self._found.hung = f"rank {rank} {reply['hung']} at step {step} of epoch {epoch}"
            self._found.error = reply.get("error", self._found.error)
        return not self._found.ended

    def _note_uneven(self, stepped: list[int], epoch: int, step: int) -> None:
        if stepped and len(stepped) < len(self._ranks) and not self._found.uneven:
            ended = min(set(range(len(self._ranks))) - set(stepped))
            self._found.uneven = (
                f"at step {step} of epoch {epoch} rank {stepped[0]} waits for rank {ended}, whose epoch has ended"
            )
