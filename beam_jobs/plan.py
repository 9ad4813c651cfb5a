"""The plan of a conversion: fixed by flags and a sample of rows before the first byte is written; sent to workers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs import appending, sources
from beam_jobs.appending import Base
from beam_jobs.config import ConvertConfig
from beam_jobs.examples import placed
from beam_jobs.examples.records import make_records
from beam_jobs.examples.selection import ImageOptions, select
from beam_jobs.flag_values import MAX_SHARDS
from beam_jobs.sources import transformed
from beam_jobs.sources.base import Block, Source
from beam_jobs.sources.dealt import resplit
from pipeline import images, manifest
from pipeline.commands.text import count_of, shape_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.files.paths import StoragePath
from pipeline.images import BadImageError
from pipeline.manifest import Feature, Manifest, PixelRule, SourceFile, naming
from pipeline.manifest.manifest import ANNOTATIONS_VERSION
from pipeline.order import hashing
from pipeline.order.hashing import Domain

_KEPT_ROWS = 1 << 22  # 4 Mi: a worker keeps at most 32 MiB of a permutation between shards
_BLOCK = 1 << 20  # rows hashed at a time in larger splits
_CHUNKS, _WITHIN_SHARD = 1, 2  # keys of the other permutations
_SMALL_SHARD = 16 << 20  # 16 MiB: enough shards for many readers of a small data set
_MANY_SHARDS = 64
_SAMPLED_ROWS = 16  # rows per split
_MOST_CHANNELS = 4  # grey or colour, with or without transparency
_SAMPLED_CHUNKS = 3  # the first, the middle one and the last
_MOST_RUNS, _ENOUGH_SECONDS = 3, 0.1  # for timing the work on the sample

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Origin:
    """The first pass's source, as the plan of the second pass needs it.

    Attributes:
      files: files of that source.
      num_rejects: {split: number of rows of that source that are in no shard}.
    """

    files: tuple[SourceFile, ...]
    num_rejects: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of one conversion. Pickles to a few kilobytes.

    Attributes:
      source: the source to convert.
      data_dir: folder that shards and the manifest are written to.
      receipts_dir: folder that the shards' receipts are written to.
      published_dir: final folder of the data set, the one users know.
      rejects_dir: folder in which users find the list of invalid rows if the conversion fails because of them.
      config: options that the user gave.
      sample: encoding of the images, and estimates of sizes and time.
      num_shards: {split: number of shards}.
      origin: source of the first pass if this is the second; else None.
      base: version to append to; None for a new data set.
      made: options that describe the rows made by --transform; empty without it.
    """

    source: Source
    data_dir: StoragePath
    receipts_dir: StoragePath
    published_dir: StoragePath
    rejects_dir: StoragePath
    config: ConvertConfig
    sample: Sample
    num_shards: dict[str, int]
    origin: Origin | None = None
    base: Base | None = None
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The manifest's options: everything other than the source that shapes the bytes."""
        return {"num_shards": self.num_shards, "seed": self.config.seed, **self.config.shaping_flags, **self.made}

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of everything that shapes the bytes: plans with equal digests write equal shards."""
        files = [dataclasses.asdict(file) for file in self.source.files]
        content = [self.format_version, self.source.dataset, self.source.class_names, files, self.options]
        own = dataclasses.replace(self.sample.images, like=None)  # the base determines it
        images = [*dataclasses.astuple(own)[:-1], self.config.compression]
        if self.pixel_rule is not None:
            images.append(dataclasses.astuple(self.pixel_rule))
        if self.base is not None:
            images.append(self.base.digest)
        return hashlib.sha256(json.dumps([*content, images], sort_keys=True).encode()).hexdigest()

    @property
    def pixel_rule(self) -> PixelRule | None:
        """The manifest's rule for decoding image files to pixels; None if pixels are stored."""
        return None if self.sample.images.encoding == "raw" else PixelRule()

    @property
    def format_version(self) -> int:
        """The manifest's format version: the oldest that knows what the data set has."""
        if self.base is not None:
            return manifest.APPENDED_VERSION
        if placed.of_source(self.source.features) or (self.source.label.is_class and not self.source.class_names):
            return ANNOTATIONS_VERSION
        if not self.source.label.is_class:
            return manifest.LABELS_VERSION
        return manifest.MEMBERS_VERSION if self.config.compression else manifest.FORMAT_VERSION

    @property
    def column_features(self) -> Mapping[str, Feature]:
        """The features that may become columns, and the label if it cannot."""
        label = self.source.label
        return {**self.source.features, **({"label": label} if label.shape else {})}

    @property
    def elements(self) -> list[tuple[str, int]]:
        """(split, shard) of every shard: the elements of the Beam pipeline."""
        return [(split, shard) for split, count in self.num_shards.items() for shard in range(count)]

    @property
    def file_names(self) -> list[str]:
        """Base names of the shards, in the order of `elements`."""
        return [self.file_name(split, shard) for split, shard in self.elements]

    @property
    def num_rows(self) -> int:
        """Number of rows of the source, over all splits."""
        return sum(self.source.splits.values())

    @property
    def num_bytes(self) -> int:
        """Total bytes of all shards before compression; an estimate if records differ in length."""
        return round(sum(rows * self.sample.record_bytes[split] for split, rows in self.source.splits.items()))

    def rows_at_once(self, split: str) -> int:
        """Returns how many rows of the source to read at a time: as many as fit into `max_shard_bytes`."""
        return max(1, int(self.config.max_shard_bytes / max(1.0, self.sample.source_bytes.get(split, 1.0))))

    def file_name(self, split: str, shard: int) -> str:
        """Returns the base name of a shard."""
        version = self.base.version + 1 if self.base else 1
        return naming.shard_name(split, shard, self.num_shards[split], self.config.compression, version)

    def rows(self, split: str, shard: int) -> NDArray[np.int64]:
        """Returns a shard's source rows, int64 (n,), in the order in which they are written."""
        rows, chunks = self.source.splits[split], self.source.chunks(split)
        return shard_rows(self.config.seed, split, rows, chunks, shard, self.num_shards[split])


