"""Positions per second of the order, on one core, and as a ratio to NumPy's own permutation of the same sizes.

    python -m benchmarks.order_throughput [--records=4000000]

An epoch of the order is the plan of each of its windows, made with NumPy: what is read, hashed and sorted, and the rows
of every step. NumPy's side is `Generator.permutation` of each window, with one generator for all. Rounds alternate, so
that a change of the machine's speed affects both; the ratio is computed per round, and its median is printed.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks import commands
from benchmarks.rounds import ratio_text
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.order.feed import make_feed
from pipeline.order.order import Order

COMMAND = "benchmarks.order_throughput"
WINDOWS = (1 << 14, 1 << 17, 1_000_000)  # records
_STREAMS = 4
_SHARD = 5_000  # records


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    records: int = flag(4_000_000, "records per epoch, rounded to whole windows in each of 4 streams", least=1)
    rounds: int = flag(5, "rounds of each", least=1)

    def __post_init__(self) -> None:
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per window size."""
    config = commandline.parse(COMMAND, "Measure the order against NumPy's permutation.", BenchmarkConfig, argv)
    commands.say_processor()
    for size in WINDOWS:
        compare(config, size)


def compare(config: BenchmarkConfig, size: int) -> None:
    """Measures epochs of windows of `size` records and prints the medians and the ratio."""
    windows = max(1, round(config.records / _STREAMS / size))
    total = _STREAMS * windows * size
    counts = (*(_SHARD,) * (total // _SHARD), total % _SHARD)
    order = Order(counts, _STREAMS * 64, _STREAMS, windows, "pad", 0, training=True)
    random = np.random.default_rng(0)
    feed = make_feed(order, None)
    feed.plan(0, 0)  # allocates the memory
    rates = []
    for epoch in range(config.rounds):
        start = time.perf_counter()
        for window in range(windows):
            feed.plan(epoch, window)
        middle = time.perf_counter()
        for _ in range(_STREAMS * windows):
            random.permutation(size)
        rates.append((total / (middle - start), total / (time.perf_counter() - middle)))
    mine, other = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        f"{total:,} records in windows of {size:,}: {mine:,.0f} positions/s against {other:,.0f} of NumPy's "
        f"permutation: {ratio_text([one / two for one, two in rates])}",
        flush=True,
    )


if __name__ == "__main__":
    commandline.run(COMMAND, main)
