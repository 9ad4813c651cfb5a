"""`pipeline.order` for tensors: the same records at the same positions, computed while the data is fed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from pipeline import hashing_tf
from pipeline.hashing import Domain
from pipeline.order import Order


def records_by_position(order: Order, epoch: tf.Tensor) -> tf.Tensor:
    """Returns the record id at each position of an epoch, int64 (N,); `epoch` is an int64 scalar."""
    if not order.training:
        return tf.range(order.num_records, dtype=tf.int64)
    return tf.gather(_laid_records(order, epoch), _permuted_positions(order, epoch))


def _laid_records(order: Order, epoch: tf.Tensor) -> tf.Tensor:
    counts = np.asarray(order.counts, np.int64)
    key = hashing_tf.derive_key(Domain.SHARDS, order.seed, epoch)
    shards = hashing_tf.permutation(key, len(counts))
    laid_counts = tf.gather(tf.constant(counts), shards)
    first = tf.gather(tf.constant(np.cumsum(counts) - counts), shards)
    return _ramp(first, laid_counts, order.num_records)


def _ramp(first: tf.Tensor, counts: tf.Tensor, total: int) -> tf.Tensor:
    """Returns first[0], first[0] + 1, ... (counts[0] of them), first[1], ...: int64 (total,)."""
    shift = tf.repeat(first - tf.cumsum(counts, exclusive=True), counts)
    return tf.ensure_shape(tf.range(total, dtype=tf.int64) + shift, [total])


def _permuted_positions(order: Order, epoch: tf.Tensor) -> tf.Tensor:
    total = order.num_records
    bounds = np.concatenate([order.window_bounds(k)[:-1] for k in range(order.streams)] + [[total]])
    counts = np.diff(bounds)
    streams, windows = np.divmod(np.arange(len(counts), dtype=np.int64), order.windows)
    keys = hashing_tf.derive_key(Domain.WINDOW, order.seed, epoch, tf.constant(streams), tf.constant(windows))
    index = _ramp(tf.zeros(len(counts), tf.int64), tf.constant(counts), total)
    hashes = hashing_tf.permutation_hashes(tf.repeat(keys, counts), index)
    permuted = tf.ensure_shape(tf.argsort(hashes, stable=True), [total])
    if len(counts) > 1:  # sort by window, keeping the order of the hashes within each
        window_of = tf.constant(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
        permuted = tf.gather(permuted, tf.argsort(tf.gather(window_of, permuted), stable=True))
    return permuted


def positions(order: Order, step_of_epoch: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the positions of some rows of a step's global batch and which of them are real.

    Args:
      order: the order.
      step_of_epoch: int64 scalar, 0..T-1.
      rows: int64 (n,), rows of the global batch, 0..G-1.

    Returns:
      int64 (n,) positions and bool (n,), as `Order.positions` gives them.
    """
    bounds = order.stream_bounds()
    stream, row = rows // order.rows_per_stream, rows % order.rows_per_stream
    start, length = tf.gather(tf.constant(bounds[:-1]), stream), tf.gather(tf.constant(np.diff(bounds)), stream)
    offset = step_of_epoch * order.rows_per_stream + row
    real = offset < length
    last_window = tf.maximum(length - (order.windows - 1) * length // order.windows, 1)
    padding = tf.maximum(length - 1 - (offset - length) % last_window, 0)
    return start + tf.where(real, offset, padding), real
