"""One training step: forward pass, loss, gradients, their sum over all replicas, update; and the loops that run it.

Loss and metrics of a step are sum(w * x) / sum(w) over all rows of the global batch; padding has weight 0. Read this
file in the order `TrainStep._update` (all replicas), `TrainStep._contribution` (one of them), `Gradients._of` (its
rows), `TrainStep._apply` (one copy of the weights).

With XLA, one replica's step is one program. Several replicas have two, before and after the sum over all of them; a
virtual replica has the first one to itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.batch.batches import DeviceAugmentation
from pipeline.distribution import GroupIterator
from pipeline.order.views import Intervals
from pipeline.request import HOST
from pipeline.resolved import ResolvedInput
from trainer.config import TrainConfig
from trainer.config.meaning import MULTIWORKER, PARAMETER_SERVER
from trainer.runtime import without_automatic_order
from trainer.step import clock, optimizers
from trainer.step.gradients import Gradients, all_sum, apart
from trainer.step.measures import WEIGHT, Sums, divisor
from trainer.step.state import (
    TrainState,
    epoch_sums,
    fitted,
    flat_parts,
    flat_sums,
    moving_averages,
)
from trainer.step.summaries import Summaries
from trainer.task import LOSS
from trainer.topology import of_virtual_replicas, sum_virtual_replicas

TOTAL_LOSS, REGULARIZATION = "total_loss", "regularization"
AVERAGED = (TOTAL_LOSS, LOSS, REGULARIZATION)  # values with a moving average


class LoopResult(NamedTuple):
    """Result of an inner loop: the step at which it ended, and the results of its last update.

    Attributes:
      step: global step after the last update, int64 scalar.
      values: numbers of the last update, float32 (values,), in the order of `names`.
      finite: whether the last update's loss and the weights after it are finite, bool scalar; if not, the loop ended
        early (a NaN can pass through ReLU as 0, and show only in the gradient).
      waited: seconds that the updates spent waiting for their batches, float64 scalar.
      exchanged: seconds of the updates in which this worker had its part of a sum over all workers but not yet the sum,
        float64 scalar; 0 with one worker. There are two sums: of the sample weights, while it may already be computing,
        and of the gradients. The slowest worker has the fewest of these seconds: the others wait for it.
      averages: moving averages over the updates, float32 (AVERAGED,).
      epoch: sums over the updates of this epoch so far, float64; see `epoch_sums`.
      means: the means over the epoch's real rows that follow from `epoch`, float64 (values,), in the order of `names`;
        NaN while there are none because its steps are skipped.
      names: names of total loss, regularisation, loss and metrics.
      norm: norm of the last update's summed gradients before clipping, float32 scalar; None unless requested.
      histograms: those of the weights after the last update, then of its summed gradients, float32 (2 * variables,
        COLUMNS): least, greatest, sum, sum of squares, then the counts in equal buckets, all 0 for the gradient of a
        frozen weight; None unless requested.
      activations: statistics of the outputs of the model's layers for the last batch's real rows on the first local
        replica, with the weights after the update: histograms, float32 (layers, COLUMNS), and shares of zeros, float32
        (layers,), in the order of `outputs_of_layers`; None unless requested.
      images: first real images of the last batch on the first local replica, as the model gets them; None unless
        requested.
    """

    step: tf.Tensor
    values: tf.Tensor
    finite: tf.Tensor
    waited: tf.Tensor
    exchanged: tf.Tensor
    averages: tf.Tensor
    epoch: tf.Tensor
    means: tf.Tensor
    names: tuple[str, ...] = ()
    norm: Any = None
    histograms: Any = None
    activations: Any = None
    images: Any = None


class Logged(NamedTuple):
    """The rows of an update, for logs: for each local replica, with the axes of its batch.

    Attributes:
      weights: sample weights, float32 (rows,); 0 for padding.
      keys: keys, string (rows,); None if the batches have none.
      records: record ids, int64 (rows,); None if the batches have none.
      losses: loss of each row before the update, without regularisation, float32 (rows,); None if the batches have no
        record ids.
    """

    weights: Any
    keys: Any = None
    records: Any = None
    losses: Any = None


class Traced(NamedTuple):
    """A graph for TensorBoard.

    Attributes:
      graph: graph of a step, or of a part of one.
      scope: name that its nodes are grouped under; empty for no group.
      device: device of nodes that name none; empty for this process's.
    """

    graph: tf.Graph
    scope: str = ""
    device: str = ""


class _Carried(NamedTuple):
    """Values that an update passes on to the next one.

    Attributes:
      step, finite, exchanged, averages, epoch: those of a `LoopResult`.
      last: sums of the update, float64; see `state.flat_sums`.
    """

    step: tf.Tensor
    finite: tf.Tensor
    exchanged: tf.Tensor
    averages: tf.Tensor
    epoch: tf.Tensor
    last: tf.Tensor


class _Summed(NamedTuple):
    """Sums over all rows of a batch; all but the last are equal on all replicas.

    Attributes:
      gradients: gradients of the mean loss, one per trained variable, before clipping, times the loss scale.
      statistics: new values of the floating-point variables that are not trained and may change.
      sums: sums of the measure.
      penalty: regularisation, float32 scalar.
      exchanged: this replica's part of `LoopResult.exchanged`.
    """

    gradients: list[tf.Tensor]
    statistics: list[tf.Tensor]
    sums: Sums
    penalty: tf.Tensor
    exchanged: tf.Tensor


@dataclasses.dataclass(eq=False)
class TrainStep:
    """The compiled functions that train a state on the replicas of a strategy, in one phase of the training.

    Attributes:
      strategy: strategy whose replicas compute.
      state: state created in the strategy's scope.
      gradients: function of the gradients of a replica, or virtual replica.
      clip_norm: largest global norm of the gradients; None for no limit.
      virtual_replicas: V, over all replicas; batches then have them as their first axis. None if a replica takes all
        its rows together.
      steps_per_epoch: T; None if all updates belong to one epoch.
      skip_steps: (first, end) of global steps that change nothing except the step number.
      times_exchange: whether to measure `LoopResult.exchanged`.
      augments: augmentation on a replica's device, for each phase.
      value_names: see `LoopResult.names`; known once an update has been traced.
      averages, epoch: those of the last `LoopResult`; before the first, NaN and an empty tensor.
      graphs: graphs of an update by name, once it has been traced.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    gradients: Gradients
    clip_norm: float | None = None
    virtual_replicas: int | None = None
    steps_per_epoch: int | None = None
    skip_steps: Intervals = ()
    times_exchange: bool = False
    augments: Sequence[DeviceAugmentation | None] = (None,)

    def __post_init__(self) -> None:
        """Creates the variables that one loop passes on to the next."""
        self.value_names: tuple[str, ...] = ()
        self.averages = tf.Variable([math.nan] * len(AVERAGED), trainable=False, dtype=tf.float32)
        self.epoch = tf.Variable(tf.zeros([0], tf.float64), trainable=False, shape=tf.TensorShape([None]))
        self.graphs: dict[str, Traced] = {}
        self._sums: dict[str, tf.TensorSpec] = {}
        self._of_phase = {self.gradients.phase: self}
        self._clock = clock.clock()
        first = self.strategy.extended.worker_devices[0]
        self._gpu = first if "GPU" in first else None
        optimizers.of_one_copy(self.state.optimizer)
        model, trained = self.gradients.fed.model, self.gradients.trained.weights
        self._summaries = Summaries(model, self.gradients.augment, bool(self.virtual_replicas), trained)
        compiled, alone = self.gradients.compiled, self.strategy.num_replicas_in_sync == 1
        # Virtual replicas stay out of the program of the whole step, in which their number would change the bits.
        self._is_one_program = compiled and alone and not self.virtual_replicas
        self._program = _compiled(self._step) if self._is_one_program else self._step
        copies = [self._apply for _ in self.strategy.extended.worker_devices]
        # A function for each copy: it keeps the variables that it was traced with.
        self._applies = [_compiled(one) for one in copies] if compiled and not self._is_one_program else copies

    def run(self, iterator: Iterator[Any], steps: int, summaries: frozenset[str] = frozenset()) -> LoopResult:
        """Runs `steps` updates; with summaries, one update that also computes them.

        An update with summaries is the same step, bit for bit: its summaries are computed afterwards from its results.
        All updates belong to one phase: that of the state's step.
        """
        if (current := self.current) is not self:
            return current.run(iterator, steps, summaries)
        if summaries:
            assert steps == 1, "summaries are those of one update"
            return self.run_one(iterator, summaries)[0]
        arguments = iterator, tf.constant(steps, tf.int64)
        self._fit_epoch(self.train, *arguments)
        return self.train(*arguments)._replace(names=self.value_names)

    def run_one(
        self,
        iterator: Iterator[Any],
        summaries: frozenset[str] = frozenset(),
        has_keys: bool = False,
        has_records: bool = False,
    ) -> tuple[LoopResult, Logged]:
        """Runs one update.

        Args:
          iterator: batches; with `has_keys` their features are a dict with `key`, with `has_records` their last
            component are record ids. The model gets neither.
          summaries: names of the summaries to compute.
          has_keys: whether to return keys.
          has_records: whether to return records and the losses of their rows, which takes another forward pass.

        Returns:
          The result, and the rows; keys and weights in host memory, since GPUs have no strings.
        """
        if (current := self.current) is not self:
            return current.run_one(iterator, summaries, has_keys, has_records)
        source: Iterator[Any] | tuple[Any, ...] = iterator
        records = losses = None
        if has_records:
            *batch, ids = next(iterator)
            source, records = tuple(batch), self._local(ids)
            # Before the update, and not in its graph, whose bits would depend on other readers of its values.
            losses = self._row_losses(source, has_keys)
        self._fit_epoch(self._train_one, source, has_keys)
        result, gradients, rows, keys, weights = self._train_one(source, has_keys)
        # Not in the graph: outside a loop, Grappler confuses the assigned length with the one that was read.
        self.epoch.assign(result.epoch)
        shown = self._summaries.of(summaries, gradients, rows)
        return result._replace(names=self.value_names, **shown), Logged(weights, keys, records, losses)

    def without_xla(self) -> TrainStep:
        """Returns a step of the same state that continues from the same sums but is not compiled by XLA."""
        return self._with(compiled=False)

    @property
    def current(self) -> TrainStep:
        """The step for the phase of the state's next update: compiled separately, it continues from the same sums."""
        if len(self.state.trained) == 1:
            return self
        number = self.state.phases.number_at(self.state.step)
        if number not in self._of_phase:
            self._of_phase[number] = self._with(phase=number, augment=self.augments[number])
        return self._of_phase[number]

    def _with(self, **changes: Any) -> TrainStep:
        other = dataclasses.replace(self, gradients=dataclasses.replace(self.gradients, **changes))
        other.averages, other.epoch, other.graphs = self.averages, self.epoch, self.graphs
        return other

    def _fit_epoch(self, function: Any, *arguments: Any) -> None:
        """Gives the sums over an epoch their length before XLA compiles a function of them: it compiles one length."""
        if self.gradients.compiled and not self.epoch.numpy().size:
            function.get_concrete_function(*arguments)  # traces the measure
            self.epoch.assign([0.0] * (2 + sum(spec.shape.num_elements() for spec in self._sums.values())))

    @tf.function(autograph=False)
    def train(self, iterator: Iterator[Any], steps: tf.Tensor) -> LoopResult:
        """Runs `steps` (int64 scalar, 1 or more) updates; fewer if one is not finite."""
        if not isinstance(iterator, GroupIterator):
            return self._loop(functools.partial(self._next, lambda state: (next(iterator), state)), (), steps)[0]
        result, state = self._loop(functools.partial(self._next, iterator.following), iterator.begin(), steps)
        iterator.end(state)
        return result

    @tf.function(autograph=False)
    def repeat(self, batch: tuple[Any, ...], steps: tf.Tensor) -> tf.Tensor:
        """Runs updates as `train` does, all with one batch; returns the global step after them."""
        with tf.device("CPU:0"):
            nothing = tf.constant(0.0, tf.float64)
        return self._loop(lambda state, _: (batch, state, nothing), (), steps)[0].step

    def _loop(
        self, take: Callable[[Any, tf.Tensor], tuple[Any, Any, tf.Tensor]], state: Any, steps: tf.Tensor
    ) -> tuple[LoopResult, Any]:
        """Runs updates.

        A GPU always has its next update queued: that only depends on numbers in the host's memory, and on the update
        before the running one. An update after one that is not finite changes nothing that is kept. Within a pass, the
        GPU's operations therefore never wait for the host's, and the host's only wait for earlier work of the GPU.
        `benchmarks.gpu_graph` checks this.

        Args:
          take: function from the input's state, and a number that the host has once the update before the last one has
            ended, to the next batch, the next state, and the seconds spent waiting for the batch since then.
          state: state of the input.
          steps: number of updates, int64 scalar.

        Returns:
          The result, and the last state of the input.
        """
        # A function keeps the order of its side effects.
        update = tf.function(lambda batch, before: self._update(batch, before)[0], autograph=False)

        def one(
            done: tf.Tensor, most: tf.Tensor, waited: tf.Tensor, state: Any, before: _Carried
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Any, _Carried]:
            with tf.device(self._gpu):
                most = most * tf.cast(before.finite, tf.int32)
            batch, state, seconds = take(state, most)
            with tf.device("CPU:0"):
                waited = waited + seconds
            with tf.device(self._gpu):
                with tf.control_dependencies([before.step]):
                    after = update(batch, before)
                if not self._is_one_program:  # the graph then includes the input
                    self.graphs["step"] = Traced(tf.compat.v1.get_default_graph())
                with tf.control_dependencies([after.step.op]):  # and thus everything that the update changes
                    return done + 1, most, waited, state, tf.nest.map_structure(tf.identity, after)

        def goes_on(done: tf.Tensor, most: tf.Tensor, *_: Any) -> tf.Tensor:
            with tf.device(self._gpu):
                return done < most

        with tf.device("CPU:0"):
            most, waited = tf.cast(steps, tf.int32), tf.constant(0.0, tf.float64)
        unknown = tf.TensorShape([None])  # unknown until the measure is traced
        with tf.device(self._gpu):
            # GPUs keep int32 in the host's memory.
            begin = (tf.constant(0), tf.identity(most), waited, state, self._start())
            shapes = tf.nest.map_structure(lambda value: value.shape, begin)
            shapes = (*shapes[:-1], shapes[-1]._replace(epoch=unknown, last=unknown))
            with without_automatic_order():
                # One pass at a time: each device begins one when it has finished its part of the previous one.
                *_, waited, state, last = tf.while_loop(goes_on, one, begin, shapes, parallel_iterations=1)
        self.epoch.assign(last.epoch)
        self.state.global_step.assign(last.step)  # excluding updates that do not count
        return self._ended(last, waited), state

    @tf.function(autograph=False)
    def _train_one(self, source: Iterator[Any] | tuple[Any, ...], has_keys: bool) -> tuple[Any, ...]:
        """Runs one update; returns its result, and the inputs of summaries and logs.

        Args:
          source: iterator over batches, or a batch.
          has_keys: see `run_one`.

        Returns:
          The result, the summed gradients before clipping, the first local replica's rows, and for each local replica
          the keys of its rows (None without keys) and their weights.
        """
        start, keys, nothing = self._start(), None, tf.constant(0.0, tf.float64)
        if isinstance(source, tuple):
            batch, waited = source, nothing
        else:
            batch, _, waited = self._next(lambda state: (next(source), state), (), tf.constant(0))
        if has_keys:
            keys, waited = self._local(batch[0]["key"]), nothing  # the input of a key log is not prefetched
            batch = _without_keys(batch)
        updated, gradients = self._update(batch, start)
        rows = tf.nest.map_structure(lambda part: self._local(part)[0], batch)
        result = self._ended(updated, waited)
        return result, gradients, rows, keys, self._local(batch[-1])

    @tf.function(autograph=False)
    def _row_losses(self, batch: tuple[Any, ...], has_keys: bool) -> Any:
        """Returns the losses of each local replica's rows with the weights as they are; arguments as in `run_one`."""
        rows = _without_keys(batch) if has_keys else batch
        return self._local(self.strategy.run(self._replica_losses, rows))

    def _replica_losses(self, features: Any, labels: Any, weights: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each row of a replica; takes the arguments of `_contribution`."""
        compute, values, rows = self.gradients, self.state.values(), (features, labels, weights)
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        if not self.virtual_replicas:
            return compute.losses(replica, values, rows)
        here = weights.shape[0]
        units = replica * here + tf.range(here, dtype=tf.int64)
        return tf.map_fn(
            lambda unit: compute.losses(unit[0], values, unit[1:]),
            (units, *rows),
            fn_output_signature=tf.TensorSpec(weights.shape[1:], tf.float32),
            parallel_iterations=1,
        )

    def _next(
        self, following: Callable[[Any], tuple[Any, Any]], state: Any, after: tf.Tensor
    ) -> tuple[Any, Any, tf.Tensor]:
        """Returns the next batch and state, and the seconds spent waiting once the host has a number, 0 or more."""
        with tf.name_scope("input"):
            with tf.device(self._gpu):
                is_there = after >= 0
            with tf.control_dependencies([clock.on_host(is_there)]), tf.device("CPU:0"):
                ended = self._clock()
            batch, state = following(state)
            with tf.control_dependencies(self._taken(batch)), tf.device("CPU:0"):
                return batch, state, tf.maximum(self._clock() - ended, 0.0)

    def _taken(self, batch: Any) -> list[tf.Tensor | tf.Operation]:
        """Returns tensors that the host has once a batch is there, without waiting for a GPU's earlier work."""
        parts = [tf.nest.flatten(part, expand_composites=True) for part in self._local(batch)]
        extended = self.strategy.extended
        devices = tuple(extended.worker_devices)
        if not self._gpu or tuple(extended.parameter_devices) != devices:  # in central storage variables are elsewhere
            return [value for part in parts for value in part]
        variables = self._local(self.state.model.trainable_variables[0].value)
        return [clock.begun(*one) for one in zip(parts, variables, devices, strict=True)]

    def _start(self) -> _Carried:
        """Returns the values that the last loop passed on to this one's first update."""
        nothing, epoch = tf.constant(0.0, tf.float64), self.epoch.read_value()
        step, averages = self.state.global_step.read_value(), self.averages.read_value()
        return _Carried(step, tf.constant(True), nothing, averages, epoch, tf.zeros_like(epoch))

    def _update(self, batch: tuple[Any, ...], before: _Carried) -> tuple[_Carried, list[tf.Tensor]]:
        """Runs one step on all replicas; see `_step`.

        In a skipped step, whose rows all have weight 0, no variable except the step number changes: an update with
        gradients of 0 would still move the weights by momentum and decay, and BatchNorm's statistics.

        Args:
          batch: (features, labels, weights).
          before: values passed on by the previous update.
        """
        if not self.skip_steps:
            return self._program(batch, before)
        found: list[tuple[_Carried, list[tf.Tensor]]] = []

        def run() -> tuple[_Carried, list[tf.Tensor]]:  # traced first
            found.append(self._program(batch, before))
            return found[0]

        def skip() -> tuple[_Carried, list[tf.Tensor]]:
            self.state.global_step.assign_add(1)
            gradients = found[0][1]
            values = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in self._sums.items()}
            skipped = self._measured(before, before.step + 1, values, tf.constant(0.0), tf.constant(True))
            # Their moving averages would drift towards the loss of no row.
            return skipped._replace(averages=before.averages), tf.nest.map_structure(tf.zeros_like, gradients)

        return tf.cond(~is_skipped(before.step, self.skip_steps), run, skip)

    def _step(self, batch: tuple[Any, ...], before: _Carried) -> tuple[_Carried, list[tf.Tensor]]:
        """Runs one step on all replicas; returns the values for the next one, and the summed gradients before clipping.

        TensorBoard shows its scopes.
        """
        self.graphs["step"] = Traced(tf.compat.v1.get_default_graph())
        each = self.strategy.run(self._contribution, batch)
        functions, anchor = iter(self._applies), self.state.model.trainable_variables[0].value
        found: list[tuple[list[tf.Tensor], _Carried]] = []

        def apply(_: tf.Variable, summed: _Summed) -> tf.Tensor:
            # All replicas end up with the same sums, gradients and weights: the first one's are returned.
            gradients, after = next(functions)(summed, None if found else before)
            if after is not None:
                found.append((gradients, after))
            return gradients[0]

        # Each copy of the variables in turn, in the place of all of them: a replica's, or that of all replicas.
        self.strategy.extended.update(anchor, apply, args=(each,), group=False)
        gradients, after = found[0]
        if self.times_exchange:  # other workers wait for the last replica of this one
            exchanged = tf.reduce_min(tf.stack(self._local(each.exchanged)))
            after = after._replace(exchanged=before.exchanged + exchanged)
        return after, gradients

    def _measured(
        self,
        before: _Carried,
        step: tf.Tensor,
        sums: Sums,
        penalty: tf.Tensor,
        finite: tf.Tensor,
    ) -> _Carried:
        """Returns the values that an update passes on, except the seconds.

        Args:
          before: values passed on by the previous update.
          step: global step after the update.
          sums, penalty: those of the update.
          finite: whether the weights are finite.
        """
        self._sums = {name: tf.TensorSpec(part.shape, part.dtype) for name, part in sums.items()}
        values = self._values(sums, penalty)
        self.value_names = tuple(values)
        begins = tf.equal((step - 1) % self.steps_per_epoch, 0) if self.steps_per_epoch else tf.constant(False)
        last = flat_sums(sums, penalty)
        return _Carried(
            # The first non-finite update is the last one that counts.
            tf.where(before.finite, step, before.step),
            before.finite & finite & tf.math.is_finite(values[TOTAL_LOSS]),
            before.exchanged,
            moving_averages(before.averages, tf.stack([values[name] for name in AVERAGED])),
            epoch_sums(before.epoch, sums, penalty, begins),
            tf.where(before.finite, last, fitted(before.last, last.shape[0])),
        )

    def _contribution(self, features: Any, labels: Any, weights: tf.Tensor) -> _Summed:
        """Computes one replica's contribution to a step; returns the sum over all replicas.

        Args:
          features: this replica's rows, (rows, ...); with virtual replicas, (virtual replicas, rows, ...).
          labels: likewise.
          weights: sample weights, likewise, float32 (rows,).
        """
        compute, state = self.gradients, self.state
        with _replica_scope():
            replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
            # All replicas divide by the weight of the whole batch: a mean of their means would give more weight to the
            # rows of a replica with more padding.
            of_all, waited = self._timed(all_sum, tf.reduce_sum(weights))
            weight = divisor(of_all)
            values, rows = state.values(), (features, labels, weights)
            if self.strategy.num_replicas_in_sync > 1:
                # In a loop TensorFlow makes what takes a tensor from another device wait for the loop, too. oneDNN then
                # sums the gradient of a first layer's bias apart from that of its kernel: other bits than without one.
                rows = apart(rows)
            if self.virtual_replicas:
                here = weights.shape[0]  # virtual replicas of this replica, numbered across all replicas
                units = replica * here + tf.range(here, dtype=tf.int64)
                own = of_virtual_replicas(
                    lambda unit: tuple(compute.of(unit[0], weight, values, unit[1:])), (units, *rows)
                )
                # Summed as integers, which give the same bits in any order: see `trainer.topology`.
                sum_all = functools.partial(sum_virtual_replicas, num_virtual=self.virtual_replicas)
                total, exchanged = self._timed(sum_all, own)
            else:
                # Contributions are already divided: the sum of their gradients is the gradient of the mean loss. Here
                # replicas wait for each other.
                given = (replica, weight, values, rows)
                if compute.compiled and self.strategy.num_replicas_in_sync > 1:
                    flat, exchanged = self._timed(all_sum, compute.flat_of(*given))
                    total = tuple(compute.parts_of(flat))
                else:
                    total, exchanged = self._timed(all_sum, tuple(compute.of(*given)))
        gradients, statistics, sums, penalty = total
        return _Summed(gradients, statistics, sums, penalty, waited + exchanged)

    def _timed(self, sum_all: Callable[[Any], Any], own: Any) -> tuple[Any, tf.Tensor]:
        """Returns the sum over all replicas, and the seconds as in `LoopResult.exchanged`."""
        if self.times_exchange:
            return clock.timed(sum_all, own)
        return sum_all(own), tf.constant(0.0, tf.float64)

    def _apply(self, summed: _Summed, before: _Carried | None) -> tuple[list[tf.Tensor], _Carried | None]:
        """Updates one copy of all variables.

        Args:
          summed: the sums over all replicas, on the copy's device.
          before: values passed on by the previous update; None if another copy measures.

        Returns:
          The gradients without the loss scale and before clipping, and the values for the next update.
        """
        # The slash at the end of a scope's name: not within that of the context, `update_0`.
        state, optimizer, trained = self.state, self.state.optimizer, self.gradients.trained
        if state.schedule:
            with tf.name_scope("learning_rate/"):
                optimizer.learning_rate = state.schedule(state.global_step.read_value())
        state.assign_statistics(summed.statistics, trained)
        scale = state.loss_scale()
        with tf.name_scope("optimizer/"):
            plain = summed.gradients if scale is None else [gradient / scale for gradient in summed.gradients]
            # After the sum: the norm is that of the whole batch's gradient, on any number of replicas.
            kept = clipped(plain, self.clip_norm)
            # The optimizer divides by the scale itself, and skips the update if a gradient has overflowed.
            given = kept if scale is None else [gradient * scale for gradient in kept]
            variables = [state.model.trainable_variables[index] for index in trained.weights]
            count, compiled = state.global_step.read_value(), self.gradients.compiled
            optimizers.apply(optimizer, given, variables, trained.updates, count, compiled)
        with tf.name_scope("global_step/"):
            state.global_step.assign_add(1)
            step = state.global_step.read_value()
        if state.averages:
            with tf.name_scope("averages/"):
                state.averages.update(step, trained.weights)
        if before is None:
            return plain, None
        with tf.name_scope("is_finite/"):
            finite = state.has_finite_weights()
        with tf.name_scope("metrics/"):
            return plain, self._measured(before, step, summed.sums, summed.penalty, finite)

    def _ended(self, last: _Carried, waited: tf.Tensor) -> LoopResult:
        """Stores what the next loop continues from; returns the values of the last update and the epoch's means."""
        self.averages.assign(last.averages)
        sums, penalty = flat_parts(last.last, self._sums)
        exact = {name: tf.cast(value, self._sums[name].dtype) for name, value in sums.items()}
        values = tf.stack(list(self._values(exact, tf.cast(penalty, tf.float32)).values()))
        sums, penalty = flat_parts(last.epoch, self._sums)
        of_epoch = self._values(sums, penalty / divisor(sums[WEIGHT]))
        means = tf.stack([tf.cast(value, tf.float64) for value in of_epoch.values()])
        means = tf.where(sums[WEIGHT] > 0, means, math.nan)
        return LoopResult(last.step, values, last.finite, waited, last.exchanged, last.averages, last.epoch, means)

    def _values(self, sums: Sums, penalty: tf.Tensor) -> dict[str, tf.Tensor]:
        results = self.state.measure.results(sums)
        return {TOTAL_LOSS: results[LOSS] + penalty, REGULARIZATION: penalty, **results}

    def _local(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)


