"""Aliases of options, flags and functions: earlier names, and names from classic programs.

Scripts may use them, and runs of earlier versions have stored them. Names that other programs read, or that compiled
code registers, have not changed: the keys `distort` and `distort_on` and the stage `distort` in the JSON of
`pipeline.bench`, the key `distort` in export.json, the features `distort_key` and `distort_epoch` of batches that a
device augments, and the operations `StepfeedDistort` and `StepfeedDistortToFloats`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pipeline.errors import UsageError

_Value = TypeVar("_Value")

TODAY = {"distort": "augment", "distort_on": "augment_on", "task_id": "task_index"}


def renamed(given: Mapping[str, _Value], known: Collection[str], where: str = "") -> dict[str, _Value]:
    """Returns options by their current names.

    Args:
      given: values by name, in either form.
      known: current names of the available options.
      where: beginning of an error's message, such as `input_fn: `.

    Raises:
      UsageError: an option is given under both names.
    """
    check_once(given, where)
    return {TODAY[name] if TODAY.get(name) in known else name: value for name, value in given.items()}


def stored(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns, by current name, the flags that a run of this or an earlier version stored in groups."""
    return {TODAY.get(name, name): value for members in groups.values() for name, value in members.items()}


def arguments(tokens: Sequence[str], flags: Collection[str]) -> list[str]:
    """Returns a command's arguments with its flags under their current names."""
    names = [token.partition("=")[0] for token in tokens]
    today = {f"--{other}": f"--{name}" for other, name in TODAY.items() if name in flags}
    return [today.get(name, name) + token[len(name) :] for name, token in zip(names, tokens, strict=True)]


def check_arguments(tokens: Sequence[str]) -> None:
    """Raises UsageError if a flag is given under both names."""
    names = [token.partition("=")[0] for token in tokens]
    check_once([name[2:] for name in names if name.startswith("--")], dashes="--")


def check_once(given: Iterable[str], where: str = "", dashes: str = "") -> None:
    """Raises UsageError if an option is given under both names, which the message shows with `dashes`."""
    names = set(given)
    for other, name in TODAY.items():
        if {other, name} <= names:
            one, two = dashes + other, dashes + name
            raise UsageError(f"{where}{one} and {two}: are two names of the same thing; give {two} alone")
