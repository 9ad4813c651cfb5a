"""How much is replayed: bounded work and memory, whatever the size of the epoch, of a window or of a batch."""

from __future__ import annotations

from pipeline.audit.claims import NotCheckedError
from pipeline.audit.topology import Topology
from pipeline.commands.text import size_of
from pipeline.errors import UsageError
from pipeline.order.order import Order
from pipeline.read import memory

BUDGET = 1 << 24  # records that are replayed, about 4 seconds; an epoch with no more is replayed as a whole
_BYTES = 160  # of memory per record or row that is replayed at once, measured: 75 to 150


def part_size(order: Order, topology: Topology) -> int:
    """Returns the records or rows of the least that can be replayed: a worker's window, or its rows of one step."""
    width, rows = order.rows_per_stream, topology.worker_rows()
    streams = int((-(-rows[:, 1] // width) - rows[:, 0] // width).max())
    longest = -(-order.num_records // order.streams)
    return max(streams * -(-longest // order.windows), topology.global_batch_size // topology.workers)


def check_part(size: int) -> None:
    """Raises NotCheckedError where a part is too large to be replayed without --exhaustive."""
    if size > BUDGET:
        raise NotCheckedError(
            f"a worker's window or step has {size:,} records, more than the {BUDGET:,} that are replayed at most; "
            "--exhaustive replays it"
        )


def check_memory(order: Order, topology: Topology) -> None:
    """Raises UsageError where this machine has too little memory to replay every window."""
    size = part_size(order, topology)
    needed, limit = size * _BYTES, memory.available()
    if needed > limit:
        raise UsageError(
            f"--exhaustive: a worker's window or step has {size:,} records; replaying it takes about "
            f"{size_of(needed)} of memory, and this machine has {size_of(limit)}; leave --exhaustive out"
        )
