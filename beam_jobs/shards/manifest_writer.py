"""Makes the manifest of a data set from the receipts of its shards, and the files next to it.

The files for TensorFlow Datasets (TFDS) let `tfds.builder_from_directory(data_dir).as_dataset(split="train")` yield the
same examples. Their format is tensorflow_datasets/core/proto/{dataset_info,feature}.proto as JSON, in which protobuf
writes int64 as strings.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from beam_jobs import drafts
from beam_jobs.examples import columns, placed
from beam_jobs.plan import Origin, Plan, without_split
from beam_jobs.shards import extended, receipts
from beam_jobs.shards.receipts import Receipt, Reject, sizes_of
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.files.paths import StoragePath, each
from pipeline.manifest import Column, Feature, Manifest, SplitInfo, croissant, naming
from pipeline.manifest.manifest import MASK, size_histogram
from pipeline.read.statistics import STATISTICS_SPLIT, moments

TFDS_DATASET_INFO, TFDS_FEATURES, TFDS_LABELS = naming.TFDS_FILES
_OTHER_KEYS = "images that the data set does not have need other keys (other names of files, or --key_column)"
_TFDS_VERSION = "1.0.0"  # required by TFDS; we tell data sets apart by the manifest's digest
_TFDS_CLASSES = "tensorflow_datasets.core.features"


def write_manifest(plan: Plan, found: Iterable[Receipt]) -> StoragePath:
    """Writes the manifest, the last of all files, into the plan's folder and returns its path.

    Raises:
      DataError: a shard's receipt is missing, too many rows are invalid, or a file cannot be written.
    """
    ordered = _in_order(plan, found)
    folder = plan.data_dir
    parent = extended.parent_of(plan) if plan.base else None
    if plan.origin is None:  # a second pass reads only valid rows, and keeps the first one's list
        _write_rejects(folder, ordered, _listed_before(plan, parent) if parent else [])
    _check_rejects(plan, ordered, parent)
    made = make_manifest(plan, ordered, parent)
    made = dataclasses.replace(made, columns=_write_columns(plan, made, parent))
    described = croissant.files(plan.published_dir if parent else None, made, is_new=True)
    for name, data in {**tfds_files(made), **described}.items():
        drafts.Draft(folder / name, [data]).publish()
    drafts.publish(folder / naming.MANIFEST, made.to_bytes())  # also syncs the folder, for all files in it
    return folder / naming.MANIFEST


def _listed_before(plan: Plan, parent: Manifest) -> list[str]:
    """Returns the lines about a version's invalid rows: as many from the top of the list as its manifest counts."""
    count, path = sum(split.num_rejects for split in parent.splits.values()), plan.published_dir / naming.REJECTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if count else []
    except OSError:  # removed by its owner; the manifest still counts the rows
        return []
    return lines[:count]


def _write_columns(plan: Plan, made: Manifest, parent: Manifest | None) -> dict[str, Column]:
    image, features = made.features["image"], plan.column_features
    are_sized = image.encoding != "raw" and None in image.shape[:2]
    of_column = columns.sources(plan.config.columns, features, are_sized or parent is not None)
    splits: dict[str, list[columns.Shard]] = {}
    if parent is not None:
        of_column, splits = extended.column_parts(plan, parent, of_column)
    if not of_column:
        return {}
    for split in plan.num_shards:
        splits.setdefault(split, [])
    paths = [plan.receipts_dir / receipts.name_of(file) for file in plan.file_names]
    loaded = each(receipts.load, paths, plan.receipts_dir.is_remote)
    for (split, _), path, receipt in zip(plan.elements, paths, loaded, strict=True):
        if receipt is None:
            raise DataError("is missing or cut short, but holds values of columns", path=path, advice="run again")
        splits[split].append({name: receipt.columns[name] for name in of_column.values()})
    (plan.data_dir / naming.COLUMNS).make_folder()
    found: dict[str, Column] = {}
    for name, column, files in columns.joined(plan.config.columns, features, of_column, splits):
        found[name] = column
        for split, data in files.items():
            drafts.Draft(plan.data_dir / naming.column_name(split, name, column.files[split]), [data]).publish()
    return found


