"""Sums over replicas whose bits do not depend on how the summands are spread over them.

Floating-point addition rounds, so a sum depends on its order, and the order on the number of replicas. The sum of
integers does not. So the summands become integers first: per variable, the largest magnitude of all summands on all
replicas gives an exponent e (a maximum is the same in any order), and each summand x becomes
round(x * 2^(62 - ceil(log2 V) - e)) as int64, which has room for V of them. This is reproducible summation (Demmel and
Nguyen, "Parallel reproducible summation", IEEE Transactions on Computers 64, 2015) with one bin. It is also more
accurate than a float32 sum: the error of each summand is at most 2^-(62 - ceil(log2 V)) of the largest one. Magnitudes
below 2^-126 count as 0: whether a kernel flushes those to 0 depends on its thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from pipeline.errors import PipelineError, UsageError

_ALL_REDUCE = "_all_reduce_sum_gradients"  # of Keras' optimizers under tf.distribute
_BITS = 62  # of the sum
_EXPONENT, _EXPONENT_BIAS, _MANTISSA_BITS = 0xFF, 126, 23  # of float32: |x| < 2^(exponent - 126)
_LEAST_NORMAL = -126  # 2^-126 is the least normal float32
_FLOAT64_BIAS, _FLOAT64_MANTISSA_BITS = 1023, 52
_WORTH_COMPILING = 1 << 18  # summands, on a CPU: from here on a step's gain repays the second that compiling takes


def sum_gradients(gradients: Sequence[tf.Tensor], num_summands: int) -> list[tf.Tensor]:
    """Returns the sum of the gradients of all virtual replicas: the same bits however they are spread over replicas.

    Call it in a replica context (inside `strategy.run`) on all replicas with the same shapes, or without a strategy.
    Apply the result with an optimizer that does not sum over replicas again: see `without_all_reduce`.

    Args:
      gradients: per variable, float32 (n, *shape): one for each of this replica's n virtual replicas.
      num_summands: V, the virtual replicas of all replicas; below 2^38.

    Returns:
      Per variable, float32 (*shape). All values of a variable are NaN if one of its summands is NaN or infinite.

    Raises:
      UsageError: the replicas together have another number of summands, or they are not float32.
    """
    _check(gradients, num_summands)
    compiled = functools.partial(_compiled_where_it_pays, gradients)
    shift = _BITS - math.ceil(math.log2(max(2, num_summands)))
    exponents = tf.maximum(_max_over_replicas(compiled(_exponents)(gradients)), shift + _LEAST_NORMAL + 1)
    total = _sum_over_replicas(compiled(_to_integers)(gradients, exponents, shift))
    return compiled(_from_integers)(total, exponents, shift, [gradient.shape[1:] for gradient in gradients])


def _check(gradients: Sequence[tf.Tensor], num_summands: int) -> None:
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    for gradient in gradients:
        if not tf.is_tensor(gradient) or gradient.dtype != tf.float32:
            raise UsageError(f"gradients: each must be a float32 tensor, one of them is {gradient!r}")
        if gradient.shape.rank == 0 or gradient.shape[0] * replicas != num_summands:
            raise UsageError(
                f"num_summands={num_summands}: a gradient of shape {tuple(gradient.shape)} on each of "
                f"{replicas} replicas has another number of summands"
            )


def without_all_reduce(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer, changed to apply gradients as they are, such as those that `sum_gradients` returns.

    Under a strategy, Keras' optimizers sum the gradients over all replicas before they apply them.

    Raises:
      PipelineError: this release of Keras sums them in another way.
    """
    if not hasattr(optimizer, _ALL_REDUCE):
        raise PipelineError(f"Keras {keras.__version__}: its optimizers have no {_ALL_REDUCE}; use another release")
    optimizer.__dict__[_ALL_REDUCE] = list
    return optimizer


def keep_order_of_sums() -> None:
    """Has TensorFlow sum three tensors and more in the order of the graph, in each function that is called from now on.

    Otherwise Grappler adds each of them as soon as it is computed, where a function seems to need four fifths of its
    device's memory; a CPU is taken to have 256 MiB. Then the bits of a sum, such as the gradient of a layer that is
    used three times, differ from step to step, even under op determinism.
    """
    eager = context.context()
    settings = tf.compat.v1.ConfigProto()
    if eager._config is not None:
        settings.CopyFrom(eager._config)
    options = settings.graph_options.rewrite_options
    # All that the default does, but for its "scheduling"; tf.config.optimizer has no option for it.
    options.memory_optimization = options.SWAPPING_HEURISTICS
    eager._config = settings
    eager.function_call_options = None  # they are made of the settings once, for each thread


