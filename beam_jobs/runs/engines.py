"""Checks the clusters and job servers that Beam's flags name, before any work; starts job servers.

A job server is a process of Beam that runs the pipeline on Flink, Spark or Prism. Beam's own way to start one sets
signal handlers, which only a main thread may do, and leaves it running after the command was killed.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.parse

import grpc
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
)
from apache_beam.portability.api import beam_job_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner
from apache_beam.runners.portability.job_server import (
    JavaJarJobServer,
    JobServer,
    StopOnExitJobServer,
    SubprocessJobServer,
)
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.runners.portability.spark_runner import SparkRunner
from apache_beam.utils.subprocess_server import JavaJarServer
from apache_beam.version import __version__ as beam_version

from beam_jobs.runs import lifeline
from beam_jobs.runs.lifeline import Lifeline
from pipeline.errors import DataError, UsageError, reason_of

_ANSWER_SECONDS = 10.0  # for a server that should be running already
_SPARK = "spark://"
_JARS = {"FlinkRunner": "beam-runners-flink-1.19-job-server", "SparkRunner": "beam-runners-spark-3-job-server"}
_START_SECONDS = 120.0  # Java takes 2 to 5 s on an idle machine
_POLL_SECONDS = 0.2
_LOCAL_JVM = ("-Dspark.ui.enabled=false",)  # one port fewer: nobody watches a cluster that lives for one conversion


def java_engine(runner: PortableRunner) -> str | None:
    """Returns `flink` or `spark`, the prefix of a runner's flags, if its job server is written in Java; else None."""
    return "flink" if isinstance(runner, FlinkRunner) else "spark" if isinstance(runner, SparkRunner) else None


def flink_cluster(runner: PortableRunner, options: PipelineOptions) -> str | None:
    """Returns the URL of the Flink cluster that the runner submits its job to; None for an embedded one."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    if not isinstance(runner, FlinkRunner) or master in MAGIC_HOST_NAMES:
        return None
    return str(FlinkRunner.add_http_scheme(master)).rstrip("/")


def check_java(runner: PortableRunner, options: PipelineOptions) -> None:
    """Raises UsageError if there is no Java to start the job server with."""
    launcher = options.view_as(JobServerOptions).job_server_java_launcher
    if not shutil.which(launcher):
        raise UsageError(
            f"--runner={type(runner).__name__}: needs Java, but there is no {launcher!r}; install Java 11 or 17, or "
            "give --job_server_java_launcher=PATH, or --job_endpoint=HOST:PORT of a running job server"
        )


def check_jar(runner: PortableRunner, options: PipelineOptions) -> None:
    """Checks that the job server's jar is there, for a runner that has one.

    Raises:
      UsageError: no flag names it, or the file is missing. Beam would try to download one, which hangs behind a proxy
        and may not exist: it assumes the newest version of Flink.
    """
    flag, name = f"{java_engine(runner)}_job_server_jar", type(runner).__name__
    jar = options.get_all_options()[flag]
    if not jar:
        artifact = _JARS[name]
        if not os.path.exists(os.path.join(JavaJarServer.JAR_CACHE, f"{artifact}-{beam_version}.jar")):
            raise UsageError(
                f"--runner={name}: --{flag} is missing: the jar of Beam's job server; make engines brings one (in a "
                f"checkout), or mvn dependency:copy -Dartifact=org.apache.beam:{artifact}:{beam_version} "
                "-DoutputDirectory=. (docs/clusters.md)"
            )
    elif not urllib.parse.urlparse(jar).scheme and not os.path.isfile(jar):
        raise UsageError(f"--{flag}={jar}: no such file; docs/clusters.md says where to get it")


def check_cluster(runner: PortableRunner, options: PipelineOptions) -> None:
    """Raises UsageError if the flags name a cluster and none of its addresses answers."""
    if url := flink_cluster(runner, options):
        flag, what, addresses = "flink_master", "Flink's REST interface", [url]
    elif isinstance(runner, SparkRunner) and not options.get_all_options()["spark_submit_uber_jar"]:
        master = options.view_as(SparkRunnerOptions).spark_master_url
        is_cluster = master.startswith(_SPARK)
        flag, what = "spark_master_url", "Spark's master"
        addresses = [f"{_SPARK}{each}" for each in master.removeprefix(_SPARK).split(",")] if is_cluster else []
    else:
        return
    problems = [problem for address in addresses if (problem := _cannot_connect(address))]
    if problems and len(problems) == len(addresses):
        given = options.get_all_options()[flag]
        raise UsageError(f"--{flag}={given}: nothing answers: {problems[0]}; it must be HOST:PORT of {what}")


def _cannot_connect(url: str) -> str | None:
    parts = urllib.parse.urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), _ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        return f"{parts.netloc}: {reason_of(error)}"
    return None


def check_endpoint(endpoint: str, seconds: float = _ANSWER_SECONDS) -> None:
    """Raises UsageError if no job server answers at an endpoint within `seconds`."""
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            raise UsageError(
                f"--job_endpoint={endpoint}: no job server answers ({seconds:.0f} s); "
                "it must be HOST:PORT of a running one"
            ) from None


def starts_one(runner: PortableRunner, options: PipelineOptions) -> bool:
    """Returns whether the runner starts its own job server."""
    if options.view_as(PortableOptions).job_endpoint:
        return False
    if engine := java_engine(runner):
        return not options.get_all_options()[f"{engine}_submit_uber_jar"]
    return isinstance(runner, PrismRunner)


def supervise(runner: PortableRunner, lifeline: Lifeline, folder: pathlib.Path) -> None:
    """Makes the runner's job server end with `lifeline`; its files go to `folder`, which is removed then."""
    make = runner.default_job_server

    def make_supervised(options: PipelineOptions) -> JobServer:
        server = make(options)
        inner = server._job_server if isinstance(server, StopOnExitJobServer) else None
        return SupervisedJobServer(inner, lifeline, folder) if inner else server

    runner.default_job_server = make_supervised