def _check_rejects(plan: Plan, receipts: list[Receipt], parent: Manifest | None) -> None:
    """Raises DataError if more than --max_rejects rows are invalid, or all rows of a split that is new in a version."""
    count, known = (sum(getattr(each, name) for each in receipts) for name in ("num_rejects", "num_known"))
    valid = sum(receipt.info.num_examples for receipt in receipts)
    listed = plan.rejects_dir / naming.REJECTS
    if known and known == count and not valid:
        raise DataError(
            f"--append: the data set has the keys of all {count_of(count, 'row')} of the source, so there is nothing "
            f"to append; {listed} lists them",
            advice=_OTHER_KEYS,
        )
    if count > plan.config.max_rejects:
        rejects = _rejects(receipts)
        _, first = next((pair for pair in rejects if not pair[1].is_known), rejects[0])
        how_many = "all" if known == count else f"{known:,}"
        of_append = f" (--append: the data set has the keys of {how_many} of them)" if known else ""
        what = "the first other" if known and not first.is_known else "the first"
        skips = f"--max_rejects={count} skips them" + (f" and appends the other {valid:,}" if known else "")
        raise DataError(
            f"{count_of(count, 'invalid row')}, over --max_rejects={plan.config.max_rejects}{of_append}; {what}: "
            f"{first.file}, row {first.row}: {first.reason}; {listed} lists them; nothing was published",
            advice="; ".join([skips] * bool(valid) + [_OTHER_KEYS] * bool(known)),
        )
    for split in plan.num_shards:
        stays = valid and parent is not None and split in parent.splits
        if not stays and not sum(receipt.info.num_examples for receipt in receipts if receipt.split == split):
            raise DataError(
                f"split {split!r}: all its rows are invalid; {listed} says why",
                advice=without_split(split, plan.num_shards),
            )


def make_manifest(plan: Plan, receipts: list[Receipt], parent: Manifest | None = None) -> Manifest:
    """Returns the manifest of a conversion from its receipts, in the order of the plan's elements.

    Args:
      plan: plan of the conversion.
      receipts: one per shard.
      parent: version to append to; None for a new data set.
    """
    trained = [r.sums for r in receipts if r.split == STATISTICS_SPLIT] or [r.sums for r in receipts]
    made = _own_manifest(plan, receipts)
    if parent is not None:
        # The moments cover the split `train` if the version has one, else all splits.
        there, here = (STATISTICS_SPLIT in one.splits for one in (parent, made))
        before = extended.sums_of(parent, plan.published_dir) if there or not here else []
        trained = [*before, *(trained if here or not there else [])]
        sizes = {split: sizes_of(r for r in receipts if r.split == split) for split in made.splits}
        made = extended.extended(parent, made, sizes, plan.published_dir)
    mean, std = moments(sums for sums in trained if sums.pixels)  # integer sums: their order changes no bit
    return dataclasses.replace(made, image_mean=mean, image_std=std)


def _own_manifest(plan: Plan, receipts: list[Receipt]) -> Manifest:
    """Returns the manifest of the records that a conversion wrote, without the moments of their pixels."""
    origin = plan.origin or Origin(plan.source.files, {})
    formats = {kind for receipt in receipts for kind in receipt.formats}
    image = Feature.of_images(formats, {shape for receipt in receipts for shape, _ in receipt.sizes})
    on_images = placed.described([receipt.placed for receipt in receipts], plan.source.features, image.shape)
    is_labelled = plan.source.class_names or not plan.source.label.is_class or MASK not in on_images
    return Manifest(
        dataset=plan.source.dataset,
        class_names=plan.source.class_names if is_labelled else on_images[MASK].class_names,
        features={
            "image": image,
            "label": plan.source.label,
            "key": Feature("string"),
            **plan.source.features,
            **on_images,
        },
        splits={
            split: _split_info(plan, [r for r in receipts if r.split == split], origin.num_rejects.get(split, 0))
            for split in plan.num_shards
        },
        image_mean=(),
        image_std=(),
        source=origin.files,
        options=plan.options,
        compression=plan.config.compression,
        format_version=plan.format_version,
        pixel_rule=plan.pixel_rule,
    )


def _in_order(plan: Plan, receipts: Iterable[Receipt]) -> list[Receipt]:
    """Returns one receipt per shard; `receipts` may be in any order, with duplicates from retried bundles."""
    by_element: dict[tuple[str, int], Receipt] = {}
    for receipt in receipts:
        if by_element.setdefault((receipt.split, receipt.shard), receipt) != receipt:
            raise DataError("written twice with different bytes; did the source change?", path=receipt.info.file)
    missing = [name for name, element in zip(plan.file_names, plan.elements, strict=True) if element not in by_element]
    if missing:
        raise DataError(
            f"no worker reported it as written ({len(missing)} missing)", path=missing[0], advice="run again"
        )
    return [by_element[element] for element in plan.elements]


