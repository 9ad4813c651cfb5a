"""A Flink session cluster."""

from __future__ import annotations

import os

from tests.engines import manual, uber
from tests.engines.cluster import JAVA, Cluster

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


class Flink(Cluster):
    """A Flink session cluster: a job manager and two task managers of two slots."""

    engine = "flink"

    @property
    def flags(self) -> list[str]:
        """The flags of the job for Kubernetes, with fewer slots."""
        replaced = {
            "localhost:8081": f"localhost:{self.web}",
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
        return int(self.ask("overview")["taskmanagers"])

    def running(self) -> int:
        """Returns the number of jobs that run."""
        return int(self.ask("overview")["jobs-running"])

    def start_master(self) -> None:
        """Starts the master, after writing the processes' configuration."""
        (deployment,) = [each for each in manual.manifests() if each["kind"] == "FlinkDeployment"]
        settings = {
            **deployment["spec"]["flinkConfiguration"],
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": self.port,
            "jobmanager.bind-host": "localhost",
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self.web,
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
        path = os.pathsep.join(self.jars())
        return [*JAVA, *memory, "-cp", path, f"org.apache.flink.runtime.{name}", "--configDir", str(self.folder)]
