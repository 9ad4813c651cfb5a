"""The flags that are Beam's: checked before anything runs, because Beam itself only warns of a wrong one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from pipeline import errors

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineRunner

DEFAULT_RUNNER = "FnApiRunner"  # in-process, without the download that Beam's own default tries first


def parse(arguments: Sequence[str], our_flags: Iterable[str]) -> tuple[PipelineOptions, PipelineRunner]:
    """Returns Beam's options, made of the flags that are not ours, and the runner that they name.

    Args:
      arguments: flags and values that our parser did not know.
      our_flags: our own flags, to suggest the nearest of.

    Raises:
      UsageError: a flag that Beam does not know either, with the nearest one, or a bad value.
    """
    with _quiet_import():
        from apache_beam.options import pipeline_options as beam_options  # noqa: PLC0415 (2 s to import)

    class Parser(beam_options._BeamArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise errors.UsageError(message)

    parser = Parser(allow_abbrev=False, add_help=False)
    for group in beam_options.PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(arguments))
    for argument in unknown:
        if not argument.startswith("-"):
            raise errors.UsageError(f"unexpected argument {argument!r}; see --help")
        raise _unknown_flag(argument.split("=")[0], [*our_flags, *parser._option_string_actions])
    options = beam_options.PipelineOptions(list(arguments))
    return options, _runner(options)


def _runner(options: PipelineOptions) -> PipelineRunner:
    from apache_beam.options.pipeline_options import DirectOptions, StandardOptions  # noqa: PLC0415
    from apache_beam.runners import create_runner  # noqa: PLC0415

    workers = options.view_as(DirectOptions).direct_num_workers
    if workers < 0:
        raise errors.UsageError(f"--direct_num_workers={workers}: must be 0 (as many as there are cores) or more")
    name = options.view_as(StandardOptions).runner or DEFAULT_RUNNER
    try:
        runner = create_runner(name)
    except (ValueError, AttributeError, ImportError) as error:
        if "." in name:
            raise errors.UsageError(f"--runner={name}: cannot be loaded: {error}") from None
        raise errors.unknown("--runner", name, StandardOptions.KNOWN_RUNNER_NAMES) from None
    if name in StandardOptions.LOCAL_RUNNERS:
        # A failed bundle is logged with its traceback, often twice; the command says the same in one line.
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    return runner


def _unknown_flag(name: str, known: Iterable[str]) -> errors.UsageError:
    error = errors.unknown("flag", name, known)
    # Beam has some two hundred flags: the list of all of them would hide the suggestion.
    message = str(error).split("; known:")[0].split("known:")[0].rstrip()
    return errors.UsageError(
        f"{message} see --help, and Beam's own flags" if "?" in message else f"{message}; see --help"
    )


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Keeps off the terminal what Beam warns of at import: optional cloud libraries that are not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
