"""Writes the shards of a plan, and a receipt for each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from beam_jobs.drafts import Draft
from beam_jobs.examples import columns, placed
from beam_jobs.examples.records import Records, compressed, make_records
from beam_jobs.examples.selection import Selected, joined, select
from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.shards.receipts import Receipt, Reject
from beam_jobs.sources.known_keys import KnownKey
from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from pipeline.files.paths import StoragePath
from pipeline.manifest import ShardInfo, naming
from pipeline.read.statistics import entropy, label_histogram
from pipeline.records import framing

_MORE_REJECTS = 1000  # listed per shard beyond --max_rejects: enough to see what is wrong


def write_shards(plan: Plan, elements: Iterable[tuple[str, int]]) -> Iterator[Receipt]:
    """Writes shards of a plan and yields their receipts; a shard with a matching receipt is not rewritten.

    While a thread waits for the disk to sync one shard and its sidecars, the next shard is made. A third thread, for
    reading, gains nothing: reading row by row switches threads too often.

    Args:
      plan: the plan of the conversion.
      elements: (split, shard) pairs.

    Raises:
      DataError: the source changed or cannot be read, or a file cannot be written.
      UsageError: a shard would be larger than `max_shard_bytes`.
    """
    syncing: Future[Receipt] | None = None
    with ThreadPoolExecutor(1) as disk:
        for split, shard in elements:
            present = receipts.load_checked(plan.data_dir, plan.file_name(split, shard), plan.receipts_dir)
            if present and len(present.rejects) >= min(present.num_rejects, _most_listed(plan)):
                yield present.without_columns()
                continue
            drafts, receipt = _drafts(plan, split, shard)
            if syncing:
                yield syncing.result()
            syncing = disk.submit(_publish, drafts, plan.receipts_dir, receipt)
        if syncing:
            yield syncing.result()


def _drafts(plan: Plan, split: str, shard: int) -> tuple[list[Draft], Receipt]:
    """Writes a shard and its sidecars under temporary names; returns these drafts and the receipt."""
    rows = plan.rows(split, shard)
    chosen = _chosen(plan, split, rows)
    histogram = label_histogram(chosen.rows.labels, len(plan.source.class_names))
    records = make_records(chosen.rows)
    bits = entropy(histogram) if chosen.rows.has_classes else None
    drafts, info = _write(plan, plan.file_name(split, shard), records, bits)
    listed = sorted(chosen.bad, key=lambda row: int(rows[row]))[: _most_listed(plan)]  # the first in the source's order
    return drafts, Receipt(
        split=split,
        shard=shard,
        info=info,
        label_histogram=histogram,
        formats=tuple(sorted(chosen.recoded.formats)),
        sizes=tuple(sorted(chosen.recoded.sizes.items())),
        sums=chosen.recoded.sums,
        num_rejects=len(chosen.bad),
        num_known=sum(isinstance(reason, KnownKey) for reason in chosen.bad.values()),
        rejects=tuple(
            Reject(*plan.source.invalid(split, int(rows[row]), reason), isinstance(reason, KnownKey))
            for row, reason in ((row, chosen.bad[row]) for row in listed)
        ),
        turned=chosen.recoded.turned,
        placed=placed.counted(chosen.rows, chosen.recoded.sides(records.count), plan.source.features),
        columns=columns.packed(chosen, np.diff(records.begins) - framing.OVERHEAD, plan.column_features),
    )


def _chosen(plan: Plan, split: str, rows: NDArray[np.int64]) -> Selected:
    """Returns the valid rows, read in parts if the source's images are larger than the stored ones."""
    step, source = plan.rows_at_once(split), plan.source
    given = len(source.class_names), plan.sample.images, source.features
    if len(rows) <= step:
        return select(source.read(split, rows), *given)
    order = np.argsort(rows)  # in source order, so that few parts share a chunk
    parts = [order[start : start + step] for start in range(0, len(rows), step)]
    return joined([(part, select(source.read(split, rows[part]), *given)) for part in parts])


def _publish(drafts: list[Draft], receipts_folder: StoragePath, receipt: Receipt) -> Receipt:
    with _removed_on_error(drafts):
        for draft in drafts:
            draft.publish()
    receipts.save(receipts_folder, receipt)
    return receipt.without_columns()


def _write(plan: Plan, name: str, records: Records, label_entropy: float | None) -> tuple[list[Draft], ShardInfo]:
    if records.num_bytes > plan.config.max_shard_bytes:
        more = -(-sum(plan.num_shards.values()) * records.num_bytes // plan.config.max_shard_bytes)
        raise UsageError(
            f"would have {count_of(records.num_bytes, 'byte')}, over --max_shard_bytes={plan.config.max_shard_bytes}",
            path=name,
            advice=f"give a larger one, or more --num_shards ({more})",
        )
    return drafted(plan.data_dir, name, records, plan.config.compression, label_entropy)


def drafted(
    folder: StoragePath, name: str, records: Records, compression: str, label_entropy: float | None
) -> tuple[list[Draft], ShardInfo]:
    """Writes a shard and its sidecars under temporary names.

    Args:
      folder: folder of the shard.
      name: base name of the shard.
      records: its records.
      compression: `GZIP`, or empty.
      label_entropy: entropy of its labels, for the manifest.

    Returns:
      Drafts, in the order in which to publish them, and the entry in the manifest.

    Raises:
      DataError: a file cannot be written.
    """
    if compression:
        records = compressed(records)
    drafts: dict[str, Draft] = {}
    offsets, crcs = naming.sidecar_names(name)
    (folder / naming.SIDECARS).make_folder()
    with _removed_on_error(drafts.values()):
        drafts[name] = Draft(folder / name, records.blocks())
        for file, data in ((offsets, records.beside()), (crcs, records.crcs.tobytes())):
            if data:
                drafts[file] = Draft(folder / file, [data])
    written = drafts[name]
    offsets_crc, crcs_crc = (drafts[file].crc32c if file in drafts else None for file in (offsets, crcs))
    info = ShardInfo(
        name, records.count, written.num_bytes, written.crc32c, records.stride, offsets_crc, label_entropy, crcs_crc
    )
    return [*drafts.values()][::-1], info  # sidecars get their names before the shard


@contextlib.contextmanager
def _removed_on_error(drafts: Iterable[Draft]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for draft in drafts:
            draft.discard()
        raise


def _most_listed(plan: Plan) -> int:
    return plan.config.max_rejects + _MORE_REJECTS
