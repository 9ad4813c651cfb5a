"""The `tf.data` pipeline of one source: windows -> plan -> read -> tail -> steps -> batches.

AutoGraph is off: our code does not need it, and it takes seconds. (`graph_calls.as_given` converts the user's
functions.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from pipeline.augmentation.base import Unaugmented, UserAugmented, output_spec
from pipeline.batch.batches import Batches
from pipeline.batch.plans import Run
from pipeline.batch.resident import ResidentRows
from pipeline.decode.forms import PixelRows
from pipeline.order.feed import Feed, WindowPlan
from pipeline.order.order import MAX_STEP, Order
from pipeline.read.window import GOOD, RECORD_ID, Columns, WindowReader, empty_tail, gather_both, rows_of

_READY = 4  # elements made ahead: enough to hide sorting the next window's order
_READY_GROUPS = 2  # finished groups held while others are being made
_COPIED = 16  # elements copied at the end of a window, so that prefetching them does not keep the window in memory
_MOST_GROUP_ROWS = 1024  # rows per group: more gain nothing
_MOST_GROUP_BYTES = 16 << 20  # 16 MiB of images per group, before or after augmentation


class Window(NamedTuple):
    """A window in memory.

    Attributes:
      plan: plan of the window.
      first: number of the first element to feed, int64 scalar; see `Run.plans`.
      columns: columns that were read.
      tail: rows of the previous window that the first elements need.
    """

    plan: WindowPlan
    first: tf.Tensor
    columns: Columns
    tail: Columns


Element: TypeAlias = Callable[[Window, tf.Tensor], tuple]  # of a window, and an element's number or those of several


@tf.autograph.experimental.do_not_convert
def resident(run: Run, batches: Batches, rows: ResidentRows, plans: tf.data.Dataset | None = None) -> tf.data.Dataset:
    """Returns the elements of a run over a split that is kept in memory.

    Args:
      run: steps to feed.
      batches: maker of elements from rows.
      rows: rows of the whole selection.
      plans: plans of the windows; None for all windows of the run.
    """
    size = group_size(run.feed, batches, rows.columns)
    # Rows of a group are gathered replica by replica, so that each replica's elements are slices of them. With `mean`,
    # a weight depends on how many rows of its element are skipped, so elements are gathered whole.
    needs_whole = GOOD in rows.columns and batches.resolved.request.weights == "mean"
    between = run.replicas if size > 1 and not needs_whole else None

    def of_records(plan: WindowPlan, first: tf.Tensor) -> Window:
        plan = plan._replace(take=tf.gather(plan.records, plan.take))
        return Window(_cut(plan, between) if between else plan, first, {}, {})

    def element(window: Window, numbers: tf.Tensor) -> tuple:
        taken = rows.take(window.plan.epoch, tf.gather(window.plan.take, numbers))
        return batches.element(taken, window.plan, numbers)

    planned = (run.plans() if plans is None else plans).map(of_records).prefetch(1)
    return _elements(run, planned, element, size, between)


@tf.autograph.experimental.do_not_convert
def windowed(
    run: Run, batches: Batches, reader: WindowReader, plans: Callable[[Run], tf.data.Dataset] | None = None
) -> tf.data.Dataset:
    """Returns the elements of a run that is read window by window; the next one is read while one is consumed.

    Args:
      run: steps to feed.
      batches: maker of elements from rows.
      reader: reader of the windows.
      plans: function that returns the plans of the run; None for `Run.plans`.
    """

    def on_its_way(plan: WindowPlan, first: tf.Tensor) -> tuple[WindowPlan, tf.Tensor]:
        return plan._replace(pieces=reader.fetch_ahead(plan.pieces)), first

    def load(plan: WindowPlan, first: tf.Tensor) -> tuple[WindowPlan, tf.Tensor, Columns]:
        return plan, first, {RECORD_ID: plan.records, **reader.read(plan.pieces, plan.slots, plan.times)}

    # While a window is consumed, the next one is read, and the shards of the one after that are fetched.
    planned = plans(run) if plans else run.plans(contiguous=reader.assigns_rows)
    planned = planned.map(on_its_way).prefetch(1)
    return of_windows(run, batches, with_tails(planned.map(load)), reader.assigns_rows)


@tf.autograph.experimental.do_not_convert
def with_tails(loaded: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the `Window`s for (plan, first, columns) in order, each with the tail left by the previous window."""

    def with_tail(tail: Columns, read: tuple[WindowPlan, tf.Tensor, Columns]) -> tuple[Columns, Window]:
        plan, first, columns = read
        return gather_both(columns, tail, plan.next_tail), Window(plan, first, columns, tail)

    return loaded.scan(empty_tail(loaded.element_spec[2]), with_tail).prefetch(1)


