"""Makes batches out of rows of windows: the decoding where there is any, the distortion (XLA), the weights."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from pipeline.batch.recipe import distortion_of
from pipeline.decode.forms import Examples, Form, PixelRows
from pipeline.distort.base import Recipe, Undistorted
from pipeline.distort.distortion import Distortion
from pipeline.order import hashing_tf
from pipeline.order.hashing import Domain
from pipeline.order.window_plan import WindowPlan
from pipeline.read import window
from pipeline.read.window import Columns
from pipeline.request import DEVICE, DISTORT_EPOCH, DISTORT_KEY
from pipeline.resolved import ResolvedRequest


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """How a window's rows become the elements that the user gets.

    Attributes:
      resolved: the request.
      form: how columns become examples.
      recipe: the distortion; None: the user's parser returns everything.
    """

    resolved: ResolvedRequest
    form: Form
    recipe: Recipe | None

    def element(self, taken: Columns, plan: WindowPlan, number: tf.Tensor) -> tuple[Any, ...]:
        """Returns element `number` of a window: (x, labels, weights), and record ids if wanted.

        Of a user's parser that gives no pair it is (parsed, weights).

        Args:
          taken: its rows, by column.
          plan: of the window.
          number: int64 scalar; or (elements,), several elements together. All these then have one axis more.
        """
        rest, records = self.weights(taken, plan, number), taken[window.RECORD_ID]
        real = self.real(taken, plan, number)
        taken = {name: column for name, column in taken.items() if name not in (window.RECORD_ID, window.GOOD)}
        examples = self.form.examples(taken, lambda: self.keys_of(plan.epoch, records))
        if self.recipe is None:
            return (examples.images, *rest) if examples.labels is None else (examples.images, examples.labels, *rest)
        return *self.distorted(examples, plan.epoch, records, real), *rest

    def weights(self, taken: Columns, plan: WindowPlan, number: tf.Tensor) -> list[tf.Tensor]:
        """Returns the weights of element `number`, and its record ids if wanted; the arguments are as of `element`."""
        real, records = self.real(taken, plan, number), taken[window.RECORD_ID]
        return self._rest(real, tf.gather(plan.real_rows, number), records, has_skipped=window.GOOD in taken)

    def weigh_whole_elements(self, columns: Columns) -> bool:
        """Whether weights depend on how many rows of an element are skipped, so that it is not to be cut before."""
        return window.GOOD in columns and self.resolved.request.weights == "mean"

    def real(self, taken: Columns, plan: WindowPlan, number: tf.Tensor) -> tf.Tensor:
        """Returns bool (rows,): which rows of element `number` are not padding, and not skipped."""
        good, real = taken.get(window.GOOD), tf.gather(plan.real, number)
        return real if good is None else tf.logical_and(real, good)

    @property
    def are_stored(self) -> bool:
        """Whether elements are rows of the window as they are, so that `stored` gives them."""
        return isinstance(self.form, PixelRows) and self.hands_on

    def stored(self, columns: Columns, plan: WindowPlan, stop: tf.Tensor, rows: int) -> tuple[Any, ...]:
        """Returns contiguous elements of a window together, with one axis more than `element`, in its memory.

        Args:
          columns: the window's.
          plan: of the window, made by `with_contiguous_elements`.
          stop: the end of these elements.
          rows: of an element.
        """
        first = plan.contiguous[0]
        together = {
            name: tf.reshape(column[: (stop - first) * rows], [-1, rows, *column.shape[1:]])
            for name, column in columns.items()
        }
        real = together.pop(window.GOOD, tf.ones([stop - first, rows], tf.bool))
        records = together.pop(window.RECORD_ID)
        rest = self._rest(real, plan.real_rows[first:stop], records, has_skipped=window.GOOD in columns)
        images, labels = self.form.as_images(together.pop("image")), together.pop("label")
        together = {**together, **self._for_device(plan.epoch, records)} if self.on_device else together
        return {"image": images, **together} if together else images, labels, *rest

    def distorted(
        self, examples: Examples, epoch: tf.Tensor, records: tf.Tensor, real: tf.Tensor
    ) -> tuple[Any, tf.Tensor | None]:
        """Returns x and the labels; where the device distorts, what it needs for that is part of x."""
        images, labels = examples.images, examples.labels
        if self.on_device:
            images, features = self.form.as_images(images), {**examples.features, **self._for_device(epoch, records)}
        else:
            images, labels = self._distortion(images, labels, epoch, records, real)
            features = examples.features
        return {"image": images, **features} if features else images, labels

    def _for_device(self, epoch: tf.Tensor, records: tf.Tensor) -> Columns:
        assert self.recipe is not None
        keys = self.keys_of(epoch, records)
        return {DISTORT_KEY: keys, **({DISTORT_EPOCH: tf.fill(tf.shape(keys), epoch)} if self.recipe.mixing else {})}

    @property
    def on_device(self) -> bool:
        """Whether images are handed on as they are, to be distorted in the replicas' steps."""
        return self.resolved.request.distort_on == DEVICE

    @property
    def hands_on(self) -> bool:
        """Whether images are handed on as they are."""
        return self.on_device or isinstance(self.recipe, Undistorted)

    @property
    def alias_window(self) -> bool:
        """Whether the user's images may lie in the memory of the rows that they are made from."""
        return self.on_device or self.recipe is None or not self.recipe.compiled

    @functools.cached_property
    def _distortion(self) -> Distortion:
        assert self.recipe is not None
        return distortion_of(self.resolved, self.recipe, self.keys_of, self.form.as_images)

    def keys_of(self, epoch: tf.Tensor, records: tf.Tensor) -> tf.Tensor:
        """Returns the key of each record in an epoch, uint64: what all its distortions are drawn from."""
        return hashing_tf.derive_key(Domain.DISTORT, self.resolved.order.seed, epoch, records)

    def _rest(self, real: tf.Tensor, real_rows: tf.Tensor, records: tf.Tensor, has_skipped: bool) -> list[tf.Tensor]:
        """Returns the weights, float32, and the record ids if they are wanted, of one element or of several.

        Args:
          real: bool (rows,) or (elements, rows): which rows are not padding, and not skipped.
          real_rows: of each element's global batch.
          records: int64, of the shape of `real`.
          has_skipped: whether rows may be skipped; then the element is a global batch.
        """
        request, weights = self.resolved.request, tf.cast(real, tf.float32)
        if request.weights == "mean":
            count = tf.cast(real_rows, tf.float32)
            if has_skipped:
                count = tf.maximum(tf.reduce_sum(weights, axis=-1), 1.0)
            weights *= (self.resolved.order.global_batch_size / count)[..., None]
        given = [] if request.weights == "none" else [weights]
        return [*given, records] if request.record_ids else given
