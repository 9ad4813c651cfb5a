"""Rows that a user's function makes from a source's rows: `--transform=module:function`.

The function gets blocks of at most `ROWS` rows, which depend on the source alone: consecutive rows of one chunk if the
source is read in chunks, otherwise rows drawn from the whole split, so that a source sorted by class becomes mixed. It
is called with every row before anything is planned, as only its results show the number of rows, the classes and the
features. Workers call it again for the blocks that they read, and compare checksums of the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import crc32c
import numpy as np
import tqdm
from numpy.typing import NDArray

from beam_jobs.sources import base, user_columns
from beam_jobs.sources.base import Block, BlockBuilder, Source
from beam_jobs.sources.table import MAX_CLASSES
from beam_jobs.sources.user_columns import IMAGE, KEY, LABEL, UserColumns, WrongColumnsError, has_label
from pipeline import images
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, of_user
from pipeline.files import code
from pipeline.manifest.manifest import NO_LABEL
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.records import labels, splits
from pipeline.records.labels import SeenLabels, check_lines

ROWS = 64  # most rows of a block: to make one row of a shard, its whole block is read and transformed
_REGION = 1 << 22  # 4 Mi rows without chunks are permuted together, in 32 MiB of a worker's memory
_FLAG = "--transform"
_MAY = (
    f"it may return a dict of arrays or lists of one length: {IMAGE!r} (bytes, or uint8 pixels), {LABEL!r} (texts or "
    f"whole numbers), {KEY!r} (that of the row that one is made of, or that with /more behind it), and others of whole "
    "numbers, floats that float32 holds (.astype(np.float32) rounds), texts or bytes"
)
_PURE = "it must return the same for the same rows, whenever it is called and whatever it got before"
_SECONDS_WITHOUT_BAR = 2.0
_CODE, _TOLD, _DIGEST = "transform code", "transform rows", "transform SHA-256"  # options, as messages name them


class _RaisedError(Exception):
    """The function raised an error; the text gives the place and the reason."""


@dataclasses.dataclass(frozen=True)
class _Cut:
    """The division of a split's rows into blocks.

    Attributes:
      starts, stops: first row of each block, and the row after its last, int64 (n,).
      chunks: number of each block's chunk, or of the region of rows that are permuted together, int64 (n,).
      begins: first row of each chunk or region, and the row after the last.
      is_chunked: whether the source is read in chunks.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    chunks: NDArray[np.int64]
    begins: NDArray[np.int64]
    is_chunked: bool

    @classmethod
    def of(cls, rows: int, chunks: NDArray[np.int64] | None) -> _Cut:
        """Returns the cut of a split's rows, given the source's chunks."""
        sizes = np.diff([*range(0, rows, _REGION), rows]) if chunks is None else chunks
        begins, counts = np.cumsum([0, *sizes]), -(-sizes // ROWS)
        numbers = np.repeat(np.arange(len(sizes)), counts)
        starts = begins[numbers] + ROWS * (np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts))
        return cls(starts, np.minimum(starts + ROWS, begins[numbers + 1]), numbers, begins, chunks is not None)

    def rows(self, block: int) -> NDArray[np.int64]:
        rows, region = np.arange(self.starts[block], self.stops[block]), int(self.chunks[block])
        if self.is_chunked:
            return rows
        begin, end = self.begins[region : region + 2].tolist()
        return begin + _permutation(region, end - begin)[rows - begin]


@functools.lru_cache(maxsize=2)
def _permutation(region: int, rows: int) -> NDArray[np.int64]:
    return hashing.permutation(hashing.derive_key(Domain.CONVERT, region), rows)


@functools.lru_cache(maxsize=4)
def _cut(source: Source, split: str) -> _Cut:
    return _Cut.of(source.splits[split], source.chunks(split))


