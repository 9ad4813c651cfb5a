"""Joins the batches of a mixture's sources, row by row, in blocks that any number of replicas divides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.batch.replica_rows import split
from pipeline.errors import UsageError
from pipeline.mixture import Mixture
from pipeline.order.shares import rows_in_blocks

_READY = 2  # elements made ahead; each source has some, too


@tf.autograph.experimental.do_not_convert
def joined(mixture: Mixture, datasets: Sequence[tf.data.Dataset], replicas: int | None) -> tf.data.Dataset:
    """Returns elements with the rows of all sources; it ends with the first source.

    Args:
      mixture: whose.
      datasets: of each source, with the same number of elements a step.
      replicas: between how many each element is split; None: it is not.

    Raises:
      UsageError: a function of the user's does not give the same for all sources.
    """
    numbered = mixture.request.record_ids
    rows = [dataset.element_spec[-2 if numbered else -1].shape[0] for dataset in datasets]
    _check_alike(mixture, [dataset.element_spec for dataset in datasets])
    counts = [part.selection.num_examples for part in mixture.parts]
    first_ids = [sum(counts[:number]) for number in range(len(counts))]

    def of_step(*elements: tuple[Any, ...]) -> tuple[Any, ...]:
        if numbered:
            elements = tuple((*e[:-1], e[-1] + first) for e, first in zip(elements, first_ids, strict=True))
        joint: tuple[Any, ...] = tf.nest.map_structure(lambda *parts: _in_blocks(parts, rows), *elements)
        return split(joint, replicas)

    return tf.data.Dataset.zip(*datasets).map(of_step, num_parallel_calls=tf.data.AUTOTUNE).prefetch(_READY)


def _in_blocks(parts: Sequence[Any], rows: Sequence[int]) -> Any:
    """Returns the rows of all parts as `rows_in_blocks` says."""
    blocks = math.gcd(*rows)
    if all(isinstance(part, tf.Tensor) and part.shape.is_fully_defined() for part in parts):
        runs = [
            tf.reshape(part, [blocks, count // blocks, *part.shape[1:]])
            for part, count in zip(parts, rows, strict=True)
        ]
        return tf.reshape(tf.concat(runs, axis=1), [sum(rows), *parts[0].shape[1:]])
    order = np.argsort(np.concatenate(rows_in_blocks(rows)))
    return tf.gather(tf.concat(parts, axis=0), order)


def _check_alike(mixture: Mixture, specs: Sequence[Any]) -> None:
    sources = mixture.request.sources
    kinds = [tf.nest.map_structure(_kind, spec) for spec in specs]
    for kind, source in zip(kinds, sources, strict=True):
        if kind != kinds[0]:
            raise UsageError(
                f"the sources '{sources[0]}' and '{source}' give different elements: {kinds[0]} and {kind}; the rows "
                "of a step must be alike"
            )


def _kind(spec: Any) -> str:
    return f"{spec.dtype.name} {tuple(spec.shape[1:]) if spec.shape.rank else ()}"
