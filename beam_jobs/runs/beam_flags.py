"""Beam's own flags, checked before anything runs: Beam itself only warns about a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn

from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from pipeline.errors import UsageError


class _Parser(_BeamArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise UsageError(" ".join(message.split()))


def parse(arguments: Sequence[str], our_flags: Iterable[str]) -> PipelineOptions:
    """Returns Beam's options from the flags that are not ours.

    Args:
      arguments: flags and values that our parser did not know.
      our_flags: our own flags, to suggest the nearest one.

    Raises:
      UsageError: a bad value, or a flag that Beam does not know either; the nearest one is suggested.
    """
    parser = _Parser(allow_abbrev=False, add_help=False)
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(arguments))
    for argument in unknown:
        if argument.startswith("-"):
            raise _unknown_flag(argument.split("=")[0], [*our_flags, *parser._option_string_actions])
        raise UsageError(f"unexpected argument {argument!r}; see --help")
    return PipelineOptions(list(arguments))


def _unknown_flag(name: str, known: list[str]) -> UsageError:
    # Beam has some two hundred flags: too many to list.
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return UsageError(f"unknown flag {name}, neither ours nor Beam's; {hint}see --help")