@dataclasses.dataclass(frozen=True)
class _Calls:
    """The results of the function for a split.

    Attributes:
      counts: number of rows made from each block, including invalid ones, int64 (n,).
      checksums: checksum of the rows made from each block, uint32 (n,).
      told: numbers of rows that the function got, returned and dropped, in words.
    """

    counts: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    told: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TransformedSource(Source):
    """The rows that a function makes from a source's rows. A made row is in the split of the rows it was made from.

    Attributes:
      inner: source of the rows that the function gets.
      function: the function, as `code.load_code` finds it.
      calls: {split: results of the function}.
    """

    inner: Source
    function: str
    calls: dict[str, _Calls]

    @property
    def options(self) -> dict[str, Any]:
        """Options in the manifest about the function besides its name: its code, its rows, and a digest of them."""
        checksums = b"".join(calls.checksums.tobytes() for calls in self.calls.values())
        return {
            _CODE: _code_of(self.function),
            _TOLD: {split: calls.told for split, calls in self.calls.items()},
            _DIGEST: hashlib.sha256(checksums).hexdigest()[:16],
        }

    def chunks(self, split: str) -> NDArray[np.int64]:
        cut, counts = _cut(self.inner, split), self.calls[split].counts
        if not cut.is_chunked:
            return counts
        sums = np.concatenate([[0], np.cumsum(counts)])
        return np.diff(sums[np.searchsorted(cut.chunks, np.arange(len(cut.begins)))])

    def where(self, split: str, row: int) -> tuple[str, int]:
        (number,), (own,) = base.locate(self.calls[split].counts.tolist(), np.array([row], np.int64))
        return self.inner.where(split, int(_origins(self, split, int(number))[own]))

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        wanted = {number: each for number, *each in base.by_part(self.calls[split].counts.tolist(), rows)}
        found = []
        for number, own, block in _blocks(self.inner, split, wanted):
            made, bad = _called(self.inner, self.function, block)
            if _checksum(made, bad) != self.calls[split].checksums[number]:
                file, row = self.inner.where(split, int(own[0]))
                where = f"for up to {ROWS} rows, of which {file}, row {row}, is the first"
                problem = f"{_FLAG}={self.function} returns something else when it is called again, {where}"
                raise DataError(f"{problem}; {_PURE}")
            positions, chosen = wanted[number]
            found.append((positions, self._block(made, bad).part(chosen)))
        return Block.joined(found)

    def _block(self, made: UserColumns, bad: Mapping[int, str]) -> Block:
        """Returns the rows that the function returned, followed by the invalid ones."""
        count = len(made.origins)
        builder = BlockBuilder(count + len(bad), self.features, self.image_shape, label=self.label)
        builder.bad = dict(enumerate(bad.values(), count))
        columns = {**builder.extra, IMAGE: builder.images, LABEL: builder.labels, KEY: builder.keys}
        values = dict(made.values)
        if not has_label(self.inner):
            builder.labels[:] = NO_LABEL
        elif self.label.is_class and values:
            numbers = {name: number for number, name in enumerate(self.class_names)}
            names = values[LABEL]
            values[LABEL] = np.array([numbers.get(name, NO_LABEL) for name in names])
            for row in np.flatnonzero(values[LABEL] == NO_LABEL).tolist():
                why = f"the label {names[row]!r}, a missing value" if names[row] else "no label for it"
                builder.bad[row] = f"{self.function} returned {why}"
        for name in made.open:
            is_text = self.features[name].dtype == "string"
            values[name] = [[] if is_text else np.zeros(0, self.features[name].dtype) for _ in range(count)]
        for name, column in values.items():
            columns[name][:count] = user_columns.objects(column) if isinstance(column, list) else column
        return builder.finished()


@functools.lru_cache(maxsize=4)  # invalid rows are often in one block
def _origins(source: TransformedSource, split: str, number: int) -> NDArray[np.int64]:
    """Returns the row of the source that each row of a block was made from, int64 (n,)."""
    ((_, rows, block),) = _blocks(source.inner, split, [number])
    made, bad = _called(source.inner, source.function, block)
    return rows[np.concatenate([made.origins, np.array([*bad], np.int64)])]


def _blocks(source: Source, split: str, numbers: Iterable[int]) -> Iterator[tuple[int, NDArray[np.int64], Block]]:
    """Yields (number, its rows of the split, their content) of blocks; each chunk of the source is read once."""
    cut = _cut(source, split)
    for _, together in itertools.groupby(numbers, lambda number: cut.chunks[number] if cut.is_chunked else number):
        rows = {number: cut.rows(number) for number in together}
        read, end = source.read(split, np.concatenate([*rows.values()])), 0
        for number, own in rows.items():
            end += len(own)
            yield number, own, read.part(np.arange(end - len(own), end))


