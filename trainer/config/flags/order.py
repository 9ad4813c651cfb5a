"""Which examples are in the batch of which step."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from pipeline.order import order
from trainer.config.flags.checks import check_least, check_name

_MOST_ROWS = 1 << 24  # of a step: 16.7 million, more than any memory holds of images
_SEEDS = 1 << 32  # that Keras, and so NumPy, take


@dataclasses.dataclass(frozen=True)
class OrderFlags:
    """Which examples are in the batch of which step."""

    global_batch_size: int = 100  # rows of a step over all replicas
    virtual_replicas: int | None = None  # V: the same weights, to the bit, on any number of replicas that divides V
    cpu_threads: int = 8  # of an operation on CPUs under --virtual_replicas: kernels split sums by it, not by the cores
    seed: int = 0  # of the weights, the order and the distortions
    streams: int | None = None  # K of the order (None: 1 where the decoded split fits --shuffle_bytes)
    shuffle_bytes: int = order.SHUFFLE_BYTES  # decoded bytes that are shuffled together, over all streams
    remainder: str = "pad"  # the last batch of an epoch: pad it (weight 0) or drop it
    prefetch: int = 2  # batches held ready for every replica
    allow_order_change: bool = False  # resume although the order of examples differs from the checkpoint's

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_name("remainder", self.remainder, order.REMAINDERS)
        check_least(self, 1, "global_batch_size", "virtual_replicas", "cpu_threads", "streams", "shuffle_bytes")
        check_least(self, 0, "seed", "prefetch")
        if self.global_batch_size > _MOST_ROWS:
            raise UsageError(f"--global_batch_size={self.global_batch_size}: must be {_MOST_ROWS} or less")
        if self.seed >= _SEEDS:
            raise UsageError(f"--seed={self.seed}: must be below {_SEEDS}")
        if self.streams is not None:
            order.check_streams(self.global_batch_size, self.streams)