def is_compiled(config: TrainConfig) -> bool:
    """Returns whether XLA compiles the step, according to --jit_compile and to whether this process has GPUs.

    On CPUs convolutions are slower in XLA, as they are on GPUs under op determinism: XLA then picks the first kernel
    for each of them instead of the fastest (benchmarks/RESULTS.md, "A GPU"). With parameter servers, workers only
    compile if the flag is set: the chief, which makes their graphs, does not know their devices.
    """
    if config.model.jit_compile != "auto":
        return config.model.jit_compile == "on"
    if config.run.strategy == PARAMETER_SERVER or config.repeats_on_gpus:
        return False
    return bool(tf.config.list_physical_devices("GPU"))


def create(
    strategy: tf.distribute.Strategy,
    state: TrainState,
    config: TrainConfig,
    training: ResolvedInput | None,
    inputs: Sequence[ResolvedInput] = (),
) -> TrainStep:
    """Returns the step according to the flags.

    Args:
      strategy: strategy whose replicas compute.
      state: state created in the strategy's scope.
      config: flags of the run.
      training: request for training data; None for a step without augmentation and epochs.
      inputs: input of each phase; empty if they are all the same.
    """
    virtual = config.order.virtual_replicas
    units = virtual or strategy.num_replicas_in_sync
    each: Sequence[ResolvedInput | None] = inputs or [training] * len(state.phases.each)
    augments = [augmentation(one) for one in each]
    gradients = Gradients(state, units, config.order.seed, is_compiled(config), augments[0])
    steps_per_epoch = training.steps_per_epoch if training else None
    skips = training.spec.skip_steps if training else ()
    times = config.run.strategy == MULTIWORKER and strategy.num_replicas_in_sync > 1
    clip_norm = config.optimizer.clip_norm
    return TrainStep(strategy, state, gradients, clip_norm, virtual, steps_per_epoch, skips, times, augments)