def _called(source: Source, function: str, block: Block) -> tuple[UserColumns, dict[int, str]]:
    """Returns the function's result for the valid rows of a block, and {row of the block: reason} for the others."""
    bad = block.without_class(len(source.class_names)) if source.class_names and source.label.is_class else {}
    bad |= block.bad
    rows = np.setdiff1d(np.arange(len(block.labels)), [*bad])
    if not len(rows):
        return UserColumns(), dict(sorted(bad.items()))
    try:
        return _returned(source, function, block, rows), dict(sorted(bad.items()))
    except _RaisedError as error:
        parts, failed = [], dict[int, str]()
        for row in rows.tolist():
            try:
                parts.append(_returned(source, function, block, np.array([row])))
            except _RaisedError as alone:
                failed[row] = str(alone)
        if not failed:
            problem = f"raises for {len(rows)} rows together, but for none of them alone: {error}; {_PURE}"
            raise DataError(f"{_FLAG}={function} {problem}") from None
    with _refusing(function):
        return UserColumns.joined(parts), dict(sorted((bad | failed).items()))


def _returned(source: Source, function: str, block: Block, rows: NDArray[np.int64]) -> UserColumns:
    call, columns = _loaded(function), user_columns.given(source, block, rows)
    try:
        found = call(columns)
    except (Exception, SystemExit) as error:  # SystemExit would silently end a thread of Beam
        raise _RaisedError(of_user(error)) from error
    with _refusing(function):
        return user_columns.returned(source, block, rows, found)


@functools.lru_cache(maxsize=1)
def _loaded(function: str) -> Any:
    found = code.load_code(_FLAG, function)
    if not callable(found):
        raise UsageError(f"{_FLAG}={function}: must be a function, it is {found!r}")
    return found


@contextlib.contextmanager
def _refusing(function: str) -> Iterator[None]:
    try:
        yield
    except WrongColumnsError as error:
        raise UsageError(f"{_FLAG}={function} returns {error}; {_MAY}") from None


def _checksum(made: UserColumns, bad: Mapping[int, str]) -> int:
    return crc32c.crc32c(repr([*bad]).encode(), made.checksum)


def opened(source: Source, function: str, na_is_class: bool = False) -> TransformedSource:
    """Returns the rows that a function makes from a source's rows, after calling it with all of them.

    Args:
      source: source of the rows that the function gets.
      function: the function, as `code.load_code` finds it.
      na_is_class: whether words for missing values are class names, even if the source has no such class.

    Raises:
      UsageError: there is no such function, or it returns no block of rows, varying columns, or a column of splits.
      DataError: it drops all rows of a split, or raises an error only for rows together; a file cannot be read.
    """
    _loaded.cache_clear()
    _loaded(function)
    seen = _Seen()
    calls = {split: _first_calls(source, function, split, seen) for split in source.splits}
    if column := splits.column_of([name for name in seen.columns.features if name not in source.features], ""):
        raise UsageError(
            f"{_FLAG}={function} returns the column {column!r}, but new rows stay in the split of the row "
            "they are made from; choose splits in the source or by --split, or give the column another name"
        )
    if seen.turned:
        print(
            f"note: {_FLAG}={function} returned {count_of(seen.turned, 'image')} without the EXIF orientation of the "
            "file; predictions turn photographs upright: apply PIL.ImageOps.exif_transpose in the function, if it "
            "does not do so already",
            file=sys.stderr,
            flush=True,
        )
    features = dict(seen.columns.features)
    image = features.pop(IMAGE, None)
    return TransformedSource.like(
        source,
        class_names=_class_names(source, function, seen.labels - {""}, na_is_class),
        splits={split: int(own.counts.sum()) for split, own in calls.items()},
        parts={},
        image_shape=image.shape if source.image_shape and image else source.image_shape,
        features=features,
        unique_keys=source.unique_keys and not seen.has_new_keys,
        inner=source,
        function=function,
        calls=calls,
    )


