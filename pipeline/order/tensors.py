"""`pipeline.order.arrays` for tensors: the window plan inside a `tf.data` graph, on this machine or another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.order import hashing_tf
from pipeline.order.arrays import Array, Number
from pipeline.order.hashing import Domain


class TensorArrays:
    """TensorFlow's operations; numbers of the arguments are int64, and so are all results but masks."""

    def range(self, stop: Number) -> Array:
        """See `Arrays.range`."""
        return tf.range(tf.cast(stop, tf.int64))

    def where(self, mask: Array, chosen: Array | int, other: Array | int) -> Array:
        """See `Arrays.where`."""
        return tf.where(mask, tf.cast(chosen, tf.int64), tf.cast(other, tf.int64))

    def minimum(self, one: Array, other: Array | int) -> Array:
        """See `Arrays.minimum`."""
        return tf.minimum(one, other)

    def maximum(self, one: Array, other: Array | int) -> Array:
        """See `Arrays.maximum`."""
        return tf.maximum(one, other)

    def least(self, values: Array, bound: Number) -> Number:
        """See `Arrays.least`."""
        return tf.minimum(tf.reduce_min(values), bound)

    def most(self, values: Array, bound: Number) -> Number:
        """See `Arrays.most`."""
        return tf.maximum(tf.reduce_max(values), bound)

    def size(self, values: Array) -> Number:
        """See `Arrays.size`."""
        return tf.size(values, tf.int64)

    def total(self, values: Array) -> Number:
        """See `Arrays.total`."""
        return tf.reduce_sum(values)

    def all_of_row(self, mask: Array) -> Array:
        """See `Arrays.all_of_row`."""
        return tf.reduce_all(mask, axis=1)

    def reshape(self, values: Array, shape: Sequence[int]) -> Array:
        """See `Arrays.reshape`."""
        return tf.reshape(values, shape)

    def sums_before(self, values: Array) -> Array:
        """See `Arrays.sums_before`."""
        return tf.cumsum(values, exclusive=True)

    def repeat(self, values: Array, counts: Array) -> Array:
        """See `Arrays.repeat`."""
        return tf.repeat(values, counts)

    def gather(self, values: Array | NDArray[np.int64], index: Array) -> Array:
        """See `Arrays.gather`."""
        return tf.gather(values, index)

    def select(self, values: Array, mask: Array) -> Array:
        """See `Arrays.select`."""
        return tf.boolean_mask(values, mask)

    def put(self, values: Array, index: Array, new: Array) -> Array:
        """See `Arrays.put`."""
        return tf.tensor_scatter_nd_update(values, index[:, None], new)

    def searchsorted(self, ascending: Array, values: Array, side: str) -> Array:
        """See `Arrays.searchsorted`."""
        return tf.searchsorted(ascending, values, side=side, out_type=tf.int64)

    def stack(self, columns: Sequence[Array]) -> Array:
        """See `Arrays.stack`."""
        return tf.stack(columns, axis=1)

    def concat(self, parts: Sequence[Array]) -> Array:
        """See `Arrays.concat`."""
        return tf.concat(parts, axis=0)

    def key(self, domain: Domain, *arguments: Array | int) -> Array:
        """See `Arrays.key`."""
        return hashing_tf.derive_key(domain, *arguments)

    def permutations(self, keys: Array, sizes: Array) -> Array:
        """See `Arrays.permutations`.

        The sizes differ by one at most: the permutations are sorted as the rows of one matrix, missing entries last.
        """
        index = tf.range(tf.reduce_max(sizes))
        hashes = hashing_tf.permutation_hashes(keys[:, None], index[None, :])
        exists = index[None, :] < sizes[:, None]
        ordered = tf.argsort(tf.where(exists, hashes, tf.int64.max), stable=True)
        return tf.boolean_mask(tf.cast(ordered, tf.int64), exists)


TENSORS = TensorArrays()
