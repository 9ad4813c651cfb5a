"""How often a job reads its data: a stream is read by every worker that has rows of it."""

from __future__ import annotations

import math

from pipeline.order.counts import divisors
from pipeline.order.order import Order, OrderSpec


def times_read(streams: int, workers: int) -> float:
    """Returns how often all workers together read the split in an epoch: 1 where no stream is shared.

    Workers and streams cut the global batch at W - 1 and K - 1 rows, of which gcd(W, K) - 1 are the same, so that there
    are W + K - gcd(W, K) pairs of a worker and a stream that it reads.
    """
    return (workers + streams - math.gcd(workers, streams)) / streams


def streams_read_once(global_batch_size: int, streams: int, workers: int) -> int:
    """Returns the number of streams, nearest to K, of which each belongs to one worker; W must divide G."""
    return min((workers * k for k in divisors(global_batch_size // workers)), key=lambda k: (abs(k - streams), k))


def sharing_note(spec: OrderSpec, order: Order, workers: int) -> str | None:
    """Returns how often the split is read and the flags that make it once; None where it is, or is kept in memory."""
    times = times_read(spec.streams, workers)
    if times == 1 or not spec.training or (order.windows == 1 and order.streams == 1):
        return None
    better = streams_read_once(spec.global_batch_size, spec.streams, workers)
    needed = better * spec.record_bytes
    pool = f" --shuffle_bytes={needed}" if needed > spec.shuffle_bytes else ""
    return (
        f"{workers:,} workers with --streams={spec.streams} read the split {times:,.2f} times per epoch all together; "
        f"--streams={better}{pool} (another order) reads it once"
    )
