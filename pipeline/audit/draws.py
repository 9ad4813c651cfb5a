"""Checks an augmentation's random draws: new in each epoch, and the same for the same (seed, epoch, record).

It first checks the keys from which all draws are made, against `pipeline.audit.contract`, then the augmented rows. For
the recipes in `_RESTATED` it recomputes the draws as well: it crops and mirrors each row here from the stored image.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.content import rows_fed, unaugmented
from pipeline.audit.contract import Contract, draw, draw_key
from pipeline.audit.proof import Check, Fault
from pipeline.commands import quiet
from pipeline.commands.text import count_of, parse_calls
from pipeline.order.reading import Topology
from pipeline.order.views import View
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest, resolve
from pipeline.step_iterator import StepIterator

_RECORDS = 256  # records whose augmented rows are compared
_BATCH, _OTHER_BATCH = 32, 16  # batch rows; a row's augmentation must not depend on it
_TRIES = 12  # epochs and seeds to try if another epoch gives the same rows
_ENOUGH = 8  # if this many seeds give different rows, epochs should as well
_ROUNDING = 2e-5  # tolerance for floats from batches of different sizes

_RESTATED: dict[str, dict[str, Any]] = {
    "flip": {"prob": 0.5},
    "pad_crop_flip": {"pad": 4, "flip": True},
}  # recipes that may come first, with their defaults

_Rows = dict[int, NDArray[Any]]  # augmented rows by record id


def checks(source: ResolvedRequest, epochs: tuple[int, int], topology: Topology) -> list[Check]:
    """Returns the checks of the draws in two epochs; empty if nothing is drawn, or the user's own code draws."""
    recipe = _unmixed(source.request)
    if not source.order.training or not source.manifest.has_images or not recipe:
        return []
    augmented = dataclasses.replace(source.request, augment=recipe)

    keys, rows = (
        "every row's draws are made from the key of its seed, epoch and record",
        f"a record is augmented differently in each epoch, and the same when the epoch is repeated ({recipe})",
    )
    return [
        (keys, lambda: _check_keys(source, epochs, topology)),
        (rows, lambda: _check_rows(source, augmented, *epochs)),
    ]


def _unmixed(request: Request) -> str:
    """Returns the recipe without mixing: a mixed row has a different partner in each epoch, regardless of the draws."""
    text = request.augment if isinstance(request.augment, str) else ""
    if request.mixes:
        text = text.rpartition("|")[0]
    return "" if text.strip() == "none" else text.strip()


@quiet.logs()  # each dataset compiles its own functions, about which TensorFlow warns
def _check_keys(source: ResolvedRequest, epochs: tuple[int, int], topology: Topology) -> str:
    count = 0
    for worker in sorted({0, topology.workers - 1}):
        request = dataclasses.replace(unaugmented(source, topology, worker), augment=lambda images, keys: keys)
        contract = Contract.of(resolve(request))
        for epoch in epochs:
            step, expected = -1, np.zeros(0, np.uint64)
            for fed in rows_fed(request, epoch, topology, worker):
                if fed.step != step:
                    step, expected = fed.step, contract.draw_keys(fed.step)
                found = int(fed.values["image"])
                if found != expected[fed.row]:
                    raise Fault(f"{fed.where}: its key is {found:016x}, and must be {expected[fed.row]:016x}")
                count += 1
    return f"{count_of(count, 'key')} compared, of epochs {epochs[0]} and {epochs[1]}"


@quiet.logs()
def _check_rows(source: ResolvedRequest, augmented: Request, epoch: int, other: int) -> str:
    first = _augmented(augmented, epoch, _BATCH)
    again = _augmented(augmented, epoch, _OTHER_BATCH)
    for record, row in first.items():
        if not _is_same(row, again[record]):
            raise Fault(f"epoch {epoch}, {_name(source, record)}: is augmented in two ways in the same epoch")
    changed = _differences(first, _augmented(augmented, other, _BATCH))
    if not changed:
        _check_repeats(augmented, first, epoch, other)
    restated = "".join(_restated(source, augmented, number) for number in (epoch, other))
    return (
        f"{count_of(len(first), 'record')} of epochs {epoch} and {other} compared: {changed:,} look different; "
        f"epoch {epoch} again, in other batches: equal{restated}"
    )


