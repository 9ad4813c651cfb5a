"""How a worker's run differs from the chief's, in words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

# What shapes a run, in parts: {name: its value in words, such as `--seed=1`; or [digest] if it has no words}. What
# follows from a part is in a later one.
Part: TypeAlias = Mapping[str, str | Sequence[str]]
Description: TypeAlias = Sequence[Part]

_MOST_NAMED = 5  # differences, or workers, in one line


def is_description(value: Any) -> TypeGuard[Description]:
    """Returns whether a value that was sent as JSON is a description."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and all(_is_value(words) for words in part.values()) for part in value
    )


def _is_value(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and [type(one) for one in value] == [str])


def difference(chief: Description, others: Mapping[str, Description]) -> str | None:
    """Returns which workers differ from the chief, with both values; None: none does.

    For each worker only the first part that differs is named: later ones may differ because of it.

    Args:
      chief: the chief's description.
      others: {name of a worker: its description}.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for worker, theirs in others.items():
        if both := _first(chief, theirs):
            groups.setdefault(both, []).append(worker)
    said: list[str] = []
    for (mine, their), workers in groups.items():
        of_chief = f", the chief has {mine}" if mine else ""
        said.append(f"{shortened(workers)} {'has' if len(workers) == 1 else 'have'} {their}{of_chief}")
    return "; ".join(said) or None


def shortened(names: Sequence[str]) -> str:
    """Returns a list of names in words; of a long one, the first names and the number of the others."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _first(chief: Description, other: Description) -> tuple[str, str] | None:
    """Returns the chief's and the other's values in the first part that differs; of digests only the other's."""
    nothing: Part = {}
    for mine, theirs in itertools.zip_longest(chief, other, fillvalue=nothing):
        names = [name for name in {**mine, **theirs} if _comparable(mine, name) != _comparable(theirs, name)]
        if not names:
            continue
        digests = [name for name in names if not isinstance(mine.get(name, theirs.get(name)), str)]
        if digests:
            return "", shortened([_other(name, mine, theirs) for name in digests])
        return _words(names, mine), _words(names, theirs)
    return None


def _comparable(part: Part, name: str) -> Any:
    value = part.get(name)
    return value if value is None or isinstance(value, str) else list(value)


def _other(name: str, mine: Part, theirs: Part) -> str:
    if name not in theirs:
        return f"no {name}"
    return f"another {name}" if name in mine else f"{name}, which the chief does not have"


def _words(names: Sequence[str], part: Part) -> str:
    return shortened([str(part.get(name, f"no {name}")) for name in names])
