"""Checks Beam's own flags, the runner that they name and its cluster before any work, and starts its job server.

A job server is a Beam process that runs the pipeline on Flink, Spark or Prism. Beam's own way to start one sets signal
handlers, which only the main thread may do, and leaves it running if the command is killed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import time
import urllib.parse
import uuid
from collections.abc import Iterable, Sequence
from typing import NoReturn

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
    StandardOptions,
    _BeamArgumentParser,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.portability.api import beam_job_api_pb2_grpc
from apache_beam.runners import create_runner
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.job_server import (
    JavaJarJobServer,
    JobServer,
    StopOnExitJobServer,
    SubprocessJobServer,
)
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.runners.portability.spark_runner import SparkRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from apache_beam.utils.subprocess_server import JavaJarServer
from apache_beam.version import __version__ as beam_version

from beam_jobs.runs.lifeline import ENDED, OUTPUT, Lifeline
from pipeline import errors
from pipeline.commands import commandline, quiet
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, reason_of

_SECONDS_THAT_PAY = 12.0  # seconds of single-core work; worker processes take 2 to 4 s to start
_WORKERS_PER_CORE = 4
_DEFAULT_RUNNER = "FnApiRunner"  # in-process, without the download that Beam's own default tries first
_MISSING = re.compile(r"Missing (?:required|GCS path) option: (\w+)\.")  # from Beam's validator
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\]):[0-9]+|embed")  # job servers on this machine


# {class of Beam's options: the runners that read its flags}; a runner counts as its base classes, too. Options of other
# classes (of a plugin, or of a runner that is not Beam's) are accepted with every runner. The pipeline reads files with
# pyarrow, so options of Beam's own file systems have no effect.
_EVERY = None
_NONE: frozenset[str] = frozenset()
_FN_API = frozenset({"FnApiRunner", "SwitchingDirectRunner", "InteractiveRunner"})
_DATAFLOW = frozenset({"DataflowRunner"})
_PORTABLE = frozenset({"PortableRunner"})
_READERS: dict[str, frozenset[str] | None] = {
    "StandardOptions": _EVERY,
    "StreamingOptions": _EVERY,
    "TypeOptions": _EVERY,
    "DebugOptions": _EVERY,
    "CrossLanguageOptions": _NONE,
    "DirectOptions": _FN_API,
    "GoogleCloudOptions": _DATAFLOW,
    "WorkerOptions": _DATAFLOW,
    "ProfilingOptions": _DATAFLOW | _PORTABLE,
    "SetupOptions": _DATAFLOW | _PORTABLE,
    "PortableOptions": _PORTABLE,
    "JobServerOptions": _PORTABLE,
    "FlinkRunnerOptions": frozenset({"FlinkRunner"}),
    "SparkRunnerOptions": frozenset({"SparkRunner"}),
    "PrismRunnerOptions": frozenset({"PrismRunner"}),
    "KafkaStreamsRunnerOptions": frozenset({"KafkaStreamsRunner"}),
    "AzureOptions": _NONE,
    "HadoopFileSystemOptions": _NONE,
    "S3Options": _NONE,
    "TestOptions": frozenset({"TestDirectRunner", "TestDataflowRunner"}),
    "TestDataflowOptions": frozenset({"TestDataflowRunner"}),
}
_OF_STORES = ("AzureOptions", "HadoopFileSystemOptions", "S3Options")
_OF_ENGINES = ("FlinkRunnerOptions", "SparkRunnerOptions")  # passed on to a job server by a PortableRunner
# Flags that are read by other runners than the rest of their class.
_READERS_OF_FLAG: dict[str, frozenset[str] | None] = {
    **dict.fromkeys(("dry_run", "no_wait_until_finish"), _NONE),  # the command waits for the job and its result
    **dict.fromkeys(("dataflow_job_file", "number_of_worker_harness_threads"), _DATAFLOW),
    "direct_runner_use_stacked_bundle": frozenset({"BundleBasedDirectRunner"}),
    **dict.fromkeys(("streaming", "resource_hints"), _DATAFLOW | _PORTABLE),
    "job_name": _DATAFLOW | _PORTABLE,
    **dict.fromkeys(("pickle_library", "save_main_session", "beam_plugins", "gbek"), _EVERY),
    **dict.fromkeys(
        ("profile_cpu", "profile_memory", "profile_location", "profile_sample_rate"), _FN_API | _DATAFLOW | _PORTABLE
    ),
    **dict.fromkeys(
        (
            *("default_sdk_harness_log_level", "sdk_harness_log_level_overrides"),
            *("max_cache_memory_usage_mb", "element_processing_timeout_minutes", "sdk_container_image"),
        ),
        _DATAFLOW | _PORTABLE,
    ),
}


class _Parser(_BeamArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(" ".join(message.split()))


def parse(arguments: Sequence[str], our_flags: Iterable[str]) -> PipelineOptions:
    """Parses Beam's options from the flags that are not ours, and checks them as far as possible before any work.

    Args:
      arguments: flags and values unknown to our parser.
      our_flags: our own flags, for suggesting the nearest one.

    Raises:
      UsageError: Beam does not know a flag either (it would only warn), a value is bad or missing, or the runner is
        unknown or cannot be loaded.
    """
    parser = _Parser(allow_abbrev=False, add_help=False)
    classes: dict[str, str] = {}
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
        classes |= dict.fromkeys(parser._option_string_actions.keys() - classes.keys(), group.__name__)
    _, unknown = parser.parse_known_args(list(arguments))
    commandline.refuse(unknown, [*our_flags, *parser._option_string_actions])
    options = PipelineOptions(list(arguments))
    runner = _create(options)
    for flag in (argument.split("=")[0] for argument in arguments):
        if action := parser._option_string_actions.get(flag):
            _check_read(flag, action.dest, classes[flag], runner)
    _check(options, runner)
    return options


def _check_read(flag: str, name: str, group: str, runner: PipelineRunner) -> None:
    """Raises UsageError if a runner ignores a Beam flag, given with its name and option class."""
    readers = _READERS_OF_FLAG.get(name, _READERS.get(group, _EVERY))
    is_a = {base.__name__ for base in type(runner).__mro__}
    is_beams = type(runner).__module__.startswith("apache_beam.")
    if readers is None or readers & is_a or (type(runner) is PortableRunner and group in _OF_ENGINES):
        return
    if not readers:
        advice = "; options of a store follow its URL: s3://bucket/folder?endpoint_override=http://host:9000"
        raise errors.UsageError(
            f"{flag}: has no effect with --runner={type(runner).__name__} or any other runner"
            f"{advice if group in _OF_STORES else ''}; leave it out"
        )
    if is_beams:
        others = " and ".join(sorted(readers - {"SwitchingDirectRunner", "InteractiveRunner"}))
        raise errors.UsageError(
            f"{flag}: has no effect with --runner={type(runner).__name__}, only with {others}; leave it out"
        )


def _check(options: PipelineOptions, runner: PipelineRunner) -> None:
    workers = options.view_as(DirectOptions).direct_num_workers
    if workers < 1:
        raise errors.UsageError(
            f"--direct_num_workers={workers}: must be 1 or more; without the flag, every core is used where that pays"
        )
    if isinstance(runner, PortableRunner):
        _check_job_server(runner, options)
    name = type(runner).__name__
    if problems := _problems(options, runner):
        raise errors.UsageError(f"--runner={name}: {problems}")
    if name == "DataflowRunner" and not importlib.util.find_spec("apitools"):
        raise errors.UsageError(
            f"--runner={name}: needs Google's libraries: pip install 'apache-beam[gcp]=={beam.__version__}'"
        )


def _problems(options: PipelineOptions, runner: PipelineRunner) -> str:
    """Returns the problems that Beam finds in the options, as a sentence that names the flags; "" if there are none."""
    with quiet.logs():  # it logs what it also returns
        found = [" ".join(problem.split()) for problem in PipelineOptionsValidator(options, runner).validate()]
    missing = [f"--{match[1]}" for problem in found if (match := _MISSING.fullmatch(problem))]
    if "--temp_location" in missing and "--staging_location" in missing:
        missing.remove("--staging_location")  # it defaults to the other one
    rest = [problem for problem in found if not _MISSING.fullmatch(problem)]
    return " ".join([*([f"needs {', '.join(sorted(missing))}; docs/clusters.md"] if missing else []), *rest])


def make_runner(options: PipelineOptions, folder: pathlib.Path) -> tuple[PipelineRunner, Lifeline | None]:
    """Returns the runner for `options`, and a lifeline if processes or a cluster job have to end with the run.

    Args:
      options: Beam's options; modified.
      folder: folder for temporary files; a job server removes it when the lifeline ends it.

    Raises:
      UsageError: see `parse`.
    """
    runner = _create(options)
    direct = options.view_as(DirectOptions)
    if type(runner).__name__ in StandardOptions.LOCAL_RUNNERS or isinstance(runner, PortableRunner):
        # A failed bundle is logged with its traceback, often twice; the command reports it in one line.
        logging.getLogger().setLevel(logging.CRITICAL + 1)
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL + 1)
    if type(runner) is FnApiRunner and direct.direct_running_mode == "multi_processing":
        direct.direct_running_mode = "in_memory"  # or the runner replaces our command with its own
        lifeline = Lifeline()
        command = shlex.join(lifeline.command("worker"))
        # Beam starts it through a shell and waits for the shell only.
        environment = SubprocessSDKEnvironment.from_command_string(f"exec {command}")
        return FnApiRunner(default_environment=environment), lifeline
    if isinstance(runner, PortableRunner):
        portable = options.view_as(PortableOptions)
        if not portable.environment_type and _LOOPBACK.fullmatch(portable.job_endpoint or ""):
            portable.environment_type = "LOOPBACK"  # this process is the worker, rather than a Docker container
        return runner, _tie(runner, options, folder)
    return runner, None


def _tie(runner: PortableRunner, options: PipelineOptions, folder: pathlib.Path) -> Lifeline | None:
    """Returns a lifeline for a job server that we start or a job on a Flink cluster; None if there is neither."""
    if options.view_as(PortableOptions).job_endpoint:
        return None
    has_server, cluster = starts_one(runner, options), flink_cluster(runner, options)
    lifeline = Lifeline() if has_server or cluster else None
    if lifeline and cluster:
        named = options.view_as(GoogleCloudOptions)  # Beam keeps the job name of every runner there
        named.job_name = f"{named.job_name or 'stepfeed'}-{uuid.uuid4().hex}"
        subprocess.Popen(lifeline.command("flink", cluster, named.job_name), stdin=subprocess.DEVNULL)
    if lifeline and has_server:
        supervise(runner, lifeline, folder)
    return lifeline


def use_all_cores(options: PipelineOptions, seconds: float, shards: int) -> int:
    """Lets the in-process runner use one process per core if that pays and no flag decides otherwise.

    Args:
      options: Beam's options; modified.
      seconds: estimated time of the work on one core.
      shards: number of shards; further processes would have nothing to do.

    Returns:
      The number of processes.
    """
    direct, cores = options.view_as(DirectOptions), min(shards, len(os.sched_getaffinity(0)))
    name = options.view_as(StandardOptions).runner or _DEFAULT_RUNNER
    given = any(flag.startswith(("--direct_num_workers", "--direct_running_mode")) for flag in options._flags)
    if name == _DEFAULT_RUNNER and not given and cores > 1 and seconds > _SECONDS_THAT_PAY:
        direct.direct_num_workers, direct.direct_running_mode = cores, "multi_processing"
    if direct.direct_running_mode != "multi_processing":
        return 1
    return int(direct.direct_num_workers)


def bound_workers(options: PipelineOptions, shards: int) -> str:
    """Caps --direct_num_workers at one per shard and a few per core (workers wait for disks); more would not help.

    Args:
      options: Beam's options; modified.
      shards: number of shards.

    Returns:
      A line that says how many workers are used and why; "" if the flag stands.
    """
    direct, cores = options.view_as(DirectOptions), len(os.sched_getaffinity(0))
    given, most = int(direct.direct_num_workers), _WORKERS_PER_CORE * cores
    used = min(given, shards, most)
    if used == given:
        return ""
    direct.direct_num_workers = used
    why = "one per shard" if shards <= most else f"{_WORKERS_PER_CORE} per core"
    return f"--direct_num_workers={given}: {count_of(used, 'worker')} will be used, {why}"


def workers(pipeline: beam.Pipeline) -> int:
    """Returns how many workers share a bundle's elements on the in-process runner; 0 for other runners."""
    if type(pipeline.runner) is not FnApiRunner:
        return 0
    return int(pipeline.options.view_as(DirectOptions).direct_num_workers)


