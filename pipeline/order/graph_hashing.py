"""`pipeline.order.hashing` for tensors: keys and draws inside a graph."""

from __future__ import annotations

import itertools

from pipeline.lazily import tf
from pipeline.order import hashing
from pipeline.order.hashing import GAMMA, MIX_1, MIX_2, Domain

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


def uniform(keys: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns draw number `draw` for each key: float32 in [0, 1), with the shape of `keys`."""
    hashes = splitmix64(keys + _u64(draw))
    top = tf.cast(tf.bitwise.right_shift(hashes, _u64(40)), tf.int32)
    return tf.cast(top, tf.float32) * tf.constant(2**-24, tf.float32)
