"""The job server of Flink, Spark and Prism: a process of Beam's that runs the pipeline, watched by a supervisor.

Beam's own way to start it sets signal handlers, which only a main thread may, and leaves it running after the command
was killed.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import grpc
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    PortableOptions,
)
from apache_beam.portability.api import beam_job_api_pb2_grpc
from apache_beam.runners.portability.job_server import (
    JavaJarJobServer,
    JobServer,
    StopOnExitJobServer,
    SubprocessJobServer,
)
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_jobs.runs import engines, supervisor
from beam_jobs.runs.lifeline import Lifeline
from pipeline.errors import DataError

_START_SECONDS = 120.0  # Java takes 2 to 5 s on an idle machine
_POLL_SECONDS = 0.2
_LOCAL_JVM = ("-Dspark.ui.enabled=false",)  # one port fewer: nobody watches a cluster that lives for one conversion


def starts_one(runner: PortableRunner, options: PipelineOptions) -> bool:
    """Returns whether the runner starts a job server of its own."""
    if options.view_as(PortableOptions).job_endpoint:
        return False
    if engine := engines.java_engine(runner):
        return not options.get_all_options()[f"{engine}_submit_uber_jar"]
    return isinstance(runner, PrismRunner)


def supervise(runner: PortableRunner, lifeline: Lifeline, folder: pathlib.Path) -> None:
    """Ties the runner's job server to `lifeline`; its files go to `folder`, which is removed when the line is cut."""
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
        command = [sys.executable, "-m", "beam_jobs.runs.supervisor", str(self._lifeline.port), os.fspath(folder)]
        environment = os.environ | {"TMPDIR": os.fspath(folder)}
        subprocess.Popen([*command, *program], stdin=subprocess.DEVNULL, env=environment)
        channel = grpc.insecure_channel(endpoint, [("grpc.max_receive_message_length", -1)])
        _wait_until_ready(channel, folder)
        return beam_job_api_pb2_grpc.JobServiceStub(channel)

    def _program(self, folder: pathlib.Path) -> tuple[list[str], str]:
        is_java = isinstance(self._server, JavaJarJobServer)
        if is_java:
            self._server._artifacts_dir = self._server._artifacts_dir or os.fspath(folder)
        (launcher, *arguments), endpoint = self._server.subprocess_cmd_and_endpoint()
        # The clusters inside keep blocks and blobs among Java's temporary files, which go with the folder.
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
            if (folder / supervisor.ENDED).exists():
                raise DataError(f"the job server did not start: {_last_line(folder)}") from None
    raise DataError(f"the job server does not answer after {_START_SECONDS:.0f} s: {_last_line(folder)}")


def _last_line(folder: pathlib.Path) -> str:
    lines = (folder / supervisor.OUTPUT).read_text(errors="backslashreplace").splitlines()
    said = [line.strip() for line in lines if line.strip() and not line.startswith("\t")]  # a tab: a Java stack frame
    return said[-1] if said else "it printed nothing"