class SupervisedJobServer(JobServer):  # type: ignore[misc]
    """A job server that ends with a lifeline."""

    def __init__(self, server: SubprocessJobServer, lifeline: Lifeline, folder: pathlib.Path) -> None:
        self._server = server
        self._lifeline = lifeline
        self._folder = folder

    def start(self) -> beam_job_api_pb2_grpc.JobServiceStub:
        """Starts it and returns its service once it answers.

        Raises:
          DataError: it does not start, or does not answer within two minutes; with the last line that it printed.
        """
        folder = self._folder
        try:
            program, endpoint = self._program(folder)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).split(". ")[0]
            raise DataError(
                f"the runner's job server cannot be started: {reason}; docs/clusters.md says where to get it"
            ) from None
        command = self._lifeline.command("program", os.fspath(folder))
        environment = os.environ | {"TMPDIR": os.fspath(folder)}
        subprocess.Popen([*command, *program], stdin=subprocess.DEVNULL, env=environment)
        channel = grpc.insecure_channel(endpoint, [("grpc.max_receive_message_length", -1)])
        try:
            _wait_until_ready(channel, folder)
        except BaseException:
            channel.close()  # else its threads try to connect for ever
            raise
        return beam_job_api_pb2_grpc.JobServiceStub(channel)

    def _program(self, folder: pathlib.Path) -> tuple[list[str], str]:
        is_java = isinstance(self._server, JavaJarJobServer)
        if is_java:
            self._server._artifacts_dir = self._server._artifacts_dir or os.fspath(folder)
        (launcher, *arguments), endpoint = self._server.subprocess_cmd_and_endpoint()
        # An embedded cluster keeps blocks and blobs among Java's temporary files, which go with the folder.
        properties = [f"-Djava.io.tmpdir={folder}", *_LOCAL_JVM] if is_java else []
        return [launcher, *properties, *map(str, arguments)], endpoint


def _wait_until_ready(channel: grpc.Channel, folder: pathlib.Path) -> None:
    ready = grpc.channel_ready_future(channel)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            ready.result(timeout=_POLL_SECONDS)
            return
        except grpc.FutureTimeoutError:
            if (folder / lifeline.ENDED).exists():
                raise DataError(f"the job server did not start: {_last_line(folder)}") from None
    raise DataError(f"the job server does not answer after {_START_SECONDS:.0f} s: {_last_line(folder)}")


def _last_line(folder: pathlib.Path) -> str:
    output = folder / lifeline.OUTPUT
    lines = output.read_text(errors="backslashreplace").splitlines() if output.exists() else []
    said = [line.strip() for line in lines if line.strip() and not line.startswith("\t")]  # a tab: a Java stack frame
    return said[-1] if said else "it printed nothing"