def is_skipped(step: tf.Tensor, skip_steps: Intervals) -> tf.Tensor:
    """Returns whether a global step is in one of the intervals, bool scalar."""
    return tf.reduce_any([(step >= first) & (step < stop) for first, stop in skip_steps])


def augmentation(training: ResolvedInput | None) -> DeviceAugmentation | None:
    """Returns the augmentation that runs on the replica's device; None if the input augments."""
    if training is None or training.request.augment_on == HOST:
        return None
    return DeviceAugmentation(training.first)


def _without_keys(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a batch without the keys among its features: the rows that a model gets."""
    features, *others = batch
    rest = {name: value for name, value in features.items() if name != "key"}
    return (rest if len(rest) > 1 else rest["image"], *others)


def _replica_scope() -> contextlib.AbstractContextManager[Any]:
    """Returns a scope for the operations of this replica; TensorFlow itself creates one for each except the first."""
    is_first = not re.search(r"(^|/)replica_\d+$", tf.get_current_name_scope())
    return tf.name_scope("replica_0") if is_first else contextlib.nullcontext()


def clipped(gradients: list[tf.Tensor], clip_norm: float | None) -> list[tf.Tensor]:
    """Returns gradients scaled down so that their norm, over all of them together, is at most `clip_norm`."""
    if clip_norm is None:
        return gradients
    # Otherwise Grappler multiplies this scale by a changing learning rate before it multiplies the gradients, but only
    # if it knows their shapes: on one worker, not on several.
    return list(apart(tf.clip_by_global_norm(gradients, clip_norm)[0]))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = tf.function(function, autograph=False, jit_compile=True)
    return compiled
