"""The input that is timed, opened: one window of it in memory, from which batches are made up to any stage."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.batch.components import choose
from pipeline.batch.compose import make_dataset
from pipeline.batch.dataset import Run, resident, windowed
from pipeline.batch.decoded_split import load
from pipeline.batch.resident_rows import ResidentRows
from pipeline.bench import reading
from pipeline.bench.prefixes import Held, OneWindow, Prefix, first_full_window
from pipeline.bench.reading import Reads
from pipeline.bench.stages import DECODE, DISTORT, GATHER, NUMBERS
from pipeline.decode.forms import PixelRows
from pipeline.distribution.replica_batches import as_distributed
from pipeline.distribution.strategies import PREFETCH, copied_ahead, distribute_request
from pipeline.order.arrays import NumpyArrays
from pipeline.order.feed import make_feed
from pipeline.order.order import MAX_STEP
from pipeline.order.window_plan import WindowPlan
from pipeline.read.corruption import Corruption
from pipeline.read.rows_reader import all_pieces
from pipeline.read.shards import Shards
from pipeline.read.window import Columns, LocalReader
from pipeline.resolved import ResolvedRequest


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """An input.

    Attributes:
      resolved: what is asked for.
      strategy: whose replicas get the batches; None: host memory does, as one batch.
      reader: of windows.
      chosen: how their rows become batches.
      batches: the same of `held`, where a split that is kept is decoded already.
      run: the whole order.
      window: one window of it, again and again.
      held: its rows; of a split that is kept, all rows.
      reads: what it reads.
    """

    resolved: ResolvedRequest
    strategy: tf.distribute.Strategy | None
    reader: LocalReader
    chosen: Batches
    batches: Batches
    run: Run
    window: OneWindow
    held: Columns | ResidentRows
    reads: Reads
    _datasets: dict[str | None, tf.data.Dataset] = dataclasses.field(default_factory=dict)

    @classmethod
    def opened(cls, resolved: ResolvedRequest, strategy: tf.distribute.Strategy | None) -> Subject:
        """Returns the input with a window in memory.

        Raises:
          DataError: a shard is missing, changed or corrupt.
          UsageError: the data set does not provide what is asked for.
        """
        with tf.device("CPU:0"):
            reader, chosen = choose(resolved)
            assert isinstance(reader, LocalReader)
            feed = make_feed(resolved.order, None, NumpyArrays())
            run = Run(feed, 0, MAX_STEP)
            window = OneWindow(feed, 0, MAX_STEP, window=first_full_window(run))
            selection = resolved.selection
            held: Columns | ResidentRows
            if resolved.order.windows == 1:
                held, batches = load(reader, chosen)
                pieces, row_of = all_pieces(selection), None
            else:
                plan = _plan(window, reader)
                read = tf.function(reader.read, autograph=False)  # in a graph, whose errors carry the reader's words
                held, batches = read(plan.pieces, plan.slots), chosen
                pieces, row_of = plan.pieces.numpy(), plan.slots.numpy()
        shards = Shards.found(resolved.request.folder, selection.segments, Corruption(str(resolved.request.folder)))
        reads = reading.limited(shards, pieces, row_of, resolved.manifest.compression)
        return cls(resolved, strategy, reader, chosen, batches, run, window, held, reads)

    @property
    def is_resident(self) -> bool:
        """Whether the split is read once, and kept."""
        return self.resolved.order.windows == 1

    @property
    def rows(self) -> int:
        """Of a batch."""
        return self.resolved.order.global_batch_size

    @property
    def are_stored(self) -> bool:
        """Whether batches are slices of a window, so that nothing is gathered."""
        return self.batches.are_stored and not self.is_resident and self.reader.assigns_rows

    def prefixes(self) -> list[str]:
        """Returns the stages after which the making of batches can be cut off, in order."""
        if self.are_stored:
            return []
        decodes = not isinstance(self.batches.form, PixelRows)
        distort = [] if self.batches.hands_on else [DISTORT]
        return [NUMBERS, GATHER, *([DECODE] if decodes else []), *distort]

    def dataset(self, last: str | None = None) -> tf.data.Dataset:
        """Returns the batches of the window in memory; with `last`, what there is after that stage."""
        if last not in self._datasets:
            batches = self.batches if last is None else Prefix.of(self.batches, last)
            self._datasets[last] = self._made(batches)
        return self._datasets[last]

    def _made(self, batches: Batches, replicas: int | None = None) -> tf.data.Dataset:
        window = dataclasses.replace(self.window, replicas=replicas)
        with tf.device("CPU:0"):
            if isinstance(self.held, ResidentRows):
                return resident(window, batches, self.held)
            return windowed(window, batches, Held(self.reader, self.held))

    def on_devices(self) -> Any:
        """Returns `dataset()`, split and copied for the replicas of the strategy."""
        assert self.strategy is not None
        if self.is_on_cpus:
            return as_distributed(self.strategy, self._made(self.batches, self.strategy.num_replicas_in_sync))
        return self.strategy.experimental_distribute_dataset(self.dataset(), copied_ahead(PREFETCH))

    @property
    def is_on_cpus(self) -> bool:
        """Whether the replicas read host memory."""
        return self.strategy is None or all("CPU" in name for name in self.strategy.extended.worker_devices)

    def whole(self) -> Any:
        """Returns the input as a run has it, reading included."""
        request = dataclasses.replace(self.resolved.request, epochs=_endless(self.resolved))
        if self.strategy is None:
            return make_dataset(request)
        return distribute_request(self.strategy, request)


def _plan(window: OneWindow, reader: LocalReader) -> WindowPlan:
    plan, _ = next(iter(window.plans(contiguous=reader.assigns_rows)))
    return plan


def _endless(resolved: ResolvedRequest) -> int | None:
    """Returns so many epochs that a benchmark does not come to their end."""
    return None if resolved.order.training else (1 << 50) // resolved.order.steps_per_epoch
