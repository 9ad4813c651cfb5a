"""Makes batches out of rows of windows: the decoding where there is any, the distortion (XLA), the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from pipeline.decode.forms import Examples, Form, PixelRows
from pipeline.distort.base import ImageStatistics, Recipe
from pipeline.distort.undistorted import Undistorted
from pipeline.order import hashing_tf
from pipeline.order.hashing import Domain
from pipeline.order.order import Order
from pipeline.order.window_plan import WindowPlan
from pipeline.read import window
from pipeline.read.window import Columns


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """How a window's rows become the elements that the user gets.

    Attributes:
      order: for the seed, and whether to train.
      form: how columns become examples.
      statistics: of the training images.
      recipe: the distortion; None: the user's parser gives what he wants.
      weights: `mask` or `mean`.
      record_ids: add the record ids to the element.
    """

    order: Order
    form: Form
    statistics: ImageStatistics
    recipe: Recipe | None
    weights: str
    record_ids: bool

    def element(self, taken: Columns, plan: WindowPlan, number: tf.Tensor) -> tuple[Any, ...]:
        """Returns element `number` of a window, of its rows: (x, labels, weights) or (parsed, weights), and record ids.

        Args:
          taken: the rows, a column each.
          plan: of the window.
          number: int64 scalar.
        """
        records, good = taken[window.RECORD_ID], taken.get(window.GOOD)
        taken = {name: column for name, column in taken.items() if name not in (window.RECORD_ID, window.GOOD)}
        real = plan.real[number] if good is None else tf.logical_and(plan.real[number], good)
        rest = [self._weights(real, plan.real_rows[number], has_skipped=good is not None)]
        rest += [records] if self.record_ids else []
        examples = self.form.examples(taken, lambda: self._keys(plan.epoch, records))
        if self.recipe is None:
            return examples.images, *rest
        return self._x(examples, plan.epoch, records), examples.labels, *rest

    @property
    def is_plain(self) -> bool:
        """Whether elements are what lies in the window, as `plain` gives it."""
        return isinstance(self.form, PixelRows) and isinstance(self.recipe, Undistorted)

    def plain(self, columns: Columns, plan: WindowPlan, stop: tf.Tensor, rows: int) -> tuple[Any, ...]:
        """Returns whole elements of a window together, with one axis more than `element`, in the same memory.

        Args:
          columns: the window's.
          plan: of the window, its rows `side_by_side`.
          stop: the elements that are whole, but no further than this.
          rows: of an element.
        """
        first = plan.whole[0]
        together = {
            name: tf.reshape(column[: (stop - first) * rows], [-1, rows, *column.shape[1:]])
            for name, column in columns.items()
        }
        real = together.pop(window.GOOD, tf.ones([stop - first, rows], tf.bool))
        rest = [self._weights(real, plan.real_rows[first:stop], has_skipped=window.GOOD in columns)]
        records = together.pop(window.RECORD_ID)
        rest += [records] if self.record_ids else []
        images, labels = self.form.unpack(together.pop("image")), together.pop("label")
        images = tf.reshape(images, [-1, rows, *images.shape[1:]])
        return {"image": images, **together} if together else images, labels, *rest

    def _x(self, examples: Examples, epoch: tf.Tensor, records: tf.Tensor) -> Any:
        images = self._distort(examples.images, epoch, records)
        return {"image": images, **examples.features} if examples.features else images

    @property
    def hands_out(self) -> bool:
        """Whether images may reach the user as they are, in whatever memory they lie."""
        return self.recipe is None or not self.recipe.compiled

    @property
    def _distort(self) -> Any:
        assert self.recipe is not None
        return self._compiled if self.recipe.compiled else self._distorted

    @tf.function(jit_compile=True)
    def _compiled(self, images: tf.Tensor, epoch: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
        return self._distorted(images, epoch, records)

    def _distorted(self, images: tf.Tensor, epoch: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
        assert self.recipe is not None
        function = self.recipe.distort if self.order.training else self.recipe.evaluate
        return function(self.form.unpack(images), self._keys(epoch, records), self.statistics)

    def _keys(self, epoch: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
        return hashing_tf.derive_key(Domain.DISTORT, self.order.seed, epoch, records)

    def _weights(self, real: tf.Tensor, real_rows: tf.Tensor, has_skipped: bool) -> tf.Tensor:
        """Returns the weights, float32, of rows: bool (rows,), or (elements, rows), and those that are real of each."""
        mask = tf.cast(real, tf.float32)
        if self.weights == "mask":
            return mask
        if has_skipped:  # the batch is whole then, so that it tells how many rows are real
            real_rows = tf.maximum(tf.reduce_sum(mask, axis=-1), 1.0)
        return mask * (self.order.global_batch_size / real_rows)[..., None]
