"""The division of the global batch between replicas, streams and workers; `Shard`, the share of one input pipeline."""

from __future__ import annotations

import dataclasses
import math
import operator
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from pipeline.errors import UsageError

SHUFFLE_BYTES = 1 << 30  # 1 GiB: MNIST, CIFAR and the like fit and are shuffled as a whole
REMAINDERS = ("pad", "drop")
_INT64 = 1 << 63


def whole_number(name: str, value: Any, least: int = -_INT64) -> int:
    """Returns `value` as an int. Accepts NumPy integers, but not bools.

    Raises:
      UsageError: `value` is not a whole number, or not in least..2^63 - 1.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{name}={value!r}: must be a whole number")
    if not least <= number < _INT64:
        bound = f"{least} or more" if number < least and least > -_INT64 else "in the range of a signed 64-bit integer"
        raise UsageError(f"{name}={value}: must be {bound}")
    return number


def truth_value(name: str, value: Any) -> bool:
    """Returns `value` as a bool. Accepts NumPy bools, but not numbers.

    Raises:
      UsageError: `value` is neither True nor False.
    """
    numpy = sys.modules.get("numpy")  # loaded if a value is of its types; an import would cost --help 0.1 s
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    raise UsageError(f"{name}={value!r}: must be True or False")


def check_replicas(global_batch_size: int, num_replicas: int) -> None:
    """Raises UsageError, with the nearest values of G that work, if R does not divide G."""
    if global_batch_size < 1:
        raise UsageError(f"global_batch_size={global_batch_size}: must be 1 or more")
    if global_batch_size % num_replicas:
        raise UsageError(
            f"global_batch_size={global_batch_size} is not divisible by {num_replicas} replicas; "
            f"nearest that work: {_nearest_multiples(global_batch_size, num_replicas)}"
        )


def check_virtual_replicas(global_batch_size: int, virtual_replicas: int, num_replicas: int) -> None:
    """Raises UsageError, with the nearest values that work, if R does not divide V or V does not divide G."""
    virtual_replicas = whole_number("virtual_replicas", virtual_replicas, 1)
    if global_batch_size % num_replicas:  # then no V works
        common = divisors(math.gcd(virtual_replicas, global_batch_size))
        raise UsageError(
            f"virtual_replicas={virtual_replicas}: the number of replicas, {num_replicas}, must divide it and "
            f"global_batch_size={global_batch_size}; nearest that work: {_nearest(common, num_replicas)}"
        )
    if global_batch_size % virtual_replicas or virtual_replicas % num_replicas:
        working = (num_replicas * each for each in divisors(global_batch_size // num_replicas))
        raise UsageError(
            f"virtual_replicas={virtual_replicas}: must divide global_batch_size={global_batch_size} and be a multiple "
            f"of the number of replicas, {num_replicas}; nearest that work: {_nearest(working, virtual_replicas)}"
        )


def check_streams(global_batch_size: int, streams: int) -> None:
    """Raises UsageError, with the nearest values of K that work, if K does not divide G."""
    if global_batch_size < 1:
        raise UsageError(f"global_batch_size={global_batch_size}: must be 1 or more")
    if streams < 1 or global_batch_size % streams:
        raise UsageError(
            f"streams={streams} does not divide global_batch_size={global_batch_size}; "
            f"nearest that work: {_nearest(divisors(global_batch_size), streams)}"
        )


def check_pairs(recipe: str, global_batch_size: int, streams: int, num_replicas: int = 1) -> None:
    """Raises UsageError if a recipe mixes pairs of rows and a replica or a stream has an odd number of rows.

    Args:
      recipe: recipe as text, for the error.
      global_batch_size: G; R and K divide it.
      streams: K.
      num_replicas: R.
    """
    why = f"augment: {recipe} mixes pairs of rows of a replica and of a stream:"
    if global_batch_size % (2 * num_replicas):
        raise UsageError(
            f"{why} global_batch_size={global_batch_size} gives each of {num_replicas} replicas "
            f"{global_batch_size // num_replicas}, which is odd; nearest that work: "
            f"{_nearest_multiples(global_batch_size, 2 * num_replicas)}"
        )
    if global_batch_size % (2 * streams):
        near = _nearest(divisors(global_batch_size // 2), streams)
        raise UsageError(
            f"{why} streams={streams} gives each {global_batch_size // streams} of global_batch_size="
            f"{global_batch_size}, which is odd; nearest that work: {near}"
        )


def divisors(value: int) -> set[int]:
    """Returns the divisors of a number; beyond 2^40, only divisors up to 2^20 and their cofactors."""
    found = [k for k in range(1, min(math.isqrt(value), 1 << 20) + 1) if value % k == 0]
    return {*found, *(value // k for k in found)}


def _nearest(working: Iterable[int], wanted: int) -> str:
    """Returns the two numbers that are nearest to the wanted one, as text."""
    return " and ".join(map(str, sorted(sorted(working, key=lambda n: (abs(n - wanted), n))[:2])))


def _nearest_multiples(value: int, divisor: int) -> str:
    below = value // divisor * divisor
    return " and ".join(str(v) for v in (below, below + divisor) if v > 0)


class InputContext(Protocol):
    """The attributes of `tf.distribute.InputContext` used here."""

    input_pipeline_id: int
    num_input_pipelines: int
    num_replicas_in_sync: int


@dataclasses.dataclass(frozen=True)
class Shard:
    """One input pipeline of several, for `distribute_datasets_from_function`, Horovod, JAX and the like.

    Attributes:
      index: number of this input pipeline, 0..count-1 (a Horovod or JAX rank).
      count: number of input pipelines in the job.
      local_replicas: number of replicas that each input pipeline feeds.
    """

    index: int
    count: int
    local_replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("index", "count", "local_replicas"):
            object.__setattr__(self, name, whole_number(f"Shard: {name}", getattr(self, name)))
        if self.count < 1 or not 0 <= self.index < self.count:
            raise UsageError(f"Shard(index={self.index}, count={self.count}): the index must be in 0..count-1")
        if self.local_replicas < 1:
            raise UsageError(f"Shard(local_replicas={self.local_replicas}): must be 1 or more")

    @property
    def num_replicas(self) -> int:
        """R, the number of replicas in the job."""
        return self.count * self.local_replicas

    def replica_rows(self, local_replica: int, global_batch_size: int) -> tuple[int, int]:
        """Returns the rows [start, stop) of the global batch that a local replica gets.

        Raises:
          UsageError: R does not divide the global batch.
        """
        check_replicas(global_batch_size, self.num_replicas)
        rows = global_batch_size // self.num_replicas
        start = (self.index * self.local_replicas + local_replica) * rows
        return start, start + rows


def as_shard(shard: Shard | InputContext | None) -> Shard | None:
    """Converts a `tf.distribute.InputContext` to a `Shard`; returns a `Shard` or None unchanged.

    Raises:
      UsageError: `shard` is neither, or the context's workers have unequal numbers of replicas.
    """
    if shard is None or isinstance(shard, Shard):
        return shard
    if not all(hasattr(shard, name) for name in InputContext.__annotations__):
        raise UsageError(f"shard={shard!r}: must be a Shard, such as Shard(0, 2), or a tf.distribute.InputContext")
    replicas, pipelines = shard.num_replicas_in_sync, shard.num_input_pipelines
    if replicas % pipelines:
        raise UsageError(f"{replicas} replicas on {pipelines} input pipelines: every one must feed the same number")
    return Shard(shard.input_pipeline_id, pipelines, replicas // pipelines)
