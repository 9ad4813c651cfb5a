"""`pipeline.order.arrays` for tensors: the window plan inside a `tf.data` graph, on this machine or another."""

from __future__ import annotations

import functools

import tensorflow as tf

from pipeline.order import hashing_tf
from pipeline.order.arrays import Array, Number


class TensorArrays:
    """`Arrays` of TensorFlow; its methods are documented there. All integers are int64."""

    minimum = staticmethod(tf.minimum)
    maximum = staticmethod(tf.maximum)
    reshape = staticmethod(tf.reshape)
    repeat = staticmethod(tf.repeat)
    gather = staticmethod(tf.gather)
    select = staticmethod(tf.boolean_mask)
    total = staticmethod(tf.reduce_sum)
    key = staticmethod(hashing_tf.derive_key)
    size = staticmethod(functools.partial(tf.size, out_type=tf.int64))
    searchsorted = staticmethod(functools.partial(tf.searchsorted, out_type=tf.int64))
    sums_before = staticmethod(functools.partial(tf.cumsum, exclusive=True))
    all_of_row = staticmethod(functools.partial(tf.reduce_all, axis=1))
    stack = staticmethod(functools.partial(tf.stack, axis=1))
    concat = staticmethod(functools.partial(tf.concat, axis=0))

    @staticmethod
    def range(stop: Number) -> Array:
        return tf.range(tf.cast(stop, tf.int64))

    @staticmethod
    def where(mask: Array, chosen: Array | int, other: Array | int) -> Array:
        return tf.where(mask, tf.cast(chosen, tf.int64), tf.cast(other, tf.int64))

    @staticmethod
    def least(values: Array, bound: Number) -> Number:
        return tf.minimum(tf.reduce_min(values), bound)

    @staticmethod
    def most(values: Array, bound: Number) -> Number:
        return tf.maximum(tf.reduce_max(values), bound)

    @staticmethod
    def put(values: Array, index: Array, new: Array) -> Array:
        return tf.tensor_scatter_nd_update(values, index[:, None], new)

    @staticmethod
    def permutations(keys: Array, sizes: Array) -> Array:
        # The sizes differ by one at most: the permutations are sorted as rows of one matrix, missing entries last.
        index = tf.range(tf.reduce_max(sizes))
        hashes = hashing_tf.permutation_hashes(keys[:, None], index[None, :])
        exists = index[None, :] < sizes[:, None]
        ordered = tf.argsort(tf.where(exists, hashes, tf.int64.max), stable=True)
        return tf.boolean_mask(tf.cast(ordered, tf.int64), exists)


TENSORS = TensorArrays()