@tf.autograph.experimental.do_not_convert
def of_windows(run: Run, batches: Batches, windows: tf.data.Dataset, in_place: bool) -> tf.data.Dataset:
    """Returns the elements of `Window`s.

    Args:
      run: steps to feed.
      batches: maker of elements from rows.
      windows: `Window`s in order.
      in_place: whether the rows of most elements are contiguous (`WindowPlan.with_contiguous_elements`).
    """
    rows = run.feed.replica_rows

    def element(window: Window, numbers: tf.Tensor) -> tuple:
        plan, _, columns, tail = window
        begin, size = tf.reshape(numbers, [-1])[0], numbers.shape.num_elements()

        def gathered() -> Columns:
            return gather_both(columns, tail, tf.reshape(tf.gather(plan.take, numbers), [-1]))

        def side_by_side() -> Columns:
            return rows_of(columns, (begin - first) * rows, size * rows, copied=batches.alias_window)

        first, stop = plan.contiguous[0], plan.contiguous[1]
        taken = tf.cond((first <= begin) & (begin + size <= stop), side_by_side, gathered) if in_place else gathered()
        if numbers.shape.rank:
            taken = {name: tf.reshape(column, [size, rows, *column.shape[1:]]) for name, column in taken.items()}
        return batches.element(taken, plan, numbers)

    if batches.are_stored and in_place:
        return _stored(run, batches, windows, element)
    size = group_size(run.feed, batches, windows.element_spec.columns) if in_place else 1
    return _elements(run, windows, element, size)


