"""The same sums over a batch on any number of replicas, to the bit: virtual replicas.

The idea is that of VirtualFlow (Or, Zhang, Freedman, MLSys 2022) and EasyScale (Li et al., SC 2023): virtual replica v
always has rows [vG/V, (v+1)G/V) of the batch, and replica r runs V/R of them one after another. All begin with the same
weights and moving statistics. BatchNorm normalises over a virtual replica's rows ("ghost batch norm", Hoffer et al.
2017), and dropout draws from a hash of (seed, step, v).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.topology import sum_gradients


def summed(function: Callable[[tuple[Any, ...]], Any], rows: tuple[Any, ...], num_virtual: int) -> Any:
    """Returns the sum over all virtual replicas of what a function computes of each, in its structure.

    To be called in a replica context. A replica computes its virtual replicas one at a time, which bounds the memory to
    the activations of one of them.

    Args:
      function: of a virtual replica's part of `rows`, to a structure of float32 tensors.
      rows: a structure of tensors whose first axis is this replica's virtual replicas.
      num_virtual: V, over all replicas.
    """
    structure: list[Any] = []  # of what the function gives, known once it is traced

    def flat(batch: tuple[Any, ...]) -> list[tf.Tensor]:
        given = function(batch)
        structure.append(given)
        return tf.nest.flatten(given)

    stacked = _mapped(flat, rows)
    return tf.nest.pack_sequence_as(structure[0], sum_gradients(stacked, num_virtual))


def _mapped(function: Callable[..., list[tf.Tensor]], rows: tuple[Any, ...]) -> list[tf.Tensor]:
    """Returns a function's results for each virtual replica, stacked."""
    # The loop below needs the results' shapes before it traces its body: the function is traced once, for both.
    traced = tf.function(function, autograph=False)
    of_one = traced.get_concrete_function(tf.nest.map_structure(lambda part: _spec(part.shape[1:], part.dtype), rows))
    specs = [_spec(value.shape, value.dtype) for value in of_one.structured_outputs]
    stacked: list[tf.Tensor] = tf.map_fn(traced, rows, fn_output_signature=specs, parallel_iterations=1)
    return stacked


def _spec(shape: tf.TensorShape, dtype: tf.DType) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype)