def make_plan(config: ConvertConfig, data_dir: StoragePath, parent: Manifest | None = None) -> Plan:
    """Opens the source, reads a sample and returns the plan for converting it into a folder.

    Args:
      config: options of the conversion.
      data_dir: folder of the data set.
      parent: version to append to; None for a new data set.

    Raises:
      PipelineError: the source or a flag is invalid, or does not match the data set to append to.
    """
    if parent is not None:
        config = appending.options_for(config, parent)
    source = resplit(
        sources.open_source(config.source_options),
        config.split_fractions,
        config.seed,
        config.group_by,
        config.stratify,
        may_be_empty=parent is not None,
        flag=f"--folds={config.folds}" if config.folds else "--split",
    )
    made: dict[str, Any] = {}
    if config.transform:  # after new splits: rows stay in the split of the row they are made from
        source = transformed.opened(source, config.transform, config.source_options.na_is_class)
        made = source.options
    if parent is not None:
        config, source = appending.source_for(config, source, parent)
    taken = take_sample(
        source, config.image_encoding, config.size, config.channels, config.max_rejects, config.scaled_decoding, parent
    )
    return Plan(
        source=source,
        data_dir=data_dir,
        receipts_dir=data_dir,
        published_dir=data_dir,
        rejects_dir=data_dir,
        config=config,
        sample=taken,
        num_shards=_shard_counts(source, taken, config.shards_by_split, config.max_shard_bytes),
        base=None if parent is None else Base(parent.digest, parent.version),
        made=made,
    )


@dataclasses.dataclass(frozen=True)
class Sample:
    """Estimates for all rows from a sample of each split.

    Attributes:
      images: options for storing the images.
      record_bytes: {split: mean size of a framed record}.
      source_bytes: {split: mean size of an image in the source}; images of a missing split count as small.
      seconds: processor time for all rows.
      beside: names of kept features that are images or hold several numbers, such as masks and boxes.
    """

    images: ImageOptions
    record_bytes: dict[str, float]
    source_bytes: dict[str, float]
    seconds: float
    beside: tuple[str, ...] = ()


