"""Beam's own flags, and the runner that they name."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
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

from beam_jobs.runs import job_server
from beam_jobs.runs.lifeline import Lifeline
from pipeline import errors

_SECONDS_THAT_PAY = 12.0  # of work on one core; worker processes take 2 to 4 s to start
DEFAULT_RUNNER = "FnApiRunner"  # in-process, without the download that Beam's own default tries first
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\]):[0-9]+|embed")  # the job servers of this machine


class _Parser(_BeamArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(" ".join(message.split()))


def parse(arguments: Sequence[str], our_flags: Iterable[str]) -> PipelineOptions:
    """Returns Beam's options from the flags that are not ours, checked before any work: `make_runner` finds a runner.

    Args:
      arguments: flags and values that our parser did not know.
      our_flags: our own flags, to suggest the nearest one.

    Raises:
      UsageError: a flag that Beam does not know either (it would only warn); a bad or missing value; a runner that is
        unknown or cannot be loaded.
    """
    parser = _Parser(allow_abbrev=False, add_help=False)
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(arguments))
    for argument in unknown:
        if not argument.startswith("-"):
            raise errors.UsageError(f"unexpected argument {argument!r}; see --help")
        raise errors.unknown("flag", argument.split("=")[0], [*our_flags, *parser._option_string_actions])
    options = PipelineOptions(list(arguments))
    _check(options)
    return options


def _check(options: PipelineOptions) -> None:
    workers = options.view_as(DirectOptions).direct_num_workers
    if workers < 0:
        raise errors.UsageError(f"--direct_num_workers={workers}: must be 0 (one per core) or more")
    runner = _create(options)
    if isinstance(runner, PortableRunner):
        _check_job_server(runner, options)
    if problems := PipelineOptionsValidator(options, runner).validate():
        raise errors.UsageError(f"--runner={type(runner).__name__}: {' '.join(' '.join(problems).split())}")


def make_runner(options: PipelineOptions) -> tuple[PipelineRunner, Lifeline | None]:
    """Returns the runner of `options`, and the lifeline of its worker processes if they are our own.

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
        command = shlex.join([sys.executable, "-m", "beam_jobs.runs.worker", str(lifeline.port)])
        # Beam starts it through a shell and waits for the shell only.
        environment = SubprocessSDKEnvironment.from_command_string(f"exec {command}")
        return FnApiRunner(default_environment=environment), lifeline
    if isinstance(runner, PortableRunner):
        portable = options.view_as(PortableOptions)
        if not portable.environment_type and _LOOPBACK.fullmatch(portable.job_endpoint or ""):
            portable.environment_type = "LOOPBACK"  # this process is the worker; else a Docker container is
        if job_server.starts_one(runner, options):
            lifeline = Lifeline()
            job_server.supervise(runner, lifeline)
            return runner, lifeline
    return runner, None


def use_all_cores(options: PipelineOptions, seconds: float) -> int:
    """Lets the in-process runner use one process per core, if that pays and the flags leave it open.

    Args:
      options: Beam's options; modified.
      seconds: how long the work takes one core, an estimate.

    Returns:
      The number of processes.
    """
    direct, cores = options.view_as(DirectOptions), len(os.sched_getaffinity(0))
    name = options.view_as(StandardOptions).runner or DEFAULT_RUNNER
    given = any(flag.startswith(("--direct_num_workers", "--direct_running_mode")) for flag in options._flags)
    if name == DEFAULT_RUNNER and not given and cores > 1 and seconds > _SECONDS_THAT_PAY:
        direct.direct_num_workers, direct.direct_running_mode = cores, "multi_processing"
    if direct.direct_running_mode != "multi_processing":
        return 1
    return direct.direct_num_workers or cores


def workers(pipeline: beam.Pipeline) -> int:
    """Returns how many workers share a bundle's elements on the in-process runner; 0 for other runners."""
    if type(pipeline.runner) is not FnApiRunner:
        return 0
    return pipeline.options.view_as(DirectOptions).direct_num_workers or os.cpu_count() or 1


def _check_job_server(runner: PortableRunner, options: PipelineOptions) -> None:
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint and endpoint != "embed":
        job_server.check_endpoint(endpoint)
    elif job_server.starts_one(runner, options):
        job_server.check_java(runner, options)
    elif type(runner) is PortableRunner and not endpoint:
        raise errors.UsageError(
            "--runner=PortableRunner: --job_endpoint is missing: host:port of the cluster's job server"
        )


def _create(options: PipelineOptions) -> PipelineRunner:
    name = options.view_as(StandardOptions).runner or DEFAULT_RUNNER
    if name in ("DirectRunner", "SwitchingDirectRunner"):
        name = DEFAULT_RUNNER  # Beam ends up there too, but after a download that can hang behind a proxy
    try:
        return create_runner(name)
    except (ValueError, AttributeError, ImportError) as error:
        if "." in name or name in StandardOptions.KNOWN_RUNNER_NAMES:
            raise errors.UsageError(f"--runner={name}: cannot be loaded: {error}") from None
        raise errors.unknown("--runner", name, StandardOptions.KNOWN_RUNNER_NAMES) from None
