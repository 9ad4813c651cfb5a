"""A progress bar on terminals for a long first read; nothing in pipes, and nothing in the first second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_DELAY = 1.0  # seconds until a bar appears
_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
_hidden = [0]  # number of contexts that draw on the terminal themselves


def bar(items: Iterable[_Item], total: int, text: str) -> Iterable[_Item]:
    """Returns an iterable of `total` slow items that shows a progress bar with a text."""
    if _hidden[0]:
        return items
    import tqdm  # noqa: PLC0415, commands need not wait for it

    shown: Iterable[_Item] = tqdm.tqdm(
        items, desc=text, total=total, delay=_DELAY, disable=None, leave=False, bar_format=_FORMAT
    )
    return shown


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Context without bars, for a command that draws on the terminal itself."""
    _hidden[0] += 1
    try:
        yield
    finally:
        _hidden[0] -= 1
