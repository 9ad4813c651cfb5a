"""Replays an input pipeline without reading: the records that its window plans feed, window by window, tail included.

What the reader and `tf.data` do with tensors (`pipeline.read`, `pipeline.batch.dataset`) is done here with record ids
in place of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipeline.audit.claims import Fault
from pipeline.audit.contract import I64, Bools
from pipeline.order.feed import Feed
from pipeline.order.window_plan import WindowPlan

NOT_READ = -1  # where a row holds no record


class Fed(NamedTuple):
    """The elements that a window feeds, in their order.

    Attributes:
      window: its number, counted over all epochs.
      records: int64 (elements, rows of a replica): record ids.
      real: bool (elements, rows of a replica): which have a weight.
      real_rows: int64 (elements,): what `weights="mean"` divides by.
    """

    window: int
    records: I64
    real: Bools
    real_rows: I64


def replay(feed: Feed, first_step: int, last_step: int) -> Iterator[Fed]:
    """Yields what each window of a run feeds, from its first global step to before its last.

    Raises:
      Fault: a plan contradicts itself.
    """
    tail = np.array([NOT_READ])
    for number in range(*map(int, feed.window_numbers(first_step, last_step))):
        epoch, window = feed.epoch_and_window(number)
        try:
            plan = feed.plan(epoch, window)
            ids = _read(feed, plan)
            found = _take(plan, ids, tail)
            # A reader that puts records where it is told gets this plan; it must feed the same.
            contiguous = plan.with_contiguous_elements(feed.arrays)
            _check_same(found, _take(contiguous, ids, tail), contiguous)
            first = int(feed.first_element(first_step, epoch, window))
        except (LookupError, ValueError) as error:  # of a plan that is wrong
            raise Fault(f"window {window} of epoch {epoch}: its plan cannot be carried out: {error}") from None
        except Fault as fault:
            raise Fault(f"window {window} of epoch {epoch}: {fault}") from None
        if not 0 <= first <= len(found[0]) == plan.num_elements:
            raise Fault(f"window {window} of epoch {epoch}: begins at element {first} of {len(found[0])}")
        yield Fed(number, found[0][first:], plan.real[first:], plan.real_rows[first:])
        tail = found[1]


def _read(feed: Feed, plan: WindowPlan) -> I64:
    """Returns the ids of the records that a plan reads, in this order, or a row without a record."""
    first = np.cumsum(feed.order.count_array) - feed.order.count_array
    pieces = [first[segment] + np.arange(start, stop) for segment, start, stop in plan.pieces.tolist()]
    ids = np.concatenate(pieces or [np.array([NOT_READ])])
    if len(ids) > feed.window_records:
        raise Fault(f"{len(ids)} records are read, more than the {feed.window_records} that memory is checked for")
    return ids


def _take(plan: WindowPlan, ids: I64, tail: I64) -> tuple[I64, I64]:
    """Returns the records of a plan's elements, and of the next window's tail; `ids` are those that are read."""
    rows = np.full(len(ids), NOT_READ)
    rows[plan.slots] = ids
    wrong = np.flatnonzero(rows != plan.records)
    if wrong.size and ids[0] != NOT_READ:
        raise Fault(f"row {wrong[0]} holds record {rows[wrong[0]]}, but its record id is {plan.records[wrong[0]]}")
    return _of_both(rows, tail, plan.take), _of_both(rows, tail, plan.next_tail)


def _of_both(rows: I64, tail: I64, index: I64) -> I64:
    """Returns rows of a window, or of its tail where they are negative; a run's first steps may want none."""
    return np.where(index < 0, tail[np.clip(-1 - index, 0, len(tail) - 1)], rows[np.maximum(index, 0)])


def _check_same(found: tuple[I64, I64], placed: tuple[I64, I64], plan: WindowPlan) -> None:
    for one, other in zip(found, placed, strict=True):
        wrong = np.argwhere(one != other)
        if wrong.size:
            at = tuple(wrong[0])
            raise Fault(f"record {one[at]} of element {at[0]} is record {other[at]} with contiguous elements")
    first, stop = plan.contiguous.tolist()
    rows = plan.take[first:stop].ravel()
    if not (0 <= first <= stop <= len(plan.take) and np.array_equal(rows, np.arange(len(rows)))):
        raise Fault(f"elements {first} to {stop - 1} do not have their rows one after the other")
    if not plan.real[first:stop].all():
        raise Fault(f"elements {first} to {stop - 1} have padding, and are given without weights")
