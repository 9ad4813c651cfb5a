"""The summary that a conversion prints, with warnings about gaps in labels, features tied to images, and mixing.

How well the labels of a split are mixed over its shards is compared with a random assignment of its records. A source
that is sorted by class and read in chunks gives poorly mixed shards, as each holds whole chunks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

from beam_jobs.examples import placed
from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.sources import transformed
from pipeline.commands.text import count_of, size_of
from pipeline.errors import to_run
from pipeline.files import remote
from pipeline.files.paths import each
from pipeline.manifest import Manifest, SplitInfo, naming
from pipeline.manifest.manifest import sizes_in
from pipeline.manifest.splits import of_folds, to_evaluate
from pipeline.read.statistics import entropy

# In simulations with 50 to 5000 records and 2 to 1000 classes, even or not, random shards lack at most 0.06 of the
# entropy that shards can lack (0.02 if classes are even); class-sorted shards lack nearly all of it.
_MOST_LACKING = 0.1
_DEVIATIONS = 8.0  # deviations of chi-square: safely beyond chance, even for rare classes with their heavier tail
_MOST_LISTED = 10  # labels
_LISTED_SIZES = 3


def summary(
    made: Manifest,
    data_dir: str,
    writing_seconds: float,
    total_seconds: float,
    *,
    resumed: float = 0.0,
    has_card: bool = False,
    images: ImageFacts | None = None,
    url: str = "",
    added: Manifest | None = None,
) -> str:
    """Returns a few lines for a person: what was written, how fast, where, and the next commands.

    Args:
      made: the manifest that was published.
      data_dir: folder, as the user named it.
      writing_seconds: duration of the Beam pipeline.
      total_seconds: duration of the whole command so far.
      resumed: fraction of the work, 0 to 1, done by an earlier run; the rate excludes it.
      has_card: whether there is a card.html.
      images: facts about the images; None takes them from the manifest.
      url: URL of the folder with the store's options, which the next commands need; "" for a local folder.
      added: version that the conversion appended to; None if it wrote the whole data set.
    """
    images = images or facts_of_manifest(made)
    new = made.num_examples - (added.num_examples if added else 0)
    written = new * (1 - resumed)
    rate = f", {written / max(writing_seconds, 1e-9):,.0f} examples/s" if written else ""
    earlier = f"; an earlier run had done {resumed:.0%}" if resumed else ""
    begin = f"{made.dataset} is in {data_dir}:"
    if added:
        more = count_of(new, "more example")
        begin = f"version {made.version} ({made.short}) of {made.dataset} is in {data_dir}, with {more}:"
    lines = [
        begin,
        *(
            f"  {name}: {count_of(split.num_examples, 'example')}, {count_of(len(split.shards), 'shard')}, "
            f"{size_of(split.num_bytes)}"
            for name, split in by_size(made)
        ),
        f"  {_image_text(made, images)}",
        *transformed.lines(made.options),
        *images.notes,
        f"  {writing_seconds:.1f} s{rate} ({total_seconds:.1f} s with start-up and checks){earlier}",
    ]
    if images.turned:
        lines.append(f"  {_turned(made, images)}")
    if rejects := sum(split.num_rejects for split in made.splits.values()):
        lines.append(f"  {count_of(rejects, 'invalid row')} left out, listed in {_inside(data_dir, naming.REJECTS)}")
    lines += [f"warning: {notice}" for notice in notices(made, images)]
    return "\n".join([*lines, *_next_lines(made, data_dir, url or data_dir, has_card)])


def _image_text(made: Manifest, images: ImageFacts) -> str:
    image = made.features["image"]
    kind = "png and jpeg" if image.encoding == "any" else image.encoding
    compressed = f", shards compressed with {made.packing}" if made.packing else ""
    if None not in image.shape:
        return f"{kind} images of {'x'.join(map(str, image.shape))}{compressed}"
    by_count = sorted(images.sizes.items(), key=lambda item: (-item[1], item[0]))
    sizes = [f"{height}x{width}" for (height, width), _ in by_count]
    listed, more = ", ".join(sizes[:_LISTED_SIZES]), ""
    if len(sizes) > _LISTED_SIZES:
        more = f" and {len(sizes) - _LISTED_SIZES:,} more, the largest {images.largest}"
    channels = {1: "grey", 3: "colour"}.get(image.shape[2] or 0, "grey or colour")
    return f"{kind} images, {channels}, of {count_of(len(sizes), 'size')}: {listed}{more}{compressed}"


def by_size(made: Manifest) -> list[tuple[str, SplitInfo]]:
    """Returns (name, split) pairs, largest first."""
    return sorted(made.splits.items(), key=lambda item: -item[1].num_examples)


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """Facts about the images of all splits.

    Attributes:
      sizes: {(height, width): number of images}, exact, however many sizes there are.
      turned: number of image files rewritten upright because of their EXIF orientation.
      are_resized: whether the conversion resized them.
      beside: names of kept features that may refer to pixels of the image, such as masks and boxes.
      notes: lines about masks, boxes and points, which were turned and resized with the images.
    """

    sizes: Counter[tuple[int, int]]
    turned: int = 0
    are_resized: bool = False
    beside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def largest(self) -> str:
        """The size with the most pixels, `<height>x<width>`."""
        height, width = max(self.sizes, key=lambda size: (size[0] * size[1], size))
        return f"{height}x{width}"


def facts_of_plan(plan: Plan) -> ImageFacts:
    """Returns the facts from the receipts of a conversion, which exist until it is published."""
    names = [plan.receipts_dir / receipts.name_of(name) for name in plan.file_names]
    # With two passes, the first one turned the images; its receipts are in a separate folder.
    turned = sum(receipt.turned for receipt in receipts.in_folder(plan.receipts_dir))
    found = [receipt for receipt in each(receipts.load, names, plan.receipts_dir.is_remote) if receipt]
    notes = placed.notes([receipt.placed for receipt in found], plan.source.features) if found else ()
    return ImageFacts(receipts.sizes_of(found), turned, plan.sample.images.size is not None, plan.sample.beside, notes)


def facts_of_manifest(made: Manifest) -> ImageFacts:
    """Returns the facts that a manifest records; more than 100 sizes are rounded up there."""
    return ImageFacts(sizes_in(dict(made.image_sizes)))


def notices(made: Manifest, images: ImageFacts) -> list[str]:
    """Returns warnings about a data set, each with the consequence and the remedy."""
    return [notice for notice in (mixing_warning(made), _gaps(made), _alone(images)) if notice]


@dataclasses.dataclass(frozen=True)
class Mixing:
    """How well a split is mixed.

    Attributes:
      split: name of the split.
      bits: entropy of the labels in a shard, averaged over all records.
      expected_bits: same for random shards of these sizes.
      is_bad: whether shards lack, beyond chance, more than 10% of the entropy that they could lack: at most all of it,
        or the entropy of a record's shard (knowing which of 2 shards holds a record gives at most 1 bit of its label).
    """

    split: str
    bits: float
    expected_bits: float
    is_bad: bool


def expected_entropy(bits: float, classes: int, collision: float, records: int) -> float:
    """Returns the approximate entropy of the labels of a random sample, in bits; too low rather than too high.

    The larger of two: the entropy of all, less the bias (K - 1) / (2 n ln 2) (Miller 1955, "Note on the bias of
    information estimates"; Madow 1948), which is too low for n < K; and, by Jensen's inequality, -log2 of the expected
    chance that two records of the sample, drawn with replacement, have one class: 1/n + (1 - 1/n) sum p^2.

    Args:
      bits: entropy of all labels.
      classes: K, the number of classes that have a record.
      collision: sum of p^2 over the classes.
      records: n, the size of the sample; 1 or more.
    """
    biased = bits - (classes - 1) / (2 * records * math.log(2))
    return max(biased, -math.log2(1 / records + (1 - 1 / records) * collision), 0.0)


def judge(name: str, split: SplitInfo) -> Mixing | None:
    """Returns how well a split is mixed; None if it has a single shard or class."""
    shards = [shard for shard in split.shards if shard.num_examples and shard.label_entropy is not None]
    bits = entropy(split.label_histogram)
    if len(shards) < 2 or not bits:
        return None
    present = [n for n in split.label_histogram if n]
    total = sum(shard.num_examples for shard in shards)
    collision = sum((n / total) ** 2 for n in present)
    expected = sum(
        shard.num_examples * expected_entropy(bits, len(present), collision, shard.num_examples) for shard in shards
    )
    found = sum(shard.num_examples * (shard.label_entropy or 0.0) for shard in shards)
    mean, expected = found / total, expected / total
    most = min(expected, entropy([shard.num_examples for shard in shards]) or 0.0)
    # G-test of shard against label: 2 N ln 2 I ~ chi-square with (S - 1)(K - 1) degrees of freedom, I their mutual
    # information in bits; if most cells would be empty (n < K), the value expected of random shards is below that.
    statistic, by_chance = 2 * total * math.log(2) * (bits - mean), 2 * total * math.log(2) * (bits - expected)
    freedom = min((len(shards) - 1) * (len(present) - 1), by_chance)
    beyond_chance = statistic > freedom + _DEVIATIONS * math.sqrt(2 * freedom)
    return Mixing(name, mean, expected, beyond_chance and expected - mean > _MOST_LACKING * most)


def mixing_warning(made: Manifest) -> str | None:
    """Returns a warning about poorly mixed splits, with the consequence and the remedy; None if there are none."""
    judged = [judge(name, split) for name, split in made.splits.items()]
    bad = [mixing for mixing in judged if mixing and mixing.is_bad]
    if not bad:
        return None
    found = ", ".join(
        f"{m.split} ({m.bits:.2f} bits of label entropy per shard, {m.expected_bits:.2f} if well mixed)" for m in bad
    )
    remedy = "" if made.options.get("passes", 1) == 2 else "; --passes=2 mixes them row by row"
    if made.parent:  # an append takes one pass
        remedy = "; all rows together, converted into another folder with --passes=2, are mixed row by row"
    return (
        f"the classes are poorly mixed across the shards of {found}: "
        f"unless a trainer shuffles the whole split, its batches hold few classes{remedy}"
    )


def _gaps(made: Manifest) -> str | None:
    histograms = [split.label_histogram for split in made.splits.values()]
    totals = [sum(counts) for counts in itertools.zip_longest(*histograms, fillvalue=0)]
    highest = max((label for label, count in enumerate(totals) if count), default=0)
    missing = [label for label in range(highest) if not totals[label]]
    if not missing:
        return None
    listed = ", ".join(_class_of(made, label) for label in missing[:_MOST_LISTED])
    more = f" and {len(missing) - _MOST_LISTED:,} more" if len(missing) > _MOST_LISTED else ""
    return (
        f"no example has label {listed}{more}, although labels go up to {_class_of(made, highest)}: a model has an "
        "output for each of them; if the labels are not meant to have gaps, renumber them in the source"
    )


def _class_of(made: Manifest, label: int) -> str:
    name = made.class_name(label)
    return str(label) if name == str(label) else f"{label} ({name})"


def _turned(made: Manifest, images: ImageFacts) -> str:
    kind = made.features["image"].encoding
    how = {"png": "without loss", "jpeg": "encoded again with the quantization that they had"}
    said = how.get(str(kind), f"PNG {how['png']}, JPEG {how['jpeg']}")
    return f"{count_of(images.turned, 'image file')} turned upright, as the EXIF orientation says: {said}"


def _alone(images: ImageFacts) -> str | None:
    if not images.beside or not (images.are_resized or images.turned):
        return None
    done = " and ".join([*["resized"] * images.are_resized, *["turned upright"] * (images.turned > 0)])
    kept = f"kept {'feature' if len(images.beside) == 1 else 'features'} {', '.join(images.beside)}"
    return f"only the images were {done}: the {kept} may refer to their pixels, and are as in the source"


def _next_lines(made: Manifest, data_dir: str, address: str, has_card: bool) -> list[str]:
    card = [f"look at it:  {_inside(data_dir, naming.CARD)}"] if has_card else []
    missing = remote.credentials_of(address)
    has_class = made.features["label"].is_class and any(split.has_labels for split in made.splits.values())
    task = "" if has_class else " --task=MODULE:CLASS"  # the trainer's own loss is for classes
    if task and to_evaluate(made.splits, ["train"]) is None:  # without a task, the trainer chooses itself
        task += " --eval_split=none"
    folds = of_folds(made)
    of_folds_ = f" --train_split={folds[0]} --eval_split={folds[1]}" if folds else ""
    return [
        *card,
        ("or:" if card else "look at it:").ljust(13) + f"{to_run('pipeline.inspect')} {remote.in_command(address)}",
        f"train on it: {to_run('trainer.run')} {remote.in_command(address)}{of_folds_}{task}",
        *([f"for both, {missing}"] if missing else []),
    ]


def kept_version(data_dir: str, parent: Manifest, made: Manifest) -> str:
    """Returns a line about the version that a new one follows."""
    old, new = (remote.in_command(f"{data_dir.rstrip('/')}@{one.version}") for one in (parent, made))
    return f"version {parent.version} stays: {old}; runs that began on it resume on it, and move by --data_dir={new}"


def _inside(data_dir: str, name: str) -> str:
    return f"{data_dir.rstrip('/')}/{name}"
