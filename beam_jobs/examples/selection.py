"""The valid rows of a block, with their images as they will be stored, and why the others are invalid."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.examples.recode import ImageOptions, Recoded, recode
from beam_jobs.examples.statistics import PixelSums
from beam_jobs.sources.base import Block


@dataclasses.dataclass(frozen=True)
class Selected:
    """The valid rows of a block.

    Attributes:
      rows: the valid rows, in the block's order.
      recoded: their images as they are stored.
      bad: {row of the block: reason} of the invalid rows.
    """

    rows: Block
    recoded: Recoded
    bad: dict[int, str]


def select(block: Block, num_classes: int, options: ImageOptions) -> Selected:
    """Returns the valid rows of a block.

    Args:
      block: a block of a source.
      num_classes: the number of classes, which labels must be below.
      options: how images are stored.
    """
    bad = dict(block.bad)
    for row in np.flatnonzero((block.labels < 0) | (block.labels >= num_classes)).tolist():
        bad.setdefault(row, f"label {block.labels[row]} is not in 0..{num_classes - 1}")
    recoded = recode(block, options, frozenset(bad))
    bad |= recoded.bad
    if not bad:
        return Selected(dataclasses.replace(block, images=recoded.images), recoded, {})
    good = np.setdiff1d(np.arange(len(block.labels)), list(bad))
    return Selected(block.taken(recoded.images, good), recoded, bad)


def joined(parts: Sequence[tuple[NDArray[np.int64], Selected]]) -> Selected:
    """Returns the selection from a block, joined from those of its parts, in any order.

    Args:
      parts: the rows of the block in each part, int64 (n,), and the selection from them; every row is in one part.
    """
    rows = Block.joined([(np.delete(rows, list(part.bad)), part.rows) for rows, part in parts])
    whole = Recoded(PixelSums(parts[0][1].recoded.sums.channels), rows.images)
    for _, part in parts:
        whole.formats |= part.recoded.formats
        whole.sums.merge(part.recoded.sums)
        whole.sizes.update(part.recoded.sizes)
        whole.turned += part.recoded.turned
    return Selected(rows, whole, {int(rows[row]): reason for rows, part in parts for row, reason in part.bad.items()})
