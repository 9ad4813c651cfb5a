"""The valid rows of a block, with their images as they will be stored, and why the others are invalid."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.examples.recode import ImageOptions, Recoded, recode
from beam_jobs.examples.records import Rows
from beam_jobs.sources.base import Block


@dataclasses.dataclass(frozen=True)
class Selected:
    """The valid rows of a block.

    Attributes:
      rows: the valid rows, in the block's order.
      recoded: their images as they are stored.
      bad: {row of the block: reason} of the invalid rows.
    """

    rows: Rows
    recoded: Recoded
    bad: dict[int, str]


def select(block: Block, num_classes: int, options: ImageOptions) -> Selected:
    """Returns the valid rows of a block.

    Args:
      block: a block of a source.
      num_classes: the number of classes; labels must be below it.
      options: how images are stored.
    """
    bad = dict(block.bad)
    for row in np.flatnonzero((block.labels < 0) | (block.labels >= num_classes)).tolist():
        bad.setdefault(row, f"label {block.labels[row]} is not in 0..{num_classes - 1}")
    recoded = recode(block, options, frozenset(bad))
    bad |= recoded.bad
    if not bad:
        return Selected(Rows(recoded.images, block.labels, block.keys, block.extra), recoded, {})
    good = np.setdiff1d(np.arange(len(block.labels)), list(bad))
    extra = {name: _taken(values, good) for name, values in block.extra.items()}
    return Selected(Rows(recoded.images, block.labels[good], _taken(block.keys, good), extra), recoded, bad)


def joined(parts: Sequence[tuple[NDArray[np.int64], Selected]]) -> Selected:
    """Returns what `select` returns for a block, from what it returned for several parts of it, in any order.

    Args:
      parts: the rows of the block in each part, int64 (n,), and the selection from them. Every row is in one part.
    """
    good = np.concatenate([np.delete(rows, list(part.bad)) for rows, part in parts])
    order = np.argsort(good)
    recoded = [part.recoded for _, part in parts]
    whole = Recoded.empty(recoded[0].sums.channels)
    whole.images = _in_order([part.images for part in recoded], order)
    for part in recoded:
        whole.formats |= part.formats
        whole.sums.merge(part.sums)
        whole.sizes.update(part.sizes)
    bad = {int(rows[row]): reason for rows, part in parts for row, reason in part.bad.items()}
    columns = [part.rows for _, part in parts]
    extra = {name: _in_order([c.extra[name] for c in columns], order) for name in columns[0].extra}
    labels, keys = _in_order([c.labels for c in columns], order), _in_order([c.keys for c in columns], order)
    return Selected(Rows(whole.images, labels, keys, extra), whole, bad)


def _in_order(parts: list[Any], order: NDArray[np.int64]) -> Any:
    if any(isinstance(part, list) for part in parts):
        values = list(itertools.chain.from_iterable(parts))
        return [values[row] for row in order]
    return np.concatenate(parts)[order]


def _taken(values: Any, rows: NDArray[np.int64]) -> Any:
    return [values[row] for row in rows] if isinstance(values, list) else values[rows]
