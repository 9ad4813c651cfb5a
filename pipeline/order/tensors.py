"""`pipeline.order.arrays` for tensors: window plans inside a graph."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pipeline.lazily import tf
from pipeline.order.arrays import Array, Number
from pipeline.order.graph_hashing import derive_key, permutation, permutation_hashes
from pipeline.order.hashing import Domain
from pipeline.order.views import ONE, Strata, Times


def _operation(name: str, **options: Any) -> Any:
    """Returns a TensorFlow operation as a static method, looked up when it is called."""
    return staticmethod(lambda *values: getattr(tf, name)(*values, **options))


class TensorArrays:
    """`Arrays` in TensorFlow; see there for the methods. All integers are int64.

    Building the graph takes most of a dataset's start-up time, 0.3 ms of processor time per node. So operations that
    TensorFlow composes of dozens of nodes are written with a few, and values known beforehand stay in NumPy.
    """

    key = staticmethod(derive_key)
    minimum, maximum = _operation("minimum"), _operation("maximum")
    reshape, total = _operation("reshape"), _operation("reduce_sum")
    sums_before, all_of_row = _operation("cumsum", exclusive=True), _operation("reduce_all", axis=1)
    stack, concat = _operation("stack", axis=1), _operation("concat", axis=0)

    @staticmethod
    def size(values: Array) -> Number:
        return tf.size(values, out_type=tf.int64)

    @staticmethod
    def range(stop: Number) -> Array:
        return np.arange(stop) if isinstance(stop, int) else tf.range(0, stop, dtype=tf.int64)

    @staticmethod
    def where(mask: Array, chosen: Array | int, other: Array | int) -> Array:
        return tf.where(mask, *(tf.convert_to_tensor(values, tf.int64) for values in (chosen, other)))

    @staticmethod
    def least(values: Array, bound: Number) -> Number:
        return tf.minimum(tf.reduce_min(values), bound)

    @staticmethod
    def most(values: Array, bound: Number) -> Number:
        return tf.maximum(tf.reduce_max(values), bound)

    @staticmethod
    def put(values: Array, index: Array, new: Array) -> Array:
        return tf.tensor_scatter_nd_update(values, tf.expand_dims(index, 1), new)

    @staticmethod
    def gather(values: Array, index: Array) -> Array:
        are_known = isinstance(values, np.ndarray) and isinstance(index, np.ndarray)
        return values[index].astype(np.int64) if are_known else tf.cast(tf.gather(values, index), tf.int64)

    @staticmethod
    def select(values: Array, mask: Array) -> Array:
        return tf.gather(values, tf.reshape(tf.where(mask), [-1]))

    @staticmethod
    def searchsorted(ascending: Array, values: Array, side: Literal["left", "right"]) -> Array:
        bound = {"left": tf.raw_ops.LowerBound, "right": tf.raw_ops.UpperBound}[side]
        rows = {"sorted_inputs": tf.expand_dims(ascending, 0), "values": tf.expand_dims(values, 0)}
        return tf.squeeze(bound(**rows, out_type=tf.int64), 0)

    def repeat(self, values: Array, counts: Array | int) -> Array:
        if isinstance(counts, int):
            return tf.reshape(tf.tile(tf.expand_dims(values, 1), [1, counts]), [-1])
        ends = tf.cumsum(counts)
        return tf.gather(values, self.searchsorted(ends, self.range(tf.reduce_sum(counts)), "right"))

    def permutations(self, keys: Array, sizes: Array) -> Array:
        # Sizes differ by at most one: permutations are sorted as rows of one matrix, missing entries last.
        index = self.range(tf.reduce_max(sizes))
        hashes = permutation_hashes(tf.expand_dims(keys, 1), index)
        exists = index < tf.expand_dims(sizes, 1)
        ordered = tf.argsort(tf.where(exists, hashes, tf.int64.max), stable=True)
        return tf.gather_nd(tf.cast(ordered, tf.int64), tf.where(exists))

    def ends(self, times: Times, epoch: Number) -> Array | None:
        if times.strata is not None:
            return tf.cumsum(self._balanced(times.strata, times.seed, epoch))
        if times.weights is not None:
            return tf.cumsum(self._weighed(times.weights, times.seed, epoch))
        return None

    def _balanced(self, strata: Strata, seed: int, epoch: Number) -> Array:
        """Returns the result of `Times.of` for `balance`, sorting the permutations of all classes together."""
        stratum = self.repeat(np.arange(len(strata.counts)), strata.counts)
        firsts = np.cumsum(strata.counts) - strata.counts
        rank = tf.range(len(strata.members), dtype=tf.int64) - self.gather(firsts, stratum)
        keys = self.key(Domain.BALANCE, seed, epoch, strata.codes)
        by_hash = tf.argsort(permutation_hashes(tf.gather(keys, stratum), rank), stable=True)
        turn = self.gather(by_hash, tf.argsort(tf.gather(stratum, by_hash), stable=True))
        size, count = self.gather(strata.sizes, stratum), self.gather(strata.counts, stratum)
        return _scattered(tf.gather(strata.members, turn), (rank + 1) * size // count - rank * size // count)

    def _weighed(self, weights: np.ndarray, seed: int, epoch: Number) -> Array:
        """Returns the result of `Times.of` for `weigh`, computing the whole line at once."""
        turn = permutation(self.key(Domain.WEIGH, seed, epoch), len(weights))
        room = ONE - (int(weights.sum(dtype=np.int64)) & ONE - 1)
        at = tf.cast(self.key(Domain.WEIGH_START, seed, epoch) % tf.constant(room, tf.uint64), tf.int64)
        mine = self.gather(weights, turn)
        ends = tf.cumsum(mine) + at
        return _scattered(turn, ends // ONE - (ends - mine) // ONE)


def _scattered(index: Array, values: Array) -> Array:
    """Scatters values (n,) to their places in a permutation of 0..n-1."""
    return tf.scatter_nd(tf.expand_dims(tf.cast(index, tf.int64), 1), values, tf.shape(values, tf.int64))


TENSORS = TensorArrays()