def _restated(source: ResolvedRequest, augmented: Request, epoch: int) -> str:
    """Compares the first recipe's rows with rows made independently from the stored images; returns text about it."""
    (name, given), *_ = parse_calls(str(augmented.augment), "augment", "a recipe")
    if name not in _RESTATED or None in source.manifest.features["image"].shape:
        return ""
    own: dict[str, Any] = {**_RESTATED[name], **{key: value for key, value in given.items() if key in _RESTATED[name]}}
    arguments = ", ".join(f"{key}={value!r}" for key, value in own.items())
    as_pixels = f"{name}({arguments}{', normalize=False' if name == 'pad_crop_flip' else ''})"
    stored = _augmented(dataclasses.replace(augmented, augment=None), epoch, _BATCH)
    made = _augmented(dataclasses.replace(augmented, augment=as_pixels), epoch, _BATCH)
    for record, row in made.items():
        key = draw_key(source.spec.seed, epoch, record)
        image, flip_draw, prob = stored[record], 0, own.get("prob", 0.5)
        if name == "pad_crop_flip":
            pad, flip_draw, prob = int(own["pad"]), 2, 0.5 if own["flip"] else 0.0
            top, left = (int(draw(key, number) * np.float32(2 * pad + 1)) for number in (0, 1))
            padded = np.pad(image, [(pad, pad), (pad, pad), (0, 0)])
            image = padded[top : top + image.shape[0], left : left + image.shape[1]]
        if draw(key, flip_draw) < np.float32(prob):
            image = image[:, ::-1]
        if not np.array_equal(row, image):
            raise Fault(f"epoch {epoch}, {_name(source, record)}: {name} makes another row of it than its key draws")
    return f"; {name} restated for {count_of(len(made), 'row')} of epoch {epoch}"


def _check_repeats(augmented: Request, first: _Rows, epoch: int, other: int) -> None:
    """Raises Fault if rows that are equal in two epochs are equal in all, while other seeds give other rows.

    Rows may be equal by chance (few records, rare draws) or because nothing is drawn; most seeds then leave them equal,
    too.
    """
    by_seed = 0
    for tried in range(_TRIES):
        if by_seed + _TRIES - tried < _ENOUGH:
            return
        seed = dataclasses.replace(augmented, seed=augmented.seed + tried + 1)
        by_seed += bool(_differences(first, _augmented(seed, epoch, _BATCH)))
    if by_seed < _ENOUGH:
        return
    for n in range(1, _TRIES):
        if _differences(first, _augmented(augmented, max(epoch, other) + n, _BATCH)):
            return
    raise Fault(
        f"{count_of(len(first), 'record')}: augmented the same in epoch {epoch} as in {other} and {_TRIES - 1} more, "
        f"but differently by {by_seed} of {_TRIES} other seeds"
    )


def _augmented(request: Request, epoch: int, batch: int) -> _Rows:
    """Returns the augmented rows of up to `_RECORDS` records of an epoch.

    The input feeds a view of these records, so that every epoch has the same ones, however large the data set is.
    """
    own: dict[str, Any] = {
        "augment_on": "host",
        "weights": "mask",
        "record_ids": True,
        "features": (),
        "shard": None,
        "epochs": None,
    }
    some = View(request.where, limit=_RECORDS, classes=request.classes)
    view: dict[str, Any] = {**vars(some), "skip_steps": (), "schedule": ()}
    order: dict[str, Any] = {"global_batch_size": batch, "streams": 1, "remainder": "pad", "start_step": 0}
    small = dataclasses.replace(request, **own, **view, **order)
    steps = resolve(small).order.steps_per_epoch
    batches = StepIterator(**vars(dataclasses.replace(small, start_step=epoch * steps)))
    rows: _Rows = {}
    for images, _, weights, records in itertools.islice(batches, steps):
        real = zip(records.tolist(), images, weights, strict=True)
        rows |= {record: image for record, image, weight in real if weight > 0}
    return rows


def _differences(rows: _Rows, others: _Rows) -> int:
    return sum(not _is_same(row, others[record]) for record, row in rows.items())


def _is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    return one.shape == other.shape and np.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)


def _name(source: ResolvedRequest, record: int) -> str:
    file, row = source.selection.locate(record)
    return f"record {record} (row {row} of {file})"
