"""How many workers a job can have: their replicas divide the global batch, or the virtual replicas."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.errors import UsageError
from pipeline.order.sharding import divisors
from trainer.config.data import OrderFlags


def works(order: OrderFlags, num_workers: int, per_worker: int) -> bool:
    """Whether so many workers, with so many replicas each, can share a batch."""
    return divided(order) % (num_workers * per_worker) == 0


def divided(order: OrderFlags) -> int:
    """Returns the number that replicas have to divide."""
    return order.virtual_replicas or order.global_batch_size


def working(order: OrderFlags, candidates: Iterable[int], per_worker: int) -> list[int]:
    """Returns those of some numbers of workers that work."""
    return [count for count in candidates if works(order, count, per_worker)]


def check(order: OrderFlags, num_workers: int, per_worker: int) -> None:
    """Checks that so many workers can share a batch.

    Raises:
      UsageError: they cannot; it names the nearest numbers of workers that can.
    """
    if works(order, num_workers, per_worker):
        return
    counts = working(order, divisors(divided(order)), per_worker)
    near = sorted(sorted(counts, key=lambda n: (abs(n - num_workers), n))[:2])
    what = "virtual_replicas" if order.virtual_replicas else "global_batch_size"
    gpus = f" of {per_worker} GPUs each" if per_worker > 1 else ""
    nearest = f"; nearest that work: {' and '.join(map(str, near))}" if near else ""
    raise UsageError(f"--num_workers={num_workers}{gpus}: must divide --{what}={divided(order)}{nearest}")