def _compiled_where_it_pays(gradients: Sequence[tf.Tensor], function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function; on CPUs, with many summands, compiled by XLA to one pass over them.

    The computations here are exact except for one rounding, so that both ways give the same bits.
    """
    many = sum(gradient.shape.num_elements() for gradient in gradients) >= _WORTH_COMPILING
    if not many or tf.config.list_logical_devices("GPU"):
        return function
    return _compiled(function)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = tf.function(function, autograph=False, jit_compile=True)
    return compiled


def _exponents(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns per variable the least e such that all its summands are below 2^e; int32 (variables,).

    NaN and infinity have an exponent above that of all finite numbers.
    """
    # Without the sign, the bits of floats are ordered like the numbers, with infinity and NaN at the top.
    magnitudes = [tf.bitwise.bitwise_and(tf.bitcast(gradient, tf.int32), tf.int32.max) for gradient in gradients]
    fields = [tf.cast(tf.bitwise.right_shift(values, _MANTISSA_BITS), tf.float32) for values in magnitudes]
    largest = tf.stack([tf.reduce_max(values) for values in fields])  # as float32: GPUs reduce no int32
    return tf.cast(largest, tf.int32) - _EXPONENT_BIAS


def _powers_of_two(powers: tf.Tensor) -> list[tf.Tensor]:
    """Returns the exact 2^p of each p, int32 (variables,), as float64 scalars."""
    bits = tf.bitwise.left_shift(tf.cast(powers, tf.int64) + _FLOAT64_BIAS, _FLOAT64_MANTISSA_BITS)
    return tf.unstack(tf.bitcast(bits, tf.float64))


def _to_integers(gradients: Sequence[tf.Tensor], exponents: tf.Tensor, shift: int) -> tf.Tensor:
    """Returns the sums over this replica's summands, int64 (values of all variables,)."""
    scaled = [
        tf.round(tf.cast(gradient, tf.float64) * scale)
        for gradient, scale in zip(gradients, _powers_of_two(shift - exponents), strict=True)
    ]
    return tf.concat([tf.reshape(tf.reduce_sum(tf.cast(values, tf.int64), axis=0), [-1]) for values in scaled], axis=0)


def _from_integers(
    total: tf.Tensor, exponents: tf.Tensor, shift: int, shapes: Sequence[tf.TensorShape]
) -> list[tf.Tensor]:
    parts = tf.split(total, [shape.num_elements() for shape in shapes])
    scales, is_finite = _powers_of_two(exponents - shift), tf.unstack(exponents < _EXPONENT - _EXPONENT_BIAS)
    sums = [tf.cast(tf.cast(part, tf.float64) * scale, tf.float32) for part, scale in zip(parts, scales, strict=True)]
    return [
        tf.reshape(tf.where(finite, values, math.nan), shape)
        for values, finite, shape in zip(sums, is_finite, shapes, strict=True)
    ]


def _max_over_replicas(values: tf.Tensor) -> tf.Tensor:
    """Returns the elementwise maximum. Replica contexts reduce by sums only, so that all values are gathered."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    # Between processes the gathered shape is not known.
    return tf.ensure_shape(tf.reduce_max(context.all_gather(values[None], axis=0), axis=0), values.shape)


def _sum_over_replicas(values: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def of_virtual_replicas(function: Callable[[tuple[Any, ...]], Any], rows: tuple[Any, ...]) -> Any:
    """Returns the results of a function for each of this replica's virtual replicas, stacked, in their structure.

    The idea is that of VirtualFlow (Or, Zhang, Freedman, MLSys 2022) and EasyScale (Li et al., SC 2023): virtual
    replica v always has rows [vG/V, (v+1)G/V) of the batch, and replica r runs V/R of them one after another. All begin
    with the same weights and moving statistics. BatchNorm normalises over a virtual replica's rows ("ghost batch norm",
    Hoffer et al. 2017), and dropout draws from a hash of (seed, step, v).

    A replica computes its virtual replicas one at a time, so that only the activations of one of them are in memory.

    Args:
      function: takes a virtual replica's part of `rows`, and returns a structure of float32 tensors.
      rows: a structure of tensors whose first axis is this replica's virtual replicas.
    """
    structure: list[Any] = []  # of the function's results, known once it has been traced

    def flat(batch: tuple[Any, ...]) -> list[tf.Tensor]:
        given = function(batch)
        structure.append(given)
        return tf.nest.flatten(given)

    stacked = _mapped(flat, rows)
    return tf.nest.pack_sequence_as(structure[0], stacked)


def sum_virtual_replicas(stacked: Any, num_virtual: int) -> Any:
    """Returns the sum of what `of_virtual_replicas` returns on all replicas. Call it in a replica context.

    Args:
      stacked: on each replica in the same structure.
      num_virtual: V, over all replicas.
    """
    return tf.nest.pack_sequence_as(stacked, sum_gradients(tf.nest.flatten(stacked), num_virtual))


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
