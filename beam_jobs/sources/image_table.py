"""Image files that tables name: CSV, TSV, JSON lines or Parquet with a column of paths and one of labels."""

from __future__ import annotations

import dataclasses
import errno
import functools
import glob
import hashlib
import os
import stat
import sys
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import image_folder, listing, parquet_columns, parquet_reader, streams, tables
from beam_jobs.sources.base import SOURCES, Block, Files, Source, SourceOptions
from beam_jobs.sources.parquet_columns import Columns
from beam_jobs.sources.parquet_reader import BatchedBuilder
from beam_jobs.sources.streams import KnownFile
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.manifest import SourceFile
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.records import labels, splits
from pipeline.records.labels import LABELS_FILE, read_labels

# Usual column names, in order of preference; `File Name` and `file_name` count as `filename`.
_IMAGES = ("filename", "imagepath", "filepath", "path", "file", "imagename", "image", "imageid", "img")
_LABELS = ("label", "class", "category", "target")
_KINDS = f"--source of image_table is a table ({', '.join(tables.SUFFIXES)}), a glob, or a folder with metadata.csv"
_NAME = "{}"  # stands for the path in --image_dir
_DESCRIBED = "images"  # name of the files' single entry in the manifest
# Reasons why a row has no file, in place of the file's size.
_UNNAMED, _MISSING, _IRREGULAR, _OUTSIDE = -1, -2, -3, -4
_FAULTS = {_UNNAMED: "{column} is empty", _MISSING: "{path}: no such file", _IRREGULAR: "{path}: is not a regular file"}
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_URLS = ("http:/", "https:/", "s3:/", "gs:/")  # one slash, as a path made of such a text has
_SHOWN = 80  # characters of a value in errors
_BLOCK = 1 << 16  # paths held as Python objects at a time


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImageTableSource(Source):
    """Tables of images. Workers read them again, as a million paths make a large pickle.

    Attributes:
      options: options that the user gave.
      tables: table files, as they were when the source was opened.
      folder: folder that the tables' names are relative to.
      listing_digest: digest that a worker's listing must have.
    """

    options: SourceOptions
    tables: tuple[KnownFile, ...]
    folder: LocalPath
    listing_digest: str

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns hashes of the images' paths, so that rows that name the same file are in the same split."""
        listing = self._listing()
        rows = listing.splits[split][start:stop].tolist()
        digests = b"".join(hashlib.sha256(listing.path(row)).digest()[:8] for row in rows)
        return hashing.derive_key(Domain.SPLIT, np.frombuffer(digests, "<i8"))

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (table, row in it)."""
        listing = self._listing()
        return listing.rows.files.where(int(listing.splits[split][row]))

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns images, with their paths relative to the folder as keys, or the values of --key_column."""
        listing = self._listing()
        own, every = listing.splits[split][rows], np.arange(len(rows))
        builder = BatchedBuilder(len(rows), listing.columns, self.class_names, None)
        for batch in listing.rows.table.take(pa.array(own)).combine_chunks().to_batches():  # one, or none
            builder.put(every, batch, every)
        for position, row in enumerate(own.tolist()):
            path, builder.images[position] = builder.images[position], b""
            if not listing.columns.key:
                builder.keys[position] = b"%b#%d" % (path, row) if listing.again[row] else path
            if position not in builder.bad:
                builder.images[position], problem = listing.content(row)
                if problem:
                    builder.bad[position] = problem
        return builder.finished()

    def _listing(self) -> _Listing:
        scan = functools.partial(_scan, self.folder, self.tables, self.options)
        return image_folder.listed(str(self.folder), self.listing_digest, scan)


