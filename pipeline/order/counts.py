"""Numbers that a user gives: whole ones, and those of replicas and streams, which divide the global batch."""

from __future__ import annotations

import math
import operator
from typing import Any

from pipeline.errors import UsageError

_INT64 = 1 << 63


def whole_number(name: str, value: Any, least: int = -_INT64) -> int:
    """Returns `value` as an int; NumPy's integers are accepted, truth values are not.

    Raises:
      UsageError: it is not a whole number, or not in least..2^63 - 1.
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


def check_replicas(global_batch_size: int, num_replicas: int) -> None:
    """Raises UsageError where R does not divide G, naming both and the nearest G that work."""
    if global_batch_size < 1:
        raise UsageError(f"global_batch_size={global_batch_size}: must be 1 or more")
    if global_batch_size % num_replicas:
        raise UsageError(
            f"global_batch_size={global_batch_size} is not divisible by {num_replicas} replicas; "
            f"nearest that work: {_nearest_multiples(global_batch_size, num_replicas)}"
        )


def check_virtual_replicas(global_batch_size: int, virtual_replicas: int, num_replicas: int) -> None:
    """Raises UsageError where R does not divide V, or V does not divide G, naming them and the nearest that work."""
    virtual_replicas = whole_number("virtual_replicas", virtual_replicas, 1)
    if global_batch_size % num_replicas:  # no V works
        common = divisors(math.gcd(virtual_replicas, global_batch_size))
        counts = sorted(sorted(common, key=lambda r: abs(r - num_replicas))[:2])
        raise UsageError(
            f"virtual_replicas={virtual_replicas}: the number of replicas, {num_replicas}, must divide it and "
            f"global_batch_size={global_batch_size}; nearest that work: {' and '.join(map(str, counts))}"
        )
    if global_batch_size % virtual_replicas or virtual_replicas % num_replicas:
        working = (num_replicas * each for each in divisors(global_batch_size // num_replicas))
        near = sorted(sorted(working, key=lambda v: abs(v - virtual_replicas))[:2])
        raise UsageError(
            f"virtual_replicas={virtual_replicas}: must divide global_batch_size={global_batch_size} and be a multiple "
            f"of the number of replicas, {num_replicas}; nearest that work: {' and '.join(map(str, near))}"
        )


def check_streams(global_batch_size: int, streams: int) -> None:
    """Raises UsageError where K does not divide G, naming both and the nearest K that work."""
    if global_batch_size < 1:
        raise UsageError(f"global_batch_size={global_batch_size}: must be 1 or more")
    if streams < 1 or global_batch_size % streams:
        near = sorted(sorted(divisors(global_batch_size), key=lambda k: (abs(k - streams), k))[:2])
        raise UsageError(
            f"streams={streams} does not divide global_batch_size={global_batch_size}; "
            f"nearest that work: {' and '.join(map(str, near))}"
        )


def check_pairs(recipe: str, global_batch_size: int, streams: int, num_replicas: int = 1) -> None:
    """Raises UsageError where rows are mixed in pairs, but a replica or a stream has an odd number of them.

    Args:
      recipe: what mixes, for the error.
      global_batch_size: G; R and K divide it.
      streams: K.
      num_replicas: R.
    """
    why = f"distort: {recipe} mixes pairs of rows of a replica and of a stream:"
    if global_batch_size % (2 * num_replicas):
        raise UsageError(
            f"{why} global_batch_size={global_batch_size} gives each of {num_replicas} replicas "
            f"{global_batch_size // num_replicas}, which is odd; nearest that work: "
            f"{_nearest_multiples(global_batch_size, 2 * num_replicas)}"
        )
    if global_batch_size % (2 * streams):
        near = sorted(sorted(divisors(global_batch_size // 2), key=lambda k: (abs(k - streams), k))[:2])
        raise UsageError(
            f"{why} streams={streams} gives each {global_batch_size // streams} of global_batch_size="
            f"{global_batch_size}, which is odd; nearest that work: {' and '.join(map(str, near))}"
        )


def divisors(value: int) -> set[int]:
    """Returns the divisors of a number; of one beyond 2^40 those up to 2^20, and what these leave."""
    found = [k for k in range(1, min(math.isqrt(value), 1 << 20) + 1) if value % k == 0]
    return {*found, *(value // k for k in found)}


def _nearest_multiples(value: int, divisor: int) -> str:
    below = value // divisor * divisor
    return " and ".join(str(v) for v in (below, below + divisor) if v > 0)
