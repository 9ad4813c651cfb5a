"""Sums over replicas whose bits do not depend on the distribution of the summands over the replicas.

Floating-point addition rounds, so a sum depends on its order, and the order on the number of replicas. A sum of
integers does not. So the summands are converted to integers first: per variable, the largest magnitude of all summands
on all replicas gives an exponent e (a maximum is the same in any order), and each summand x becomes round(x * 2^(62 -
ceil(log2 V) - e)) as int64, which has room for V of them. This is reproducible summation (Demmel and Nguyen, "Parallel
reproducible summation", IEEE Transactions on Computers 64, 2015) with one bin. It is also more accurate than a float32
sum: the error of each summand is at most 2^-(62 - ceil(log2 V)) of the largest one. Magnitudes below 2^-126 count as 0,
since whether a kernel flushes them to 0 depends on the thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from pipeline.errors import PipelineError, UsageError
from trainer.runtime import context

_Summands: TypeAlias = "tf.Tensor | Sequence[tf.Tensor]"  # of a variable: (n, *shape), or n times (*shape)
_ALL_REDUCE = "_all_reduce_sum_gradients"  # attribute of Keras' optimizers under tf.distribute
_BITS = 62  # bits of the sum
_EXPONENT, _EXPONENT_BIAS, _MANTISSA_BITS = 0xFF, 126, 23  # float32's: |x| < 2^(exponent - 126)
_LEAST_NORMAL = -126  # 2^-126 is the smallest normal float32
_FLOAT64_BIAS, _FLOAT64_MANTISSA_BITS = 1023, 52
_WORTH_COMPILING = 1 << 18  # number of summands on a CPU from which the time saved makes up for the second of compiling


def sum_gradients(gradients: Sequence[tf.Tensor], num_summands: int) -> list[tf.Tensor]:
    """Returns the sum of all virtual replicas' gradients: the same bits for any distribution over replicas.

    Call it in a replica context (inside `strategy.run`) on all replicas with the same shapes, or without a strategy.
    Apply the result with an optimizer that does not sum over replicas again; see `without_all_reduce`.

    Args:
      gradients: gradients of each variable, float32 (n, *shape), one for each of this replica's n virtual replicas.
      num_summands: number of virtual replicas on all replicas, V; below 2^38.

    Returns:
      The sum for each variable, float32 (*shape); all NaN if one of its summands is NaN or infinite.

    Raises:
      UsageError: the replicas together have a different number of summands, or the summands are not float32.
    """
    _check(gradients, num_summands)
    # As separate tensors, XLA adds whole rows; along an axis it would sum one element at a time.
    apart = _is_compiled(gradients)
    return _sum([tf.unstack(gradient) if apart else gradient for gradient in gradients], num_summands, apart)


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
    """Returns the optimizer, changed to apply gradients as they are, such as those from `sum_gradients`.

    Under a strategy, Keras' optimizers sum the gradients over all replicas before they apply them.

    Raises:
      PipelineError: this release of Keras sums gradients in another way.
    """
    if not hasattr(optimizer, _ALL_REDUCE):
        raise PipelineError(f"Keras {keras.__version__}: its optimizers have no {_ALL_REDUCE}; use another release")
    optimizer.__dict__[_ALL_REDUCE] = list
    return optimizer


def keep_order_of_sums() -> None:
    """Makes TensorFlow sum three or more tensors in graph order, in every function called from now on.

    Otherwise Grappler adds each tensor as soon as it is computed if a function seems to need four fifths of its
    device's memory, and it assumes 256 MiB for a CPU. Then the bits of a sum, such as the gradient of a layer that is
    used three times, differ from step to step, even under op determinism.
    """
    eager = context.context()
    settings = tf.compat.v1.ConfigProto()
    if eager._config is not None:
        settings.CopyFrom(eager._config)
    options = settings.graph_options.rewrite_options
    # Everything that the default does except its "scheduling"; tf.config.optimizer has no option for this.
    options.memory_optimization = options.SWAPPING_HEURISTICS
    eager._config = settings
    eager.function_call_options = None  # cached per thread; resetting it rebuilds it from the settings


def _sum(variables: Sequence[_Summands], num_summands: int, is_compiled: bool) -> list[tf.Tensor]:
    """Returns for each variable the sum of its summands on all replicas; see `sum_gradients`."""
    shift = _BITS - math.ceil(math.log2(max(2, num_summands)))
    compiled = _compiled if is_compiled else lambda function: function
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    if replicas == 1:
        total: list[tf.Tensor] = compiled(_sum_here)(variables, shift)
        return total
    exponents = _of_all_replicas(compiled(_exponents)(variables), replicas)
    integers = compiled(_packed_integers)(variables, exponents, shift)
    integers = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, integers)
    shapes = tuple(tuple(summands[0].shape) for summands in variables)
    unpacked: list[tf.Tensor] = compiled(_unpacked_sums)(integers, exponents, shift, shapes)
    return unpacked


def _is_compiled(tensors: Sequence[tf.Tensor]) -> bool:
    """Returns whether XLA compiles the sums: on GPUs, and on CPUs if there are many summands.

    The computations are exact except for one rounding, so both ways give the same bits. Compiled, they pass over the
    summands twice. Uncompiled on a GPU, each operation would need its own launch.
    """
    many = sum(tensor.shape.num_elements() for tensor in tensors) >= _WORTH_COMPILING
    return many or bool(tf.config.list_logical_devices("GPU"))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = tf.function(function, autograph=False, jit_compile=True)
    return compiled


def _of_all_replicas(values: tf.Tensor, replicas: int) -> tf.Tensor:
    """Returns every replica's vector, (replicas, n). A sum takes one all-reduce, a gather would take two."""
    context = tf.distribute.get_replica_context()
    # float32, since GPUs compare int32 in host memory.
    own = tf.equal(tf.constant([*range(replicas)], tf.float32), tf.cast(context.replica_id_in_sync_group, tf.float32))
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(own, tf.float32)[:, None] * values)


