"""One training step: forward pass, loss, gradients, their sum over all replicas, update; and the loops that run it.

Loss and metrics of a step are sum(w * x) / sum(w) over all rows of the global batch; padding has weight 0. Read this
file in the order `TrainStep._update` (all replicas), `TrainStep._replica_update` (one of them), `Gradients._of` (its
rows).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # public nowhere

from pipeline.batch.batches import DeviceDistortion
from pipeline.order.views import Intervals
from pipeline.request import DEVICE
from pipeline.resolved import ResolvedInput
from trainer.config import TrainConfig
from trainer.step.optimizers import Averages
from trainer.step.state import Forward, TrainState, epoch_parts, epoch_sums, moving_averages, seeded
from trainer.task import LOSS, WEIGHT, Sums, divisor
from trainer.topology import of_virtual_replicas, sum_virtual_replicas

NORM, HISTOGRAMS, ACTIVATIONS, IMAGES = "norm", "histograms", "activations", "images"  # the summaries
TOTAL_LOSS, REGULARIZATION = "total_loss", "regularization"
AVERAGED = (TOTAL_LOSS, LOSS, REGULARIZATION)  # values with a moving average
BUCKETS = 30  # of a histogram, as in TensorBoard's own
COLUMNS = 4 + BUCKETS
_MOST_IMAGES = 8  # shown per step
_CHANNELS = (1, 3, 4)  # numbers of channels that can be shown as an image


class LoopResult(NamedTuple):
    """Result of an inner loop: where it ended, and what its last update computed.

    Attributes:
      step: global step after the last update, int64 scalar.
      values: of the last update, float32 (values,), in the order of `names`.
      finite: bool scalar; False: the loop ended early, because the last update's loss, or a weight after it, is NaN or
        infinite (a NaN can pass through ReLU as 0, and show only in the gradient).
      waited: seconds that the updates waited for their batches, float64 scalar.
      exchanged: seconds of the updates in which this worker had its part of a sum over all workers, and not yet the
        sum, float64 scalar; 0 with one worker. There are two sums: of the rows' weights, while it may be computing
        already, and of the gradients. The worker that comes last has the fewest of these seconds: the others wait for
        it.
      averages: moving averages over the updates, float32 (AVERAGED,).
      epoch: sums over the updates of this epoch so far, float64; see `epoch_sums`.
      means: the means over the epoch's real rows that follow from `epoch`, float64 (values,), in the order of `names`;
        NaN as long as it has none, because its steps are skipped.
      names: the total loss, the regularisation, the loss, the metrics.
      norm: of the last update's summed gradients before clipping, float32 scalar; None unless requested.
      histograms: of the weights after the last update, then of its summed gradients, float32 (2 * variables,
        COLUMNS): least, greatest, sum, sum of squares, then the counts in equal buckets; None unless requested.
      activations: of the outputs of the model's layers for the last batch's real rows on the first local replica, with
        the weights after the update: histograms, float32 (layers, COLUMNS), and shares of zeros, float32 (layers,), in
        the order of `outputs_of_layers`; None unless requested.
      images: the first real ones of the last batch on the first local replica, as the model gets them; None unless
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
      weights: float32 (rows,); 0 for padding.
      keys: string (rows,); None: the batches have none.
      records: ids, int64 (rows,); None: likewise.
      losses: of each row before the update, without regularisation, float32 (rows,); None: the batches have no records.
    """

    weights: Any
    keys: Any = None
    records: Any = None
    losses: Any = None


class Traced(NamedTuple):
    """A graph for TensorBoard.

    Attributes:
      graph: of a step, or of a part of one.
      scope: that its nodes stand in; empty: they stand alone.
      device: of the nodes that name none; empty: of this process.
    """

    graph: tf.Graph
    scope: str = ""
    device: str = ""


class _Updated(NamedTuple):
    """What an update passes on to the next one: the first seven attributes of a `LoopResult`."""

    step: tf.Tensor
    values: tf.Tensor
    finite: tf.Tensor
    waited: tf.Tensor
    exchanged: tf.Tensor
    averages: tf.Tensor
    epoch: tf.Tensor


class _Reduced(NamedTuple):
    """Sums and gradients over all rows of a batch; equal on all replicas.

    Attributes:
      sums: of the measure.
      penalty: the regularisation, float32 scalar.
      gradients: of the mean loss, per trainable variable, before clipping and without the loss scale.
      exchanged: as in `LoopResult`, of this update; on each replica its own.
    """

    sums: Sums
    penalty: tf.Tensor
    gradients: list[tf.Tensor]
    exchanged: tf.Tensor


@dataclasses.dataclass(eq=False)
class TrainStep:
    """The compiled functions that train a state, and evaluate it, on the replicas of a strategy.

    Attributes:
      strategy: whose replicas compute.
      state: created in the strategy's scope.
      gradients: computes the gradients of a replica, or virtual replica; None: the state is only evaluated.
      clip_norm: largest norm of all gradients together; None: any.
      virtual_replicas: V, over all replicas; batches then have them as their first axis. None: a replica takes all its
        rows at once.
      steps_per_epoch: T; None: all updates are of one epoch.
      skip_steps: (first, end) of global steps that change nothing but the number of the step.
      times_exchange: whether to measure `LoopResult.exchanged`.
      value_names: see `LoopResult.names`; known once an update has been traced.
      averages, epoch: those of the last `LoopResult`; before the first, NaN and an empty tensor.
      graphs: of an update, once it has been traced, by name.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    gradients: Gradients | None = None
    clip_norm: float | None = None
    virtual_replicas: int | None = None
    steps_per_epoch: int | None = None
    skip_steps: Intervals = ()
    times_exchange: bool = False

    def __post_init__(self) -> None:
        """Makes the variables that one loop passes on to the next."""
        self.value_names: tuple[str, ...] = ()
        self.averages = tf.Variable([math.nan] * len(AVERAGED), trainable=False, dtype=tf.float32)
        self.epoch = tf.Variable(tf.zeros([0], tf.float64), trainable=False, shape=tf.TensorShape([None]))
        self.graphs: dict[str, Traced] = {}
        self._sum_shapes: dict[str, tf.TensorShape] = {}

    def run(self, iterator: Iterator[Any], steps: int, summaries: frozenset[str] = frozenset()) -> LoopResult:
        """Runs `steps` updates; with summaries, one update that also computes them.

        An update with summaries is the same step, to the bit, compiled by itself: its summaries are computed afterwards
        from what it returns.
        """
        if not summaries:
            return self.train(iterator, tf.constant(steps, tf.int64))._replace(names=self.value_names)
        assert steps == 1, "summaries are those of one update"
        return self.run_one(iterator, summaries)[0]

    def run_one(
        self,
        iterator: Iterator[Any],
        summaries: frozenset[str] = frozenset(),
        has_keys: bool = False,
        has_records: bool = False,
    ) -> tuple[LoopResult, Logged]:
        """Runs one update.

        Args:
          iterator: of batches; with `has_keys` their features are a dict with `key`, with `has_records` their last
            component are record ids. The model gets neither.
          summaries: to compute.
          has_keys: whether to return keys.
          has_records: whether to return records and the losses of their rows, which takes another forward pass.

        Returns:
          The result, and the rows; keys and weights in host memory, since GPUs have no strings.
        """
        source: Iterator[Any] | tuple[Any, ...] = iterator
        records = losses = None
        if has_records:
            *batch, ids = next(iterator)
            source, records = tuple(batch), self._local(ids)
            # Before the update, and not in its graph, whose bits would depend on what else reads its values.
            losses = self._row_losses(source, has_keys)
        result, gradients, rows, keys, weights = self._train_one(source, has_keys)
        # Not in the graph: outside a loop, Grappler takes the length that is assigned for the one that was read.
        self.epoch.assign(result.epoch)
        result = result._replace(
            names=self.value_names,
            norm=_norm(gradients) if NORM in summaries else None,
            histograms=self._histograms(gradients) if HISTOGRAMS in summaries else None,
            activations=self._activations(rows) if ACTIVATIONS in summaries else None,
            images=self._images(rows) if IMAGES in summaries else None,
        )
        return result, Logged(weights, keys, records, losses)

    @tf.function(autograph=False)
    def train(self, iterator: Iterator[Any], steps: tf.Tensor) -> LoopResult:
        """Runs `steps` (int64 scalar, 1 or more) updates; fewer if one is not finite."""
        return self._loop(lambda before: self._next(iterator, before.finite), steps)

    @tf.function(autograph=False)
    def repeat(self, batch: tuple[Any, ...], steps: tf.Tensor) -> tf.Tensor:
        """Runs updates as `train` does, all with one batch; returns the global step after them."""
        return self._loop(lambda before: (batch, tf.constant(0.0, tf.float64)), steps).step

    def _loop(self, take: Callable[[_Updated], tuple[Any, tf.Tensor]], steps: tf.Tensor) -> LoopResult:
        """Runs updates. After each, `take` returns the next batch and the seconds of waiting for it."""

        def one(done: tf.Tensor, before: _Updated) -> tuple[tf.Tensor, _Updated]:
            batch, waited = take(before)
            updated, _ = self._update(batch, before)
            return done + 1, updated._replace(waited=before.waited + waited)

        start, unknown = self._start(), tf.TensorShape([None])  # until the measure is traced
        shapes = _Updated(*(value.shape for value in start))._replace(values=unknown, epoch=unknown)
        _, last = tf.while_loop(
            lambda done, before: (done < steps) & before.finite,
            one,
            (tf.constant(0, tf.int64), start),
            shape_invariants=(tf.TensorShape([]), shapes),
            parallel_iterations=1,
        )
        self.epoch.assign(last.epoch)
        return self._ended(last)

    @tf.function(autograph=False)
    def _train_one(self, source: Iterator[Any] | tuple[Any, ...], has_keys: bool) -> tuple[Any, ...]:
        """Runs one update; returns its result, and what summaries and logs are made from.

        Args:
          source: an iterator, or the batch.
          has_keys: see `run_one`.

        Returns:
          The result, the gradients as in `_Reduced`, the first local replica's rows, and for each local replica the
          keys of its rows (None without keys) and their weights.
        """
        start, keys = self._start(), None
        batch, waited = (source, start.waited) if isinstance(source, tuple) else self._next(source, start.finite)
        if has_keys:
            keys, waited = self._local(batch[0]["key"]), start.waited  # the input of a key log is not prefetched
            batch = _without_keys(batch)
        updated, reduced = self._update(batch, start)
        rows = tf.nest.map_structure(lambda part: self._local(part)[0], batch)
        result = self._ended(updated._replace(waited=waited))
        return result, reduced.gradients, rows, keys, self._local(batch[-1])

    @tf.function(autograph=False)
    def _row_losses(self, batch: tuple[Any, ...], has_keys: bool) -> Any:
        """Returns the losses of each local replica's rows with the weights as they are; arguments as in `run_one`."""
        rows = _without_keys(batch) if has_keys else batch
        return self._local(self.strategy.run(self._replica_losses, rows))

    def _replica_losses(self, features: Any, labels: Any, weights: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each row of a replica; the arguments are those of `_replica_update`."""
        assert self.gradients
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

    def _next(self, iterator: Iterator[Any], after: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Returns the next batch, and the seconds of waiting for it after `after` has been computed."""
        with tf.name_scope("input"):
            with tf.control_dependencies([after]):  # when the previous update has ended
                began = _seconds()
            with tf.control_dependencies([began]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(self._local(batch), expand_composites=True)):
                return batch, _seconds() - began

    def _start(self) -> _Updated:
        """Returns what the last loop has passed on to the first update of this one."""
        return _Updated(
            self.state.global_step.read_value(),
            tf.zeros([0]),
            tf.constant(True),
            tf.constant(0.0, tf.float64),
            tf.constant(0.0, tf.float64),
            self.averages.read_value(),
            self.epoch.read_value(),
        )

    def _update(self, batch: tuple[Any, ...], before: _Updated) -> tuple[_Updated, _Reduced]:
        """Runs one step on all replicas. Its scopes are those that TensorBoard shows."""
        state, self.graphs["step"] = self.state, Traced(tf.compat.v1.get_default_graph())
        if state.schedule:
            with tf.name_scope("learning_rate"):
                state.optimizer.learning_rate = state.schedule(state.global_step.read_value())
        reduced = self._unless_skipped(lambda: self._reduced(batch))
        with tf.name_scope("global_step"):
            state.global_step.assign_add(1)
            step = state.global_step.read_value()
        if state.averages:
            with tf.name_scope("averages"):
                self._average(state.averages, step)
        with tf.name_scope("is_finite"):
            finite = state.has_finite_weights()
        with tf.name_scope("metrics"):
            values = self._values(reduced.sums, reduced.penalty)
            self.value_names = tuple(values)
            self._sum_shapes = {name: part.shape for name, part in reduced.sums.items()}
            begins = tf.equal((step - 1) % self.steps_per_epoch, 0) if self.steps_per_epoch else tf.constant(False)
            updated = _Updated(
                step,
                tf.stack(list(values.values())),
                tf.logical_and(tf.math.is_finite(values[TOTAL_LOSS]), finite),
                before.waited,
                before.exchanged + reduced.exchanged,
                self._averages(before.averages, tf.stack([values[name] for name in AVERAGED]), step - 1),
                epoch_sums(before.epoch, reduced.sums, reduced.penalty, begins),
            )
        return updated, reduced

    def _reduced(self, batch: tuple[Any, ...]) -> _Reduced:
        """Runs one step on the local replicas."""
        each = self.strategy.run(self._replica_update, batch)
        # All replicas end up with the same sums, gradients and weights: the first one's are returned.
        reduced: _Reduced = self._first(each)
        if not self.times_exchange:
            return reduced
        with tf.name_scope("metrics"):  # other workers wait for the last replica of this one
            return reduced._replace(exchanged=tf.reduce_min(tf.stack(self._local(each.exchanged))))

    def _unless_skipped(self, update: Callable[[], _Reduced]) -> _Reduced:
        """Runs the update; in a skipped step, whose rows all have weight 0, returns zeros and changes no variable.

        An update by gradients of 0 would still move the weights by momentum and decay, and BatchNorm's statistics.
        """
        if not self.skip_steps:
            return update()
        found: list[_Reduced] = []

        def run() -> _Reduced:  # traced first
            found.append(update())
            return found[0]

        def skip() -> _Reduced:
            zeros: _Reduced = tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), found[0])
            return zeros

        return tf.cond(~is_skipped(self.state.global_step.read_value(), self.skip_steps), run, skip)

    def _average(self, averages: Averages, step: tf.Tensor) -> None:
        """Updates the averages of the weights; not in a skipped step, towards whose weights they would move again."""
        if self.skip_steps:
            tf.cond(is_skipped(step - 1, self.skip_steps), lambda: None, lambda: averages.update(self.strategy, step))
        else:
            averages.update(self.strategy, step)

    def _averages(self, before: tf.Tensor, values: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        after = moving_averages(before, values)
        return tf.where(is_skipped(step, self.skip_steps), before, after) if self.skip_steps else after

    def _replica_update(self, features: Any, labels: Any, weights: tf.Tensor) -> _Reduced:
        """Computes one replica's contribution to a step, sums those of all replicas, and updates its weights.

        Args:
          features: of this replica's rows, (rows, ...); with virtual replicas, (virtual replicas, rows, ...).
          labels: likewise.
          weights: likewise, float32 (rows,).
        """
        assert self.gradients
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
                rows = _apart(rows)
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
                # Contributions are divided already: the sum of their gradients is the gradient of the mean loss. Here
                # replicas wait for each other.
                total, exchanged = self._timed(all_sum, tuple(compute.of(replica, weight, values, rows)))
            gradients, statistics, sums, penalty = total
            state.assign_statistics(statistics)
        return _Reduced(sums, penalty, self._apply(gradients), waited + exchanged)

    def _timed(self, sum_all: Callable[[Any], Any], own: Any) -> tuple[Any, tf.Tensor]:
        """Returns the sum over all replicas of what each has, and the seconds as in `LoopResult.exchanged`."""
        if not self.times_exchange:
            return sum_all(own), tf.constant(0.0, tf.float64)
        began, total = _seconds_after(tf.nest.flatten(own)), sum_all(own)
        # Nothing else may read these, or the bits of the weights could depend on it: see `_apart`. On GPUs, too,
        # collective operations are over only when they have the sum.
        with tf.device("CPU:0"), tf.control_dependencies(tf.nest.flatten(total)):
            return total, _seconds() - began

    def _apply(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Updates the weights by summed gradients, which have the loss scale; returns them unscaled and not clipped."""
        optimizer, scale = self.state.optimizer, self.state.loss_scale()
        with tf.name_scope("optimizer"):
            plain = gradients if scale is None else [gradient / scale for gradient in gradients]
            # After the sum: the norm is that of the whole batch's gradient, on any number of replicas.
            kept = clipped(plain, self.clip_norm)
            # The optimizer divides by the scale itself, and skips the update where a gradient has overflowed.
            given = kept if scale is None else [gradient * scale for gradient in kept]
            optimizer.apply(given, self.state.model.trainable_variables)
        return plain

    def _ended(self, last: _Updated) -> LoopResult:
        """Stores what the next loop continues from, and adds the epoch's means: once per loop, not per update."""
        self.averages.assign(last.averages)
        sums, penalty = epoch_parts(last.epoch, self._sum_shapes)
        means = tf.stack([tf.cast(value, tf.float64) for value in self._values(sums, penalty).values()])
        return LoopResult(*last, means=tf.where(sums[WEIGHT] > 0, means, math.nan))

    def _values(self, sums: Sums, penalty: tf.Tensor) -> dict[str, tf.Tensor]:
        results = self.state.measure.results(sums)
        return {TOTAL_LOSS: results[LOSS] + penalty, REGULARIZATION: penalty, **results}

    @tf.function(autograph=False)
    def _histograms(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        variables = [variable.value for variable in self.state.model.trainable_variables]
        return tf.stack([histogram(tf.convert_to_tensor(one)) for one in (*variables, *gradients)])

    @functools.cached_property
    def _outputs_of_layers(self) -> keras.Model:
        return keras.Model(self.state.model.inputs, list(outputs_of_layers(self.state.model).values()))

    @tf.function(autograph=False)
    def _activations(self, rows: tuple[Any, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self._outputs_of_layers(self._shown_features(rows), training=False)
        values = [tf.cast(one, tf.float32) for one in outputs]
        return tf.stack([histogram(one) for one in values]), tf.stack([tf.math.zero_fraction(one) for one in values])

    @tf.function(autograph=False)
    def _images(self, rows: tuple[Any, ...]) -> tf.Tensor:
        return self._shown_features(rows)[:_MOST_IMAGES]

    def _shown_features(self, rows: tuple[Any, ...]) -> Any:
        """Returns the features of real rows as the model gets them; with virtual replicas, those of the first."""
        assert self.gradients
        first = tf.nest.map_structure(lambda part: part[0], rows) if self.virtual_replicas else rows
        features, _, weights = self.gradients.distort(*first) if self.gradients.distort else first
        return tf.nest.map_structure(lambda part: tf.boolean_mask(part, weights > 0), features)

    @tf.function(autograph=False)
    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """Returns the measure's sums over `steps` (int64 scalar, 1 or more) batches, float64."""
        structure: list[Sums] = []

        def add(done: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            structure.append(self._first(self.strategy.run(self._replica_sums, next(iterator))))
            # In float64: sums over a whole split would lose digits.
            values = [tf.reshape(tf.cast(v, tf.float64), [-1]) for v in tf.nest.flatten(structure[-1])]
            new = tf.concat(values, axis=0)
            return done + 1, tf.cond(done > 0, lambda: total + new, lambda: new)

        none = (tf.constant(0, tf.int64), tf.zeros([0], tf.float64))
        shapes = (tf.TensorShape([]), tf.TensorShape([None]))
        _, total = tf.while_loop(lambda done, _: done < steps, add, none, shapes, parallel_iterations=1)
        shapes_of = [value.shape for value in tf.nest.flatten(structure[-1])]
        parts = tf.split(total, [shape.num_elements() for shape in shapes_of])
        shaped = [tf.reshape(part, shape) for part, shape in zip(parts, shapes_of, strict=True)]
        sums: Sums = tf.nest.pack_sequence_as(structure[-1], shaped)
        return sums

    def _replica_sums(self, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the measure's sums over all replicas' rows; the arguments are those of `_replica_update`."""
        trainable, fixed = self.evaluation_values()

        def sums(rows: tuple[Any, ...]) -> Sums:
            forward = Forward(self.state.model, trainable, fixed, self.state.eval_flip)
            return self.state.measure.evaluation_sums(forward, *rows)

        rows = (features, labels, weights)
        if self.virtual_replicas:
            found: Sums = sum_virtual_replicas(of_virtual_replicas(sums, rows), self.virtual_replicas)
            return found
        return all_sum(sums(rows))

    def evaluation_values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the trainable variables' values (their average, if there is one), then those of the others."""
        trainable, fixed = self.state.values()
        if self.state.averages:
            trainable = [tf.convert_to_tensor(value) for value in self.state.averages.values]
        return trainable, fixed

    def _local(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)

    def _first(self, value: Any) -> Any:
        """Returns the first replica's values, given values that are the same on all replicas."""
        return tf.nest.map_structure(lambda one: self._local(one)[0], value)


class Contribution(NamedTuple):
    """Contribution of some rows to a step; contributions are summed over all replicas, or virtual replicas.

    Attributes:
      gradients: of the rows' part of the mean loss, times the loss scale; float32, per trainable variable.
      state: new values of the floating-point variables that are not trained, divided by the number of units, so that
        their sum is the mean.
      sums: of the measure over the rows.
      penalty: the regularisation terms divided by the number of units, float32 scalar.
    """

    gradients: list[tf.Tensor]
    state: list[tf.Tensor]
    sums: Sums
    penalty: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Computes contributions as a pure function of weights and rows, so that XLA can compile it on any device.

    Attributes:
      train_state: the model and its measure.
      units: number of replicas, or virtual replicas, whose contributions are summed.
      seed: of dropout.
      compiled: whether XLA compiles it.
      distort: distorts rows that have crossed the bus as uint8; None: the input distorts.
    """

    train_state: TrainState
    units: int
    seed: int
    compiled: bool = False
    distort: DeviceDistortion | None = None

    def of(
        self,
        unit: tf.Tensor,
        weight: tf.Tensor,
        values: Any,
        rows: tuple[Any, ...],
        step: tf.Tensor | None = None,
    ) -> Contribution:
        """Returns the contribution of a unit's rows.

        Args:
          unit: its number, int64 scalar.
          weight: sum of the weights of all rows of the step, float32 scalar, at least 1.
          values: of the variables, as returned by `TrainState.values`.
          rows: (features, labels, weights).
          step: global step before the update, int64 scalar; None: the state's.
        """
        scale = self.train_state.loss_scale()
        step = self.train_state.global_step.read_value() if step is None else step
        function = self._compiled if self.compiled else self._of
        return function(unit, weight, step, scale, values, rows)

    def losses(self, unit: tf.Tensor, values: Any, rows: tuple[Any, ...]) -> tf.Tensor:
        """Returns the loss of each row of a unit in training, without regularisation, float32 (rows,); see `of`."""
        # Compiled if the step is: XLA draws other random numbers for dropout.
        function = self._compiled_losses if self.compiled else self._losses
        losses: tf.Tensor = function(unit, self.train_state.global_step.read_value(), values, rows)
        return losses

    @tf.function(autograph=False, jit_compile=True)
    def _compiled_losses(self, *arguments: Any) -> tf.Tensor:
        return self._losses(*arguments)

    def _losses(self, unit: tf.Tensor, step: tf.Tensor, values: Any, rows: tuple[Any, ...]) -> tf.Tensor:
        trainable, fixed = values
        rows = self.distort(*rows) if self.distort else rows
        forward = Forward(self.train_state.model, trainable, seeded(fixed, self.seed, step, unit))
        return self.train_state.measure.row_losses(forward, *rows[:2])

    @tf.function(autograph=False, jit_compile=True)
    def _compiled(self, *arguments: Any) -> Contribution:
        return self._of(*arguments)

    def _of(
        self, unit: tf.Tensor, weight: tf.Tensor, step: tf.Tensor, scale: Any, values: Any, rows: tuple[Any, ...]
    ) -> Contribution:
        trainable, fixed = values
        rows = self.distort(*rows) if self.distort else rows
        model = self.train_state.model
        forward = Forward(model, trainable, seeded(fixed, self.seed, step, unit))
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            sums = self.train_state.measure.train_sums(forward, *rows)
            # The regularisation does not depend on the rows: each unit adds an equal part of it.
            penalty = tf.add_n([tf.constant(0.0), *(tf.cast(term, tf.float32) for term in forward.losses)]) / self.units
            # A sum over these rows, divided by the weight of all rows: summed over the units, the batch's mean loss.
            loss = sums[LOSS] / weight + penalty
            scaled = loss if scale is None else loss * scale
        gradients = tape.gradient(scaled, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # embeddings have sparse ones
        state = [tf.cast(value, tf.float32) / self.units for value in forward.state if value.dtype.is_floating]
        found = Contribution(gradients, state, {name: tf.stop_gradient(value) for name, value in sums.items()}, penalty)
        return _apart(found)


def create(
    strategy: tf.distribute.Strategy, state: TrainState, config: TrainConfig, training: ResolvedInput | None
) -> TrainStep:
    """Returns the step that the flags ask for.

    Args:
      strategy: whose replicas compute.
      state: created in its scope.
      config: of the run.
      training: the request for training data; None: the step neither distorts nor knows the length of an epoch.
    """
    virtual = config.order.virtual_replicas
    units = virtual or strategy.num_replicas_in_sync
    gradients = Gradients(state, units, config.order.seed, config.model.jit_compile, distortion(training))
    steps_per_epoch = training.steps_per_epoch if training else None
    skips = training.spec.skip_steps if training else ()
    times = config.run.strategy == "multiworker" and strategy.num_replicas_in_sync > 1
    return TrainStep(strategy, state, gradients, config.optimizer.clip_norm, virtual, steps_per_epoch, skips, times)


def is_skipped(step: tf.Tensor, skip_steps: Intervals) -> tf.Tensor:
    """Returns whether a global step is in one of the intervals, bool scalar."""
    return tf.reduce_any([(step >= first) & (step < stop) for first, stop in skip_steps])


def distortion(training: ResolvedInput | None) -> DeviceDistortion | None:
    """Returns the distortion of a replica's rows on its device; None: the input distorts."""
    if training is None or training.request.distort_on != DEVICE:
        return None
    return DeviceDistortion(training.first)


def _without_keys(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a batch without the keys among its features: the rows that a model gets."""
    features, *others = batch
    rest = {name: value for name, value in features.items() if name != "key"}
    return (rest if len(rest) > 1 else rest["image"], *others)


def are_images(features: Any) -> bool:
    """Returns whether a TensorSpec has the shape of images: (rows, height, width, channels)."""
    if not isinstance(features, tf.TensorSpec):
        return False
    return features.shape.rank == 4 and features.shape[-1] in _CHANNELS


def outputs_of_layers(model: keras.Model) -> dict[str, Any]:
    """Returns the outputs that can be shown, by layer: of those that a functional model calls once; else none."""
    found = {}
    for layer in model.layers:
        if not isinstance(layer, keras.layers.InputLayer):
            with contextlib.suppress(AttributeError, ValueError):  # called by nothing, or several times
                found[layer.name] = layer.output
    return found


def _apart(value: Any) -> Any:
    """Returns the tensors behind a node that keeps how they are computed, and what reads them, apart.

    Grappler's arithmetic optimizer takes a common factor out of a sum of products (a weight's gradient and its decay)
    only if nothing else reads these. Without a node between, the bits of the weights would depend on summaries and key
    logs. Grappler removes Identity, but not EnsureShape.
    """
    return tf.nest.map_structure(lambda one: tf.ensure_shape(one, one.shape), value, expand_composites=True)


def all_sum(value: Any) -> Any:
    """Returns the sums of a structure of tensors over all replicas, on each of them."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    # In one call for all tensors, which TensorFlow packs into few messages.
    flat = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.nest.flatten(value))
    return tf.nest.pack_sequence_as(value, flat)


def _replica_scope() -> contextlib.AbstractContextManager[Any]:
    """Returns a scope for the operations of this replica; TensorFlow itself makes one for each but the first."""
    is_first = not re.search(r"(^|/)replica_\d+$", tf.get_current_name_scope())
    return tf.name_scope("replica_0") if is_first else contextlib.nullcontext()


def clipped(gradients: list[tf.Tensor], clip_norm: float | None) -> list[tf.Tensor]:
    """Returns gradients scaled down so that their norm, over all of them together, is at most `clip_norm`."""
    return gradients if clip_norm is None else tf.clip_by_global_norm(gradients, clip_norm)[0]


def _seconds() -> tf.Tensor:
    """Returns the time at which the op runs, float64 scalar; only differences have a meaning."""
    # Under op determinism TensorFlow refuses its own clock, since results could depend on it; here it is only reported.
    # Python's clock needs the interpreter for a moment, so that it is used only then.
    if is_op_determinism_enabled():
        return tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])
    return tf.timestamp()


def _seconds_after(values: list[tf.Tensor]) -> tf.Tensor:
    """Returns the time at which all values have been computed on their device; see `_seconds`."""
    with tf.control_dependencies(values):
        # A GPU's operations count as over once they are queued; what is copied from it has waited for those before.
        first = tf.reshape(values[0], [-1])[:1]
    with tf.device("CPU:0"), tf.control_dependencies([tf.ensure_shape(first, first.shape)]):
        return _seconds()


@tf.function(autograph=False)
def _norm(gradients: list[tf.Tensor]) -> tf.Tensor:
    return tf.linalg.global_norm(gradients)


def histogram(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a row of `LoopResult.histograms`."""
    values = tf.reshape(tf.cast(tensor, tf.float32), [-1])
    least, greatest = tf.reduce_min(values), tf.reduce_max(values)
    span = tf.where(greatest > least, greatest - least, 1.0)
    place = tf.cast(tf.minimum((values - least) / span * BUCKETS, BUCKETS - 1), tf.int32)
    counts = tf.math.bincount(tf.maximum(place, 0), minlength=BUCKETS, maxlength=BUCKETS, dtype=tf.float32)
    statistics = [least, greatest, tf.reduce_sum(values), tf.reduce_sum(values * values)]
    return tf.ensure_shape(tf.concat([tf.stack(statistics), counts], axis=0), [COLUMNS])
