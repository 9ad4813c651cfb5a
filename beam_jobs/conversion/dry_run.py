"""`--dry_run`: reports what a conversion would write, where and how fast, from a sample of rows; writes nothing."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.appending import notes_about
from beam_jobs.conversion import job
from beam_jobs.examples.records import compressed, make_records
from beam_jobs.examples.selection import Selected, select
from beam_jobs.plan import Plan, fastest, without_split
from beam_jobs.shards.receipts import Reject
from beam_jobs.sink import Sink, staging
from beam_jobs.sink.present import check_options, existing_manifest, other_pixels, renumbered
from beam_jobs.sources import dealt, transformed
from beam_jobs.sources.base import Block
from pipeline import images
from pipeline.commands.text import count_of, range_of, shape_of, size_of, table
from pipeline.errors import DataError

_ROWS, _BYTES = 1024, 32 << 20  # 32 MiB: most to read from each split
_SHOWN = 3  # examples shown per split
_LISTED_REJECTS = 5
_LONGEST = 32  # characters shown of a feature's value
_ENOUGH_SECONDS = 0.2  # seconds of work that are enough to time it


@dataclasses.dataclass(frozen=True)
class Measured:
    """Estimates for one split from a sample of its rows.

    Attributes:
      rows: number of rows read.
      rejects: invalid rows among them.
      num_bytes: estimated size of all shards of the split.
      seconds: estimated time for all rows on one core.
      formats, sizes: formats and sizes of the images as they would be stored.
      examples: first examples: {feature: value as text}.
    """

    rows: int
    rejects: tuple[Reject, ...]
    num_bytes: int
    seconds: float
    formats: frozenset[str]
    sizes: frozenset[tuple[int, ...]]
    examples: tuple[dict[str, str], ...]


def show(plan: Plan, sink: Sink, overwrite: bool, workers: int, lowered: str) -> None:
    """Prints what converting a plan would do.

    Args:
      plan: plan of the conversion.
      sink: sink to write to, already checked.
      overwrite: whether a different data set there would be replaced.
      workers: number of processes that would share the work.
      lowered: line explaining why fewer workers are used than the flag asks for; "" if not.

    Raises:
      PipelineError: the conversion would fail: there is a different data set, the disk is too small, or the sample has
        more invalid rows than are allowed.
    """
    what = f"{count_of(plan.num_rows, 'example')} to {count_of(len(plan.elements), 'shard')}"
    print(f"{plan.source.dataset}: {what} in {sink.shown} (a dry run: nothing is written)", flush=True)
    if lowered:
        print(lowered)
    if shares := dealt.shares_of(plan.source):
        print("\n".join(shares.lines(has_table=True)))
    measured = {split: measure(plan, split) for split in plan.num_shards}
    print("\n".join(_lines(plan, measured, workers)))
    examples = [[("split", split), *example.items()] for split, found in measured.items() for example in found.examples]
    print("\n".join(["", *table(examples, left=("key", "class", "image"))]))
    for line in _sink_lines(plan, sink, overwrite):
        print(line)
    _check_rejects(plan, measured)


def measure(plan: Plan, split: str) -> Measured:
    """Measures how long a worker would take to read some rows of a split's first shard and make their records.

    Raises:
      DataError: the source cannot be read.
    """
    rows = plan.rows(split, 0)
    chosen, chunk = _some(plan, split, rows)
    block, read_seconds = fastest(lambda: plan.source.read(split, chosen), _ENOUGH_SECONDS, time.perf_counter)
    classes = len(plan.source.class_names)
    (selected, num_bytes), make_seconds = fastest(
        lambda: _made(plan, block, classes), _ENOUGH_SECONDS, time.perf_counter
    )
    total, good = plan.source.splits[split], len(selected.rows.labels)
    part = good / max(1, len(chosen))
    return Measured(
        rows=len(chosen),
        rejects=tuple(
            Reject(*plan.source.invalid(split, int(chosen[row]), selected.bad[row]))
            for row in sorted(selected.bad, key=lambda row: int(chosen[row]))
        ),
        num_bytes=round(num_bytes / max(1, good) * total * part),
        seconds=(read_seconds / max(1, chunk or len(chosen)) + make_seconds / max(1, len(chosen))) * total,
        formats=frozenset(selected.recoded.formats),
        sizes=frozenset(selected.recoded.sizes),
        examples=tuple(_first_examples(plan, split, rows[:_SHOWN])),
    )


def _some(plan: Plan, split: str, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Returns the rows to measure, and how many rows have to be read to get them: whole chunks, or 0 without chunks."""
    most = max(_SHOWN, min(_ROWS, int(_BYTES / max(1.0, plan.sample.source_bytes.get(split, 1.0)))))
    chunks = plan.source.chunks(split)
    if chunks is None:
        return rows[:most], 0
    ends = np.cumsum(chunks)
    of_row = np.searchsorted(ends, rows, side="right")
    return rows[of_row == of_row[0]][:most], int(chunks[of_row[0]])


def _made(plan: Plan, block: Block, classes: int) -> tuple[Selected, int]:
    """Returns the valid rows, and the bytes that their records take in a file."""
    selected = select(block, classes, plan.sample.images, plan.source.features)
    records = make_records(selected.rows)
    records = compressed(records) if plan.config.compression else records
    return selected, sum(len(piece) for piece in records.blocks())