def _sum_here(variables: Sequence[_Summands], shift: int) -> list[tf.Tensor]:
    exponents = _common(_exponents(variables)[None], shift)
    return _from_integers(_to_integers(variables, exponents, shift), exponents, shift)


def _packed_integers(variables: Sequence[_Summands], exponents: tf.Tensor, shift: int) -> tf.Tensor:
    """Returns the sums over this replica's summands, int64 (values of all variables,)."""
    sums = _to_integers(variables, _common(exponents, shift), shift)
    return tf.concat([tf.reshape(values, [-1]) for values in sums], axis=0)


def _unpacked_sums(
    total: tf.Tensor, exponents: tf.Tensor, shift: int, shapes: Sequence[tuple[int, ...]]
) -> list[tf.Tensor]:
    # float64, since GPUs cannot split int64.
    parts = tf.split(tf.cast(total, tf.float64), [math.prod(shape) for shape in shapes])
    shaped = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
    return _from_integers(shaped, _common(exponents, shift), shift)


def _exponents(variables: Sequence[_Summands]) -> tf.Tensor:
    """Returns for each variable the smallest e such that all its summands are below 2^e; float32 (variables,).

    The exponent of NaN and infinity is above that of all finite numbers.
    """
    largest = [tf.reduce_max(_combined(summands, _fields, tf.maximum)) for summands in variables]
    return tf.stack(largest) - _EXPONENT_BIAS


def _fields(values: tf.Tensor) -> tf.Tensor:
    """Returns the exponent bits, float32, which sort like magnitudes, with infinity and NaN at the top."""
    magnitudes = tf.bitwise.bitwise_and(tf.bitcast(values, tf.int32), tf.int32.max)
    # float32, since outside XLA, GPUs neither compare nor reduce int32.
    return tf.cast(tf.bitwise.right_shift(magnitudes, _MANTISSA_BITS), tf.float32)


