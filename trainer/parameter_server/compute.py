"""A worker's part of a step: it gathers rows, pulls weights from the parameter servers, and pushes gradients back.

It keeps the training split in memory and reads it with TensorFlow's own operations, because a worker only runs graphs
from the chief, no Python. With each call the chief sends the numbers of a step's rows.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.batch import compose
from pipeline.batch.batches import Batches, DeviceAugmentation, RealRows
from pipeline.decode.forms import PixelRows, Serialized
from pipeline.errors import PipelineError, UsageError
from pipeline.order.feed import make_feed
from pipeline.order.views import Intervals
from pipeline.read.graph_reader import PIECES, TIMES, GraphReader, packed, unpacked
from pipeline.read.rows_reader import all_pieces
from pipeline.read.window import RECORD, RECORD_ID, Columns, gather
from pipeline.resolved import ResolvedInput, ResolvedRequest
from trainer.config import TrainConfig
from trainer.config.steps import Period
from trainer.step import optimizers
from trainer.step.gradients import Contribution, Gradients
from trainer.step.measures import WEIGHT, divisor
from trainer.step.state import TrainState
from trainer.step.summaries import COLUMNS, histogram
from trainer.step.train_step import Traced, clipped, is_compiled, is_skipped

_DECODED_TOGETHER = 256  # images
_KEPT_EPOCHS = 2  # number of orders in the chief's memory, 9 bytes per row each


class ColumnBatches:
    """Makes batches of one data set: the chief computes which rows are in a step, a worker gets them from its columns.

    Attributes:
      rows: number of rows in a share of a step.
      steps_per_epoch: number of steps per epoch, T.
    """

    def __init__(self, resolved: ResolvedRequest, shares: int = 1) -> None:
        """Selects the reader and decoder.

        Args:
          resolved: training request.
          shares: number of equal parts of a global batch; each is one batch here.

        Raises:
          DataError, UsageError: as in `pipeline.input_fn`.
        """
        portable = dataclasses.replace(resolved, request=dataclasses.replace(resolved.request, portable=True))
        reader, batches = compose.choose(portable)
        assert isinstance(reader, GraphReader)
        self._reader, self._form, order = reader, batches.form, resolved.order
        decodes = isinstance(self._form, Serialized) and not self._form.draws
        self._batches: Batches = batches
        if decodes:
            assert resolved.image_shape is not None
            self._batches = dataclasses.replace(batches, form=PixelRows(resolved.image_shape))
        self._decodes, self._resolved = decodes, resolved
        self._feed = make_feed(order, None)
        self._of_epoch = functools.lru_cache(_KEPT_EPOCHS)(self._planned)
        self.rows, self.steps_per_epoch = order.global_batch_size // shares, order.steps_per_epoch

    def columns(self) -> Columns:
        """Reads the records into columns."""
        times, selection = self._resolved.order.times, self._resolved.selection
        joined = self._reader.joined(all_pieces(selection, None if times is None else times.records))
        pieces, copies = unpacked(tf.constant(packed(joined)), [PIECES, TIMES])
        records = self._reader.read(pieces, pieces, copies)[RECORD][: self._count]
        return self._decoded(records) if self._decodes else {RECORD: records}

    def rows_of(self, first: int, stop: int, share: int = 0) -> tf.Tensor:
        """Returns the rows of a share of steps first..stop-1, all of one epoch, for `of_steps`.

        They are a string scalar, whose shape does not depend on the number of steps, so that a graph is traced only
        once.
        """
        epoch, number = divmod(first, self.steps_per_epoch)
        here = slice(number, number + stop - first), slice(share * self.rows, (share + 1) * self.rows)
        ids, real = (values[here] for values in self._of_epoch(epoch))
        times = self._resolved.order.times
        rows = ids if times is None else times.counts(ids % times.num_stored)
        return tf.constant(np.stack([ids, rows, real], axis=1).astype(np.int64).tobytes())

    def _planned(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the record id of each row of each step of an epoch, and a mask of real rows, (steps, rows) each."""
        plan = self._feed.plan(epoch, 0)
        return plan.records[plan.take], plan.real

    def of_steps(self, columns: Columns, rows: tf.Tensor, first: tf.Tensor) -> Callable[[tf.Tensor], tuple[Any, ...]]:
        """Returns a function from a step to its batch, inside a worker's graph.

        Args:
          columns: columns of the records.
          rows: rows of the steps, from `rows_of`.
          first: first of these steps, int64 scalar.
        """
        sent = tf.reshape(tf.io.decode_raw(rows, tf.int64), [-1, 3, self.rows])
        epoch = first // self.steps_per_epoch

        def batch(step: tf.Tensor) -> tuple[Any, ...]:
            ids, numbers, real = tf.unstack(sent[step - first])
            plan = RealRows(epoch, real[None] > 0, tf.reduce_sum(real)[None])
            taken = {RECORD_ID: ids, **gather(columns, numbers)}
            return self._batches.element(taken, plan, tf.constant(0, tf.int64))

        return batch

    def _decoded(self, records: tf.Tensor) -> Columns:
        pixels = math.prod(self._resolved.image_shape or ())

        def decode(part: tf.Tensor, ids: tf.Tensor) -> Columns:
            examples = self._form.examples({RECORD: part}, lambda: tf.zeros(tf.shape(part), tf.uint64), ids)
            return {"image": tf.reshape(examples.images, [-1, pixels]), "label": examples.labels}

        times, ids = self._resolved.order.times, tf.range(self._count, dtype=tf.int64)
        assert isinstance(self._form, Serialized)
        if times is not None and times.records is not None and self._form.turns is not None:  # otherwise not needed
            ids = tf.cast(tf.constant(times.records), tf.int64)
        parts = tf.data.Dataset.from_tensor_slices((records, ids)).batch(_DECODED_TOGETHER).map(decode)
        whole: Columns = parts.rebatch(max(1, self._count)).get_single_element()
        return whole

    @property
    def _count(self) -> int:
        times = self._resolved.order.times
        return self._resolved.selection.num_examples if times is None else times.num_chosen


