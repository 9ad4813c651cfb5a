"""Batches of the training split, which each worker reads with TensorFlow's own operations and keeps in memory.

A worker runs graphs that the chief has made, and no Python. So the order of an epoch is computed inside the graph, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.batch import compose
from pipeline.batch.batches import Batches
from pipeline.decode import PixelRows, Serialized
from pipeline.distort.geometry import CroppingRecipe
from pipeline.order.arrays import Array, Arrays
from pipeline.order.feed import make_feed
from pipeline.order.tensors import TENSORS
from pipeline.order.views import Times
from pipeline.read.rows_reader import all_pieces
from pipeline.read.window import RECORD_ID, Columns, GraphReader, gather
from pipeline.resolved import ResolvedRequest

_DECODED_TOGETHER = 256  # images


class _Numbers(Times):
    """Times of a view whose ids are the numbers of the chosen records: one gather then makes records of a batch's rows.

    So the chosen records are once in the graph, and no epoch's worth of ids is gathered from them.
    """

    def ids(self, numbers: Array, arrays: Arrays = TENSORS) -> Array:
        """Returns the numbers."""
        return numbers


class ColumnBatches:
    """Makes batches of columns.

    Attributes:
      rows: of a share of a step.
      steps_per_epoch: T.
      skip_steps: (first, end) of global steps whose rows have weight 0.
    """

    def __init__(self, resolved: ResolvedRequest, shares: int = 1) -> None:
        """Chooses what reads and decodes.

        Args:
          resolved: the training request.
          shares: equal parts of a global batch, of which each is a batch here.

        Raises:
          DataError, UsageError: as `pipeline.input_fn`.
        """
        compose.check_in_graph([resolved])
        portable = dataclasses.replace(resolved, request=dataclasses.replace(resolved.request, portable=True))
        reader, batches = compose.choose(portable)
        assert isinstance(reader, GraphReader)
        self._reader, self._form, order = reader, batches.form, resolved.order
        decodes = isinstance(self._form, Serialized) and not isinstance(batches.recipe, CroppingRecipe)
        self._batches: Batches = batches
        if decodes:
            assert resolved.image_shape is not None
            self._batches = dataclasses.replace(batches, form=PixelRows(resolved.image_shape))
        self._decodes, self._resolved = decodes, resolved
        if order.times is not None:
            fields = (getattr(order.times, field.name) for field in dataclasses.fields(order.times))
            order = dataclasses.replace(order, times=_Numbers(*fields))
        self._feed = make_feed(order, None, TENSORS)
        self.rows, self.steps_per_epoch = order.global_batch_size // shares, order.steps_per_epoch
        self.skip_steps = order.skip_steps

    def dataset(self) -> tf.data.Dataset:
        """Returns a dataset that repeats (columns, index of the worker), the same tensors each time."""
        pieces = self._pieces()
        records = self._reader.read(pieces, pieces)["record"][: self._count]
        columns = self._decoded(records) if self._decodes else {"record": records}
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        dataset = tf.data.Dataset.from_tensors((columns, tf.cast(index, tf.int64))).repeat()
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False  # which would copy the split
        options.autotune.enabled = False
        return dataset.with_options(options)

    def of_epoch(self, columns: Columns, step: tf.Tensor) -> Callable[[tf.Tensor, tf.Tensor], tuple[Any, ...]]:
        """Returns a function of (step, share) that gives the batch of a share of a step.

        Args:
          columns: of the dataset.
          step: any step of the epoch, int64 scalar; the function may be asked for steps of this epoch alone.
        """
        plan = self._feed.plan(step // self.steps_per_epoch, tf.constant(0, tf.int64))

        def batch(step: tf.Tensor, share: tf.Tensor) -> tuple[Any, ...]:
            number = step % self.steps_per_epoch
            first = share * self.rows
            part = lambda rows: tf.ensure_shape(rows[first : first + self.rows], [self.rows])  # noqa: E731
            ids, rows = self._ids_and_rows(tf.gather(plan.records, part(plan.take[number])))
            taken = {RECORD_ID: ids, **gather(columns, rows)}
            here = plan._replace(real=part(plan.real[number])[None], real_rows=plan.real_rows[number][None])
            return self._batches.element(taken, here, tf.constant(0, tf.int64))

        return batch

    def _pieces(self) -> tf.Tensor:
        """Returns what to read. Of a view it is one piece per record, which the reader joins.

        They are computed in the graph, as constants of it they would be six times as large as the view.
        """
        times, selection = self._resolved.order.times, self._resolved.selection
        if times is None or times.records is None:
            return tf.constant(all_pieces(selection))
        counts = np.array([segment.num_examples for segment in selection.segments], np.int64)
        ends, records = np.cumsum(counts), tf.cast(times.records, tf.int64)
        segments = TENSORS.searchsorted(ends, records, "right")
        first = records - tf.gather(ends - counts, segments)
        return tf.stack([segments, first, first + 1], axis=1)

    def _decoded(self, records: tf.Tensor) -> Columns:
        pixels = math.prod(self._resolved.image_shape or ())

        def decode(part: tf.Tensor) -> Columns:
            examples = self._form.examples({"record": part}, lambda: tf.zeros(tf.shape(part), tf.uint64))
            return {"image": tf.reshape(examples.images, [-1, pixels]), "label": examples.labels}

        parts = tf.data.Dataset.from_tensor_slices(records).batch(_DECODED_TOGETHER).map(decode)
        whole: Columns = parts.rebatch(max(1, self._count)).get_single_element()
        return whole

    @property
    def _count(self) -> int:
        times = self._resolved.order.times
        return self._resolved.selection.num_examples if times is None else times.num_chosen

    def _ids_and_rows(self, planned: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of planned records, and their rows in the columns, which have a view's records each once."""
        times = self._resolved.order.times
        rows = planned % times.num_stored if times is not None and times.repeats else planned
        if times is None or times.records is None:
            return planned, rows
        return planned - rows + times.ids(rows, TENSORS), rows
