"""Beam's own flags, and the runner that they name."""

from __future__ import annotations

import importlib.util
import logging
import os
import pathlib
import re
import shlex
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from typing import NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    _BeamArgumentParser,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from beam_jobs.runs import engines
from beam_jobs.runs.lifeline import Lifeline
from pipeline import errors
from pipeline.commands import commandline, quiet
from pipeline.commands.text import count_of

_SECONDS_THAT_PAY = 12.0  # of work on one core; worker processes take 2 to 4 s to start
_WORKERS_PER_CORE = 4
_DEFAULT_RUNNER = "FnApiRunner"  # in-process, without the download that Beam's own default tries first
_MISSING = re.compile(r"Missing (?:required|GCS path) option: (\w+)\.")  # of Beam's validator
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\]):[0-9]+|embed")  # the job servers of this machine


# {class of Beam's options: the runners that read its flags}; a runner counts as its base classes, too. Options of other
# classes (of a plugin, or of a runner that is not Beam's) are accepted with every runner. The pipeline reads files by
# pyarrow, so that options of Beam's own file systems have no effect.
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
_OF_ENGINES = ("FlinkRunnerOptions", "SparkRunnerOptions")  # which a PortableRunner passes on to a job server
# Flags that other runners read than the rest of their class.
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
    """Returns Beam's options from the flags that are not ours, checked as far as that is possible before any work.

    Args:
      arguments: flags and values that our parser did not know.
      our_flags: our own flags, to suggest the nearest one.

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
    """Raises UsageError if a runner does not read a flag of Beam, given with its name and its class of options."""
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
    """Returns the problems that Beam finds in the options, as a sentence about flags; "" if there are none."""
    with quiet.logs():  # it warns of what it also returns
        found = [" ".join(problem.split()) for problem in PipelineOptionsValidator(options, runner).validate()]
    missing = [f"--{match[1]}" for problem in found if (match := _MISSING.fullmatch(problem))]
    if "--temp_location" in missing and "--staging_location" in missing:
        missing.remove("--staging_location")  # the other is its default
    rest = [problem for problem in found if not _MISSING.fullmatch(problem)]
    return " ".join([*([f"needs {', '.join(sorted(missing))}; docs/clusters.md"] if missing else []), *rest])


def make_runner(options: PipelineOptions, folder: pathlib.Path) -> tuple[PipelineRunner, Lifeline | None]:
    """Returns the runner of `options`, and a lifeline if there are processes or a job on a cluster to end with the run.

    Args:
      options: Beam's options; modified.
      folder: for temporary files; a job server removes it when the lifeline ends it.

    Raises:
      UsageError: as `parse`.
    """
    runner = _create(options)
    direct = options.view_as(DirectOptions)
    if type(runner).__name__ in StandardOptions.LOCAL_RUNNERS or isinstance(runner, PortableRunner):
        # A failed bundle is logged with its traceback, often twice; the command says the same in one line.
        logging.getLogger().setLevel(logging.CRITICAL + 1)
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL + 1)
    if type(runner) is FnApiRunner and direct.direct_running_mode == "multi_processing":
        direct.direct_running_mode = "in_memory"  # else the runner replaces our command by its own
        lifeline = Lifeline()
        command = shlex.join(lifeline.command("worker"))
        # Beam starts it through a shell and waits for the shell only.
        environment = SubprocessSDKEnvironment.from_command_string(f"exec {command}")
        return FnApiRunner(default_environment=environment), lifeline
    if isinstance(runner, PortableRunner):
        portable = options.view_as(PortableOptions)
        if not portable.environment_type and _LOOPBACK.fullmatch(portable.job_endpoint or ""):
            portable.environment_type = "LOOPBACK"  # this process is the worker; else a Docker container is
        return runner, _tie(runner, options, folder)
    return runner, None


def _tie(runner: PortableRunner, options: PipelineOptions, folder: pathlib.Path) -> Lifeline | None:
    """Returns a lifeline for a job server that we start or a job on a Flink cluster; None if there is neither."""
    if options.view_as(PortableOptions).job_endpoint:
        return None
    starts_one, cluster = engines.starts_one(runner, options), engines.flink_cluster(runner, options)
    lifeline = Lifeline() if starts_one or cluster else None
    if lifeline and cluster:
        named = options.view_as(GoogleCloudOptions)  # where Beam keeps the name of any runner's job
        named.job_name = f"{named.job_name or 'stepfeed'}-{uuid.uuid4().hex}"
        subprocess.Popen(lifeline.command("flink", cluster, named.job_name), stdin=subprocess.DEVNULL)
    if lifeline and starts_one:
        engines.supervise(runner, lifeline, folder)
    return lifeline


def use_all_cores(options: PipelineOptions, seconds: float, shards: int) -> int:
    """Lets the in-process runner use one process per core, if that pays and the flags leave it open.

    Args:
      options: Beam's options; modified.
      seconds: how long the work takes one core, an estimate.
      shards: how many shards there are to work on: more processes would have nothing to do.

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
    """Lowers --direct_num_workers to the most that can help: one per shard, and a few per core, as they wait for disks.

    Args:
      options: Beam's options; modified.
      shards: how many shards there are to work on.

    Returns:
      A line that says how many are used and why; "" if the flag is followed.
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
        engines.check_endpoint(endpoint)
    elif not endpoint and engines.java_engine(runner):
        if engines.starts_one(runner, options):
            engines.check_java(runner, options)
        engines.check_jar(runner, options)
        engines.check_cluster(runner, options)
    elif type(runner) is PortableRunner and not endpoint:
        raise errors.UsageError(
            "--runner=PortableRunner: --job_endpoint is missing: host:port of the cluster's job server"
        )


def _create(options: PipelineOptions) -> PipelineRunner:
    name = options.view_as(StandardOptions).runner or _DEFAULT_RUNNER
    if name in ("DirectRunner", "SwitchingDirectRunner"):
        name = _DEFAULT_RUNNER  # Beam ends up there too, but after a download that can hang behind a proxy
    try:
        return create_runner(name)
    except (ValueError, AttributeError, ImportError) as error:
        if "." in name or name in StandardOptions.KNOWN_RUNNER_NAMES:
            raise errors.UsageError(f"--runner={name}: cannot be loaded: {error}") from None
        raise errors.unknown("--runner", name, StandardOptions.KNOWN_RUNNER_NAMES) from None