def _check_job_server(runner: PortableRunner, options: PipelineOptions) -> None:
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint and endpoint != "embed":
        check_endpoint(endpoint)
    elif not endpoint and _java_engine(runner):
        if starts_one(runner, options):
            check_java(runner, options)
        check_jar(runner, options)
        check_cluster(runner, options)
    elif type(runner) is PortableRunner and not endpoint:
        raise errors.UsageError(
            "--runner=PortableRunner: --job_endpoint is missing: host:port of the cluster's job server"
        )


def _create(options: PipelineOptions) -> PipelineRunner:
    name = options.view_as(StandardOptions).runner or _DEFAULT_RUNNER
    if name in ("DirectRunner", "SwitchingDirectRunner"):
        name = _DEFAULT_RUNNER  # Beam ends up with it as well, but after a download that can hang behind a proxy
    try:
        return create_runner(name)
    except (ValueError, AttributeError, ImportError) as error:
        if "." in name or name in StandardOptions.KNOWN_RUNNER_NAMES:
            raise errors.UsageError(f"--runner={name}: cannot be loaded: {error}") from None
        raise errors.unknown("--runner", name, StandardOptions.KNOWN_RUNNER_NAMES) from None


_ANSWER_SECONDS = 10.0  # for a server that should be running already
_SPARK = "spark://"
_JARS = {"FlinkRunner": "beam-runners-flink-1.19-job-server", "SparkRunner": "beam-runners-spark-3-job-server"}
_START_SECONDS = 120.0  # Java takes 2 to 5 s on an idle machine
_POLL_SECONDS = 0.2
_LOCAL_JVM = ("-Dspark.ui.enabled=false",)  # saves a port: nobody watches a cluster that lives for one conversion


