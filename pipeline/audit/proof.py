"""Proves that an order is the contract's, whatever the topology: its records, its windows and their size.

`pipeline.order.feed` is what the input evaluates. Here the same code is evaluated with NumPy and compared with
`pipeline.audit.contract`.
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from pipeline.audit.claims import Check, Fault
from pipeline.audit.contract import Contract
from pipeline.commands.text import count_of, range_of
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed, make_feed
from pipeline.resolved import ResolvedRequest

_BLOCK = 1 << 18  # windows that are looked at together


def order_checks(source: ResolvedRequest, contract: Contract) -> list[Check]:
    """Returns the checks of an ordered split against its contract."""
    feed = make_feed(source.order, None, NumpyArrays())  # all rows, as one replica
    return [
        ("the order is that of the manifest's records", lambda: _check_order(source, contract)),
        ("every position is in one window of one stream", lambda: _check_windows(feed, contract)),
        ("a window fits its part of shuffle_bytes", lambda: _check_memory(feed, source)),
    ]


def _check_order(source: ResolvedRequest, contract: Contract) -> str:
    order = source.order
    for i, (own, count) in enumerate(zip_longest(order.counts, contract.counts)):
        if own != count:
            raise Fault(f"shard {i}: the order has {own} of its records, the manifest {count}")
    for name in ("num_records", "rows_per_stream", "windows", "steps_per_epoch"):
        found, wanted = getattr(order, name), getattr(contract, name)
        if found != wanted:
            raise Fault(f"{name} is {found}, but must be {wanted}")
    rows = contract.steps_per_epoch * contract.global_batch_size
    dropped = contract.num_records - contract.records_fed
    return (
        f"{count_of(len(contract.counts), 'shard')}, {count_of(contract.num_records, 'record')}; "
        f"{count_of(contract.steps_per_epoch, 'step')} of {count_of(contract.global_batch_size, 'row')}: "
        f"{contract.records_fed:,} real, {rows - contract.records_fed:,} padding"
        + (f", {dropped:,} records dropped" if dropped else "")
    )


def _check_windows(feed: Feed, contract: Contract) -> str:
    sizes: list[int] = []
    block = max(1, _BLOCK // contract.streams)
    starts, stops = np.array([contract.stream_bounds(k) for k in range(contract.streams)]).T
    for first in range(0, contract.windows, block):
        numbers = np.arange(first, min(first + block, contract.windows))[:, None]
        begin, end = feed.window_bounds(numbers)
        wanted = (starts + w * (stops - starts) // contract.windows for w in (numbers, numbers + 1))
        for verb, found, want in zip(("begin", "end"), (begin, end), wanted, strict=True):
            wrong = np.argwhere(found != want) if found.shape == want.shape else np.zeros((1, 2), int)
            if wrong.size:
                w, k = wrong[0].tolist()
                at, must = found[w, k], f"must {verb} at {want[w, k]}"
                raise Fault(f"window {first + w} of stream {k} {verb}s at position {at}, {must}")
        sizes += [(end - begin).min(), (end - begin).max()]
    return (
        f"{count_of(contract.streams, 'stream')} of {range_of(stops - starts)} positions, "
        f"{count_of(contract.windows, 'window')} each, of {range_of(sizes)} records"
    )


def _check_memory(feed: Feed, source: ResolvedRequest) -> str:
    spec = source.spec
    most, pool = feed.window_records * spec.record_bytes, spec.shuffle_bytes // spec.streams * spec.streams
    if most > pool:
        raise Fault(f"the largest windows take {most} decoded bytes together, more than {pool}")
    return f"the largest take at most {most:,} of {pool:,} decoded bytes together"
