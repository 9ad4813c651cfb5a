"""Composes the `tf.data` pipeline: windows -> plan -> read -> tail -> steps -> batches.

AutoGraph converts nothing here: no code of ours needs it, and it takes seconds. (`user_function.as_given` converts the
user's functions.)
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.batch.groups import group_size
from pipeline.batch.numpy_plans import by_numpy
from pipeline.batch.replica_rows import cut, cut_numbers, joined_rows, slices, split
from pipeline.batch.resident_rows import ResidentRows
from pipeline.order.arrays import Number, NumpyArrays
from pipeline.order.feed import Feed
from pipeline.order.order import MAX_STEP, Order
from pipeline.order.window_plan import WindowPlan
from pipeline.read.window import RECORD_ID, Columns, WindowReader, empty_tail, gather_both, rows_of

_READY = 4  # elements made ahead: enough to hide the sorting of the next window's order
_READY_GROUPS = 2  # besides those that are being made
_COPIED = 16  # last elements of a window: keeping or prefetching these does not keep the window in memory


class _Window(NamedTuple):
    """A window.

    Attributes:
      plan: its plan.
      first: the number of its first element that is fed, int64: those before the run's first step are not.
      columns: what was read.
    """

    plan: WindowPlan
    first: tf.Tensor
    columns: Columns


@dataclasses.dataclass(frozen=True)
class Run:
    """What of an order is fed.

    Attributes:
      feed: the part of every global batch.
      first_step, last_step: global steps; MAX_STEP is without end.
      replicas: between how many each element is split, which makes it a tuple of what each gets; None: it is not.
    """

    feed: Feed
    first_step: int
    last_step: int
    replicas: int | None = None

    @property
    def num_elements(self) -> int:
        """Of the dataset, or tf.data's number for infinitely many."""
        if self.last_step == MAX_STEP:
            return int(tf.data.INFINITE_CARDINALITY)
        return (self.last_step - self.first_step) * self.feed.local_replicas

    @tf.autograph.experimental.do_not_convert
    def plans(self, contiguous: bool = False) -> tf.data.Dataset:
        """Returns (plan, first) of every window that is read, in order; `first` is as in `_Window`.

        Args:
          contiguous: whether records are read to where their elements need them.
        """

        def plan_of(number: Number) -> tuple[WindowPlan, Number]:
            epoch, window = self.feed.epoch_and_window(number)
            plan = self.feed.plan(epoch, window)
            plan = plan.with_contiguous_elements(self.feed.arrays) if contiguous else plan
            return plan, self.feed.first_element(self.first_step, epoch, window)

        is_numpy = isinstance(self.feed.arrays, NumpyArrays)
        planned = by_numpy(plan_of, self.feed.replica_rows) if is_numpy else plan_of
        return tf.data.Dataset.range(*self.feed.window_numbers(self.first_step, self.last_step)).map(planned)


@tf.autograph.experimental.do_not_convert
def resident(run: Run, batches: Batches, rows: ResidentRows) -> tf.data.Dataset:
    """Returns the elements of a run whose one window lies in memory.

    Args:
      run: what is fed.
      batches: how.
      rows: the whole selection.
    """
    size = group_size(run.feed, batches, rows.columns)
    between = run.replicas if size > 1 and not batches.weigh_whole_elements(rows.columns) else None

    def of_records(plan: WindowPlan, first: tf.Tensor) -> tuple[WindowPlan, tf.Tensor]:
        plan = plan._replace(take=tf.gather(plan.records, plan.take))
        return (cut(plan, between) if between else plan), first

    def elements_of(plan: WindowPlan, first: tf.Tensor) -> tf.data.Dataset:
        return _with_numbers(plan, first, plan.num_elements, size)

    def element(plan: WindowPlan, number: tf.Tensor) -> tuple:
        return batches.element(rows.take(plan.epoch, tf.gather(plan.take, number)), plan, number)

    def one(plan: WindowPlan, number: tf.Tensor) -> tuple:
        return split(element(plan, number), run.replicas)

    def group(plan: WindowPlan, first: tf.Tensor) -> tuple:
        numbers = _group(first, size, plan.num_elements)
        together = element(plan, cut_numbers(numbers, between) if between else numbers)
        return _joined(run, together, between, plan.num_elements - first)

    plans = run.plans().map(of_records).prefetch(1).flat_map(elements_of)
    if size == 1:
        return _finished(run, plans.map(one, num_parallel_calls=tf.data.AUTOTUNE))
    return _from_groups(run, plans.map(group, num_parallel_calls=tf.data.AUTOTUNE), between)


