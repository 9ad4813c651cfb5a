"""Real clusters on loopback: a Flink session cluster and Spark's standalone master, with Beam worker pools.

They run from the jars that `tests.engines.fetch` downloads, without Beam's: the job brings those, as it does to a
cluster that somebody else runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
from types import TracebackType
from typing import Any, Self

from tests.engines import commands, fetch, manual
from tests.helpers import forked
from tests.helpers.forked import free_ports

_START_SECONDS = 120.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None)
_OPENED = ("lang", "net", "nio", "util", "util.concurrent")
JAVA = [
    "java",
    "-XX:+UseSerialGC",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
# Parts of the job, not of the cluster: Beam, and its clients for Google's services.
_OF_THE_JOB = (
    *("org.apache.beam:", "io.grpc:", "io.opencensus:", "io.opentelemetry", "net.bytebuddy:", "joda-time:"),
    *(f"com.google.{group}" for group in ("api", "auth", "cloud", "flogger", "http-client", "oauth-client")),
)


def die_with_parent() -> None:
    """Makes a process that was just forked die with this one; takes no lock."""
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


class Cluster:
    """Processes by name, each the leader of a group; all end with this process.

    Attributes:
      folder: folder of their files, and of their output as `<name>.log`.
      pool: port of the worker pool.
      port: port of the master.
      web: port of its REST interface, or page.
      environment: environment of the processes.
    """

    engine = ""

    def __init__(self, folder: pathlib.Path) -> None:
        """Makes the folder; `__enter__` starts the processes."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.pool, self.port, self.web = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # A worker pool starts `python`, which must be this one, as in an activated environment.
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(forked.ROOT), "TMPDIR": str(folder)}

    @property
    def flags(self) -> list[str]:
        """The flags that docs/clusters.md gives, with the ports of this cluster."""
        raise NotImplementedError

    def start(self, name: str, command: list[str]) -> None:
        """Starts a process."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def start_pool(self) -> None:
        """Starts a worker pool as in docs/clusters.md."""
        self.start("pool", manual.command("worker_pool_main", {"50000": str(self.pool)}))

    def kill(self, name: str) -> None:
        """Kills a process and its children, as when a machine or container dies."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def log(self, name: str) -> str:
        """Returns the output of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def add_worker(self, name: str) -> None:
        """Starts a task manager or a worker."""
        raise NotImplementedError

    def workers(self) -> int:
        """Returns the number of task managers or workers present."""
        raise NotImplementedError

    def running(self) -> int:
        """Returns the number of jobs that run."""
        raise NotImplementedError

    def start_master(self) -> None:
        """Starts the master, after writing the processes' configuration."""
        raise NotImplementedError

    def ask(self, path: str) -> Any:
        """Returns the master's response."""
        with urllib.request.urlopen(f"http://localhost:{self.web}/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def jars(self) -> list[str]:
        """Returns the jars of the cluster's own class path."""
        lock = fetch.read_lock(fetch.HERE / f"{self.engine}.lock")
        folder = fetch.cache() / self.engine
        return [str(folder / fetch.file_name(part)) for part in lock.parts if not part.startswith(_OF_THE_JOB)]

    def _is_up(self) -> bool:
        try:
            return self.workers() == 2 and "Started worker pool" in self.log("pool")
        except OSError:
            return False

    def __enter__(self) -> Self:
        """Starts a master, two workers and a worker pool, and waits for them."""
        self.start_master()
        for name in ("worker-1", "worker-2"):
            self.add_worker(name)
        self.start_pool()
        if not commands.wait_for(self._is_up, _START_SECONDS):
            tails = {path.name: path.read_text(errors="replace")[-500:] for path in self.folder.glob("*.log")}
            self.__exit__(None, None, None)
            raise AssertionError(f"the cluster is not up after {_START_SECONDS} s: {tails}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kills all processes."""
        for name in list(self._processes):
            self.kill(name)
