"""How a worker's run differs from the chief's, in words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

# What shapes a run, in parts: {name: in words, as `--seed=1`}. What follows from one part may be in a later one.
Description: TypeAlias = Sequence[Mapping[str, str]]

_MOST_NAMED = 5  # differences, or workers, in one line


def is_description(value: Any) -> TypeGuard[Description]:
    """Returns whether something that came as JSON is a description."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and all(isinstance(words, str) for words in part.values()) for part in value
    )


def difference(chief: Description, others: Mapping[str, Description]) -> str | None:
    """Returns who differs from the chief, with both values, or None.

    Of each worker, only the first part that differs is named: the later ones may differ because of it.

    Args:
      chief: the chief's.
      others: {name of the worker: what it has}.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for worker, theirs in others.items():
        if both := _first(chief, theirs):
            groups.setdefault(both, []).append(worker)
    said = [
        f"{shortened(workers)} {'has' if len(workers) == 1 else 'have'} {theirs}, the chief has {mine}"
        for (mine, theirs), workers in groups.items()
    ]
    return "; ".join(said) or None


def shortened(names: Sequence[str]) -> str:
    """Returns a list in words: all of a few names, and how many more there are of many."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _first(chief: Description, other: Description) -> tuple[str, str] | None:
    """Returns what the chief and another have, in the first part in which they differ."""
    nothing: Mapping[str, str] = {}
    for mine, theirs in itertools.zip_longest(chief, other, fillvalue=nothing):
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        if names:
            return _words(names, mine), _words(names, theirs)
    return None


def _words(names: Sequence[str], part: Mapping[str, str]) -> str:
    return shortened([part.get(name, f"no {name}") for name in names])
