"""Updates and evaluation batches on all replicas, in loops inside one tf.function."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # public nowhere

from trainer.step import details
from trainer.step.replicas import ReplicaStep, StepResult
from trainer.step.results import AVERAGED, HISTOGRAMS, IMAGES, REGULARIZATION, TOTAL_LOSS, LoopResult, Wanted
from trainer.step.state import TrainState
from trainer.task.sums import LOSS, Sums

_MOST_IMAGES = 8  # of a step that shows them


def _seconds() -> tf.Tensor:
    """Returns the clock when the op runs, float64 scalar, for differences alone."""
    # Under op determinism TensorFlow refuses its own clock, since what is computed could depend on it; here it is only
    # reported. Python's needs the interpreter for a moment, so that it isn't used elsewhere.
    if is_op_determinism_enabled():
        return tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])
    return tf.timestamp()


@dataclasses.dataclass(eq=False)
class Stepper:
    """The compiled loops over a model on a strategy.

    Attributes:
      strategy: whose replicas compute.
      state: created in the strategy's scope.
      replicas: what each replica does in a step.
      shows: `histograms`, `images`: which of these it can be asked for; the others are not even traced.
      images_of: from a replica's (features, labels, weights) to the images that the model gets.
      value_names: of `LoopResult.values`, once an update has been traced: the total loss, the regularisation, the loss,
        the metrics.
      averages: the last `LoopResult.averages`; NaN before the first update.
      steps_per_epoch: T; None: all updates are of one epoch.
      epoch: the last `LoopResult.epoch`.
      graph: of an update, once it has been traced.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    replicas: ReplicaStep
    shows: Collection[str] = ()
    images_of: Callable[[tuple[Any, ...]], tf.Tensor] = lambda rows: rows[0]
    value_names: tuple[str, ...] = ()
    averages: tf.Variable = dataclasses.field(default_factory=details.no_averages)
    steps_per_epoch: int | None = None
    epoch: tf.Variable = dataclasses.field(default_factory=details.no_sums)
    graph: tf.Graph | None = None

    def __post_init__(self) -> None:
        """Has traced nothing yet."""
        self._sum_shapes: dict[str, tf.TensorShape] = {}

    @tf.function(autograph=False)
    def train(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor, wanted: Wanted) -> LoopResult:
        """Makes `steps` (int64 scalar, 1 or more) updates, or fewer where one is not finite."""

        def take(before: LoopResult) -> tuple[Any, tf.Tensor]:
            with tf.control_dependencies([before.finite]):  # the update before has ended
                began = _seconds()
            with tf.control_dependencies([began]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(self._local(batch), expand_composites=True)):
                return batch, _seconds() - began

        return self._loop(take, steps, wanted)

    @tf.function(autograph=False)
    def repeat(self, batch: tuple[Any, ...], steps: tf.Tensor) -> tf.Tensor:
        """Makes updates as `train`, all with one batch; returns the global step after them."""
        return self._loop(lambda before: (batch, tf.constant(0.0, tf.float64)), steps, Wanted.of()).step

    def _loop(
        self, take: Callable[[LoopResult], tuple[Any, tf.Tensor]], steps: tf.Tensor, wanted: Wanted
    ) -> LoopResult:
        """Makes updates with what `take` gives after the one before: a batch, and the seconds that it waited."""

        def one(done: tf.Tensor, before: LoopResult) -> tuple[tf.Tensor, LoopResult]:
            batch, waited = take(before)
            is_last = tf.equal(done + 1, steps)
            result = self._update(batch, Wanted(*(tf.logical_and(is_last, some) for some in wanted)), before)
            return done + 1, result._replace(waited=before.waited + waited)

        _, result = tf.while_loop(
            lambda done, result: (done < steps) & result.finite,
            one,
            (tf.constant(0, tf.int64), self._nothing()),
            shape_invariants=(tf.TensorShape([]), self._shapes()),
            parallel_iterations=1,
        )
        self.epoch.assign(result.epoch)
        return self._ended(result)

    def train_one(self, iterator: Iterator[tuple[Any, ...]], wanted: Wanted) -> tuple[LoopResult, Any, Any]:
        """Makes one update with a batch whose first component is a dict with `key`, which the model does not get.

        Returns:
          The result, the keys of each local replica's rows, string (rows,), and their weights, float32 (rows,): both in
          host memory, since GPUs have no strings.
        """
        result, keys, weights = self._train_one(iterator, wanted)
        # Not in the graph: outside a loop, Grappler takes the length that is assigned for that of what was read.
        self.epoch.assign(result.epoch)
        return result, keys, weights

    @tf.function(autograph=False)
    def _train_one(self, iterator: Iterator[tuple[Any, ...]], wanted: Wanted) -> tuple[LoopResult, Any, Any]:
        features, labels, weights = next(iterator)
        others = {name: value for name, value in features.items() if name != "key"}
        rows = (others if len(others) > 1 else others["image"], labels, weights)
        result = self._ended(self._update(rows, wanted, self._nothing()))
        return result, self._local(features["key"]), self._local(weights)

    @tf.function(autograph=False)
    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """Returns the measure's sums over `steps` (int64 scalar, 1 or more) batches, float64."""
        structure: list[Sums] = []

        def add(done: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            structure.append(self._first(self.strategy.run(self.replicas.sums, next(iterator))))
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

    def _ended(self, result: LoopResult) -> LoopResult:
        """Keeps what the next loop goes on with, and adds the means over the epoch: once per loop, not per update."""
        self.averages.assign(result.averages)
        sums, penalty = details.taken_apart(result.epoch, self._sum_shapes)
        means = [tf.cast(value, tf.float64) for value in self._values(sums, penalty).values()]
        return result._replace(means=tf.stack(means))

    def _values(self, sums: Sums, penalty: tf.Tensor) -> dict[str, tf.Tensor]:
        results = self.state.measure.results(sums)
        return {TOTAL_LOSS: results[LOSS] + penalty, REGULARIZATION: penalty, **results}

    def _update(self, batch: tuple[Any, ...], wanted: Wanted, before: LoopResult) -> LoopResult:
        state, self.graph = self.state, tf.compat.v1.get_default_graph()
        if state.schedule:
            state.optimizer.learning_rate = state.schedule(state.global_step.read_value())
        found: StepResult = self._first(self.strategy.run(self.replicas.update, batch))
        state.global_step.assign_add(1)
        step = state.global_step.read_value()
        if state.averages:
            state.averages.update(self.strategy, step)
        values = self._values(found.sums, found.penalty)
        self.value_names, self._sum_shapes = tuple(values), {name: sums.shape for name, sums in found.sums.items()}
        begins = tf.equal((step - 1) % self.steps_per_epoch, 0) if self.steps_per_epoch else tf.constant(False)
        variables = [v.value for v in state.model.trainable_variables]
        return LoopResult(
            step,
            tf.stack(list(values.values())),
            tf.logical_and(tf.math.is_finite(values[TOTAL_LOSS]), state.has_finite_weights()),
            tf.constant(0.0, tf.float64),
            details.moved(before.averages, tf.stack([values[name] for name in AVERAGED])),
            details.added_up(before.epoch, found.sums, found.penalty, begins),
            before.means,
            details.norm(found.gradients, wanted.norm),
            details.histograms([*variables, *found.gradients] if HISTOGRAMS in self.shows else [], wanted.histograms),
            self._images(batch, wanted.images),
        )

    def _images(self, batch: tuple[Any, ...], wanted: tf.Tensor) -> tf.Tensor:
        none = self._nothing().images
        if IMAGES not in self.shows:
            return none
        of_replica = tf.nest.map_structure(lambda part: self._local(part)[0], batch)
        return tf.cond(wanted, lambda: self.images_of(of_replica)[:_MOST_IMAGES], lambda: none)

    def _nothing(self) -> LoopResult:
        """Returns the result before the first update."""
        images = self.state.task.data.features if IMAGES in self.shows else tf.TensorSpec([None])
        return LoopResult(
            self.state.global_step.read_value(),
            tf.zeros([0]),
            tf.constant(True),
            tf.constant(0.0, tf.float64),
            self.averages.read_value(),
            self.epoch.read_value(),
            tf.zeros([0], tf.float64),
            tf.constant(0.0),
            tf.zeros([0, details.COLUMNS]),
            tf.zeros([0, *images.shape[1:]], images.dtype),
        )

    def _shapes(self) -> LoopResult:
        """Returns the shapes of the loop's result, of which those are open that depend on what is traced."""
        shapes = [value.shape for value in self._nothing()]
        return LoopResult(*(shape if not shape.rank else tf.TensorShape([None, *shape[1:]]) for shape in shapes))

    def _local(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)

    def _first(self, value: Any) -> Any:
        """Returns a value, or a structure of values, that are the same on all replicas."""
        return tf.nest.map_structure(lambda one: self._local(one)[0], value)