@dataclasses.dataclass
class _Seen:
    """Facts about the rows that the function has returned so far.

    Attributes:
      columns: their features, and which are open, without the rows.
      labels: names of the classes; "" if a row has none.
      has_new_keys: whether a row has another key than the row that it was made from.
      turned: number of images without EXIF orientation that were made from files with one.
    """

    columns: UserColumns = dataclasses.field(default_factory=UserColumns)
    labels: set[str] = dataclasses.field(default_factory=set)
    has_new_keys: bool = False
    turned: int = 0

    def add(self, source: Source, block: Block, made: UserColumns) -> None:
        if not made.values:
            return
        features, still_open = user_columns.alike([self.columns, made] if self.columns.features else [made])
        self.columns = UserColumns(features=features, open=still_open)
        if has_label(source) and source.label.is_class:
            self.labels |= {*made.values[LABEL]}
        keys = [bytes(block.keys[row]) for row in made.origins.tolist()]
        self.has_new_keys |= keys != made.values[KEY]
        if source.image_shape is None:
            pairs = zip(made.origins.tolist(), made.values[IMAGE], strict=True)
            changed = [(block.images[row], image) for row, image in pairs if block.images[row] != image]
            self.turned += sum(_is_turned(before) and not _is_turned(after) for before, after in changed)


def _is_turned(file: bytes) -> bool:
    """Returns whether the EXIF data of a file turn its image; Pillow turns TIFF files itself."""
    return not file.startswith((b"II*\0", b"MM\0*")) and images.orientation_of(file) > 1


def _first_calls(source: Source, function: str, split: str, seen: _Seen) -> _Calls:
    rows, blocks = source.splits[split], len(_cut(source, split).starts)
    counts, checksums = np.zeros(blocks, np.int64), np.zeros(blocks, np.uint32)
    kept = dropped = 0
    text, delay = f"calling {function}", _SECONDS_WITHOUT_BAR
    with tqdm.tqdm(total=rows, desc=text, unit=" rows", unit_scale=True, delay=delay, disable=None, leave=False) as bar:
        for number, own, block in _blocks(source, split, range(blocks)):
            made, bad = _called(source, function, block)
            counts[number], checksums[number] = len(made.origins) + len(bad), _checksum(made, bad)
            with _refusing(function):
                seen.add(source, block, made)
            kept += len(made.origins)
            dropped += len(own) - len(bad) - len(np.unique(made.origins))
            bar.update(len(own))
    if not counts.any():
        raise DataError(f"{_FLAG}={function} drops all {count_of(rows, 'row')} of the split {split!r}")
    return _Calls(counts, checksums, f"{count_of(rows, 'row')} in, {kept:,} out, {dropped:,} dropped")


def _class_names(source: Source, function: str, given: set[str], na_is_class: bool) -> tuple[str, ...]:
    """Returns the classes of the rows: in the source's order if it has them all, otherwise in the order of texts."""
    if not has_label(source) or not source.label.is_class:
        return source.class_names
    known = {*source.class_names}
    names = given if na_is_class else given - ({*labels.MISSING} - known)
    if names <= known:
        return tuple(name for name in source.class_names if name in names)
    seen = SeenLabels(f"{LABEL!r} of {_FLAG}={function}", MAX_CLASSES, "return names of classes", na_is_class=True)
    seen.add(names, source.dataset)
    made = seen.class_names(source.dataset)
    check_lines(made, f"{_FLAG}={function}")
    return made


def _code_of(function: str) -> dict[str, str]:
    """Returns {source file: digest} of a function's module and the user's own modules that it imports."""
    module, _ = code.parted(_FLAG, function)
    return {file: digest for file, (digest,) in code.code_of_modules([module]).items()}


def edits(options: Mapping[str, Any]) -> list[str]:
    """Returns how the code that made a data set's rows has changed, `mine.py was edited`, given its options."""
    return code.edited(options[_CODE], _code_of(options["transform"])) if _CODE in options else []


def lines(options: Mapping[str, Any]) -> list[str]:
    """Returns a line about the rows that a function made, given a data set's options; empty without a function."""
    told = [f"{split}: {rows}" for split, rows in options.get(_TOLD, {}).items()]
    return [f"  {options['transform']}: {'; '.join(told)}"] if told else []