@dataclasses.dataclass(frozen=True, eq=False)
class _Listing:
    """All rows of the tables, one table after another.

    Attributes:
      origin: tables, as they were when they were read, and the options.
      rows: rows of the tables.
      columns: columns to read.
      class_names: name of each class, by label.
      splits: {split: its row numbers, int64 (n,)}.
      root: folder that paths are relative to.
      paths: file paths, binary; null or empty if a row has none.
      sizes: file sizes in bytes, or a key of `_FAULTS` for rows without a file, int64 (n,).
      times: modification times of the files in nanoseconds, int64 (n,).
      again: whether an earlier row names the same file, bool (n,).
    """

    origin: tuple[Sequence[KnownFile], SourceOptions]
    rows: _Rows
    columns: Columns
    class_names: tuple[str, ...]
    splits: dict[str, NDArray[np.int64]]
    root: str
    paths: pa.Array
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    again: NDArray[np.bool_]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of everything that determines paths, splits and labels, and of file sizes and times."""
        digest = hashlib.sha256(repr((self.origin, self.class_names)).encode())
        digest.update(self.sizes.data)
        digest.update(self.times.data)
        return digest.hexdigest()

    def path(self, row: int) -> bytes:
        """Returns the path of a row's file; empty if it has none."""
        path: bytes | None = self.paths[row].as_py()
        return path or b""

    def content(self, row: int) -> tuple[bytes, str]:
        """Returns the bytes of a row's file, and the reason if it cannot be an image; one of the two is empty."""
        path, size = self.path(row), int(self.sizes[row])
        if size in _FAULTS:
            return b"", _FAULTS[size].format(column=self.columns.image, path=_shown(path))
        return image_folder.content(os.path.join(os.fsencode(self.root), path), size, int(self.times[row]))


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of the tables.

    Attributes:
      folder: folder that the tables' names are relative to.
      files: table files.
      options: options that the user gave, with the columns that were chosen by name.
      table: columns that were read.
      notes: lines for the user about the rows.
    """

    folder: LocalPath
    files: Files
    options: SourceOptions
    table: pa.Table
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> LocalPath:
        """Path of the first table."""
        return self.folder / self.files.names[0]

    def replaced(self, name: str, column: pa.ChunkedArray) -> _Rows:
        """Returns the rows with new values of a column, stored in one piece so that taking rows is faster."""
        number = self.table.schema.names.index(name)
        return dataclasses.replace(self, table=self.table.set_column(number, name, column).combine_chunks())

    def refused(self, row: int, problem: str, advice: str) -> DataError:
        """Returns an error about a row."""
        name, own = self.files.where(row)
        return DataError(problem, path=self.folder / name, part=f"row {own}", advice=advice)

    def place(self, row: int) -> str:
        """Returns the place of a row, for messages."""
        return self.refused(row, "", "").where


@SOURCES.named("image_table")
def open_source(options: SourceOptions) -> ImageTableSource:
    """Reads the tables, looks up the files that they name and computes their digests.

    Raises:
      UsageError: --source is missing, a column is missing or cannot be converted, or float32 cannot hold its values.
      DataError: a table or a file cannot be read, a path leads out of the folder, or none of the files exist.
    """
    if not options.source:
        raise UsageError("--source is missing: a table that names image files")
    wanted = f"metadata{', '.join(tables.SUFFIXES)}; name the table"
    found, names = listing.find(options.source, _is_metadata, True, wanted, _KINDS)
    folder = LocalPath(str(found))
    if options.splits and not options.split_column:  # a table that is left out need not have labels or files
        names = sorted(name for files in splits.by_files(folder, names, options.splits).values() for name in files)
    if options.image_dir:
        options = dataclasses.replace(options, image_dir=os.path.abspath(options.image_dir))  # for workers elsewhere
    known = tuple(KnownFile(folder / name, streams.stamp(folder / name)) for name in names)
    made = _scan(folder, known, options)
    if not options.split_column and len(made.splits) == 1:
        _check_folders(made)
    for line in (*_choice(made, options), *made.rows.notes, *_faults(made), *_repeats(made)):
        print(line, file=sys.stderr, flush=True)
    image_folder.listed(str(folder), made.digest, lambda: made)
    return ImageTableSource(
        dataset=options.dataset,
        class_names=made.class_names,
        files=(*streams.describe([(name, folder / name) for name in names]), _describe(made)),
        splits={split: len(rows) for split, rows in made.splits.items()},
        features=dict(made.columns.kept),
        unique_keys=not made.columns.key and not made.again.any(),  # a file may have the name of another row's key
        options=options,
        tables=known,
        folder=folder,
        listing_digest=made.digest,
    )


def _is_metadata(name: str) -> bool:
    stem, suffix = os.path.splitext(os.path.basename(name))
    return stem == "metadata" and suffix in tables.SUFFIXES


def _scan(folder: LocalPath, files: Sequence[KnownFile], options: SourceOptions) -> _Listing:
    rows = _read(folder, files, options)
    names = read_labels(folder / LABELS_FILE)
    if names:
        rows = _with_label_numbers(rows, names)
    columns = parquet_columns.choose(str(rows.path), rows.table.schema, rows.options, are_paths=True)
    _check_doubles(rows, columns)
    root, before, after = _image_dir(folder, options)
    paths, sizes, times = _look_up(rows, _Finder(root, before, after, options.follow_links))
    codes = paths.dictionary_encode().indices.fill_null(-1).to_numpy()  # numbered in order of appearance
    return _Listing(
        origin=(files, options),
        rows=rows.replaced(columns.image, pa.chunked_array([paths])),
        columns=columns,
        class_names=names or _class_names(rows, columns),
        splits=_splits(rows, is_given=options.split_column not in ("", splits.NO_COLUMN)),
        root=root,
        paths=paths,
        sizes=sizes,
        times=times,
        again=(np.diff(np.maximum.accumulate(codes), prepend=-1) == 0) & (sizes != _UNNAMED),
    )


def _read(folder: LocalPath, files: Sequence[KnownFile], options: SourceOptions) -> _Rows:
    """Reads the needed columns of all tables, which must have the same columns."""
    used, found = options, []
    told = {split for file in files if (split := splits.hint(file.path.name_in(folder)))}
    wanted: list[str] = []
    suspects: list[str] = []  # columns read only to find out whether they hold splits
    for file in files:

        def choose(schema: pa.Schema, path: str = str(file.path)) -> list[str]:
            nonlocal used
            used = parquet_columns.resolved(path, schema, used, _IMAGES, _LABELS, are_paths=True)
            used = dataclasses.replace(
                used, split_column=splits.column_of(schema.names, used.split_column or options.split_column)
            )
            given = [(flag, getattr(used, flag)) for flag in ("label_column", "key_column", "split_column")]
            given += [("keep_columns", parquet_columns.name_and_type(schema, kept)[0]) for kept in used.keep_columns]
            for flag, name in given:
                if name:
                    parquet_columns.type_of(path, schema, flag, name)
            texts = [field.name for field in schema if parquet_columns.is_text(field.type)]
            suspects[:] = splits.suspects(schema.names, texts, options.split_column)
            wanted[:] = dict.fromkeys(name for _, name in [("", used.image_column), *given] if name)
            return list(dict.fromkeys([*wanted, *suspects]))

        try:
            table = tables.read(file.path, choose, options.delimiter)
            for name in suspects:
                splits.check_suspect(file.path, name, pc.unique(table.column(name)).to_pylist(), told)
            found.append(table.select(wanted))
        except UsageError as error:
            if not found:
                raise
            raise DataError(str(error), advice=f"all tables must have the columns of {files[0].path}") from None
        file.check_unchanged()
        if found[-1].schema.types != found[0].schema.types:
            pairs = [f"{field.name} ({field.type})" for field in found[0].schema]
            raise DataError(f"does not have the columns {', '.join(pairs)} of {files[0].path}", path=file.path)
        own, first = (parquet_columns.class_names(table.schema) for table in (found[-1], found[0]))
        if any(own.get(name) != first.get(name) for name in found[0].schema.names):
            problem = f"its class names differ from those of {files[0].path}, but labels are numbers"
            raise DataError(problem, path=file.path, advice="convert each, then both together by --dataset=tfrecord")
    names = tuple(file.path.name_in(folder) for file in files)
    rows = _Rows(folder, Files(names, tuple(map(len, found))), used, pa.concat_tables(found))
    if not len(rows.table):
        raise DataError("has no row below its columns' names", path=files[0].path)
    is_text = all(name.lower().endswith(tables.TEXTS) for name in names)
    return _with_numbers(rows) if is_text else rows


def _with_numbers(rows: _Rows) -> _Rows:
    """Returns the rows with numeric texts as numbers: in kept columns, and whole numbers in the labels."""
    label = rows.options.label_column
    encoded = rows.table.column(label).combine_chunks().dictionary_encode()
    texts = labels.as_one_number(encoded.dictionary.to_pylist()).values()
    joined = pa.array(texts, pa.string()).take(encoded.indices)
    rows = rows.replaced(label, pa.chunked_array([joined]))
    for kept in rows.options.keep_columns:
        name, wanted = parquet_columns.name_and_type(rows.table.schema, kept)
        texts = rows.table.column(name)
        column, wrong = tables.typed(texts, wanted)
        if wrong is not None:
            row, reason = wrong
            problem = f"column {name!r} has {texts[row].as_py()[:_SHOWN]!r}, {reason}"
            advice = f"correct it, or keep the column as {name}:string (exact text)"
            advice += "" if wanted == "float32" or reason == tables.NO_NUMBER else f" or {name}:float32 (rounded)"
            raise rows.refused(row, problem, advice)
        rows = rows.replaced(name, column)
        if not wanted and pa.types.is_string(column.type) and (odd := tables.first_no_number(texts)) is not None:
            note = (
                f"{rows.place(odd)}: column {name!r} has {texts[odd].as_py()[:_SHOWN]!r} where most rows have numbers"
            )
            line = f"{note}, so that it is kept as text; {name}:float32 or {name}:int64 keeps the numbers"
            rows = dataclasses.replace(rows, notes=(*rows.notes, line))
    return rows


def _with_label_numbers(rows: _Rows, names: Sequence[str]) -> _Rows:
    """Returns the rows with label texts as class numbers: the index of a class name, or the number in the text."""
    label = rows.options.label_column
    column = rows.table.column(label)
    if not pa.types.is_string(column.type):
        return rows
    if not rows.options.na_is_class:
        missing = pa.array([text for text in labels.MISSING if text not in names], pa.string())
        column = pc.if_else(pc.is_in(column, value_set=missing), "", column)
    numbers = pc.index_in(column, value_set=pa.array(names, pa.string())).cast(pa.int64())
    unknown = pc.and_(numbers.is_null(), pc.not_equal(column, "").fill_null(False))
    if not pc.any(unknown).as_py():
        return rows.replaced(label, numbers)
    counted, _ = tables.typed(column, "")
    if pa.types.is_integer(counted.type):
        return rows.replaced(label, counted)
    row = pc.index(unknown, True).as_py()
    problem = f"column {label!r} has {column[row].as_py()[:_SHOWN]!r}, which {LABELS_FILE} does not have"
    raise rows.refused(row, problem, f"correct it, or complete {rows.folder / LABELS_FILE}")


def _class_names(rows: _Rows, columns: Columns) -> tuple[str, ...]:
    named = parquet_columns.class_names(rows.table.schema).get(columns.label, ())
    if known := parquet_reader.known_classes(columns, named):
        return known
    seen = parquet_reader.seen_labels(columns, rows.options.na_is_class)
    seen.add(parquet_reader.labels_in(rows.table.column(columns.label), columns), rows.path)
    return seen.class_names(rows.path)


def _check_doubles(rows: _Rows, columns: Columns) -> None:
    for name in columns.doubles:
        start = 0
        for chunk in rows.table.column(name).chunks:
            if inexact := parquet_reader.first_inexact(chunk):
                table, row = rows.files.where(start + inexact[0])
                feature = dict(columns.kept)[name]
                raise parquet_reader.rounded((rows.folder / table, row), name, inexact[1], feature)
            start += len(chunk)


def _splits(rows: _Rows, is_given: bool) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of each split, by the split column or else by the names of the tables.

    Args:
      rows: rows of the tables.
      is_given: whether the user named the column: it may then hold words other than train, validation and test.
    """
    name, folder = rows.options.split_column, rows.folder
    if name:
        with parquet_reader.arrow_errors(rows.path, f"column {name!r} cannot name splits"):
            encoded = rows.table.column(name).cast(pa.string()).fill_null("").combine_chunks().dictionary_encode()
        meaning, codes = [], encoded.indices.to_numpy()
        for code, word in enumerate(encoded.dictionary.to_pylist()):
            split, row = splits.of_value(word, is_given), int(np.argmax(codes == code))
            if not split:
                problem = f"column {name!r} has {word[:_SHOWN]!r}"
                raise rows.refused(row, problem, splits.not_a_split(word, name))
            meaning.append(split)
        for file, first, count in zip(rows.files.names, rows.files.starts, rows.files.counts, strict=True):
            for code in np.unique(codes[first : first + count]).tolist() if not is_given else ():
                row = int(np.argmax(codes[first : first + count] == code))
                splits.check_name(folder / file, row, splits.hint(file), meaning[code], name)
    else:
        by_split = splits.by_files(folder, rows.files.names)
        split_of = {file: split for split, files in by_split.items() for file in files}
        meaning = [split_of[file] for file in rows.files.names]
        codes = np.repeat(np.arange(len(meaning)), rows.files.counts)
    found = {}
    for split in splits.in_order(set(meaning)):
        found[split] = np.flatnonzero(np.isin(codes, [code for code, other in enumerate(meaning) if other == split]))
        if not len(found[split]):
            raise DataError(f"split {split!r} has no row", path=folder / rows.files.names[meaning.index(split)])
    return found