def take_sample(
    source: Source,
    encoding: str,
    size: tuple[int, int] | None,
    channels: int,
    max_rejects: int = 0,
    is_scaled: bool = False,
    parent: Manifest | None = None,
) -> Sample:
    """Reads some rows of each split, makes their records and returns estimates for all rows.

    Args:
      source: an open source.
      encoding: `source`, `raw`, `png` or `jpeg`.
      size: (height, width) to resize to, or None.
      channels: 1 or 3; 0 to keep the channels of the images.
      max_rejects: number of rows that may be invalid; as many sampled images may differ in size from the rest.
      is_scaled: whether JPEGs that are resized are decoded at a fraction of their size.
      parent: data set whose images the new ones must match; None for a new data set.

    Raises:
      UsageError: a flag does not work with this source.
      DataError: no row is valid, or raw images would differ in size. Bad data outside the sample is a DataError, too,
        so that the exit code does not depend on the sample.
    """
    blocks = {split: source.read(split, _some_rows(source, split)) for split in source.splits}
    options = _image_options(source, list(blocks.values()), encoding, size, channels, max_rejects, parent)
    options = dataclasses.replace(options, is_scaled=is_scaled)
    if parent is not None:
        options = appending.images_for(options, parent)
    sizes, seconds = {}, 0.0
    for split, block in blocks.items():
        sizes[split], taken = fastest(functools.partial(_record_bytes, source, split, block, options), _ENOUGH_SECONDS)
        seconds += taken / len(block.labels) * source.splits[split]
    source_bytes = {
        split: sum(len(image) if isinstance(image, bytes) else image.nbytes for image in block.images)
        / len(block.labels)
        for split, block in blocks.items()
    }
    kept = [(name, block.extra[name]) for block in blocks.values() for name in source.features if name in block.extra]
    files = {name for name, values in kept if any(images.is_image(value) for value in values)}
    plain = {name: feature for name, feature in source.features.items() if not feature.convention}
    beside = tuple(name for name, f in plain.items() if name in files or (f.shape and f.dtype != "string"))
    return Sample(options, sizes, source_bytes, seconds, beside)


def _record_bytes(source: Source, split: str, block: Block, options: ImageOptions) -> float:
    chosen = select(block, len(source.class_names), options, source.features)
    if not len(chosen.rows.labels):
        file, row, reason = source.invalid(split, int(_some_rows(source, split)[0]), chosen.bad[0])
        raise DataError(
            f"{file}, row {row}: {reason}; sampled {count_of(len(chosen.bad), 'row')}: none is valid",
            advice=without_split(split, source.splits),
        )
    counts = placed.counted(chosen.rows, chosen.recoded.sides(len(chosen.rows.labels)), source.features)
    placed.described([counts], source.features, (None, None, None))  # raises if boxes have another convention
    records = make_records(chosen.rows)
    return len(records.data) / records.count


def without_split(split: str, splits: Iterable[str]) -> str:
    """Returns advice to leave out a split without valid rows, such as an unlabelled one; "" if it is the only split."""
    others = [name for name in splits if name != split]
    return f"--splits={','.join(others)} leaves the split {split!r} out" if others else ""


def fastest(
    work: Callable[[], _Result], enough_seconds: float, clock: Callable[[], float] = time.thread_time
) -> tuple[_Result, float]:
    """Returns the result of a function and the time of its fastest run, as the first also loads code and fills caches.

    Args:
      work: function to time.
      enough_seconds: total time after which it is not run again.
      clock: clock in seconds; by default the thread's processor time, which other programs do not affect.
    """
    taken: list[float] = []
    while len(taken) < _MOST_RUNS and sum(taken) < enough_seconds:
        began = clock()
        result = work()
        taken.append(clock() - began)
    return result, min(taken)


