"""The manifest of a version made by an append: its parent's, with the new shards after the parent's.

Totals over all records, such as means and histograms, are computed from the parent's totals and the new records: no
pixel of the parent is decoded again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from beam_jobs.examples import columns
from beam_jobs.plan import Plan
from pipeline import images, manifest
from pipeline.errors import DataError, RerunError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature, Manifest, SplitInfo
from pipeline.manifest.columns import Columns
from pipeline.manifest.manifest import MASK, rounded_up, size_histogram, sizes_in
from pipeline.manifest.splits import select
from pipeline.read.statistics import STATISTICS_SPLIT, PixelSums
from pipeline.records import tf_example
from pipeline.records.stream import records_of


def parent_of(plan: Plan) -> Manifest:
    """Returns the manifest of the version that a plan appends to.

    Raises:
      RerunError: another command has changed the data set since the plan was made.
    """
    found = manifest.load(plan.published_dir)
    if plan.base is None or found.digest != plan.base.digest:
        raise RerunError(f"{plan.published_dir}: another command changed it at the same time; run this one again")
    return found


Sizes = Counter[tuple[int, int]]  # {(height, width): images}


def extended(parent: Manifest, own: Manifest, sizes: Mapping[str, Sizes], data_dir: StoragePath) -> Manifest:
    """Returns the manifest of a version.

    Args:
      parent: version that it extends.
      own: manifest of the appended records alone, without moments.
      sizes: {split: sizes of the appended images}, exact.
      data_dir: folder of the parent's shards, which are read if the manifest rounds the sizes of their images.
    """
    names = list(dict.fromkeys((*parent.splits, *own.splits)))
    splits = {name: _joined(name, parent, own, sizes, data_dir) for name in names}
    image = parent.features["image"]
    placed = {name: _both(name, parent, own) for name, feature in own.features.items() if feature.convention}
    has_classes = not own.features["label"].is_class or any(split.label_histogram for split in own.splits.values())
    is_of_masks = MASK in placed and not has_classes
    return dataclasses.replace(
        own,
        dataset=parent.dataset,
        class_names=placed[MASK].class_names if is_of_masks else own.class_names,
        features={**own.features, **placed, "image": image},
        splits=splits,
        source=(*parent.source, *own.source),
        parent=parent.digest,
        version=parent.version + 1,
    )


def _both(name: str, parent: Manifest, own: Manifest) -> Feature:
    """Returns the feature of a version's mask, boxes or points, with the longer class list and the larger number."""
    there, here = parent.features[name], own.features[name]
    most = there.shape if name == MASK else (max(there.shape[0] or 0, here.shape[0] or 0), *there.shape[1:])
    return dataclasses.replace(there, shape=most, class_names=max(there.class_names, here.class_names, key=len))


def _joined(name: str, parent: Manifest, own: Manifest, sizes: Mapping[str, Sizes], data_dir: StoragePath) -> SplitInfo:
    if name not in own.splits:
        there = parent.splits[name]
        return dataclasses.replace(there, label_histogram=padded(there.label_histogram, own.class_names))
    added = own.splits[name]
    if name not in parent.splits:
        return added
    there = parent.splits[name]
    both = (padded(split.label_histogram, own.class_names) for split in (there, added))
    return SplitInfo(
        (*there.shards, *added.shards),
        tuple(map(sum, zip(*both, strict=True))),
        size_histogram(sizes_of(parent, name, data_dir) + sizes[name]),
        there.num_rejects + added.num_rejects,
        there.is_labelled,
    )


def padded(histogram: tuple[int, ...], classes: tuple[str, ...]) -> tuple[int, ...]:
    """Returns a label histogram extended to all classes; empty if labels are not classes."""
    return histogram + (0,) * (len(classes) - len(histogram)) if histogram else ()


def sizes_of(made: Manifest, name: str, data_dir: StoragePath) -> Sizes:
    """Returns {(height, width): images} of a split, from the images themselves if the manifest may round the sizes.

    Raises:
      DataError: a shard cannot be read, or holds an image that cannot be opened.
    """
    split, (height, width, _) = made.splits[name], made.features["image"].shape
    if height and width:
        return Counter({(height, width): split.num_examples})
    sizes = sizes_in(split.image_sizes)
    if any(side != rounded_up(side) for size in sizes for side in size):
        return sizes
    found: Sizes = Counter()
    for shard in split.shards:
        for offset, record in records_of(data_dir / shard.file, shard.compression):
            try:
                opened = images.open_file(bytes(tf_example.decode(record, ["image"])["image"][0]))
            except (images.BadImageError, ValueError, LookupError) as error:
                raise DataError(f"no image: {error}", path=data_dir / shard.file, offset=offset) from None
            found[opened.height, opened.width] += 1
    return found


def trained(made: Manifest) -> list[str]:
    """Returns the splits that a manifest's moments cover: `train` if there is one, else all."""
    return [STATISTICS_SPLIT] if STATISTICS_SPLIT in made.splits else [*made.splits]


def sums_of(made: Manifest, data_dir: StoragePath) -> list[PixelSums]:
    """Returns the pixel sums that give a manifest's moments; empty if there are no pixels.

    They are exact as long as they have no more digits than a float64, some 10^10 pixels; beyond that, they are as
    precise as the moments.
    """
    pixels = sum(h * w * n for name in trained(made) for (h, w), n in sizes_of(made, name, data_dir).items())
    means, deviations = (list(map(Fraction, values)) for values in (made.image_mean, made.image_std))
    sums = [round(mean * pixels) for mean in means]
    squares = [
        round((deviation * deviation) * pixels + Fraction(s * s, pixels))
        for deviation, s in zip(deviations, sums, strict=True)
    ]
    return [PixelSums(len(means), pixels, sums, squares)] if pixels else []


def column_parts(
    plan: Plan, parent: Manifest, of_column: dict[str, str]
) -> tuple[dict[str, str], dict[str, list[columns.Shard]]]:
    """Returns the columns that a version can have, {column: feature}, and the values of its parent's records.

    These are only columns of the records: values from a user's file or function are unknown for new records.

    Raises:
      DataError: a column's file cannot be read.
    """
    kept = {
        name: feature
        for name, feature in of_column.items()
        if name in parent.columns
        and not parent.columns[name].is_own
        and parent.columns[name].files.keys() == parent.splits.keys()
    }
    values: dict[str, list[columns.Shard]] = {}
    for split in parent.splits:
        stored = Columns(plan.published_dir.url, parent, select(parent, split))
        of_numbers, of_strings = columns.of_numbers, {name: parent.columns[name].values for name in kept}
        values[split] = [{feature: of_numbers(stored[name], of_strings[name]) for name, feature in kept.items()}]
    return kept, values
