"""Compares the window plans that TensorFlow makes with those that NumPy makes, element for element."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from pipeline.audit import budget
from pipeline.audit.claims import Check, Fault, NotCheckedError
from pipeline.audit.topology import Topology
from pipeline.commands import quiet
from pipeline.commands.text import count_of
from pipeline.errors import root_cause
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import Feed, make_feed
from pipeline.order.order import Order

_WORKERS, _WINDOWS = 2, 3  # compared: the first, the last, and between


def tensor_check(order: Order, epoch: int, topology: Topology) -> Check:
    """Returns the check of the plans as tensors."""
    return "TensorFlow makes the same plans as NumPy", lambda: _check(order, epoch, topology)


def _check(order: Order, epoch: int, topology: Topology) -> str:
    if importlib.util.find_spec("tensorflow") is None:
        raise NotCheckedError("TensorFlow is not installed here; only NumPy's plans were checked")
    part = budget.part_size(order, topology)
    budget.check_part(part)
    windows, count = _some(order.windows, max(1, min(_WINDOWS, budget.BUDGET // 4 // part))), 0
    with quiet.loading():
        import tensorflow as tf  # noqa: PLC0415

        from pipeline.order.tensors import TENSORS  # noqa: PLC0415, here because it loads TensorFlow
    try:
        with tf.device("CPU:0"):
            for worker in _some(topology.workers, _WORKERS):
                feeds = [make_feed(order, topology.shard(worker), arrays) for arrays in (NumpyArrays(), TENSORS)]
                for step in _some(order.steps_per_epoch, _WINDOWS):
                    where = f"worker {worker}: the first window of step {step}"
                    _compare(where, *(feed.first_window(step) for feed in feeds))
                for window in windows:
                    number = tf.constant(epoch * order.windows + window, tf.int64)
                    _compare_window(f"worker {worker}, window {window}", (epoch, window), number, *feeds)
                count += len(windows)
    except tf.errors.OpError as error:
        raise Fault(f"TensorFlow cannot make a plan: {root_cause(error.message)[1]}") from None
    return f"{count_of(count, 'window')} compared element for element"


def _compare_window(where: str, at: tuple[int, int], number: Any, own: Feed, other: Feed) -> None:
    epoch, window = at
    plans = own.plan(epoch, window), other.plan(*other.epoch_and_window(number))
    moved = [plan.with_contiguous_elements(feed.arrays) for plan, feed in zip(plans, (own, other), strict=True)]
    step = epoch * own.order.steps_per_epoch + int(own.steps_before(window)) + 1
    first = [int(feed.first_element(step, plans[0].epoch, window)) for feed in (own, other)]
    _compare(f"{where}: the first element of a run from step {step}", *first)
    for one, two in (plans, moved):
        for name in one._fields:
            _compare(f"{where}: {name}", getattr(one, name), getattr(two, name))


def _compare(what: str, own: Any, other: Any) -> None:
    own, other = np.asarray(own), np.asarray(other)
    if own.shape != other.shape:
        raise Fault(f"{what} has shape {other.shape} in TensorFlow, {own.shape} in NumPy")
    wrong = np.argwhere(own != other)
    if wrong.size:
        at = tuple(wrong[0].tolist())
        raise Fault(f"{what}{list(at) if at else ''} is {other[at]} in TensorFlow, {own[at]} in NumPy")


def _some(count: int, most: int) -> list[int]:
    return sorted({i * (count - 1) // max(1, most - 1) for i in range(most)})