class TurnBatches:
    """Makes batches of data sets that take turns, each with its own `ColumnBatches`; a single data set has all steps.

    Attributes:
      rows: number of rows in a share of a step.
    """

    def __init__(self, training: ResolvedInput, shares: int = 1) -> None:
        """Selects the readers and decoders.

        Args:
          training: training request; each step's rows must come from a single source.
          shares: number of equal parts of a global batch; each is one batch here.

        Raises:
          DataError, UsageError: as in `pipeline.input_fn`.
        """
        self._of_source = [ColumnBatches(part, shares) for part in training.parts]
        self._shares, self.rows = training.request.shares, self._of_source[0].rows
        firsts = [first for first, _ in self._shares.segments]
        sources, units = zip(*(self._shares.units_at(first)[0] for first in firsts), strict=True)
        self._turns = np.array([firsts, sources, units], np.int64)  # first step, source, and the source's unit

    def dataset(self) -> tf.data.Dataset:
        """Returns a dataset that repeats the same tensors: (columns of each source, index of the worker)."""
        columns = tuple(batches.columns() for batches in self._of_source)
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        dataset = tf.data.Dataset.from_tensors((columns, tf.cast(index, tf.int64))).repeat()
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False  # they would copy the split
        options.autotune.enabled = False
        return dataset.with_options(options)

    def epoch_end(self, step: int) -> int:
        """Returns the step at which the current turn ends or, if that is earlier, the source's own epoch."""
        [(source, unit)] = self._shares.units_at(step)
        in_epoch = self._of_source[source].steps_per_epoch
        later = [int(first) for first in self._turns[0] if first > step]
        return min([step - unit % in_epoch + in_epoch, *later])

    def rows_of(self, first: int, stop: int, share: int = 0) -> tf.Tensor:
        """Returns the rows of a share of steps first..stop-1 for `of_steps`; they end by `epoch_end(first)`."""
        [(source, unit)] = self._shares.units_at(first)
        return self._of_source[source].rows_of(unit, unit + stop - first, share)

    def of_steps(
        self, columns: Sequence[Columns], rows: tf.Tensor, first: tf.Tensor
    ) -> Callable[[tf.Tensor], tuple[Any, ...]]:
        """Returns a function from a step to its batch, inside a worker's graph.

        Args:
          columns: columns of each source, from the dataset.
          rows: rows of the steps, from `rows_of`.
          first: first of these steps, int64 scalar.
        """
        firsts, sources, units = self._turns
        if len(self._of_source) == 1:
            return self._of_source[0].of_steps(columns[0], rows, first)
        turn = tf.searchsorted(firsts, [first], side="right")[0] - 1
        before = first - tf.gather(firsts, turn) + tf.gather(units, turn)  # first step in the source's own numbering
        ways = [batches.of_steps(own, rows, before) for batches, own in zip(self._of_source, columns, strict=True)]

        def batch(step: tf.Tensor) -> tuple[Any, ...]:
            own = before + step - first
            found: tuple[Any, ...] = tf.switch_case(
                tf.gather(sources.astype(np.int32), turn), [functools.partial(way, own) for way in ways]
            )
            return found

        return batch


