"""The few array operations that the window plan is written in, and NumPy's version of them.

`pipeline.order.tensors` has the same operations for tensors. What both have by themselves (arithmetic, comparison,
indexing) is used directly.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.order import hashing
from pipeline.order.hashing import Domain

Array = Any  # NDArray or tf.Tensor: int64, or bool where a mask is wanted
Number = Any  # a scalar Array, or an int


class Arrays(Protocol):
    """Array operations; integers are int64."""

    def range(self, stop: Number) -> Array:
        """Returns 0..stop-1."""

    def where(self, mask: Array, chosen: Array | int, other: Array | int) -> Array:
        """Returns `chosen` where the mask is true, else `other`; all three broadcast."""

    def minimum(self, one: Array, other: Array | int) -> Array:
        """Returns the elementwise minimum; both broadcast."""

    def maximum(self, one: Array, other: Array | int) -> Array:
        """Returns the elementwise maximum; both broadcast."""

    def least(self, values: Array, bound: Number) -> Number:
        """Returns the smallest of values (any,) and a bound."""

    def most(self, values: Array, bound: Number) -> Number:
        """Returns the largest of values (any,) and a bound."""

    def size(self, values: Array) -> Number:
        """Returns how many values (n,) there are."""

    def total(self, values: Array) -> Number:
        """Returns the sum of an array."""

    def all_of_row(self, mask: Array) -> Array:
        """Returns for each row of a mask (n, m) whether it is true throughout, bool (n,)."""

    def reshape(self, values: Array, shape: Sequence[int]) -> Array:
        """Returns the values in another shape; -1 is as many as there are."""

    def sums_before(self, values: Array) -> Array:
        """Returns the sum of all values before each (n,)."""

    def repeat(self, values: Array, counts: Array) -> Array:
        """Returns each value as often as its count says."""

    def gather(self, values: Array | NDArray[np.int64], index: Array) -> Array:
        """Returns the values at an index of any shape."""

    def select(self, values: Array, mask: Array) -> Array:
        """Returns the rows of values (n, ...) at which the mask (n,) is true."""

    def put(self, values: Array, index: Array, new: Array) -> Array:
        """Returns values (n,) with new ones (m,) at an index (m,)."""

    def searchsorted(self, ascending: Array, values: Array, side: str) -> Array:
        """Returns where values would be inserted, as `numpy.searchsorted`."""

    def stack(self, columns: Sequence[Array]) -> Array:
        """Returns columns (n,) as a matrix (n, columns)."""

    def concat(self, parts: Sequence[Array]) -> Array:
        """Returns parts (any,) one after the other."""

    def key(self, domain: Domain, *arguments: Array | int) -> Array:
        """Returns `pipeline.order.hashing.derive_key`."""

    def permutations(self, keys: Array, sizes: Array) -> Array:
        """Returns for each key, uint64 (n,), a permutation of 0..size-1, one after the other, by its hashes."""


class NumpyArrays:
    """NumPy's operations."""

    def __init__(self, kept_permutations: int = 0) -> None:
        """Makes them.

        Args:
          kept_permutations: how many permutations are kept for the next plan that needs them.
        """
        self._permutation = functools.lru_cache(kept_permutations)(hashing.permutation)

    def range(self, stop: Number) -> Array:
        """See `Arrays.range`."""
        return np.arange(stop, dtype=np.int64)

    def where(self, mask: Array, chosen: Array | int, other: Array | int) -> Array:
        """See `Arrays.where`."""
        return np.where(mask, chosen, other)

    def minimum(self, one: Array, other: Array | int) -> Array:
        """See `Arrays.minimum`."""
        return np.minimum(one, other)

    def maximum(self, one: Array, other: Array | int) -> Array:
        """See `Arrays.maximum`."""
        return np.maximum(one, other)

    def least(self, values: Array, bound: Number) -> Number:
        """See `Arrays.least`."""
        return values.min(initial=bound)

    def most(self, values: Array, bound: Number) -> Number:
        """See `Arrays.most`."""
        return values.max(initial=bound)

    def size(self, values: Array) -> Number:
        """See `Arrays.size`."""
        return len(values)

    def total(self, values: Array) -> Number:
        """See `Arrays.total`."""
        return values.sum()

    def all_of_row(self, mask: Array) -> Array:
        """See `Arrays.all_of_row`."""
        return mask.all(axis=1)

    def reshape(self, values: Array, shape: Sequence[int]) -> Array:
        """See `Arrays.reshape`."""
        return values.reshape(shape)

    def sums_before(self, values: Array) -> Array:
        """See `Arrays.sums_before`."""
        return np.cumsum(values) - values

    def repeat(self, values: Array, counts: Array) -> Array:
        """See `Arrays.repeat`."""
        return np.repeat(values, counts)

    def gather(self, values: Array | NDArray[np.int64], index: Array) -> Array:
        """See `Arrays.gather`."""
        return values[index]

    def select(self, values: Array, mask: Array) -> Array:
        """See `Arrays.select`."""
        return values[mask]

    def put(self, values: Array, index: Array, new: Array) -> Array:
        """See `Arrays.put`."""
        values = values.copy()
        values[index] = new
        return values

    def searchsorted(self, ascending: Array, values: Array, side: str) -> Array:
        """See `Arrays.searchsorted`."""
        return np.searchsorted(ascending, values, side)  # type: ignore[call-overload]

    def stack(self, columns: Sequence[Array]) -> Array:
        """See `Arrays.stack`."""
        return np.stack(columns, axis=1)

    def concat(self, parts: Sequence[Array]) -> Array:
        """See `Arrays.concat`."""
        return np.concatenate(parts)

    def key(self, domain: Domain, *arguments: Array | int) -> Array:
        """See `Arrays.key`."""
        return hashing.derive_key(domain, *arguments)

    def permutations(self, keys: Array, sizes: Array) -> Array:
        """See `Arrays.permutations`."""
        return np.concatenate([self._permutation(int(k), int(n)) for k, n in zip(keys, sizes, strict=True)])


def consecutive(arrays: Arrays, first: Array, counts: Array) -> Array:
    """Returns first[0], first[0] + 1, ... (counts[0] of them), first[1], ...: int64 (sum of counts,)."""
    offsets = arrays.repeat(first - arrays.sums_before(counts), counts)
    return arrays.range(arrays.total(counts)) + offsets
