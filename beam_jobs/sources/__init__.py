"""The data sets that can be converted, by name. A source's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pipeline.errors import DataError, unknown

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
      DataError: a file is missing, cannot be read or holds what it must not.
    """
    check_name(dataset)
    module = importlib.import_module(f"beam_jobs.sources.{_MODULE_OF[dataset]}")
    try:
        opened: Source = module.open_source(dataset, source)
    except DataError:
        raise
    except OSError as error:  # a folder on the way cannot be searched, a name is too long
        raise DataError(f"{error.filename or source}: cannot be read: {error.strerror or error}") from None
    return opened