_COUNT, _RATE = "_iterations", "_learning_rate"  # attributes of Keras' optimizers that cannot be set publicly
_OWN_STATE = {"nadam": "multiplies a variable once per step", "lossscaleoptimizer": "keeps a loss scale"}


class Transfer:
    """Moves values between variables on parameter servers and the worker that runs a graph.

    All values of one dtype on a server are sent as one tensor, so that each server and dtype needs a single request.

    Attributes:
      variables: variables on the servers.
      groups: indices of the variables, by (server, dtype).
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.variables = list(variables)
        self.groups: dict[tuple[str, tf.DType], list[int]] = collections.defaultdict(list)
        for index, variable in enumerate(self.variables):
            self.groups[variable.device, variable.dtype].append(index)

    def sizes(self, group: tuple[str, tf.DType]) -> list[int]:
        """Returns the number of values of each variable of a group."""
        return [self.variables[index].shape.num_elements() for index in self.groups[group]]

    def pull(self) -> list[tf.Tensor]:
        """Returns the values of all variables on this worker."""
        found: list[tf.Tensor] = [None] * len(self.variables)
        for group, indices in self.groups.items():
            with tf.device(group[0]):
                flat = tf.concat([tf.reshape(self.variables[i].read_value(), [-1]) for i in indices], axis=0)
            self._put(group, tf.identity(flat), found)
        return found

    def flattened(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values of each group's variables in one tensor."""
        return [
            tf.concat([tf.reshape(tf.cast(values[i], group[1]), [-1]) for i in indices], axis=0)
            for group, indices in self.groups.items()
        ]

    def push(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values of all variables, each on the server of its variable.

        Args:
          flat: tensors from `flattened`.
        """
        found: list[tf.Tensor] = [None] * len(self.variables)
        for group, values in zip(self.groups, flat, strict=True):
            with tf.device(group[0]):
                self._put(group, tf.identity(values), found)
        return found

    def _put(self, group: tuple[str, tf.DType], flat: tf.Tensor, found: list[tf.Tensor]) -> None:
        parts = tf.split(flat, self.sizes(group))
        for index, part in zip(self.groups[group], parts, strict=True):
            found[index] = tf.reshape(part, self.variables[index].shape)


class Sent(NamedTuple):
    """What a worker sends: one tensor for each parameter server and dtype.

    Attributes:
      gradients: gradients of the mean loss over the rows.
      changes: changes of variables that are not trained, such as moving statistics.
    """

    gradients: list[tf.Tensor]
    changes: list[tf.Tensor]


class Compute:
    """Computes gradients on workers and applies them on the parameter servers.

    Attributes:
      state: model, optimizer and step, on the parameter servers.
      trainable: transfer of the weights.
      kept: transfer of the floating-point variables that are not trained.
      graphs: graphs of a step, by name, once they have been traced.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        config: TrainConfig,
        augment: DeviceAugmentation | None = None,
        shown: Period = Period(),  # noqa: B008, it is immutable
        skips: Intervals = (),
    ) -> None:
        """Creates further variables next to the state's.

        Args:
          strategy: strategy of the parameter servers.
          state: state, created in the strategy's scope.
          config: flags of the run.
          augment: augmentation on the worker's device; None if the input augments.
          shown: period of the steps whose gradients are kept for `histograms`, in addition to the first step.
          skips: intervals (first, end) of global steps that change only the step number.
        """
        model = state.model
        self._strategy, self.state, self.graphs = strategy, state, dict[str, Traced]()
        self._gradients = Gradients(state, 1, config.order.seed, is_compiled(config), augment)
        self._clip_norm = config.optimizer.clip_norm
        self.trainable = Transfer([v.value for v in model.trainable_variables])
        self._fixed = Transfer([v.value for v in model.non_trainable_variables])
        self.kept = Transfer(
            [v.value for v in model.non_trainable_variables if v.dtype.startswith(("float", "bfloat"))]
        )
        self._shown_every, self._skips = Fraction(shown.steps), skips
        with strategy.scope():
            rows = tf.zeros([len(self.trainable.variables), COLUMNS])
            self._shown = tf.Variable(rows, trainable=False, name="histograms") if shown.steps else None

    def of(self, step: tf.Tensor, share: tf.Tensor, batch: tuple[Any, ...]) -> tuple[Contribution, Sent]:
        """Returns the contribution of a share's rows to a step, and the tensors to send."""
        self.graphs["step"] = Traced(tf.compat.v1.get_default_graph(), device="/job:worker")
        with tf.name_scope("weights"):
            values = [self.trainable.pull(), self._fixed.pull()]
        with tf.name_scope("worker"):
            weight = divisor(tf.reduce_sum(batch[-1]))
            computed = self._gradients.of(share, weight, values, batch, step)
        with tf.name_scope("send"):
            old = [value for value in values[1] if value.dtype.is_floating]
            changes = [new - tf.cast(was, tf.float32) for new, was in zip(computed.state, old, strict=True)]
            sent = Sent(self.trainable.flattened(computed.gradients), self.kept.flattened(changes))
            if not self._skips:
                return computed, sent
            skipped = is_skipped(step, self._skips)  # even the regularisation does not count
            zeroed = lambda value: tf.where(skipped, tf.zeros_like(value), value)  # noqa: E731
            return tf.nest.map_structure(zeroed, computed), tf.nest.map_structure(zeroed, sent)

    @tf.function(autograph=False)
    def apply(self, step: tf.Tensor, sent: Sent) -> tf.Tensor:
        """Applies the gradient of a step; returns a tensor that is ready when the weights are updated.

        A skipped step changes no weights: with a gradient of 0, momentum and decay would still move them.
        """
        if self._shown is not None:
            tf.cond(self._is_shown(step + 1), lambda: self._show(sent), lambda: tf.constant(False))
        if not self._skips:
            return self._update(step, sent)
        skipped = is_skipped(step, self._skips)
        return tf.cond(skipped, lambda: tf.constant(False), lambda: self._update(step, sent))

    def _update(self, step: tf.Tensor, sent: Sent) -> tf.Tensor:
        state = self.state
        gradients = self.trainable.push(clipped(sent.gradients, self._clip_norm))
        rate = state.schedule(step) if state.schedule else None

        def in_replica() -> None:
            with numbered(state.optimizer, step, rate):
                state.optimizer.apply(gradients, state.model.trainable_variables)

        self._strategy.run(in_replica)
        for variable, change in zip(self.kept.variables, self.kept.push(sent.changes), strict=True):
            variable.assign_add(change)
        if state.averages:
            state.averages.update(step + 1, state.trained[0].weights, self._strategy)
        return tf.constant(True)

    def _is_shown(self, step: tf.Tensor) -> tf.Tensor:
        """Returns whether a step, counted from 1, is shown, bool scalar: steps as in `Period.is_due`, and the first."""
        amount, parts = self._shown_every.as_integer_ratio()
        return tf.equal(step, 1) | tf.not_equal(step * parts // amount, (step - 1) * parts // amount)

    def _show(self, sent: Sent) -> tf.Tensor:
        assert self._shown is not None
        self._shown.assign(tf.stack([histogram(gradient) for gradient in self.trainable.push(sent.gradients)]))
        return tf.constant(True)

    @tf.function(autograph=False)
    def histograms(self) -> tf.Tensor:
        """Returns `LoopResult.histograms` for the current weights and the last gradient that was kept."""
        assert self._shown is not None
        of_weights = [histogram(variable.read_value()) for variable in self.trainable.variables]
        return tf.concat([tf.stack(of_weights), self._shown.read_value()], axis=0)


def norm_of(sent: Sent) -> tf.Tensor:
    """Returns the global norm of all gradients."""
    norm: tf.Tensor = tf.linalg.global_norm(sent.gradients)
    return norm


def is_finite(computed: Contribution, norm: tf.Tensor) -> tf.Tensor:
    """Returns whether losses and gradients are finite, bool scalar."""
    total = tf.add_n([computed.penalty, *(tf.reduce_sum(v) for name, v in computed.sums.items() if name != WEIGHT)])
    return tf.math.is_finite(total) & tf.math.is_finite(norm)


def check_optimizer(optimizer: keras.optimizers.Optimizer, flag: str) -> None:
    """Raises UsageError if an optimizer cannot apply the gradients of several workers concurrently."""
    name = optimizer.name
    if why := _OWN_STATE.get(type(optimizer).__name__.lower()):
        raise UsageError(f"{flag}: with --strategy=parameter_server, {name} {why}, which workers would do at once")
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        option = "use_ema; use --ema" if optimizer.use_ema else "gradient_accumulation_steps"
        raise UsageError(f"{flag}: with --strategy=parameter_server, {name} cannot have {option}")
    if not {_COUNT, _RATE} <= set(optimizer.__dict__):
        raise PipelineError(f"Keras {keras.__version__}: its optimizers have no {_COUNT}; use another release")


@contextlib.contextmanager
def numbered(optimizer: keras.optimizers.Optimizer, updates: tf.Tensor, rate: tf.Tensor | None) -> Iterator[None]:
    """Context in which an optimizer is traced as if it had already made `updates` updates.

    Keras' own count would be wrong here. Its `assign_add` is atomic, but an optimizer does not read the count at the
    moment it adds to it, so bias corrections and schedules would drift (two workers counted 70 of 100 updates).

    Args:
      optimizer: built optimizer.
      updates: number of earlier updates, int64 scalar.
      rate: learning rate, float32 scalar; None for the optimizer's own rate, or its schedule's at this count.
    """
    before: dict[str, Any] = {name: optimizer.__dict__[name] for name in (_COUNT, _RATE)}
    optimizer.__dict__[_COUNT] = optimizers.Count(updates)  # the chief sets it when it saves
    if rate is not None:
        optimizer.__dict__[_RATE] = rate
    elif isinstance(before[_RATE], keras.optimizers.schedules.LearningRateSchedule):
        optimizer.__dict__[_RATE] = before[_RATE](updates)
    try:
        yield
    finally:
        optimizer.__dict__.update(before)
