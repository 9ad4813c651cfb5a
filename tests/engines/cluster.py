"""Real clusters on loopback: a Flink session cluster and Spark's standalone master, with Beam worker pools.

They run from the jars that `tests.engines.fetch` brings, without Beam's: these come with the job, as they do to a
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

from tests import forked
from tests.engines import commands, fetch, manual, uber
from tests.loopback import free_ports

_START_SECONDS = 120.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None)
_OPENED = ("lang", "net", "nio", "util", "util.concurrent")
_JAVA = [
    "java",
    "-XX:+UseSerialGC",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]
# A part of the job, not of the cluster: Beam, and what it talks to Google's services with.
_OF_THE_JOB = (
    *("org.apache.beam:", "io.grpc:", "io.opencensus:", "io.opentelemetry", "net.bytebuddy:", "joda-time:"),
    *(f"com.google.{group}" for group in ("api", "auth", "cloud", "flogger", "http-client", "oauth-client")),
)
_TASK_MANAGER_MEMORY = {
    "task.heap.size": "192m",
    "task.off-heap.size": "0",
    "framework.heap.size": "64m",
    "framework.off-heap.size": "64m",
    "network.min": "32m",
    "network.max": "32m",
    "managed.size": "64m",
    "jvm-metaspace.size": "128m",
    "jvm-overhead.min": "64m",
    "jvm-overhead.max": "64m",
}


class Cluster:
    """Processes by name, each the leader of a group, which all end with this process.

    Attributes:
      folder: their files, and their output as `<name>.log`.
      pool: the port of the worker pool.
    """

    engine = ""

    def __init__(self, folder: pathlib.Path) -> None:
        """Makes the folder; `__enter__` starts the processes."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.pool, self._port, self._web = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # A worker pool starts `python`, which must be this one: as in an environment that is activated.
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "PYTHONPATH": str(forked.ROOT), "TMPDIR": str(folder)}

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
                env=self._environment,
                start_new_session=True,
                preexec_fn=lambda: _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL),  # noqa: PLW1509 (it takes no lock)
            )

    def start_pool(self) -> None:
        """Starts a worker pool, as docs/clusters.md says."""
        self.start("pool", manual.command("worker_pool_main", {"50000": str(self.pool)}))

    def kill(self, name: str) -> None:
        """Kills a process and what it started, as when a machine or a container dies."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def log(self, name: str) -> str:
        """Returns what a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def add_worker(self, name: str) -> None:
        """Starts a task manager or a worker."""
        raise NotImplementedError

    def workers(self) -> int:
        """Returns how many of them are there."""
        raise NotImplementedError

    def running(self) -> int:
        """Returns the number of jobs that run."""
        raise NotImplementedError

    def _start_master(self) -> None:
        raise NotImplementedError

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://localhost:{self._web}/{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def _jars(self) -> list[str]:
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
        self._start_master()
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
        """Kills all."""
        for name in list(self._processes):
            self.kill(name)


class Flink(Cluster):
    """A Flink session cluster: a job manager and two task managers of two slots."""

    engine = "flink"

    @property
    def flags(self) -> list[str]:
        """As those of the job for Kubernetes, with fewer slots."""
        replaced = {
            "localhost:8081": f"localhost:{self._web}",
            "beam-runners-flink-1.19-job-server-2.77.0.jar": str(uber.uber_jar("flink")),
            "localhost:50000": f"localhost:{self.pool}",
            "--parallelism=16": "--parallelism=4",
        }
        return manual.command("--flink_submit_uber_jar", replaced)[3:]

    def add_worker(self, name: str) -> None:
        """Starts a task manager."""
        memory = ["-Xmx256m", "-XX:MaxDirectMemorySize=160m"]
        self.start(name, self._program("taskexecutor.TaskManagerRunner", memory))

    def workers(self) -> int:
        """Returns the number of task managers."""
        return int(self._ask("overview")["taskmanagers"])

    def running(self) -> int:
        """Returns the number of jobs that run."""
        return int(self._ask("overview")["jobs-running"])

    def _start_master(self) -> None:
        (deployment,) = [each for each in manual.manifests() if each["kind"] == "FlinkDeployment"]
        settings = {
            **deployment["spec"]["flinkConfiguration"],
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": self._port,
            "jobmanager.bind-host": "localhost",
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self._web,
            "taskmanager.host": "localhost",
            "taskmanager.bind-host": "localhost",
            "taskmanager.numberOfTaskSlots": 2,
            "taskmanager.cpu.cores": 2.0,
            **{f"taskmanager.memory.{name}": size for name, size in _TASK_MANAGER_MEMORY.items()},
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 8000,
            "io.tmp.dirs": self.folder,
        }
        lines = [f"{name}: {value}\n" for name, value in settings.items()]
        (self.folder / "flink-conf.yaml").write_text("".join(lines))
        self.start("master", self._program("entrypoint.StandaloneSessionClusterEntrypoint", ["-Xmx400m"]))

    def _program(self, name: str, memory: list[str]) -> list[str]:
        path = os.pathsep.join(self._jars())
        return [*_JAVA, *memory, "-cp", path, f"org.apache.flink.runtime.{name}", "--configDir", str(self.folder)]


class Spark(Cluster):
    """Spark's standalone master and two workers of one core."""

    engine = "spark"

    @property
    def flags(self) -> list[str]:
        """As those of the job for a standalone master."""
        replaced = {
            "HOST:7077": f"localhost:{self._port}",
            "beam-runners-spark-3-job-server-2.77.0.jar": str(uber.uber_jar("spark")),
            "localhost:50000": f"localhost:{self.pool}",
        }
        return manual.command("--spark_master_url=spark:", replaced)[3:]

    def add_worker(self, name: str) -> None:
        """Starts a worker."""
        limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
        program = self._program("worker.Worker", "--webui-port", "0", *limits, f"spark://localhost:{self._port}")
        self.start(name, program)

    def workers(self) -> int:
        """Returns the number of workers that are alive."""
        return int(self._ask("json/")["aliveworkers"])

    def running(self) -> int:
        """Returns the number of applications that run."""
        return len(self._ask("json/")["activeapps"])

    def _start_master(self) -> None:
        jars = self.folder / "home" / "jars"  # Spark's workers take the class path of executors from there
        jars.mkdir(parents=True)
        (self.folder / "home" / "RELEASE").touch()
        for jar in self._jars():
            (jars / pathlib.Path(jar).name).symlink_to(jar)
        home = {"SPARK_HOME": str(jars.parent), "SPARK_SCALA_VERSION": "2.12", "SPARK_LOCAL_IP": "127.0.0.1"}
        self._environment |= home
        self.start("master", self._program("master.Master", "--port", str(self._port), "--webui-port", str(self._web)))

    def _program(self, name: str, *arguments: str) -> list[str]:
        path = str(self.folder / "home" / "jars" / "*")
        name = f"org.apache.spark.deploy.{name}"
        return [*_JAVA, "-Xmx256m", "-cp", path, name, "--host", "localhost", *arguments]