def _image_dir(folder: LocalPath, options: SourceOptions) -> tuple[str, bytes, bytes]:
    """Returns the folder that paths are relative to, and the text before and after the path in a file name."""
    root, sign, after = options.image_dir.partition(_NAME) if options.image_dir else (str(folder), "", "")
    root, before = os.path.split(root) if sign else (root, "")
    if not os.path.isdir(root):
        raise UsageError(f"--image_dir={options.image_dir}: {root} is not a folder")
    return root, os.fsencode(before), os.fsencode(after)


def _shown(path: bytes) -> str:
    """Returns a path on one line, for messages."""
    return image_folder.text(path).replace("\n", "\\n")


class _Finder:
    """Looks up the files that paths name."""

    def __init__(self, root: str, before: bytes, after: bytes, follows_links: bool) -> None:
        self._root, self._before, self._after, self._follows_links = os.fsencode(root), before, after, follows_links
        self._real_root = os.path.join(os.path.realpath(self._root), b"")
        self._is_inside = functools.lru_cache(maxsize=_BLOCK)(self._leads_inside)  # once per folder, not per file

    def find(self, folder: bytes, name: str | None) -> tuple[bytes | None, int, int]:
        """Returns (path relative to the root, size or a fault, time) of the file that a row names.

        Args:
          folder: folder that the name is relative to, itself relative to the root.
          name: name of the file, as in the table.

        Raises:
          DataError: the file's status cannot be read.
        """
        if not name or not name.strip():
            return name if name is None else b"", _UNNAMED, 0
        written = name.strip().encode()
        for form in dict.fromkeys((written, written.replace(b"\\", b"/"))):  # as written, or a Windows path
            path = os.path.normpath(os.path.join(self._root, folder, self._before + form + self._after))
            with streams.errors_of(_shown(path)):
                status, is_link = _status(path)
            if status:
                break
        shown = path.removeprefix(os.path.join(self._root, b""))
        if not status:
            return shown, _MISSING, 0
        leads_inside = self._is_inside(os.path.dirname(path)) and (not is_link or self._leads_inside(path))
        if not leads_inside and not self._follows_links:
            return path, _OUTSIDE, 0
        key = shown if shown != path else os.path.relpath(path, self._root)
        return (key, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (key, _IRREGULAR, 0)

    def _leads_inside(self, path: bytes) -> bool:
        return os.path.join(os.path.realpath(path), b"").startswith(self._real_root)


def _status(path: bytes) -> tuple[os.stat_result | None, bool]:
    """Returns the status of a path's target, None if it does not exist, and whether the path is a link."""
    try:
        status = os.lstat(path)
        is_link = stat.S_ISLNK(status.st_mode)
        return (os.stat(path) if is_link else status), is_link
    except ValueError:  # it holds a NUL
        return None, False
    except OSError as error:
        if error.errno in _NO_FILE:
            return None, False
        raise


def _look_up(rows: _Rows, finder: _Finder) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.int64]]:
    """Returns (paths, sizes, times) of the files that the rows name, as in `_Listing`."""
    column, first = rows.table.column(rows.options.image_column), 0
    found: list[pa.Array] = []
    sizes, times = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    for table, count in zip(rows.files.names, rows.files.counts, strict=True):
        folder = b"" if rows.options.image_dir else os.fsencode(os.path.dirname(table))
        for start in range(first, first + count, _BLOCK):
            names = column.slice(start, min(_BLOCK, first + count - start)).to_pylist()
            paths, *status = zip(*(finder.find(folder, name) for name in names), strict=True)
            sizes[start : start + len(names)], times[start : start + len(names)] = status
            if _OUTSIDE in status[0]:
                row = status[0].index(_OUTSIDE)
                advice = "name a folder that holds all of them with --image_dir, or give --follow_links"
                raise rows.refused(start + row, f"{_shown(paths[row])} is not in the folder of the images", advice)
            found.append(pa.array(paths, pa.large_binary()))
        first += count
    return pa.concat_arrays(found), sizes, times


