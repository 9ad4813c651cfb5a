"""Jobs with parameter servers as processes on loopback, by the classic flags or by TF_CONFIG."""

from __future__ import annotations

import concurrent.futures
import json
import re
import threading
import time
from collections.abc import Collection, Sequence

from tests.helpers import forked
from tests.helpers.forked import free_ports
from tests.helpers.runs import Path

LEDGER = re.compile(
    r"^ledger: of ([\d,]+) steps, ([\d,]+) applied once, ([\d,]+) twice, ([\d,]+) not at all(.*)$", re.M
)
WORKER_LINE = re.compile(
    r"^After (\d+) training steps \((\d+) global steps\), loss on training batch is (\S+)\. \((\d\.\d{3}) sec/batch\)$"
)


class Job:
    """The processes of a job, by name: `worker 0`, `ps 0`, `chief 0`.

    Attributes:
      processes: processes that run now, or ran last.
    """

    def __init__(
        self,
        workers: int,
        ps: int,
        data_dir: Path,
        model_dir: Path,
        *flags: str,
        by_flags: bool = False,
        absent: Collection[str] = (),
        environment: dict[str, str] | None = None,
        cwd: Path = forked.ROOT,
        program: Sequence[str] = ("-m", "trainer.run"),
    ) -> None:
        """Starts all processes except the absent ones; with flags there is no chief besides worker 0."""
        self._cwd, self._program = cwd, program
        counts = {"worker": workers, "ps": ps} | ({} if by_flags else {"chief": 1})
        ports = iter(free_ports(sum(counts.values())))
        self.hosts = {job: [f"localhost:{next(ports)}" for _ in range(count)] for job, count in counts.items()}
        self._by_flags, self._environment = by_flags, environment or {}
        self._flags = [f"--data_dir={data_dir}", f"--model_dir={model_dir}", *flags]
        self.processes: dict[str, forked.Process] = {}
        for job, count in counts.items():
            for index in range(count):
                if f"{job} {index}" not in absent:
                    self.start(job, index)

    def start(self, job: str, index: int, *more: str, **environment: str) -> forked.Process:
        """Starts a process, or starts it again with the same command."""
        program = [*self._program, *self._flags, *more]
        variables: dict[str, str | None] = {
            "PYTHONUNBUFFERED": "1",
            "TF_CONFIG": None,
            **self._environment,
            **environment,
        }
        if self._by_flags:
            program += [f"--{name}_hosts={','.join(hosts)}" for name, hosts in self.hosts.items()]
            program += [f"--job_name={job}", f"--task_id={index}"]
        else:  # the flags imply it
            program.append("--strategy=parameter_server")
            variables["TF_CONFIG"] = json.dumps({"cluster": self.hosts, "task": {"type": job, "index": index}})
        self.processes[f"{job} {index}"] = forked.Process(program, variables, self._cwd)
        return self.processes[f"{job} {index}"]

    @property
    def chief(self) -> forked.Process:
        """The process that schedules the steps."""
        return self.processes["worker 0" if self._by_flags else "chief 0"]

    def finish(
        self, timeout: float = forked.TIMEOUT, code: int | None = None
    ) -> dict[str, tuple[int | None, str, str]]:
        """Returns (exit code, rest of stdout, stderr) of each process at its end; reads all, as a full pipe blocks.

        Args:
          timeout: seconds after which those that have not ended are killed.
          code: exit code that all must have; None if they may have any.
        """

        def end(process: forked.Process) -> tuple[int | None, str, str]:
            out, err = process.communicate(timeout)
            return process.returncode, out, err

        with concurrent.futures.ThreadPoolExecutor(len(self.processes)) as readers:
            ends = dict(zip(self.processes, readers.map(end, self.processes.values()), strict=True))
        assert code is None or {found for found, _, _ in ends.values()} == {code}, ends
        return ends

    def succeed(self, timeout: float = forked.TIMEOUT) -> dict[str, str]:
        """Returns the rest of stdout of each process; all must end with exit code 0, and say nothing on stderr."""
        ends = self.finish(timeout, code=0)
        assert {err for _, _, err in ends.values()} == {""}, ends
        return {name: out for name, (_, out, _) in ends.items()}


def wait_for_line(process: forked.Process, pattern: str, timeout: float = 120.0) -> re.Match[str]:
    """Reads a process's lines until one matches.

    Raises:
      AssertionError: none did before its end, or within `timeout` seconds, after which the process is killed; with the
        lines that came, and its stderr.
    """
    lines: list[str] = []
    killer = threading.Timer(timeout, process.kill)
    killer.start()
    try:
        for line in process.stdout:
            if match := re.match(pattern, line):
                return match
            lines.append(line)
    finally:
        killer.cancel()
    raise AssertionError(f"no line {pattern!r} within {timeout:g} s: {''.join(lines[-20:])}{process.stderr.read()}")


def seconds_to_end(process: forked.Process) -> float:
    """Returns how long a process takes to end from now on."""
    began = time.monotonic()
    process.wait()
    return time.monotonic() - began


def ledger_of(out: str) -> tuple[int, ...]:
    """Returns steps, once, twice and never of the line in a chief's output."""
    found = LEDGER.search(out)
    assert found, out
    return tuple(int(number.replace(",", "")) for number in found.groups()[:4])
