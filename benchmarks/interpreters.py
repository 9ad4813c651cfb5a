"""Interpreters for the peers, which cannot all share one environment: the flag `--python`."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

from pipeline.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Interpreters:
    """The interpreters of contestants.

    Attributes:
      named: interpreters by contestant name.
      fallback: interpreter for all others whose packages are missing here; empty for none.
    """

    named: dict[str, str]
    fallback: str = ""

    def candidates(self, name: str) -> list[str]:
        """Returns the interpreters to try for a contestant, in order."""
        if name in self.named:
            return [self.named[name]]
        return [sys.executable, *([self.fallback] if self.fallback else [])]


def parse(text: str, known: set[str]) -> Interpreters:
    """Returns the value of `--python=PATH` or `--python=NAME=PATH,PATH`.

    Raises:
      UsageError: a name is unknown, or a file does not exist.
    """
    named, fallback = {}, ""
    for part in filter(None, text.split(",")):
        name, equals, path = part.partition("=")
        if not equals:
            name, path = "", part
        elif name not in known:
            raise UsageError(f"--python={part}: {name!r} is none of {', '.join(sorted(known))}")
        if not pathlib.Path(path).is_file():
            raise UsageError(f"--python={part}: no file {path}")
        if name:
            named[name] = path
        else:
            fallback = path
    return Interpreters(named, fallback)
