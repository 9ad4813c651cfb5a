"""The steps in which a record occurs, computed from the manifest alone; and a run's input, from its flags."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline import segments
from pipeline.errors import UsageError
from pipeline.files.paths import folder
from pipeline.manifest.sources import parse_sources
from pipeline.order.feed import make_feed
from pipeline.order.key_log import key_text
from pipeline.order.order import I64, Order
from pipeline.records.tf_example import keys_of
from pipeline.request import Request
from pipeline.resolved import ResolvedInput, ResolvedRequest


def options_of_run(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `Request` for a run's training input: its flags of the same names.

    The end of the run is left out, so that later steps can be shown as well.
    """
    own = {"augment_on", "epochs", "schedule"}  # --schedule is the learning rate's
    names = {field.name for field in dataclasses.fields(Request)} & flags.keys() - own
    found = {name: flags[name] for name in names} | {"schedule": flags.get("mixture_schedule") or ()}
    return {**found, "data_dir": parse_sources(flags["data_dir"]), "split": flags.get("train_split", "train")}


def phase_of(flags: Mapping[str, Any], step: int, steps_per_epoch: int) -> str | None:
    """Returns the phase of a run's step in words, `phase 2 of 3, from 10 epochs: ...`; None without phases.

    A phase inherits settings that it does not give from the previous one.
    """
    if not (found := segments.parse(flags.get("phases") or "")):
        return None
    number, held = segments.held_at(flags["phases"], step, steps_per_epoch, "--phases")
    said = ", ".join(f"{name}={value}" for name, value in held.items())
    return f"phase {number} of {len(found)}, from {found[number - 1].start}: {said}"


class Fed(NamedTuple):
    """A row that a record fills: global step, row of the global batch, replica, and whether it is padding."""

    step: int
    row: int
    replica: int
    is_padding: bool


def find_key(resolved: ResolvedInput, key: str) -> list[tuple[int, int]]:
    """Returns (source, record id) for each source that has a key, reading records until it is found.

    Raises:
      DataError: a shard is missing, cut short or corrupt.
      UsageError: no record has that key, or records have no keys.
    """
    first, places = "", []
    for source, part in enumerate(resolved.parts):
        key_feature = part.manifest.key_feature
        if key_feature is None:
            raise UsageError(f"--key={key}: the manifest of {os.fspath(part.request.folder)} has no keys")
        for record, found in enumerate(_keys(part, key_feature)):
            first = first or found
            if found == key:
                places.append((source, record))
                break
    if places:
        return places
    splits = " or ".join(dict.fromkeys(part.spec.split for part in resolved.parts))
    raise UsageError(f"--key={key}: no record of {splits} has it; the first one's is {first!r}")


def _keys(part: ResolvedRequest, key_feature: str) -> Iterator[str]:
    for segment in part.selection.segments:
        file = folder(part.request.folder) / segment.shard.file
        yield from map(key_text, keys_of(file, segment, key_feature))


def fed_in_epoch(resolved: ResolvedInput, source: int, record: int, epoch: int, replicas: int) -> list[Fed]:
    """Returns the rows that a record found by `find_key` fills in an epoch of its source, from the manifest alone."""
    part, total = resolved.parts[source], resolved.request.global_batch_size
    steps, found = part.order.steps_per_epoch, []
    for begin, records, real in _rows_of_epoch(part.order, epoch):
        for t, own in np.argwhere(records == record).tolist():
            if place := resolved.request.shares.place(source, epoch * steps + begin + t, own):
                step, row = place
                found.append(Fed(step, row, row * replicas // total, not real[t, own]))
    return found


def _rows_of_epoch(order: Order, epoch: int) -> Iterator[tuple[int, I64, NDArray[np.bool_]]]:
    """Yields (first step, records (steps, G), mask of real rows (steps, G)) for the steps of each window."""
    feed = make_feed(order, None)
    begin, tail = 0, np.zeros(0, np.int64)
    for window in range(order.windows):
        plan = feed.plan(epoch, window)
        # Rows of the tail are numbered -1, -2, ..., which NumPy counts from the end.
        records = np.concatenate([plan.records % order.num_stored, tail[::-1]])
        yield begin, records[plan.take], plan.real
        begin, tail = begin + len(plan.take), records[plan.next_tail]