def _combined(
    summands: _Summands, function: Callable[[tf.Tensor], tf.Tensor], both: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Applies a function to the summands; if they are separate tensors, to each, combining results in pairs."""
    if tf.is_tensor(summands):
        return function(summands)
    return functools.reduce(both, map(function, summands))


def _common(exponents: tf.Tensor, shift: int) -> tf.Tensor:
    """Returns the exponents of the sums, (variables,), given each replica's, (replicas, variables)."""
    return tf.maximum(tf.reduce_max(exponents, axis=0), shift + _LEAST_NORMAL + 1)


def _powers_of_two(powers: tf.Tensor) -> list[tf.Tensor]:
    """Returns the exact 2^p for each p, float32 (variables,), as float64 scalars."""
    bits = tf.bitwise.left_shift(tf.cast(powers, tf.int64) + _FLOAT64_BIAS, _FLOAT64_MANTISSA_BITS)
    return tf.unstack(tf.bitcast(bits, tf.float64))


def _to_integers(variables: Sequence[_Summands], exponents: tf.Tensor, shift: int) -> list[tf.Tensor]:
    """Returns for each variable the sum over this replica's summands, int64 (*shape)."""

    def total(summands: _Summands, scale: tf.Tensor) -> tf.Tensor:
        def integers(values: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.round(tf.cast(values, tf.float64) * scale), tf.int64)

        found = _combined(summands, integers, tf.add)
        return tf.reduce_sum(found, axis=0) if tf.is_tensor(summands) else found

    scales = _powers_of_two(shift - exponents)
    return [total(summands, scale) for summands, scale in zip(variables, scales, strict=True)]


def _from_integers(sums: Sequence[tf.Tensor], exponents: tf.Tensor, shift: int) -> list[tf.Tensor]:
    """Returns for each variable the sum as float32, rounded from its integers in int64 or float64."""
    scales, is_finite = _powers_of_two(exponents - shift), tf.unstack(exponents < _EXPONENT - _EXPONENT_BIAS)
    return [
        tf.where(finite, tf.cast(tf.cast(values, tf.float64) * scale, tf.float32), math.nan)
        for values, scale, finite in zip(sums, scales, is_finite, strict=True)
    ]


def of_virtual_replicas(function: Callable[[tuple[Any, ...]], Any], rows: tuple[Any, ...]) -> list[Any]:
    """Returns the results of a function for each of this replica's virtual replicas.

    The idea comes from VirtualFlow (Or, Zhang, Freedman, MLSys 2022) and EasyScale (Li et al., SC 2023): virtual
    replica v always has rows [vG/V, (v+1)G/V) of the batch, and each of the R replicas runs V/R of them one by one. All
    start with the same weights and moving statistics. BatchNorm normalises over a virtual replica's rows ("ghost batch
    norm", Hoffer et al. 2017), and dropout draws from a hash of (seed, step, v).

    A replica computes one virtual replica at a time on a GPU, and two on a CPU, since the few rows of one do not keep
    all cores busy. So memory only holds the activations of these. It calls one function V/R times, so that TensorFlow's
    optimisations of the function depend neither on V/R nor on the consumers of its results.

    Args:
      function: function from a virtual replica's part of `rows` to a structure of float32 tensors.
      rows: structure of tensors whose first axis is this replica's virtual replicas.
    """
    of_one = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    results: list[Any] = []
    at_once = 1 if tf.config.list_logical_devices("GPU") else 2
    for number in range(tf.nest.flatten(rows)[0].shape[0]):
        part = tf.nest.map_structure(lambda values, number=number: values[number], rows)
        before = results[-at_once] if number >= at_once else []
        with tf.control_dependencies(tf.nest.flatten(before, expand_composites=True)):
            results.append(of_one(part))
    return results


def sum_virtual_replicas(results: Sequence[Any], num_virtual: int) -> Any:
    """Returns the sum of the results of `of_virtual_replicas` on all replicas. Call it in a replica context.

    Args:
      results: results of this replica's virtual replicas; every replica has the same number and structure.
      num_virtual: number of virtual replicas on all replicas, V.
    """
    flat = [tf.nest.flatten(result) for result in results]
    is_compiled = _is_compiled([value for values in flat for value in values])
    variables = [list(values) if is_compiled else tf.stack(values) for values in zip(*flat, strict=True)]
    return tf.nest.pack_sequence_as(results[0], _sum(variables, num_virtual, is_compiled))
