"""The Beam runner that the flags name."""

from __future__ import annotations

import logging
import shlex
import sys

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from beam_jobs.lifeline import Lifeline
from pipeline import errors

DEFAULT_RUNNER = "FnApiRunner"  # in-process, without the download that Beam's own default tries first


def check(options: PipelineOptions) -> None:
    """Checks, before any work, that `make_runner` will find a runner, and that it has the options that it needs.

    Raises:
      UsageError: there is none of that name, it cannot be loaded, misses an option or has one of a bad value.
    """
    workers = options.view_as(DirectOptions).direct_num_workers
    if workers < 0:
        raise errors.UsageError(f"--direct_num_workers={workers}: must be 0 (one a core) or more")
    runner = _create(options)
    if type(runner).__name__ == "PortableRunner" and not options.view_as(PortableOptions).job_endpoint:
        raise errors.UsageError(
            "--runner=PortableRunner: --job_endpoint is missing: host:port of the cluster's job server"
        )
    if problems := PipelineOptionsValidator(options, runner).validate():
        raise errors.UsageError(f"--runner={type(runner).__name__}: {' '.join(' '.join(problems).split())}")


def make_runner(options: PipelineOptions) -> tuple[PipelineRunner, Lifeline | None]:
    """Returns the runner of `options`, and what ends its worker processes where they are our own.

    Raises:
      UsageError: as `check`.
    """
    runner = _create(options)
    direct = options.view_as(DirectOptions)
    if type(runner).__name__ in StandardOptions.LOCAL_RUNNERS:
        # A failed bundle is logged with its traceback, often twice; the command says the same in one line.
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL + 1)
    if type(runner) is FnApiRunner and direct.direct_running_mode == "multi_processing":
        direct.direct_running_mode = "in_memory"  # else the runner puts its own command in the place of ours
        lifeline = Lifeline()
        return FnApiRunner(default_environment=_worker_processes(lifeline.port)), lifeline
    return runner, None


def _create(options: PipelineOptions) -> PipelineRunner:
    name = options.view_as(StandardOptions).runner or DEFAULT_RUNNER
    try:
        return create_runner(name)
    except (ValueError, AttributeError, ImportError) as error:
        if "." in name or name in StandardOptions.KNOWN_RUNNER_NAMES:
            raise errors.UsageError(f"--runner={name}: cannot be loaded: {error}") from None
        raise errors.unknown("--runner", name, StandardOptions.KNOWN_RUNNER_NAMES) from None


def _worker_processes(port: int) -> SubprocessSDKEnvironment:
    command = shlex.join([sys.executable, "-m", "beam_jobs.worker", str(port)])
    # Beam starts it through a shell, and waits for the shell only.
    return SubprocessSDKEnvironment.from_command_string(f"exec {command}")
