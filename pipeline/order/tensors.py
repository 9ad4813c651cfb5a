"""`pipeline.order.hashing` and `pipeline.order.arrays` for tensors: draws and window plans inside a graph."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np

from pipeline.lazily import tf
from pipeline.order import hashing
from pipeline.order.arrays import Array, Number
from pipeline.order.hashing import GAMMA, MIX_1, MIX_2, Domain
from pipeline.order.views import ONE, Strata, Times

# Hashing only uses integer operations, so that host and device, with XLA or without, agree.


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _xor_shift(z: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, _u64(bits)))


def splitmix64(x: tf.Tensor) -> tf.Tensor:
    """Returns the splitmix64 output for states `x`, uint64, any shape."""
    z = x + _u64(GAMMA)
    z = _xor_shift(z, 30) * _u64(MIX_1)
    z = _xor_shift(z, 27) * _u64(MIX_2)
    return _xor_shift(z, 31)


def derive_key(domain: Domain, *arguments: tf.Tensor | int) -> tf.Tensor:
    """Returns the uint64 key of int64 arguments (scalars or tensors that broadcast)."""
    known = list(itertools.takewhile(lambda argument: isinstance(argument, int), arguments))
    key = _u64(int(hashing.derive_key(domain, *known)))  # in NumPy, to save graph nodes
    for argument in arguments[len(known) :]:
        key = splitmix64(tf.bitwise.bitwise_xor(key, tf.bitcast(tf.convert_to_tensor(argument, tf.int64), tf.uint64)))
    return key


def permutation_hashes(keys: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Returns int64 hashes whose stable argsort is the permutation; `keys` uint64 and `index` int64 broadcast."""
    return tf.bitcast(splitmix64(keys + tf.bitcast(index, tf.uint64)), tf.int64)


def permutation(key: tf.Tensor, n: int | tf.Tensor) -> tf.Tensor:
    """Returns a permutation of 0..n-1 as int64 (n,)."""
    hashes = permutation_hashes(key, tf.range(tf.cast(n, tf.int64)))
    return tf.cast(tf.argsort(hashes, stable=True), tf.int64)


def uniform(keys: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns draw number `draw` for each key: float32 in [0, 1), with the shape of `keys`."""
    hashes = splitmix64(keys + _u64(draw))
    top = tf.cast(tf.bitwise.right_shift(hashes, _u64(40)), tf.int32)
    return tf.cast(top, tf.float32) * tf.constant(2**-24, tf.float32)


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
