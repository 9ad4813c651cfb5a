"""Spark's standalone cluster."""

from __future__ import annotations

import pathlib

from tests.engines import manual, uber
from tests.engines.cluster import JAVA, Cluster


class Spark(Cluster):
    """Spark's standalone master and two workers of one core."""

    engine = "spark"

    @property
    def flags(self) -> list[str]:
        """The flags of the job for a standalone master."""
        replaced = {
            "HOST:7077": f"localhost:{self.port}",
            "beam-runners-spark-3-job-server-2.77.0.jar": str(uber.uber_jar("spark")),
            "localhost:50000": f"localhost:{self.pool}",
        }
        return manual.command("--spark_master_url=spark:", replaced)[3:]

    def add_worker(self, name: str) -> None:
        """Starts a worker."""
        limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
        program = self._program("worker.Worker", "--webui-port", "0", *limits, f"spark://localhost:{self.port}")
        self.start(name, program)

    def workers(self) -> int:
        """Returns the number of workers that are alive."""
        return int(self.ask("json/")["aliveworkers"])

    def running(self) -> int:
        """Returns the number of applications that run."""
        return len(self.ask("json/")["activeapps"])

    def start_master(self) -> None:
        """Starts the master, after writing the processes' configuration."""
        jars = self.folder / "home" / "jars"  # Spark's workers take the class path of executors from there
        jars.mkdir(parents=True)
        (self.folder / "home" / "RELEASE").touch()
        for jar in self.jars():
            (jars / pathlib.Path(jar).name).symlink_to(jar)
        home = {"SPARK_HOME": str(jars.parent), "SPARK_SCALA_VERSION": "2.12", "SPARK_LOCAL_IP": "127.0.0.1"}
        self.environment |= home
        self.start("master", self._program("master.Master", "--port", str(self.port), "--webui-port", str(self.web)))

    def _program(self, name: str, *arguments: str) -> list[str]:
        path = str(self.folder / "home" / "jars" / "*")
        name = f"org.apache.spark.deploy.{name}"
        return [*JAVA, "-Xmx256m", "-cp", path, name, "--host", "localhost", *arguments]