def _java_engine(runner: PortableRunner) -> str | None:
    """Returns the runner's flag prefix, `flink` or `spark`, if its job server is written in Java; else None."""
    return "flink" if isinstance(runner, FlinkRunner) else "spark" if isinstance(runner, SparkRunner) else None


def flink_cluster(runner: PortableRunner, options: PipelineOptions) -> str | None:
    """Returns the URL of the Flink cluster that the runner submits its job to; None for an embedded one."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    if not isinstance(runner, FlinkRunner) or master in MAGIC_HOST_NAMES:
        return None
    return str(FlinkRunner.add_http_scheme(master)).rstrip("/")


def check_java(runner: PortableRunner, options: PipelineOptions) -> None:
    """Raises UsageError if there is no Java to run the job server."""
    launcher = options.view_as(JobServerOptions).job_server_java_launcher
    if not shutil.which(launcher):
        raise UsageError(
            f"--runner={type(runner).__name__}: needs Java, but there is no {launcher!r}; install Java 11 or 17, or "
            "give --job_server_java_launcher=PATH, or --job_endpoint=HOST:PORT of a running job server"
        )


def check_jar(runner: PortableRunner, options: PipelineOptions) -> None:
    """Checks that the job server's jar exists, for a runner that needs one.

    Raises:
      UsageError: no flag names it, or the file is missing. Beam would try to download one, which hangs behind a proxy
        and may not exist: it assumes the newest version of Flink.
    """
    flag, name = f"{_java_engine(runner)}_job_server_jar", type(runner).__name__
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
    if engine := _java_engine(runner):
        return not options.get_all_options()[f"{engine}_submit_uber_jar"]
    return isinstance(runner, PrismRunner)


def supervise(runner: PortableRunner, lifeline: Lifeline, folder: pathlib.Path) -> None:
    """Makes the runner's job server end with `lifeline`; its files go to `folder`, which is then removed."""
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
        """Starts the server and returns its service once it answers.

        Raises:
          DataError: it does not start, or does not answer within two minutes; the message has the last line that it
            printed.
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
            channel.close()  # or its threads keep trying to connect
            raise
        return beam_job_api_pb2_grpc.JobServiceStub(channel)

    def _program(self, folder: pathlib.Path) -> tuple[list[str], str]:
        is_java = isinstance(self._server, JavaJarJobServer)
        if is_java:
            self._server._artifacts_dir = self._server._artifacts_dir or os.fspath(folder)
        (launcher, *arguments), endpoint = self._server.subprocess_cmd_and_endpoint()
        # An embedded cluster keeps blocks and blobs in Java's temporary folder: remove them along with ours.
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
            if (folder / ENDED).exists():
                raise DataError(f"the job server did not start: {_last_line(folder)}") from None
    raise DataError(f"the job server does not answer after {_START_SECONDS:.0f} s: {_last_line(folder)}")


def _last_line(folder: pathlib.Path) -> str:
    output = folder / OUTPUT
    lines = output.read_text(errors="backslashreplace").splitlines() if output.exists() else []
    said = [line.strip() for line in lines if line.strip() and not line.startswith("\t")]  # a tab: a Java stack frame
    return said[-1] if said else "it printed nothing"