@tf.autograph.experimental.do_not_convert
def windowed(run: Run, batches: Batches, reader: WindowReader) -> tf.data.Dataset:
    """Returns the elements of a run that is read by windows; while one is consumed, the next is read."""

    def on_its_way(plan: WindowPlan, first: tf.Tensor) -> tuple[WindowPlan, tf.Tensor]:
        return plan._replace(pieces=reader.fetch_ahead(plan.pieces)), first

    def load(plan: WindowPlan, first: tf.Tensor) -> _Window:
        return _Window(plan, first, {RECORD_ID: plan.records, **reader.read(plan.pieces, plan.slots)})

    def with_tail(tail: Columns, loaded: _Window) -> tuple[Columns, tuple[_Window, Columns]]:
        return gather_both(loaded.columns, tail, loaded.plan.next_tail), (loaded, tail)

    def element(held: tuple[_Window, Columns], number: tf.Tensor) -> tuple:
        (plan, _, columns), tail = held

        def gathered() -> Columns:
            return gather_both(columns, tail, plan.take[number])

        if not reader.assigns_rows:
            return batches.element(gathered(), plan, number)
        first, stop = plan.contiguous[0], plan.contiguous[1]
        begin = (number - first) * run.feed.replica_rows
        side_by_side = lambda: rows_of(columns, begin, run.feed.replica_rows, copied=batches.alias_window)  # noqa: E731
        taken = tf.cond((first <= number) & (number < stop), side_by_side, gathered)
        return batches.element(taken, plan, number)

    def one(held: tuple[_Window, Columns], number: tf.Tensor) -> tuple:
        return split(element(held, number), run.replicas)

    def group(held: tuple[_Window, Columns], begin: tf.Tensor) -> tuple:
        (plan, _, columns), tail = held
        numbers, rows = _group(begin, size, plan.num_elements), run.feed.replica_rows
        first, stop = plan.contiguous[0], plan.contiguous[1]
        side_by_side = lambda: rows_of(columns, (begin - first) * rows, size * rows, copied=False)  # noqa: E731
        gathered = lambda: gather_both(columns, tail, tf.reshape(tf.gather(plan.take, numbers), [-1]))  # noqa: E731
        taken = tf.cond((first <= begin) & (begin + size <= stop), side_by_side, gathered)
        taken = {name: tf.reshape(column, [size, rows, *column.shape[1:]]) for name, column in taken.items()}
        return _joined(run, batches.element(taken, plan, numbers), None, plan.num_elements - begin)

    traced = tf.function(one, autograph=False)  # once for all its uses

    def numbered(loaded: _Window, tail: Columns) -> tf.data.Dataset:
        return _with_numbers((loaded, tail), loaded.first, loaded.plan.num_elements, size)

    def elements(loaded: _Window, tail: Columns) -> tf.data.Dataset:
        """The elements as they lie in the window, in its memory; one by one those that do not, and the last ones."""
        plan, first = loaded.plan, loaded.first

        def one_by_one(begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
            numbers = tf.data.Dataset.range(tf.maximum(begin, first), end)
            return numbers.map(lambda number: traced((loaded, tail), number))

        stop = tf.maximum(plan.contiguous[0], plan.contiguous[1] - _COPIED)
        whole = batches.stored(loaded.columns, plan, stop, run.feed.replica_rows)
        whole = slices(whole, run.replicas).skip(tf.maximum(first - plan.contiguous[0], 0))
        return one_by_one(first, plan.contiguous[0]).concatenate(whole).concatenate(one_by_one(stop, plan.num_elements))

    # While a window is consumed, the next one is read and the shards of the one after it are fetched.
    windows = run.plans(contiguous=reader.assigns_rows).map(on_its_way).prefetch(1).map(load)
    windows = windows.scan(empty_tail(windows.element_spec.columns), with_tail).prefetch(1)
    if batches.are_stored and reader.assigns_rows:
        return _finished(run, windows.flat_map(elements))
    size = group_size(run.feed, batches, windows.element_spec[0].columns) if reader.assigns_rows else 1
    windows = windows.flat_map(numbered)
    if size == 1:
        return _finished(run, windows.map(one, num_parallel_calls=tf.data.AUTOTUNE))
    return _from_groups(run, windows.map(group, num_parallel_calls=tf.data.AUTOTUNE), None)


@tf.autograph.experimental.do_not_convert
def unpadded(dataset: tf.data.Dataset, order: Order, epochs: int) -> tf.data.Dataset:
    """Returns the elements of an evaluation without the rows that fill the last step, in batches of `unpadded_rows`.

    Args:
      dataset: of whole epochs, in elements of `order.global_batch_size` rows.
      order: of the evaluation.
      epochs: how many.
    """
    count, full, sizes = order.num_records, order.global_batch_size, unpadded_rows(order)

    def real(number: tf.Tensor, element: tuple) -> tuple:
        rows = tf.minimum(count - number % order.steps_per_epoch * full, full)
        return tf.nest.map_structure(lambda component: component[:rows], element)

    return (
        dataset.enumerate()
        .map(real, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .rebatch(sizes)
        .apply(tf.data.experimental.assert_cardinality(epochs * len(sizes)))
        .prefetch(_READY)
    )


def unpadded_rows(order: Order) -> list[int]:
    """Returns the rows of each batch of an epoch where nothing is padding.

    What is left for the last batch may be fewer rows than there are replicas, of which one would get none: that breaks
    convolutions and BatchNorm. Then the batch before gives some of its rows. All but the last are multiples of a power
    of two, since Keras builds a model from the first batch, and cannot where replicas get different numbers of rows.
    """
    full, rest = divmod(order.num_records, order.global_batch_size)
    if full and not 0 < rest < order.global_batch_size / 2:
        return [order.global_batch_size] * full + [rest] * (rest > 0)
    both = rest + (order.global_batch_size if full else 0)
    unit = 1
    while order.global_batch_size % (2 * unit) == 0 and 8 * unit <= min(both, order.global_batch_size):
        unit *= 2
    first = -(-both // (2 * unit)) * unit
    return [order.global_batch_size] * (full - 1) + [first] + [both - first] * (both > first)


def _with_numbers(held: Any, first: tf.Tensor, stop: tf.Tensor, size: int) -> tf.data.Dataset:
    """Returns (held, number) for the numbers of a window's elements that are fed: of every group of them the first."""
    return tf.data.Dataset.zip(tf.data.Dataset.from_tensors(held).repeat(), tf.data.Dataset.range(first, stop, size))


def _group(first: tf.Tensor, size: int, stop: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of a group's elements, (size,): after the window's last one, that one again."""
    return tf.minimum(first + tf.range(size, dtype=tf.int64), stop - 1)


def _joined(run: Run, together: tuple, between: int | None, count: tf.Tensor) -> tuple:
    """Returns the first `count` elements of a group for `_from_groups`, in the group's memory."""
    if run.replicas == between:
        return joined_rows(together, between, count)
    return tf.nest.map_structure(lambda component: component[:count], together)


@tf.autograph.experimental.do_not_convert
def _from_groups(run: Run, groups: tf.data.Dataset, between: int | None) -> tf.data.Dataset:
    """Returns the elements of groups, each a slice in its group's memory.

    Groups are made ahead. Elements are not: a slice costs less than handing it from one thread to another.

    Args:
      run: what is fed.
      groups: what `_joined` gives.
      between: how many replicas the rows of a group were gathered for; where that is what the run asks for, elements
        are rows of the group that follow each other.
    """

    def elements(*together: Any) -> tf.data.Dataset:
        return slices(together, run.replicas)

    groups = groups.prefetch(_READY_GROUPS)
    if run.replicas == between:
        rows = run.feed.replica_rows // (between or 1)
        return _delivered(run, groups.rebatch(rows, drop_remainder=True))
    return _delivered(run, groups.flat_map(elements))


def _finished(run: Run, dataset: tf.data.Dataset) -> tf.data.Dataset:
    return _delivered(run, dataset).prefetch(_READY)


def _delivered(run: Run, dataset: tf.data.Dataset) -> tf.data.Dataset:
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(run.num_elements))
    options = tf.data.Options()
    options.deterministic = True
    # Rewriting the graph would copy the captured images: the split would lie in memory twice. There is nothing to gain:
    # the maps are parallel and prefetched as they stand.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    # Reading is no state: what is read follows from the step.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    # The global batch is made whole on every worker, so a worker takes its rows of it; FILE would ask for files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)