def _write_rejects(folder: StoragePath, receipts: list[Receipt], before: list[str]) -> None:
    lines = before + [
        json.dumps({"split": split, "file": reject.file, "row": reject.row, "reason": reject.reason}, sort_keys=True)
        + "\n"
        for split, reject in _rejects(receipts)
    ]
    if lines:
        drafts.publish(folder / naming.REJECTS, "".join(lines).encode())
    else:
        (folder / naming.REJECTS).remove()


def _rejects(receipts: list[Receipt]) -> list[tuple[str, Reject]]:
    """Returns (split, invalid row) for all invalid rows in the receipts, in the source's order."""
    found = [(receipt.split, reject) for receipt in receipts for reject in receipt.rejects]
    return sorted(found, key=lambda pair: (pair[1].file, pair[1].row))


def _split_info(plan: Plan, receipts: list[Receipt], earlier_rejects: int) -> SplitInfo:
    histogram = tuple(sum(counts) for counts in zip(*(receipt.label_histogram for receipt in receipts), strict=True))
    return SplitInfo(
        tuple(receipt.info for receipt in receipts),
        histogram,
        size_histogram(sizes_of(receipts)),
        earlier_rejects + sum(receipt.num_rejects for receipt in receipts),
        None if plan.source.label.is_class else True,
    )


def tfds_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns {file name: content} of the files that TFDS needs; empty if it cannot read the shards.

    TFDS reads neither compressed shards nor those of an append, whose names differ from the ones that it expects.
    """
    if manifest.compression or manifest.parent:
        return {}
    described = {name: _tfds_feature(name, feature, manifest) for name, feature in manifest.features.items()}
    features = {
        "pythonClassName": f"{_TFDS_CLASSES}.features_dict.FeaturesDict",
        "featuresDict": {"features": {name: value for name, value in described.items() if value}},
    }
    files = {TFDS_DATASET_INFO: tfds_dataset_info(manifest), TFDS_FEATURES: _json(features)}
    names = [name.strip() for name in manifest.class_names]
    # TFDS splits the file at newlines, drops blank lines and refuses repeated names.
    if all(name and len(name.splitlines()) == 1 for name in names) and len(set(names)) == len(names):
        files[TFDS_LABELS] = "".join(f"{name}\n" for name in names).encode()
    return files


def tfds_dataset_info(manifest: Manifest) -> bytes:
    """Returns the content of `dataset_info.json`: the splits, with the number of examples in each shard."""
    splits = [
        {
            "name": name,
            "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
            "numBytes": str(split.num_bytes),
            "shardLengths": [str(shard.num_examples) for shard in split.shards],
        }
        for name, split in manifest.splits.items()
    ]
    # TFDS allows lower-case letters, digits and _, beginning with a letter.
    name = re.sub(r"[^a-z0-9]+", "_", manifest.dataset.removeprefix("tfds:").lower()).strip("_")
    return _json(
        {
            "name": name if name[:1].isalpha() else f"dataset_{name}".rstrip("_"),
            "version": _TFDS_VERSION,
            "fileFormat": "tfrecord",
            "splits": splits,
            "supervisedKeys": {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}},
        }
    )


def _tfds_feature(name: str, feature: Feature, manifest: Manifest) -> dict[str, Any]:
    """Returns a feature's description; empty to leave out a feature that TFDS cannot describe."""
    if name in ("image", MASK) and feature.encoding not in (None, "raw"):
        image: dict[str, Any] = {"dtype": "uint8", "shape": _shape(feature.shape)}
        if feature.encoding != "any" and feature.shape[-1] is not None:
            image["encodingFormat"] = feature.encoding
        return _typed("image_feature.Image", "image", image)
    if feature.convention and name != MASK:  # their number varies by record
        feature = dataclasses.replace(feature, shape=(None, *feature.shape[1:]))
    classes = feature.class_names
    if name == "label":
        classes = manifest.class_names if feature.is_class else ()
    if classes and not feature.convention and not feature.shape:
        return _typed("class_label_feature.ClassLabel", "classLabel", {"numClasses": str(len(classes))})
    if feature.dtype == "string":
        return _typed("text_feature.Text", "text", {}) if not feature.shape else {}
    if sum(size is None for size in feature.shape) > 1:
        return {}
    encoding = "bytes" if feature.encoding == "raw" else "none"
    tensor = {"dtype": feature.dtype, "shape": _shape(feature.shape), "encoding": encoding}
    return _typed("tensor_feature.Tensor", "tensor", tensor)


def _typed(python_class: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_TFDS_CLASSES}.{python_class}", kind: content}


def _shape(shape: Sequence[int | None]) -> dict[str, Any]:
    return {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
