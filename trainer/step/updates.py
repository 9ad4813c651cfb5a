"""Updates and evaluation batches on all replicas, in loops inside one tf.function."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.step import details
from trainer.step.replicas import ReplicaStep, StepResult
from trainer.step.state import TrainState
from trainer.task.sums import Sums

_MOST_IMAGES = 8  # of a step that shows them
TOTAL_LOSS, REGULARIZATION = "total_loss", "regularization"


class LoopResult(NamedTuple):
    """Where an inner loop ended.

    Attributes:
      step: global step after the last update, int64 scalar.
      values: of the last update, float32 (values,), named by `Stepper.value_names`.
      finite: bool scalar; False: the loop ended early, since the last update's loss, or a weight after it, is NaN or
        infinite (a NaN can pass through ReLU as 0 and show in the gradient only).
      waited: seconds that the updates waited for their batches, float64 scalar.
      norm: of the last update's summed gradients, float32 scalar; 0 unless it was wanted.
      histograms: of the weights after the last update, then of its summed gradients, float32 (2 * variables,
        details.COLUMNS); none unless they were wanted.
      images: the first of the last batch, on the first local replica; none unless the stepper shows images.
    """

    step: tf.Tensor
    values: tf.Tensor
    finite: tf.Tensor
    waited: tf.Tensor
    norm: tf.Tensor
    histograms: tf.Tensor
    images: tf.Tensor


class Wanted(NamedTuple):
    """What the last update of a loop is to tell, bool scalars."""

    norm: tf.Tensor
    histograms: tf.Tensor

    @classmethod
    def of(cls, names: Collection[str] = ()) -> Wanted:
        """Returns the flags of which the names are given."""
        return cls(*(tf.constant(name in names) for name in cls._fields))


@dataclasses.dataclass(eq=False)
class Stepper:
    """The compiled loops over a model on a strategy.

    Attributes:
      strategy: whose replicas compute.
      state: created in the strategy's scope.
      replicas: what each replica does in a step.
      shows_images: whether a loop's result has images of its last batch.
      value_names: of `LoopResult.values`, once an update has been traced: the total loss, the regularisation, the loss,
        the metrics.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    replicas: ReplicaStep
    shows_images: bool = False
    value_names: tuple[str, ...] = ()

    @tf.function(autograph=False)
    def train(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor, wanted: Wanted) -> LoopResult:
        """Makes `steps` (int64 scalar, 1 or more) updates, or fewer where one is not finite."""

        def one(done: tf.Tensor, before: LoopResult) -> tuple[tf.Tensor, LoopResult]:
            with tf.control_dependencies([before.finite]):  # the update before has ended
                began = tf.timestamp()
            with tf.control_dependencies([began]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(self._local(batch), expand_composites=True)):
                waited = tf.timestamp() - began
            is_last = tf.equal(done + 1, steps)
            result = self._update(batch, Wanted(*(tf.logical_and(is_last, some) for some in wanted)))
            return done + 1, result._replace(waited=before.waited + waited)

        _, result = tf.while_loop(
            lambda done, result: (done < steps) & result.finite,
            one,
            (tf.constant(0, tf.int64), self._nothing()),
            shape_invariants=(tf.TensorShape([]), self._shapes()),
            parallel_iterations=1,
        )
        return result

    @tf.function(autograph=False)
    def train_one(self, iterator: Iterator[tuple[Any, ...]], wanted: Wanted) -> tuple[LoopResult, Any, Any]:
        """Makes one update with a batch whose first component has `image` and `key`.

        Returns:
          The result, the keys of each local replica's rows, string (rows,), and their weights, float32 (rows,): both in
          host memory, since GPUs have no strings.
        """
        features, labels, weights = next(iterator)
        result = self._update((features["image"], labels, weights), wanted)
        return result, self._local(features["key"]), self._local(weights)

    @tf.function(autograph=False)
    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """Returns the measure's sums over `steps` (int64 scalar, 1 or more) batches, float64."""
        structure: list[Sums] = []

        def add(done: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            structure.append(self._first(self.strategy.run(self.replicas.sums, self._rows(next(iterator)))))
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

    def _update(self, batch: tuple[Any, ...], wanted: Wanted) -> LoopResult:
        state, rows = self.state, self._rows(batch)
        if state.schedule:
            state.optimizer.learning_rate = state.schedule(state.global_step.read_value())
        found: StepResult = self._first(self.strategy.run(self.replicas.update, rows))
        state.global_step.assign_add(1)
        step = state.global_step.read_value()
        if state.averages:
            state.averages.update(self.strategy, step)
        results = state.measure.results(found.sums)
        values = {TOTAL_LOSS: results["loss"] + found.penalty, REGULARIZATION: found.penalty, **results}
        self.value_names = tuple(values)
        variables = [v.value for v in state.model.trainable_variables]
        return LoopResult(
            step,
            tf.stack(list(values.values())),
            tf.logical_and(tf.math.is_finite(values[TOTAL_LOSS]), state.has_finite_weights()),
            tf.constant(0.0, tf.float64),
            details.norm(found.gradients, wanted.norm),
            details.histograms([*variables, *found.gradients], wanted.histograms),
            self._local(rows[0])[0][:_MOST_IMAGES] if self.shows_images else self._nothing().images,
        )

    def _nothing(self) -> LoopResult:
        """Returns the result before the first update."""
        images = self.state.task.data.features if self.shows_images else tf.TensorSpec([None])
        return LoopResult(
            self.state.global_step.read_value(),
            tf.zeros([0]),
            tf.constant(True),
            tf.constant(0.0, tf.float64),
            tf.constant(0.0),
            tf.zeros([0, details.COLUMNS]),
            tf.zeros([0, *images.shape[1:]], images.dtype),
        )

    def _shapes(self) -> LoopResult:
        """Returns the shapes of the loop's result, of which those are open that depend on what is traced."""
        shapes = [value.shape for value in self._nothing()]
        return LoopResult(*(shape if not shape.rank else tf.TensorShape([None, *shape[1:]]) for shape in shapes))

    def _rows(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns (features, labels, weights); what a user's parser gives comes as ((features, labels), weights)."""
        return batch if len(batch) == 3 else (*batch[0], batch[1])

    def _local(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)

    def _first(self, value: Any) -> Any:
        """Returns a value, or a structure of values, that are the same on all replicas."""
        return tf.nest.map_structure(lambda one: self._local(one)[0], value)
