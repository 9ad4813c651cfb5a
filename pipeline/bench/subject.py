"""The input to time: a window in memory, whose batches can stop after any stage, and the input's parts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.augmentation.composed import cropping_of
from pipeline.batch import AUGMENT, DECODE, GATHER, NUMBERS, WEIGHTS
from pipeline.batch.batches import Batches
from pipeline.batch.compose import choose, make_dataset
from pipeline.batch.dataset import of_windows, resident, with_tails
from pipeline.batch.plans import Run
from pipeline.batch.resident import ResidentRows, load, numbered
from pipeline.bench import measure
from pipeline.bench.measure import READY, Part, Reads, decoding, taking
from pipeline.bench.result import BATCHES, BYTES, DEVICES, ORDER, READER, Segment, Stage, of_prefixes
from pipeline.commands.text import count_of
from pipeline.decode.forms import PixelRows, Serialized
from pipeline.distribution import MOST_KEPT, PREFETCH, as_distributed, copied_ahead, distribute_request, in_groups
from pipeline.errors import UsageError
from pipeline.order.feed import make_feed
from pipeline.order.order import MAX_STEP
from pipeline.order.sharding import check_replicas
from pipeline.order.views import consecutive
from pipeline.read.corruption import Corruption
from pipeline.read.rows_reader import all_pieces
from pipeline.read.shards import Shards
from pipeline.read.window import RECORD_ID, Columns, LocalReader, gather
from pipeline.resolved import ResolvedInput, ResolvedRequest

_RAW = "raw images are copied as they are"
_CROPPED = "crops, resizes and flips, too"


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """An input, with one window of it in memory.

    Attributes:
      resolved: arguments of `input_fn`, with the data set.
      strategy: strategy whose replicas get the batches; None for one replica that reads host memory.
      reader: reader of windows.
      chosen: maker of batches from rows in the form that the reader returns.
      batches: maker of batches from `held`; differs from `chosen` if a split is decoded in memory.
      run: steps of the whole run.
      window: number, within its epoch, of the window in memory.
      held: rows of that window; all rows if the split is kept in memory.
      reads: bytes and records to read.
    """

    resolved: ResolvedRequest
    strategy: tf.distribute.Strategy | None
    reader: LocalReader
    chosen: Batches
    batches: Batches
    run: Run
    window: int
    held: Columns | ResidentRows
    reads: Reads
    _datasets: dict[str | None, tf.data.Dataset] = dataclasses.field(default_factory=dict)

    @classmethod
    def opened(cls, resolved: ResolvedRequest, strategy: tf.distribute.Strategy | None) -> Subject:
        """Returns the input with a window in memory.

        Raises:
          DataError: a shard is missing, changed or corrupt.
          UsageError: the data set does not provide what the request needs.
        """
        with tf.device("CPU:0"):
            reader, chosen = choose(resolved)
            assert isinstance(reader, LocalReader)
            feed = make_feed(resolved.order, None)
            run = Run(feed, 0, MAX_STEP)
            # The first window that completes an element: a small window may only fill the tail for the next one.
            windows = range(feed.order.windows)
            window = next(w for w in windows if feed.steps_before(w + 1) > feed.steps_before(w))
            selection = resolved.selection
            held: Columns | ResidentRows
            if resolved.order.windows == 1:
                held, batches = load(reader, chosen)
                times = resolved.order.times
                pieces, row_of = all_pieces(selection, None if times is None else times.records), None
            else:
                plan, _ = next(iter(_repeated(run, window, reader.assigns_rows)))
                read = tf.function(reader.read, autograph=False)  # in a graph, so that errors keep the reader's message
                held, batches = read(plan.pieces, plan.slots, plan.times), chosen
                pieces, row_of = plan.pieces.numpy(), plan.slots.numpy()
        shards = Shards.found(resolved.request.folder, selection.segments, Corruption(str(resolved.request.folder)))
        reads = measure.limited(shards, pieces, row_of)
        return cls(resolved, strategy, reader, chosen, batches, run, window, held, reads)

    @property
    def is_resident(self) -> bool:
        """Whether the split is read once and kept in memory."""
        return self.resolved.order.windows == 1

    @property
    def rows(self) -> int:
        """Number of rows in a batch."""
        return self.resolved.order.global_batch_size

    @property
    def are_stored(self) -> bool:
        """Whether a batch is a slice of the window, so that no rows are gathered."""
        return self.batches.are_stored and not self.is_resident and self.reader.assigns_rows

    def prefixes(self) -> list[str]:
        """Returns the stages after which `dataset` can stop, in order."""
        if self.are_stored:
            return []
        decodes = not isinstance(self.batches.form, PixelRows)
        augment = [] if self.batches.hands_on else [AUGMENT]
        return [NUMBERS, GATHER, *([DECODE] if decodes else []), *augment]

    def dataset(self, until: str | None = None) -> tf.data.Dataset:
        """Returns endless batches from the window in memory or, with `until`, the results of that stage."""
        if until not in self._datasets:
            self._datasets[until] = self._made(dataclasses.replace(self.batches, until=until))
        return self._datasets[until]

    def _made(self, batches: Batches, replicas: int | None = None) -> tf.data.Dataset:
        run = dataclasses.replace(self.run, replicas=replicas)
        with tf.device("CPU:0"):
            if isinstance(self.held, ResidentRows):
                return resident(run, batches, self.held, self.plans())
            held, in_place = self.held, self.reader.assigns_rows
            # Every repetition of the window uses the same columns, which were read once.
            loaded = self.plans().map(lambda plan, first: (plan, first, {RECORD_ID: plan.records, **held}))
            return of_windows(run, batches, with_tails(loaded), in_place)

    def plans(self) -> tf.data.Dataset:
        """Returns the window's plan, made once and repeated endlessly."""
        return _repeated(self.run, self.window, self.reader.assigns_rows and not self.is_resident)

    def on_devices(self) -> Any:
        """Returns `dataset()`, split and copied to the strategy's replicas."""
        assert self.strategy is not None
        replicas = self.strategy.num_replicas_in_sync
        if self.is_on_cpus:
            return as_distributed(self.strategy, self._made(self.batches, replicas))
        if self.resolved.order.training:
            subject, images = self, None
            if isinstance(self.held, ResidentRows):
                rows, batches, images = numbered(self.held, self.batches, MOST_KEPT)
                subject = dataclasses.replace(self, held=rows, batches=batches, _datasets={})
            made = subject.dataset() if replicas == 1 else subject._made(subject.batches, replicas)
            return in_groups(self.strategy, made, PREFETCH, images)
        return self.strategy.experimental_distribute_dataset(self.dataset(), copied_ahead(PREFETCH))

    @property
    def is_on_cpus(self) -> bool:
        """Whether the replicas read host memory."""
        return self.strategy is None or all("CPU" in name for name in self.strategy.extended.worker_devices)

    def whole(self) -> Any:
        """Returns the input as in a run, including reading."""
        order = self.resolved.order
        epochs = None if order.training else (1 << 50) // order.steps_per_epoch  # more than any benchmark reaches
        request = dataclasses.replace(self.resolved.request, epochs=epochs)
        if self.strategy is None:
            return make_dataset(request)
        return distribute_request(self.strategy, request, grouped=True)

    def parts(self) -> list[Part]:
        """Returns the parts of the input, to be measured one by one."""
        reads = self.reads
        contiguous = self.reader.assigns_rows and not self.is_resident
        plans = self.run.plans(contiguous)
        found = [
            Part(BYTES, reads.bytes_only),
            Part(READER, lambda passes: reads.checked(self.reader, passes)),
            Part(ORDER, taking(plans, lambda element: tf.size(element[0].records, tf.int64))),
        ]
        if self._decodes_once():
            columns = self.reader.load(self.reads.pieces)
            records = gather(
                columns, tf.range(int(reads.pieces[:, 2].sum() - reads.pieces[:, 1].sum()), dtype=tf.int64)
            )
            found.append(Part(DECODE, decoding(self.chosen.form, records["record"], tf.constant(self._ids()))))
        cut_off = [WEIGHTS, *self.prefixes()] if self.prefixes() else []
        found += [steps(name, self.dataset(name), self.rows) for name in cut_off]
        found.append(steps(BATCHES, self.dataset(), self.rows))
        if self.strategy is not None:
            found.append(steps(DEVICES, self.on_devices(), self.rows))
        return found

    def whole_part(self) -> Part:
        """Returns the whole input, as in a run, as a part to measure."""
        order = self.resolved.order
        window = 1 if self.is_resident else -(-order.steps_per_epoch // order.windows)
        return steps("whole", self.whole(), self.rows, window)

    def stages(self) -> list[Stage]:
        """Returns the input's stages in the order in which rows pass through them."""
        made, found = self.resolved, of_prefixes(self.prefixes())
        segments = made.selection.segments
        stored = sum(s.shard.num_bytes for s in segments) / max(1, sum(s.shard.num_examples for s in segments))
        kept = self.is_resident
        decode_terms = {DECODE: 1} if self._decodes_once() else found.get(DECODE, {})
        pixels = float(math.prod(made.image_shape)) if made.image_shape else None

        def handed_on(stage: str | None) -> float:
            return _row_bytes(self.dataset(stage).element_spec, self.rows, stored)

        at_all = {name: handed_on(name) for name in self.prefixes()}
        batch = handed_on(None)
        return [
            Stage("read", {BYTES: 1}, row_bytes=stored, once=kept),
            Stage("check", {READER: 1, BYTES: -1}, self._check_note(), stored, kept),
            Stage(
                "decode",
                decode_terms,
                self._decode_note() if decode_terms else _RAW,
                at_all.get(DECODE, pixels),
                self._decodes_once(),
            ),
            Stage("order", {ORDER: 1}),
            Stage(
                "gather",
                found.get(GATHER, {}),
                "" if GATHER in found else "records are read to where their batch needs them",
                at_all.get(GATHER),
            ),
            Stage(
                "augment",
                found.get(AUGMENT, {}),
                "" if AUGMENT in found else self._unaugmented_note(),
                at_all.get(AUGMENT),
            ),
            Stage("batch", found["batch"], "with tf.data's own work for each batch", batch),
            self._copy_stage(batch),
        ]

    def _ids(self) -> np.ndarray:
        """Returns the ids of the records to read, in order, int64 (n,)."""
        counts = np.array([segment.num_examples for segment in self.resolved.selection.segments], np.int64)
        segments, first, stop = self.reads.pieces.T
        return consecutive((np.cumsum(counts) - counts)[segments] + first, stop - first)

    def _decodes_once(self) -> bool:
        return isinstance(self.chosen.form, Serialized) and isinstance(self.batches.form, PixelRows)

    def _check_note(self) -> str:
        shards = [each.shard for each in self.resolved.selection.segments]
        notes = ["decompresses, too"] if any(shard.compression for shard in shards) else []
        if not all(shard.is_seekable for shard in shards):
            notes += [] if self.is_resident else ["not what streams that begin inside a shard skip, once per epoch"]
        elif self.reader.assigns_rows:
            notes.append("puts pixels into place, too")
        return "; ".join(notes)

    def _decode_note(self) -> str:
        form, cropping = self.chosen.form, cropping_of(self.batches.recipe)
        return _CROPPED if cropping and isinstance(form, Serialized) and form.decoder.mirrored else ""

    def _unaugmented_note(self) -> str:
        if self.batches.on_device:
            return "left to the steps"
        return "done while images are decoded" if cropping_of(self.batches.recipe) else "no recipe is given"

    def _copy_stage(self, row_bytes: float) -> Stage:
        if self.strategy is None:
            return Stage("copy to device", note="one replica on a CPU reads host memory")
        note = f"split between {self.strategy.num_replicas_in_sync} replicas on CPUs" if self.is_on_cpus else ""
        return Stage("copy to device", {DEVICES: 1, BATCHES: -1}, note, row_bytes)


def _repeated(run: Run, window: int, contiguous: bool) -> tf.data.Dataset:
    return run.plans(contiguous).skip(window).take(1).cache().repeat()


def steps(name: str, batches: Any, rows: int, whole: int | None = None) -> Part:
    """Returns a part that takes batches.

    Args:
      name: name of the part.
      batches: endless dataset.
      rows: number of rows in a batch.
      whole: number of batches in a window, for an input that reads: its rounds are consecutive and take whole windows.
    """
    take = taking(batches, lambda _: tf.constant(rows, tf.int64))
    if whole is None:
        return Part(name, take, ready=READY, by_steps=True)
    return Part(name, take, whole=whole, by_steps=True, settles=False)


def _row_bytes(spec: Any, rows: int, stored: float) -> float:
    """Returns the bytes per row of the elements; a string counts as a serialized record of `stored` bytes."""
    total = 0.0
    for leaf in tf.nest.flatten(spec, expand_composites=True):
        if leaf.dtype == tf.string:
            total += stored
        elif leaf.shape.rank:
            total += math.prod(size or rows for size in leaf.shape) * leaf.dtype.size / rows
    return total


def strategy_of(replicas: int | None, global_batch_size: int) -> tf.distribute.Strategy | None:
    """Returns a strategy with this number of replicas; None for one replica that reads host memory.

    Args:
      replicas: number of replicas, on the first GPUs or, without GPUs, on logical CPUs; None for all GPUs or one CPU.
      global_batch_size: number of rows that the replicas share.

    Raises:
      UsageError: there are fewer GPUs, or the replicas do not divide the global batch.
    """
    gpus = tf.config.list_physical_devices("GPU")
    count = replicas or max(1, len(gpus))
    check_replicas(global_batch_size, count)
    if gpus:
        if count > len(gpus):
            raise UsageError(f"--replicas={count}: this machine has {count_of(len(gpus), 'GPU')}")
        names = [f"GPU:{i}" for i in range(count)]
        return tf.distribute.OneDeviceStrategy(names[0]) if count == 1 else tf.distribute.MirroredStrategy(names)
    if count == 1:
        return None
    cpu = tf.config.list_physical_devices("CPU")[0]
    existing = tf.config.get_logical_device_configuration(cpu)
    if existing is None:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    elif len(existing) < count:
        raise UsageError(f"--replicas={count}: this process has already split its CPU into {len(existing)}")
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def names_of(strategy: tf.distribute.Strategy | None) -> list[str]:
    """Returns the device names of the replicas, such as `CPU:0`."""
    if strategy is None:
        return ["CPU:0"]
    return [":".join(name.split(":")[-2:]) for name in strategy.extended.worker_devices]


def segments_of(mixture: ResolvedInput) -> list[Segment]:
    """Returns the segments of a mixture; without a schedule there is one."""
    request, schedule, segments = mixture.request, mixture.request.schedule, mixture.request.shares.segments
    if not schedule:
        return [Segment(*segments[0], request)]
    # One step of each segment, so that the units stay the same; then the segment to time, without end.
    short = [(step, weights) for step, (_, weights) in enumerate(schedule)]
    last = len(schedule)
    return [
        Segment(first, of_segment, dataclasses.replace(request, schedule=[*short, (last, weights)], start_step=last))
        for (first, of_segment), (_, weights) in zip(segments, schedule, strict=True)
    ]


def segment_part(segment: Segment, strategy: tf.distribute.Strategy | None) -> Part:
    """Returns a segment as a part to measure: the input as in a run, including reading."""
    request = segment.request
    batches = make_dataset(request) if strategy is None else distribute_request(strategy, request)
    return steps(segment.name, batches, request.global_batch_size, whole=1)
