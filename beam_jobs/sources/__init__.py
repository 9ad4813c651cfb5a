"""The data sets that can be converted, by name. A source's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pipeline.errors import unknown

if TYPE_CHECKING:
    from beam_jobs.sources.base import Source

_MODULE_OF = {"mnist": "mnist", "cifar10": "cifar10", "digits": "digits"}
MODULES_NEEDED = {"digits": ("sklearn",)}  # besides Beam


def names() -> list[str]:
    """Returns the names that `open_source` takes."""
    return sorted(_MODULE_OF)


def check_name(dataset: str) -> None:
    """Raises UsageError, with the nearest name, where `dataset` is not one of `names`."""
    if dataset not in _MODULE_OF:
        raise unknown("--dataset", dataset, _MODULE_OF)


def open_source(dataset: str, source: str) -> Source:
    """Opens a data set and checks all of its files.

    Args:
      dataset: one of `names`.
      source: its folder or archive; empty for a data set that needs none.

    Raises:
      UsageError: the name is unknown, or the data set needs a source, or takes none.
      DataError: a file is missing or holds what it must not.
    """
    check_name(dataset)
    opened: Source = importlib.import_module(f"beam_jobs.sources.{_MODULE_OF[dataset]}").open_source(dataset, source)
    return opened