def _some_rows(source: Source, split: str) -> NDArray[np.int64]:
    count, chunks = source.splits[split], source.chunks(split)
    if chunks is None:
        return np.unique(np.linspace(0, count - 1, _SAMPLED_ROWS).astype(np.int64))
    firsts = np.cumsum(chunks) - chunks
    filled = np.flatnonzero(chunks)
    chosen = np.unique(filled[np.linspace(0, len(filled) - 1, _SAMPLED_CHUNKS).astype(np.int64)])
    return np.concatenate([np.arange(min(chunks[c], _SAMPLED_ROWS // _SAMPLED_CHUNKS)) + firsts[c] for c in chosen])


def _image_options(
    source: Source,
    blocks: list[Block],
    encoding: str,
    size: tuple[int, int] | None,
    channels: int,
    max_rejects: int,
    parent: Manifest | None,
) -> ImageOptions:
    if source.image_shape is not None:
        shapes = Counter([source.image_shape])
        encoding = "raw" if encoding == "source" else encoding
    else:
        shapes = Counter(itertools.chain.from_iterable(_shapes(block) for block in blocks))
        if encoding == "source" and (size or channels):
            flag = "--resize" if size else "--channels"
            raise UsageError("changes the images, so give --image_encoding=raw, png or jpeg with it", argument=flag)
    own = max((shape[2] for shape in shapes), default=3)
    if channels not in (0, own) and own > _MOST_CHANNELS:
        raise UsageError(f"--channels={channels}: images of {own} channels cannot be converted to that")
    channels = channels or own
    if channels not in (1, 3) and (encoding != "raw" or size):
        flag = "--resize" if size else f"--image_encoding={encoding}"
        raise UsageError(f"images of {channels} channels can only be stored raw, as large as they are", argument=flag)
    if encoding != "raw":
        return ImageOptions(encoding, channels, size)
    sizes: Counter[tuple[int, int]] = Counter()
    for (height, width, _), count in shapes.items():
        sizes[height, width] += count
    usual = sizes.most_common(1)[0] if sizes else ((1, 1), 0)
    if size is None and sizes.total() - usual[1] > max_rejects:
        text = ", ".join(sorted(f"{height}x{width}" for height, width in sizes)[:3])
        if parent is not None:
            there = shape_of(parent.features["image"].shape[:2])
            raise DataError(f"--append: the images differ in size ({text}, ...); give --resize={there}, the data set's")
        raise DataError(
            f"--image_encoding=raw: the images differ in size ({text}, ...); give --resize=HxW, or png, jpeg or source"
        )
    height, width = size or usual[0]
    return ImageOptions(encoding, channels, size, (height, width, channels))


def _shapes(block: Block) -> list[tuple[int, int, int]]:
    found = []
    for image in block.images:
        try:
            opened = images.open_file(bytes(image))
        except BadImageError:
            continue
        found.append((*images.upright_size(opened), images.channels_of(opened)))
    return found


def _shard_counts(
    source: Source, sample: Sample, requested: int | dict[str, int] | None, max_shard_bytes: int
) -> dict[str, int]:
    """Returns {split: number of shards}: the `requested` number if there is one for the split, else the default."""
    wanted = requested if isinstance(requested, dict) else dict.fromkeys(source.splits, requested)
    for split in wanted:
        if split not in source.splits:
            raise unknown("--num_shards: split", split, source.splits)
    counts: dict[str, int] = {}
    for split, rows in source.splits.items():
        num_bytes = round(rows * sample.record_bytes[split])
        counts[split] = wanted.get(split) or default_num_shards(rows, num_bytes, max_shard_bytes)
        if counts[split] > rows:
            raise UsageError(
                f"--num_shards: {counts[split]} shards for {count_of(rows, 'example')} of split "
                f"{split!r}; at most {rows}"
            )
        if num_bytes > counts[split] * max_shard_bytes:
            raise UsageError(
                f"--num_shards: {count_of(counts[split], 'shard')} of split {split!r} would have about "
                f"{num_bytes // counts[split]} bytes each, over --max_shard_bytes={max_shard_bytes}; "
                f"give {-(-num_bytes // max_shard_bytes)} or more"
            )
    return counts


def default_num_shards(num_examples: int, num_bytes: int, max_shard_bytes: int) -> int:
    """Returns the number of shards of a split.

    Shards of at most 16 MiB, as long as that takes no more than 64 of them; otherwise 64, or as many as keep a shard
    below `max_shard_bytes` (plus a quarter, as records may differ in length). Never more shards than examples.
    """
    small, large = -(-num_bytes // min(_SMALL_SHARD, max_shard_bytes)), -(-num_bytes * 5 // (4 * max_shard_bytes))
    return max(1, min(small if small <= _MANY_SHARDS else max(_MANY_SHARDS, large), num_examples, MAX_SHARDS))


def shard_rows(
    seed: int, split: str, num_rows: int, chunks: NDArray[np.int64] | None, shard: int, num_shards: int
) -> NDArray[np.int64]:
    """Returns a shard's source rows, int64 (n,), in the order in which they are written.

    Shard s of S holds positions floor(s N / S) to floor((s + 1) N / S) - 1 of a permutation of the split's rows. If the
    source is read in chunks, the chunks are permuted and concatenated, and then the rows of each shard are permuted.

    Args:
      seed: seed of the permutations.
      split: name of the split, part of the permutations' keys.
      num_rows: number of rows in the split.
      chunks: number of rows in each unit of random access, int64; None if rows are cheap to read one by one.
      shard, num_shards: number of this shard, and number of all shards.
    """
    start, stop = shard * num_rows // num_shards, (shard + 1) * num_rows // num_shards
    if chunks is None:
        if num_rows <= _KEPT_ROWS:
            return _permutation(_key(seed, split), num_rows)[start:stop]
        return _slice_of_permutation(_key(seed, split), num_rows, start, stop)
    rows = _rows_of_chunks(hashing.permutation(_key(seed, split, _CHUNKS), len(chunks)), chunks, start, stop)
    return rows[hashing.permutation(_key(seed, split, _WITHIN_SHARD, shard), len(rows))]


def _key(seed: int, split: str, *more: int) -> int:
    number = np.frombuffer(hashlib.sha256(split.encode()).digest()[:8], "<i8")[0]
    return int(hashing.derive_key(Domain.CONVERT, seed, number, *more))


def _rows_of_chunks(order: NDArray[np.int64], chunks: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    firsts = np.concatenate([[0], np.cumsum(chunks)])
    bounds = np.concatenate([[0], np.cumsum(chunks[order])])
    pieces = [np.zeros(0, np.int64)]
    for position in range(int(np.searchsorted(bounds, start, side="right")) - 1, len(order)):
        if bounds[position] >= stop:
            break
        low, high = max(start, bounds[position]) - bounds[position], min(stop, bounds[position + 1]) - bounds[position]
        pieces.append(np.arange(low, high) + firsts[order[position]])
    return np.concatenate(pieces)


@functools.lru_cache(maxsize=2)  # a worker makes the shards of one split after another
def _permutation(key: int, num_rows: int) -> NDArray[np.int64]:
    return hashing.permutation(key, num_rows)


def _slice_of_permutation(key: int, num_rows: int, start: int, stop: int) -> NDArray[np.int64]:
    """Returns hashing.permutation(key, num_rows)[start:stop], using only as much memory as the slice.

    Hashes are uniform, so the slice's hashes lie in a range known before sorting: the probability that the number of
    hashes below any bound is off by more than the margin is 2 exp(-200) (Dvoretzky-Kiefer-Wolfowitz).
    """
    margin = 10 * math.isqrt(num_rows)
    low, high = (
        np.int64(min(max(position * 2**64 // num_rows, 0), 2**64 - 1) - 2**63)
        for position in (start - margin, stop + margin)
    )
    below, kept_rows, kept_hashes = 0, [], []
    for begin in range(0, num_rows, _BLOCK):
        numbers = np.arange(begin, min(begin + _BLOCK, num_rows), dtype=np.uint64)
        with np.errstate(over="ignore"):  # read as signed numbers, as `hashing.permutation` sorts them
            hashes = hashing.splitmix64(np.uint64(key) + numbers).view(np.int64)
        below += int(np.count_nonzero(hashes < low))
        chosen = np.flatnonzero((hashes >= low) & (hashes <= high))
        kept_rows.append(chosen + begin)
        kept_hashes.append(hashes[chosen])
    order = np.argsort(np.concatenate(kept_hashes), kind="stable")
    return np.concatenate(kept_rows)[order[start - below : stop - below]]