def _first_examples(plan: Plan, split: str, rows: NDArray[np.int64]) -> list[dict[str, str]]:
    source = plan.source
    chosen = select(source.read(split, rows), len(source.class_names), plan.sample.images, source.features).rows
    examples = []
    for i, label in enumerate(chosen.labels):
        image = chosen.images[i]
        numbers = np.flatnonzero(label).tolist() if np.ndim(label) else [int(label)] * source.label.is_class
        classes = [source.class_names[number] for number in numbers] if source.class_names else []
        features = {
            "key": bytes(chosen.keys[i]).decode(errors="backslashreplace"),
            "label": str(label) if not np.ndim(label) else f"{np.count_nonzero(label)} of {len(label)} classes",
            "class": ", ".join(classes) or "-",
            "image": _image(image),
        }
        examples.append(features | {name: _short(values[i]) for name, values in chosen.extra.items()})
    return examples


def _image(image: bytes | NDArray[np.uint8]) -> str:
    if not isinstance(image, bytes):
        return f"raw {shape_of(image.shape)}, {count_of(image.nbytes, 'byte')}"
    opened = images.open_file(image)
    kind = images.kept_as(opened, image)
    shape = shape_of((opened.height, opened.width, images.channels_of(opened)))
    return f"{kind} {shape}, {count_of(len(image), 'byte')}"


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = " ".join(str(value.tolist() if isinstance(value, np.generic | np.ndarray) else value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _lines(plan: Plan, measured: dict[str, Measured], workers: int) -> list[str]:
    splits = []
    for split, count in plan.num_shards.items():
        examples = plan.source.splits[split]
        each = range_of({examples // count, -(-examples // count)})
        num_bytes = size_of(measured[split].num_bytes)
        splits.append(
            f"  {split}: {count_of(examples, 'example')}, {count_of(count, 'shard')} of {each}, about {num_bytes}"
        )
    seconds, passes = sum(found.seconds for found in measured.values()), plan.config.passes
    rows = sum(found.rows for found in measured.values())
    bad = [reject for found in measured.values() for reject in found.rejects]
    total = size_of(sum(found.num_bytes for found in measured.values()))
    twice = "; the two passes take twice the room and the time" if passes == 2 else ""
    shared = f", in {workers} processes" if workers > 1 else ""
    lines = [
        *splits,
        f"  {_images(plan, measured)}",
        *transformed.lines(plan.options),
        f"  about {total}, and {_duration(seconds * passes)} of one core{shared}, plus start-up{twice}",
        f"  sampled {count_of(rows, 'row')}: {len(bad) or 'none'} invalid",
    ]
    lines += [f"    {reject.file}, row {reject.row}: {reject.reason}" for reject in bad[:_LISTED_REJECTS]]
    return lines + ([f"    and {len(bad) - _LISTED_REJECTS:,} more"] if len(bad) > _LISTED_REJECTS else [])


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _images(plan: Plan, measured: dict[str, Measured]) -> str:
    kinds = " and ".join(sorted({kind for found in measured.values() for kind in found.formats})) or "no valid"
    sizes = sorted({size for found in measured.values() for size in found.sizes})
    of = shape_of(sizes[0]) if len(sizes) == 1 else f"{count_of(len(sizes), 'size')} in the sample"
    compressed_with = f", shards compressed with {plan.config.compression}" if plan.config.compression else ""
    return f"{kinds} images of {of}{compressed_with}"


def _sink_lines(plan: Plan, sink: Sink, overwrite: bool) -> list[str]:
    """Returns lines about the sink's content and the conversion's effect on it; raises the conversion's errors."""
    if not sink.data_dir.exists():
        sink.check_plan(plan, None)
        return []
    there = existing_manifest(sink.data_dir)
    if plan.base and there:
        sink.check_plan(plan, there)
        return [
            f"{sink.shown}: version {there.version}, {count_of(there.num_examples, 'example')}, would be followed by "
            f"version {there.version + 1}; whether keys of the rows are there already is not looked at",
            *notes_about(plan.config, plan.source, there),
        ]
    if there and not overwrite:
        check_options(plan, there, sink.data_dir)
        same = f"{sink.shown}: already holds this data set, made with the same options: nothing would be converted"
        return [same, *other_pixels(plan, there)]
    sink.check_plan(plan, there)
    receipts_dir = sink.data_dir / staging.folder_name(plan.digest)
    lines = []
    if receipts_dir.exists() and (part := job.finished_part(dataclasses.replace(plan, receipts_dir=receipts_dir))):
        lines.append(f"{sink.shown}: an earlier run had done {part:.0%}; the conversion would resume there")
    if there:
        held = count_of(there.num_examples, "example")
        lines.append(f"{sink.shown}: holds {there.dataset}, {held}, which would be replaced (--overwrite)")
        lines += renumbered(plan, there)
    return lines


def _check_rejects(plan: Plan, measured: dict[str, Measured]) -> None:
    bad = [reject for found in measured.values() for reject in found.rejects]
    for split, found in measured.items():
        if found.rows and len(found.rejects) == found.rows:
            raise DataError(
                f"split {split!r}: all sampled rows are invalid; the first: {found.rejects[0].reason}",
                advice=without_split(split, measured),
            )
    if len(bad) > plan.config.max_rejects:
        rows = sum(found.rows for found in measured.values())
        expected = sum(
            round(len(found.rejects) / max(1, found.rows) * plan.source.splits[split])
            for split, found in measured.items()
        )
        raise DataError(
            f"{len(bad)} of {count_of(rows, 'sampled row')} invalid, so about {expected:,} of all, over "
            f"--max_rejects={plan.config.max_rejects}: the conversion would fail; the first: {bad[0].file}, "
            f"row {bad[0].row}: {bad[0].reason}"
        )
