"""What the commands share: one-line errors, exit codes, flags made from dataclasses."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import simple_parsing
from simple_parsing.wrappers.field_wrapper import DashVariant

from pipeline import errors

_EXTRA_OF = {
    "tensorflow": "train",
    **dict.fromkeys(("apache_beam", "tensorflow_datasets", "array_record"), "convert"),
    "sklearn": "demo",
}


class Parser(simple_parsing.ArgumentParser):
    """argparse from dataclasses, with errors of one line and the nearest flag for a wrong one."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=command,
            description=description,
            allow_abbrev=False,
            add_option_string_dash_variants=DashVariant.UNDERSCORE,
            formatter_class=simple_parsing.SimpleHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2 and one line."""
        raise errors.UsageError(" ".join(message.split()))

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parses all of `argv`.

        Raises:
          UsageError: an unknown flag or a bad value.
        """
        known, rest = self.parse_known_args(argv)
        self.refuse(rest)
        return known

    def refuse(self, arguments: Sequence[str]) -> None:
        """Raises UsageError for the first of `arguments`, if any, as an unknown flag."""
        for argument in arguments:
            name = argument.split("=")[0]
            raise (
                errors.unknown("flag", name, self.flags())
                if name.startswith("-")
                else errors.UsageError(f"unexpected argument {argument!r}; see --help")
            )

    def flags(self) -> list[str]:
        """Returns the long flags."""
        return [option for option in self._option_string_actions if option.startswith("--")]


def require(*modules: str) -> None:
    """Raises UsageError with the `pip install` that brings a missing optional package."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise errors.UsageError(
                f"needs {module}, which is not installed: pip install 'stepfeed[{_EXTRA_OF[module]}]'"
            )


def quiet_tensorflow() -> None:
    """Keeps TensorFlow's start-up notes off the terminal; TF_CPP_MIN_LOG_LEVEL=0 brings them back."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def run(command: str, main: Callable[[Sequence[str] | None], Any], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command's main and exits: 0, or the error's code after one line on stderr."""
    try:
        main(argv)
        sys.stdout.flush()
    except errors.PipelineError as error:
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))  # a file's name may hold a newline
        print(f"{command}: {line}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr, flush=True)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of a pipe (head) went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    sys.exit(0)