def _describe(made: _Listing) -> SourceFile:
    rows = np.flatnonzero((made.sizes >= 0) & ~made.again)
    files = ((made.path(row), int(made.sizes[row])) for row in rows.tolist())
    with streams.progress_bar(int(made.sizes[rows].sum())) as shown:
        return image_folder.describe(os.fsencode(made.root), _DESCRIBED, files, shown.update)


def _choice(made: _Listing, options: SourceOptions) -> Iterator[str]:
    """Yields a line about the columns that were chosen by name."""
    of_classes = f"their labels ({count_of(len(made.class_names), 'class', 'classes')})"
    kinds = {"image_column": "names the images", "label_column": of_classes, "split_column": "their splits"}
    names = {flag: getattr(made.rows.options, flag) for flag in kinds}
    given = dataclasses.replace(options, split_column=splits.column_of((), options.split_column))
    if any(name != getattr(given, flag) for flag, name in names.items()):
        told = ", ".join(f"{names[flag]!r} {kind}" for flag, kind in kinds.items() if names[flag])
        yield f"{made.rows.path}: column {told}"


def _faults(made: _Listing) -> Iterator[str]:
    """Yields a line about missing files, which are invalid rows; raises DataError if none of the files exist."""
    missing, rows = np.flatnonzero(made.sizes == _MISSING), len(made.sizes)
    if not (made.sizes >= 0).any():
        row = int(missing[0]) if len(missing) else 0
        problem = made.content(row)[1] or "is no file"
        raise made.rows.refused(row, f"{problem}; none of {count_of(rows, 'row')} has a file", _advice(made, row))
    if len(missing):
        row = int(missing[0])
        similar = _similar(os.fsencode(made.root), made.path(row))
        hint = f"; {_how_it_differs(made.path(row), similar)}" if similar else ""
        yield (
            f"{made.rows.place(row)}: {_shown(made.path(row))}: no such file; invalid rows of this kind: "
            f"{len(missing):,} of {rows:,}{hint}"
        )


