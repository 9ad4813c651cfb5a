"""The few array operations that window plans use, and their NumPy version.

`pipeline.order.tensors` has the same operations for tensors. Operations that both libraries have in the same form
(arithmetic, comparison, indexing) are used directly.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.order import hashing
from pipeline.order.hashing import Domain

Array = Any  # NDArray or tf.Tensor: int64, or bool for a mask
Number = Any  # a scalar Array, or an int


class Arrays(Protocol):
    """Array operations; integers are int64."""

    def range(self, stop: Number) -> Array:
        """Returns 0..stop-1."""

    def where(self, mask: Array, chosen: Array | int, other: Array | int) -> Array:
        """Returns `chosen` where the mask is true, `other` elsewhere; all three broadcast."""

    def minimum(self, one: Array, other: Array | int) -> Array:
        """Returns the elementwise minimum; both broadcast."""

    def maximum(self, one: Array, other: Array | int) -> Array:
        """Returns the elementwise maximum; both broadcast."""

    def least(self, values: Array, bound: Number) -> Number:
        """Returns the minimum of values (any,) and a bound."""

    def most(self, values: Array, bound: Number) -> Number:
        """Returns the maximum of values (any,) and a bound."""

    def size(self, values: Array) -> Number:
        """Returns the number of values (n,)."""

    def total(self, values: Array) -> Number:
        """Returns the sum of an array."""

    def all_of_row(self, mask: Array) -> Array:
        """Returns whether each row of a mask (n, m) is all true: bool (n,)."""

    def reshape(self, values: Array, shape: Sequence[int]) -> Array:
        """Returns the values in another shape; -1 stands for the remaining size."""

    def sums_before(self, values: Array) -> Array:
        """Returns the sum of all values before each value (n,)."""

    def repeat(self, values: Array, counts: Array | int) -> Array:
        """Returns each value repeated by its count, or all by one number."""

    def gather(self, values: Array | NDArray[Any], index: Array) -> Array:
        """Returns the values at an index of any shape; int32 values become int64."""

    def select(self, values: Array, mask: Array) -> Array:
        """Returns the rows of values (n, ...) where the mask (n,) is true."""

    def put(self, values: Array, index: Array, new: Array) -> Array:
        """Returns values (n,) with new values (m,) at an index (m,)."""

    def searchsorted(self, ascending: Array, values: Array, side: Literal["left", "right"]) -> Array:
        """Returns the insertion points of values, like `numpy.searchsorted`."""

    def ends(self, times: Any, epoch: Number) -> Array | None:
        """Returns the number of positions up to the end of each chosen record in an epoch; None if each has one.

        Args:
          times: view, a `pipeline.order.views.Times`.
          epoch: number of the epoch.
        """

    def stack(self, columns: Sequence[Array]) -> Array:
        """Stacks columns (n,) into a matrix (n, columns)."""

    def concat(self, parts: Sequence[Array]) -> Array:
        """Concatenates parts (any,)."""

    def key(self, domain: Domain, *arguments: Array | int) -> Array:
        """Returns `pipeline.order.hashing.derive_key`."""

    def permutations(self, keys: Array, sizes: Array) -> Array:
        """Returns, concatenated, a permutation of 0..size-1 for each key, uint64 (n,), by the key's hashes."""


class NumpyArrays:
    """`Arrays` in NumPy; see there for the methods."""

    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    repeat = staticmethod(np.repeat)
    size = staticmethod(len)
    total = staticmethod(np.sum)
    concat = staticmethod(np.concatenate)
    key = staticmethod(hashing.derive_key)
    range = staticmethod(functools.partial(np.arange, dtype=np.int64))
    stack = staticmethod(functools.partial(np.stack, axis=1))
    all_of_row = staticmethod(functools.partial(np.all, axis=1))

    def __init__(self, kept_permutations: int = 0) -> None:
        """Keeps `kept_permutations` permutations for plans that need them again."""
        self._permutation = functools.lru_cache(kept_permutations)(hashing.permutation)

    @staticmethod
    def least(values: Array, bound: Number) -> Number:
        return values.min(initial=bound)

    @staticmethod
    def most(values: Array, bound: Number) -> Number:
        return values.max(initial=bound)

    @staticmethod
    def where(mask: Array, chosen: Array | int, other: Array | int) -> Array:
        return np.where(mask, chosen, other)

    @staticmethod
    def gather(values: Array, index: Array) -> Array:
        return values[index].astype(np.int64, copy=False)

    @staticmethod
    def select(values: Array, mask: Array) -> Array:
        return values[mask]

    @staticmethod
    def reshape(values: Array, shape: Sequence[int]) -> Array:
        return values.reshape(shape)

    @staticmethod
    def searchsorted(ascending: Array, values: Array, side: Literal["left", "right"]) -> Array:
        # NumPy would convert `ascending`, which may be long, if the dtypes differed.
        return np.searchsorted(ascending, values.astype(ascending.dtype, copy=False), side)

    @staticmethod
    def ends(times: Any, epoch: Number) -> Array | None:
        return times.ends(epoch)

    @staticmethod
    def sums_before(values: Array) -> Array:
        return np.cumsum(values) - values

    @staticmethod
    def put(values: Array, index: Array, new: Array) -> Array:
        values = values.copy()
        values[index] = new
        return values

    def permutations(self, keys: Array, sizes: Array) -> Array:
        if sizes.max(initial=0) <= hashing.SHORT:
            return hashing.short_permutations(keys, sizes)
        return np.concatenate([self._permutation(int(k), int(n)) for k, n in zip(keys, sizes, strict=True)])


def consecutive(arrays: Arrays, first: Array, counts: Array) -> Array:
    """Returns first[0], first[0] + 1, ... (counts[0] of them), first[1], ...: int64 (sum of counts,)."""
    offsets = arrays.repeat(first - arrays.sums_before(counts), counts)
    return arrays.range(arrays.total(counts)) + offsets