def _stored(run: Run, batches: Batches, windows: tf.data.Dataset, element: Element) -> tf.data.Dataset:
    """Returns elements as slices of their window's memory; the last and non-contiguous ones are made one by one."""

    @functools.partial(tf.function, autograph=False)  # used twice, but traced once
    def one(window: Window, number: tf.Tensor) -> tuple:
        return split(element(window, number), run.replicas)

    def alone(window: Window, begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(tf.maximum(begin, window.first), end)
        return numbers.map(lambda number: one(window, number))

    def elements(window: Window) -> tf.data.Dataset:
        plan, first, columns, _ = window
        begin, end = plan.contiguous[0], plan.contiguous[1]
        stop = tf.maximum(begin, end - _COPIED)
        whole = slices(batches.stored(columns, plan, stop, run.feed.replica_rows), run.replicas)
        whole = whole.skip(tf.maximum(first - begin, 0))
        return alone(window, first, begin).concatenate(whole).concatenate(alone(window, stop, plan.num_elements))

    return _finished(run, windows.flat_map(elements))


@tf.autograph.experimental.do_not_convert
def _elements(
    run: Run, windows: tf.data.Dataset, element: Element, size: int, between: int | None = None
) -> tf.data.Dataset:
    """Returns the elements of windows, made ahead, `size` at a time.

    Args:
      run: steps to feed.
      windows: `Window`s in order.
      element: function that makes an element of a window, or a group of them.
      size: number of elements in a group.
      between: number of replicas by which the rows of a group are gathered, as for `_from_groups`.
    """

    def numbered(window: Window) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(window.first, window.plan.num_elements, size)
        return tf.data.Dataset.zip(tf.data.Dataset.from_tensors(window).repeat(), numbers)

    def made(window: Window, begin: tf.Tensor) -> tuple:
        if size == 1:
            return split(element(window, begin), run.replicas)
        stop = window.plan.num_elements
        # All groups have the same size: past the end of a window, the last element is made again.
        numbers = tf.minimum(begin + tf.range(size, dtype=tf.int64), stop - 1)
        if between:  # the numbers, in a `_cut` plan, of their parts, replica by replica
            numbers = tf.reshape(numbers * between + tf.range(between, dtype=tf.int64)[:, None], [-1])
        together = element(window, numbers)
        return _joined(run, together, between, stop - begin)

    found = windows.flat_map(numbered).map(made, num_parallel_calls=tf.data.AUTOTUNE)
    return _finished(run, found) if size == 1 else _from_groups(run, found, between)


@tf.autograph.experimental.do_not_convert
def unpadded(dataset: tf.data.Dataset, order: Order, epochs: int) -> tf.data.Dataset:
    """Returns the elements of an evaluation without the padding of the last step, in batches of `unpadded_rows`.

    Args:
      dataset: whole epochs, in elements of `order.global_batch_size` rows.
      order: order of the evaluation.
      epochs: number of epochs.
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
    """Returns the number of rows in each batch of an epoch without padding.

    The last batch may have fewer rows than there are replicas. A replica without rows would break convolutions and
    BatchNorm, so the previous batch gives up some of its rows. All batches but the last are multiples of a power of
    two, because Keras builds a model from the first batch, which fails if replicas get different numbers of rows.
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


def _joined(run: Run, together: tuple, between: int | None, count: tf.Tensor) -> tuple:
    """Returns the first `count` elements of a group for `_from_groups`, in the group's memory."""
    if run.replicas != between or run.stacked:
        return tf.nest.map_structure(lambda c: c[:count], together)
    # Each replica's elements, concatenated; `rebatch` cuts them into elements.
    return tf.nest.map_structure(lambda c: tf.reshape(c[:count], [-1, *c.shape[2:]]), split(together, between))


@tf.autograph.experimental.do_not_convert
def _from_groups(run: Run, groups: tf.data.Dataset, between: int | None) -> tf.data.Dataset:
    """Returns the elements of groups, each a slice of its group's memory.

    Groups are made ahead; elements are not, because a slice is cheaper than handing it to another thread.

    Args:
      run: steps to feed.
      groups: groups from `_joined`.
      between: number of replicas by which the rows of a group were gathered. If it equals the run's, the rows of an
        element are contiguous.
    """

    def elements(*together: Any) -> tf.data.Dataset:
        return slices(together, run.replicas)

    groups = groups.prefetch(_READY_GROUPS)
    if run.stacked:
        return groups.with_options(_options())
    if run.replicas == between:
        rows = run.feed.replica_rows // (between or 1)
        return _delivered(run, groups.rebatch(rows, drop_remainder=True))
    return _delivered(run, groups.flat_map(elements))


def _finished(run: Run, dataset: tf.data.Dataset) -> tf.data.Dataset:
    return _delivered(run, dataset).prefetch(_READY)


def _delivered(run: Run, dataset: tf.data.Dataset) -> tf.data.Dataset:
    if run.last_step != MAX_STEP and run.last_step % run.feed.order.steps_per_epoch:  # plans are for whole epochs
        dataset = dataset.take(run.num_elements)
    return dataset.apply(tf.data.experimental.assert_cardinality(run.num_elements)).with_options(_options())


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # Rewriting the graph would copy the captured images, so that the split would be in memory twice, for no gain: the
    # maps are already parallel and prefetched.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    # Reading is stateless: the step determines what is read.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    # Every worker makes whole global batches and takes its rows of them; FILE would look for files to shard.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def group_size(feed: Feed, batches: Batches, columns: Mapping[str, Any]) -> int:
    """Returns the number of elements to make together.

    It is 1 if an element has as many rows as a group, if examples are decoded or parsed per element, if features vary
    in length, or for a user's function, which gets one batch at a time.

    Args:
      feed: feed that plans the rows.
      batches: maker of elements from rows.
      columns: columns of a window, or their specs.
    """
    form, recipe = batches.form, Unaugmented() if batches.on_device else batches.recipe
    if not isinstance(form, PixelRows) or recipe is None or isinstance(recipe, UserAugmented):
        return 1
    if not all(isinstance(column, tf.Tensor | tf.TensorSpec) for column in columns.values()):
        return 1
    image_bytes = math.prod(form.image_shape)
    if not isinstance(recipe, Unaugmented):
        given = output_spec(recipe, form.image_shape)
        image_bytes = max(image_bytes, math.prod(given.shape) * given.dtype.size)
    image_bytes *= batches.resolved.request.images_per_record
    rows = min(_MOST_GROUP_ROWS, _MOST_GROUP_BYTES // image_bytes)
    most = max(1, rows // feed.replica_rows)
    # All groups have the same size, chosen to make the last one, which is computed in full, nearly full.
    elements = -(-feed.order.steps_per_epoch // feed.order.windows) * feed.local_replicas
    return -(-elements // -(-elements // most))


def split(element: tuple[Any, ...], replicas: int | None) -> tuple[Any, ...]:
    """Splits an element into the replicas' parts: equal runs of its rows.

    Args:
      element: components with equal numbers of rows, which may be RaggedTensors.
      replicas: number of parts; None to return the element itself.
    """
    if replicas is None:
        return element
    runs = [_equal_runs(component, replicas) for component in tf.nest.flatten(element)]
    return tuple(tf.nest.pack_sequence_as(element, [run[replica] for run in runs]) for replica in range(replicas))


def slices(together: tuple[Any, ...], replicas: int | None) -> tf.data.Dataset:
    """Returns a dataset of the elements in one block of memory, each split as by `split`, without copying.

    No function runs per element: a call would cost several times as much as the slices.

    Args:
      together: components of shape (elements, rows, ...).
      replicas: number of parts, as in `split`.
    """
    if replicas is None:
        return tf.data.Dataset.from_tensor_slices(together)
    runs = tf.nest.map_structure(lambda c: tf.reshape(c, [-1, c.shape[1] // replicas, *c.shape[2:]]), together)
    each = tf.data.Dataset.from_tensor_slices(runs)
    return tf.data.Dataset.zip(tuple(each.shard(replicas, replica) for replica in range(replicas)))


def _cut(plan: WindowPlan, replicas: int) -> WindowPlan:
    """Returns a plan whose elements are single replicas' parts: part r of element e is `e * replicas + r`.

    `num_elements` stays the number of whole elements.
    """
    take, real = (tf.reshape(rows, [-1, rows.shape[1] // replicas]) for rows in (plan.take, plan.real))
    return plan._replace(take=take, real=real, real_rows=tf.repeat(plan.real_rows, replicas))


def _equal_runs(component: tf.Tensor | tf.RaggedTensor, replicas: int) -> list[Any]:
    """Returns equal runs of rows, even of a RaggedTensor, which `tf.split` does not accept."""
    if isinstance(component, tf.RaggedTensor):
        rows = component.nrows() // replicas
        return [component[replica * rows : (replica + 1) * rows] for replica in range(replicas)]
    return tf.split(component, replicas)
