"""What is measured of an input, and its stages."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from pipeline.bench import stages
from pipeline.bench.rounds import READY, Part
from pipeline.bench.stages import Stage
from pipeline.bench.subject import Subject
from pipeline.bench.work import decoding, taking
from pipeline.decode.forms import PixelRows, Serialized

_RAW = "raw images are copied as they are"


def parts_of(subject: Subject) -> list[Part]:
    """Returns the parts of an input that are measured by themselves."""
    reads = subject.reads
    contiguous = subject.reader.assigns_rows and not subject.is_resident
    plans = subject.run.plans(contiguous)
    found = [
        Part(stages.BYTES, reads.bytes_only),
        Part(stages.READER, lambda passes: reads.checked(subject.reader, passes)),
        Part(stages.ORDER, taking(plans, lambda element: tf.size(element[0].records, tf.int64))),
    ]
    if _decodes_once(subject):
        found.append(
            Part(stages.DECODE, decoding(subject.chosen.form, subject.reader.load(subject.reads.pieces)["record"]))
        )
    cut_off = [stages.WEIGHTS, *subject.prefixes()] if subject.prefixes() else []
    found += [_steps(name, subject.dataset(name), subject.rows) for name in cut_off]
    found.append(_steps(stages.BATCHES, subject.dataset(), subject.rows))
    if subject.strategy is not None:
        found.append(_steps(stages.DEVICES, subject.on_devices(), subject.rows))
    return found


def whole_of(subject: Subject) -> Part:
    """Returns the input as a run has it."""
    order = subject.resolved.order
    window = 1 if subject.is_resident else -(-order.steps_per_epoch // order.windows)
    return _steps("whole", subject.whole(), subject.rows, window)


def stages_of(subject: Subject) -> list[Stage]:
    """Returns the stages of an input, in the order in which a row meets them."""
    made, found = subject.resolved, stages.of_prefixes(subject.prefixes())
    segments = made.selection.segments
    stored = sum(s.shard.num_bytes for s in segments) / max(1, sum(s.shard.num_examples for s in segments))
    kept = subject.is_resident
    decode_terms = {stages.DECODE: 1} if _decodes_once(subject) else found.get(stages.DECODE, {})
    pixels = float(math.prod(made.image_shape)) if made.image_shape else None

    def handed_on(stage: str | None) -> float:
        return _row_bytes(subject.dataset(stage).element_spec, subject.rows, stored)

    at_all = {name: handed_on(name) for name in subject.prefixes()}
    batch = handed_on(None)
    return [
        Stage("read", {stages.BYTES: 1}, row_bytes=stored, once=kept),
        Stage("check", {stages.READER: 1, stages.BYTES: -1}, _check_note(subject), stored, kept),
        Stage(
            "decode",
            decode_terms,
            "" if decode_terms else _RAW,
            at_all.get(stages.DECODE, pixels),
            _decodes_once(subject),
        ),
        Stage("order", {stages.ORDER: 1}),
        Stage(
            "gather",
            found.get(stages.GATHER, {}),
            "" if stages.GATHER in found else "records are read to where their batch needs them",
            at_all.get(stages.GATHER),
        ),
        Stage(
            "distort",
            found.get(stages.DISTORT, {}),
            ""
            if stages.DISTORT in found
            else "left to the steps"
            if subject.batches.on_device
            else "no recipe is given",
            at_all.get(stages.DISTORT),
        ),
        Stage("batch", found["batch"], "with tf.data's own work for each batch", batch),
        _copy_stage(subject, batch),
    ]


def _decodes_once(subject: Subject) -> bool:
    return isinstance(subject.chosen.form, Serialized) and isinstance(subject.batches.form, PixelRows)


def _check_note(subject: Subject) -> str:
    compression = subject.resolved.manifest.compression
    notes = ["decompresses, too"] if compression else []
    if not all(each.shard.is_seekable(compression) for each in subject.resolved.selection.segments):
        notes += [] if subject.is_resident else ["not what streams that begin inside a shard skip, once per epoch"]
    elif subject.reader.assigns_rows:
        notes.append("puts pixels into place, too")
    return "; ".join(notes)


def _copy_stage(subject: Subject, row_bytes: float) -> Stage:
    if subject.strategy is None:
        return Stage("copy to device", note="one replica on a CPU reads host memory")
    note = f"split between {subject.strategy.num_replicas_in_sync} replicas on CPUs" if subject.is_on_cpus else ""
    return Stage("copy to device", {stages.DEVICES: 1, stages.BATCHES: -1}, note, row_bytes)


def _steps(name: str, batches: Any, rows: int, whole: int | None = None) -> Part:
    """Returns the part that takes batches; with `whole`, in rounds of whole windows that follow each other."""
    take = taking(batches, lambda _: tf.constant(rows, tf.int64))
    if whole is None:
        return Part(name, take, ready=READY, by_steps=True)
    return Part(name, take, whole=whole, by_steps=True, settles=False)


def _row_bytes(spec: Any, rows: int, stored: float) -> float:
    """Returns the bytes per row of elements; of strings, which are serialized records, those that are stored."""
    total = 0.0
    for leaf in tf.nest.flatten(spec, expand_composites=True):
        if leaf.dtype == tf.string:
            total += stored
        elif leaf.shape.rank:
            total += math.prod(size or rows for size in leaf.shape) * leaf.dtype.size / rows
    return total
