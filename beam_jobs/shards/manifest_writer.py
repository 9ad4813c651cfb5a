"""The manifest of a data set, made from the receipts of all its shards, and the files that lie beside it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable

from beam_jobs.examples.statistics import moments
from beam_jobs.plan import Origin, Plan
from beam_jobs.shards import tfds_info
from beam_jobs.shards.receipts import Receipt, Reject
from beam_jobs.storage import write
from beam_jobs.storage.paths import StoragePath
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.manifest import Feature, Manifest, SplitInfo, naming
from pipeline.manifest.manifest import rounded_up

STATISTICS_SPLIT = "train"  # normalisation must not look at the test images
_EXACT_SIZES = 100  # sizes of images that are listed one by one; of more, each side is rounded up


def write_manifest(plan: Plan, receipts: Iterable[Receipt]) -> StoragePath:
    """Writes the manifest into the plan's folder, the last of all files, and returns its path.

    Raises:
      DataError: a shard's receipt is missing, too many rows are invalid, or a file cannot be written.
    """
    ordered = _in_order(plan, receipts)
    folder = plan.data_dir
    if plan.origin is None:  # else the first pass wrote the list
        _write_rejects(folder, ordered)
    check_rejects(plan, ordered)
    made = make_manifest(plan, ordered)
    for name, data in tfds_info.metadata_files(made).items():
        write.Draft(folder / name, [data]).publish()
    write.publish(folder / naming.MANIFEST, made.to_bytes())  # syncs the folder, for all files in it
    return folder / naming.MANIFEST


def check_rejects(plan: Plan, receipts: list[Receipt]) -> None:
    """Raises DataError if more rows than --max_rejects are invalid, or all rows of a split."""
    count = sum(receipt.num_rejects for receipt in receipts)
    if count > plan.config.max_rejects:
        _, first = _rejects(receipts)[0]
        raise DataError(
            f"{count_of(count, 'invalid row')}, over --max_rejects={plan.config.max_rejects}; the first: {first.file}, "
            f"row {first.row}: {first.reason}; {plan.data_dir / naming.REJECTS} lists them; nothing was published; "
            f"--max_rejects={count} skips them"
        )
    for split in plan.num_shards:
        if not sum(receipt.info.num_examples for receipt in receipts if receipt.split == split):
            raise DataError(f"split {split!r}: all its rows are invalid; {plan.data_dir / naming.REJECTS} says why")


def make_manifest(plan: Plan, receipts: list[Receipt]) -> Manifest:
    """Returns the manifest of a conversion from its receipts, in the order of the plan's elements."""
    trained = [r for r in receipts if r.split == STATISTICS_SPLIT] or receipts
    mean, std = moments(r.sums for r in trained if r.sums.pixels)
    origin = plan.origin or Origin(plan.source.files, {})
    return Manifest(
        dataset=plan.source.dataset,
        class_names=plan.source.class_names,
        features={
            "image": _image_feature(receipts),
            "label": Feature("int64"),
            "key": Feature("string"),
            **plan.source.features,
        },
        splits={
            split: _split_info([r for r in receipts if r.split == split], origin.num_rejects.get(split, 0))
            for split in plan.num_shards
        },
        image_mean=mean,
        image_std=std,
        source=origin.files,
        options=plan.options,
        compression=plan.config.compression,
        format_version=plan.format_version,
    )


def _in_order(plan: Plan, receipts: Iterable[Receipt]) -> list[Receipt]:
    """Returns one receipt per shard. They may come in any order, and twice from a retried bundle."""
    by_element: dict[tuple[str, int], Receipt] = {}
    for receipt in receipts:
        if by_element.setdefault((receipt.split, receipt.shard), receipt) != receipt:
            raise DataError(f"{receipt.info.file}: written twice with different bytes; did the source change?")
    missing = [name for name, element in zip(plan.file_names, plan.elements, strict=True) if element not in by_element]
    if missing:
        raise DataError(f"{missing[0]}: no worker reported it as written ({len(missing)} missing); run again")
    return [by_element[element] for element in plan.elements]


def _write_rejects(folder: StoragePath, receipts: list[Receipt]) -> None:
    lines = [
        json.dumps({"split": split, **dataclasses.asdict(reject)}, sort_keys=True) + "\n"
        for split, reject in _rejects(receipts)
    ]
    if lines:
        write.publish(folder / naming.REJECTS, "".join(lines).encode())
    else:
        (folder / naming.REJECTS).remove()


def _rejects(receipts: list[Receipt]) -> list[tuple[str, Reject]]:
    """Returns (split, invalid row) of the rows that receipts list, in the order of the source's files and rows."""
    found = [(receipt.split, reject) for receipt in receipts for reject in receipt.rejects]
    return sorted(found, key=lambda pair: (pair[1].file, pair[1].row))


def _image_feature(receipts: list[Receipt]) -> Feature:
    formats = {kind for receipt in receipts for kind in receipt.formats}
    shapes = {shape for receipt in receipts for shape, _ in receipt.sizes}
    sides = [{shape[axis] for shape in shapes} for axis in range(3)]
    shape = tuple(next(iter(side)) if len(side) == 1 else None for side in sides)
    return Feature("uint8", shape, next(iter(formats)) if len(formats) == 1 else "any")


def _split_info(receipts: list[Receipt], earlier_rejects: int) -> SplitInfo:
    histogram = tuple(sum(counts) for counts in zip(*(receipt.label_histogram for receipt in receipts), strict=True))
    sizes: Counter[tuple[int, int]] = Counter()
    for receipt in receipts:
        for (height, width, _), count in receipt.sizes:
            sizes[height, width] += count
    return SplitInfo(
        tuple(receipt.info for receipt in receipts),
        histogram,
        size_histogram(sizes),
        earlier_rejects + sum(receipt.num_rejects for receipt in receipts),
    )


def size_histogram(sizes: Counter[tuple[int, int]]) -> dict[str, int]:
    """Returns the manifest's `image_sizes` from {(height, width): images}; over 100 sizes, rounded up to 64 pixels."""
    if len(sizes) > _EXACT_SIZES:
        rounded: Counter[tuple[int, int]] = Counter()
        for (height, width), count in sizes.items():
            rounded[rounded_up(height), rounded_up(width)] += count
        sizes = rounded
    return {f"{height}x{width}": count for (height, width), count in sorted(sizes.items())}