def _similar(root: bytes, path: bytes) -> bytes:
    """Returns the path of a file whose name differs only in case or Unicode normalisation; b"" if there is none."""
    found = b""
    for part in path.split(b"/"):
        place = os.path.join(root, found, part)
        if not os.path.lexists(place):
            try:
                names = sorted(os.listdir(os.path.dirname(place)))
            except OSError:
                return b""
            own = next((name for name in names if _folded(name) == _folded(part)), b"")
        else:
            own = part
        if not own:
            return b""
        found = os.path.join(found, own)
    return found


def _folded(name: bytes) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", os.fsdecode(name)).casefold())


def _how_it_differs(path: bytes, similar: bytes) -> str:
    """Returns a hint about a file whose name differs from the table's only in case or Unicode normalisation."""
    one, other = (unicodedata.normalize("NFC", os.fsdecode(each)) for each in (path, similar))
    if one != other:
        return f"there is {_shown(similar)}: upper and lower case differ; rename the file, or correct the table"
    # The two look alike: only escapes show the difference.
    return (
        f"there is {os.fsdecode(similar)!a}, but the table has {os.fsdecode(path)!a}: the same letters in "
        "another form of Unicode (macOS decomposes them); rename the file, or correct the table"
    )


def _advice(made: _Listing, row: int) -> str:
    """Returns advice if none of the files exist: where a file with that name is, if nearby."""
    path = os.fsdecode(made.path(row))
    if path.startswith(_URLS):
        return "download the files, and name those"
    if os.path.isabs(path) or path[1:2] == ":":  # a Windows path
        return "write the paths relative to the table's folder, or to --image_dir=FOLDER"
    if similar := _similar(os.fsencode(made.root), made.path(row)):
        return _how_it_differs(made.path(row), similar)
    for form in ("{0}*/{1}", "{0}{1}.*", "{0}*/{1}.*") if not made.rows.options.image_dir else ():
        for found in sorted(glob.glob(form.format(glob.escape(os.path.join(made.root, "")), glob.escape(path)))):
            before, _, after = found.rpartition(path)
            return f"give --image_dir={before}{_NAME + after if after else ''}"
    return "--image_dir=FOLDER is the folder that the paths start from, --image_dir=FOLDER/{}.jpg also their extension"


def _check_folders(made: _Listing) -> None:
    """Raises DataError if the table names images in folders of several splits without saying their splits itself."""
    if made.rows.options.split_column or any(map(splits.hint, made.rows.files.names)):
        return
    folders = pc.replace_substring_regex(made.paths, pattern="[^/]*$", replacement="").dictionary_encode()
    codes, firsts = np.unique(folders.indices.fill_null(-1).to_numpy(), return_index=True)
    rows = firsts[codes >= 0].tolist()
    splits.check_paths(made.rows.path, [(row, image_folder.text(made.path(row))) for row in rows])


def _repeats(made: _Listing) -> Iterator[str]:
    """Yields a line about files that several rows name."""
    if made.again.any():
        row = int(np.argmax(made.again))
        yield (
            f"{made.rows.place(row)}: an earlier row names {_shown(made.path(row))} too; rows of this kind: "
            f"{made.again.sum():,}; each becomes an example"
        )
