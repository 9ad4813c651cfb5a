"""Image files that tables name: CSV, TSV, JSON lines or Parquet with a column of paths and one of labels."""

from __future__ import annotations

import dataclasses
import errno
import functools
import glob
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.sources import archives, columns, defaults, image_files, listing, loaded, streams
from beam_jobs.sources import table as tables
from beam_jobs.sources.arrow_types import class_names
from beam_jobs.sources.base import SOURCES, Files, Source, SourceOptions
from beam_jobs.sources.image_files import IRREGULAR, MISSING, OUTSIDE, UNNAMED, FileColumn, PathTable, shown, text
from beam_jobs.sources.streams import KnownFile
from beam_jobs.sources.table import SHOWN, LoadedTable
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile, naming
from pipeline.records import labels, splits
from pipeline.records.labels import LABELS_FILE, read_labels

# Usual column names, in order of preference; `File Name` and `file_name` count as `filename`.
_IMAGES = ("filename", "imagepath", "filepath", "path", "file", "imagename", "image", "imageid", "img")
_LABELS = ("label", "class", "category", "target")
_KINDS = f"--source of image_table is a table ({', '.join(loaded.SUFFIXES)}), a glob, or a folder with metadata.csv"
_NAME = "{}"  # stands for the path in --image_dir
_DESCRIBED, _DESCRIBED_MASKS = "images", "masks"  # names of the files' entries in the manifest
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_URLS = ("http:/", "https:/", "s3:/", "gs:/")  # one slash, as a path made of such a text has
_FRACTION = re.compile(r"[+-]?[0-9]*\.[0-9]*[1-9][0-9]*")
_BLOCK = 1 << 16  # paths held as Python objects at a time


@SOURCES.named("image_table", needs="a table that names image files")
def open_source(options: SourceOptions) -> Source:
    """Reads the tables, looks up the files that they name and computes their digests.

    Raises:
      UsageError: a column is missing or cannot be converted, or float32 cannot hold its values.
      DataError: a table or a file cannot be read, a path leads out of the folder, or none of the files exist.
    """
    return opened(options, _LAYOUT, _scan)


def _find(options: SourceOptions) -> tuple[LocalPath, list[str]]:
    wanted = f"metadata{', '.join(loaded.SUFFIXES)}; name the table"
    found, names = listing.find(options.source, _is_metadata, True, wanted, _KINDS)
    splits.check_packed_once(found, names)
    return LocalPath(str(found)), names


def _read_table(path: StoragePath, choose: loaded.Choose, options: SourceOptions) -> pa.Table:
    return loaded.read(path, choose, options.delimiter)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A kind of image table.

    Attributes:
      find: function that returns the folder and the names of the tables.
      read: function that reads columns of a table, given the function that chooses them.
      images, labels: usual names of the columns of images and of labels, in order of preference.
    """

    find: Callable[[SourceOptions], tuple[LocalPath, list[str]]]
    read: Callable[[StoragePath, loaded.Choose, SourceOptions], pa.Table]
    images: tuple[str, ...]
    labels: tuple[str, ...]


_LAYOUT = Layout(_find, _read_table, _IMAGES, _LABELS)
Scan = Callable[[LocalPath, Sequence[KnownFile], SourceOptions], PathTable]


def opened(options: SourceOptions, layout: Layout, scan: Scan) -> Source:
    """Reads tables, looks up the files that they name and computes their digests, as `open_source` does.

    Args:
      options: options of the source.
      layout: kind of the tables.
      scan: function of a module that calls `scanned` with that layout; workers unpickle it by its name.
    """
    folder, names = layout.find(options)
    if options.splits and not options.split_column:  # a table that is left out need not have labels or files
        names = sorted(name for files in splits.by_files(folder, names, options.splits).values() for name in files)
    for flag in ("image_dir", "mask_dir"):
        if given := getattr(options, flag):
            options = dataclasses.replace(options, **{flag: os.path.abspath(given)})  # for workers elsewhere
    known = tuple(KnownFile.of(folder / name) for name in names)
    table, used, notes = scanned(folder, known, options, layout)
    column = used.split_column
    by_split = {splits.TRAIN: names} if column else splits.by_files(folder, names)
    unique = not table.columns.key and not table.again.any()  # a file may have the name of another row's key
    again = functools.partial(scan, folder, known, options)
    source = image_files.source_of(options.dataset, table, by_split, again, unique)
    made = tables.by_column(source, column, bool(options.split_column)) if column else source
    if not column and not options.split_column and len(by_split) == 1 and not any(map(splits.hint, names)):
        _check_folders(table)
    for line in (
        *_choice(table, used, options),
        *_fractions(table, used),
        *notes,
        *_faults(table, options),
        *_repeats(table),
    ):
        print(line, file=sys.stderr, flush=True)
    unpacked = [(naming.unpacked(name), folder / name) for name in names]
    described = streams.describe(unpacked, unpacks=True)
    files = (*described, *_describe(table, [folder / name for name in names]))
    return dataclasses.replace(made, files=files)


def _is_metadata(name: str) -> bool:
    stem, suffix = os.path.splitext(os.path.basename(name).removesuffix(listing.GZIP))
    return stem == "metadata" and suffix in loaded.SUFFIXES and bool(loaded.suffix_of(name))


def _scan(folder: LocalPath, files: Sequence[KnownFile], options: SourceOptions) -> PathTable:
    return scanned(folder, files, options, _LAYOUT)[0]


def scanned(
    folder: LocalPath, files: Sequence[KnownFile], options: SourceOptions, layout: Layout
) -> tuple[PathTable, SourceOptions, list[str]]:
    """Returns the table, the options with the columns that were chosen by name, and lines about the rows."""
    rows, used = _read(folder, files, options, layout)
    names = () if used.float_labels or not used.label_column else read_labels(folder / LABELS_FILE)
    rows = _with_label_texts(rows, used, names)
    notes: list[str] = []
    if all(loaded.suffix_of(name) in loaded.TEXTS for name in rows.files.names):
        rows, notes = _with_numbers(rows, used)
    if names and not used.label_separator:
        rows = _with_label_numbers(rows, used, names)
    schema = rows.data.schema
    chosen = columns.choose(str(rows.first_file), schema, used, are_paths=True)
    named = names or class_names(schema, chosen.label)
    rows = rows.filled(defaults.chosen(str(rows.first_file), schema, chosen, used, named))
    tables.check_exact(rows, chosen)
    chosen = tables.with_box_classes(rows, chosen, options.na_is_class)
    root, before, after = _image_dir(folder, "image_dir", options.image_dir)
    finder = _Finder(root, before, after, options.follow_links)
    images = _look_up(rows, used.image_column, bool(used.image_dir), finder)
    codes = images.paths.dictionary_encode().indices.fill_null(-1).to_numpy()  # numbered in order of appearance
    table = PathTable(
        folder=folder,
        files=rows.files,
        data=rows.replaced(chosen.image, pa.chunked_array([images.paths])).data,
        columns=chosen,
        class_names=names or tables.class_names(rows, chosen, named, used.na_is_class),
        images=images,
        again=(np.diff(np.maximum.accumulate(codes), prepend=-1) == 0) & (images.sizes != UNNAMED),
        origin=(files, options),
        masks=_masks(rows, folder, options, root),
    )
    return table, used, notes


def _masks(rows: LoadedTable, folder: LocalPath, options: SourceOptions, root: str) -> FileColumn | None:
    if not options.mask_column:
        return None
    own = _image_dir(folder, "mask_dir", options.mask_dir) if options.mask_dir else (root, b"", b"")
    is_given = bool(options.mask_dir or options.image_dir)
    return _look_up(rows, options.mask_column, is_given, _Finder(*own, options.follow_links))


def _read(
    folder: LocalPath, files: Sequence[KnownFile], options: SourceOptions, layout: Layout
) -> tuple[LoadedTable, SourceOptions]:
    """Reads the needed columns of all tables, which must have the same columns, and chooses columns by name."""
    used, found = options, list[pa.Table]()
    names = tuple(file.path.name_in(folder) for file in files)
    are_texts = all(loaded.suffix_of(name) in loaded.TEXTS for name in names)
    of_folders = tables.partitions(folder, names, options.split_column, are_texts)
    told = {split for name in names if (split := splits.hint(name))}
    for file, name in zip(files, names, strict=True):
        suspects: list[str] = []  # columns read only to find out whether they hold splits
        added: dict[str, pa.Scalar] = {}  # columns that the table's folders name

        def choose(
            schema: pa.Schema,
            path: str = str(file.path),
            suspects: list[str] = suspects,
            added: dict[str, pa.Scalar] = added,
            own: dict[str, pa.Scalar] = of_folders[name],
        ) -> list[str]:
            nonlocal used
            added |= {column: value for column, value in own.items() if column not in schema.names}
            schema = pa.schema([*schema, *((column, value.type) for column, value in added.items())], schema.metadata)
            given = dataclasses.replace(used, split_column=used.split_column or splits.NO_COLUMN) if found else options
            used = columns.resolved(path, schema, given, layout.images, layout.labels, are_paths=True, folders=added)
            defaults.named(path, schema, used)  # raises UsageError if one is wrong
            suspects += columns.suspects(schema, options.split_column)
            wanted = dict.fromkeys([*columns.named(path, schema, used), *suspects])
            return [column for column in wanted if column not in added]

        try:
            data = layout.read(file.path, choose, options)
        except UsageError as error:
            if not found:
                raise
            raise DataError(str(error), advice=f"all tables must have the columns of {files[0].path}") from None
        file.check_unchanged()
        for column, value in added.items():
            data = data.append_column(pa.field(column, value.type), pa.repeat(value, len(data)))
        tables.check_suspects(LoadedTable(folder, Files((name,), (len(data),)), data), suspects, [*told])
        found.append(data.select(columns.named(str(file.path), data.schema, used)))
        _check_alike(files[0], found[0].schema, file, found[-1].schema)
    rows = LoadedTable(folder, Files(names, tuple(map(len, found))), pa.concat_tables(found))
    if not len(rows.data):
        raise DataError("has no row below its column names", path=rows.first_file)
    return rows, used


def _check_alike(first: KnownFile, schema: pa.Schema, other: KnownFile, found: pa.Schema) -> None:
    if found.types != schema.types:
        pairs = [f"{field.name} ({field.type})" for field in schema]
        raise DataError(f"does not have the columns {', '.join(pairs)} of {first.path}", path=other.path)
    if any(class_names(found, name) != class_names(schema, name) for name in schema.names):
        problem = f"its class names differ from those of {first.path}, but labels are numbers"
        raise DataError(problem, path=other.path, advice="convert each, then both together by --dataset=tfrecord")


def _with_label_texts(rows: LoadedTable, used: SourceOptions, names: Sequence[str]) -> LoadedTable:
    """Returns the rows with the default in place of missing label texts, before these become numbers."""
    label = used.label_column
    if not label:
        return rows
    column = rows.data.column(label)
    text = defaults.named(str(rows.first_file), rows.data.schema, used).get(label)
    if text is None or used.float_labels or not pa.types.is_string(column.type):
        return rows
    if names and not used.label_separator:  # labels become numbers first, as the default may be one
        return rows
    return rows.replaced(label, defaults.texts(column, defaults.missing(used.na_is_class), text))


def _with_numbers(rows: LoadedTable, used: SourceOptions) -> tuple[LoadedTable, list[str]]:
    """Returns the rows, with numbers for numeric texts in kept columns and for whole numbers in labels, and notes."""
    notes, label = [], used.label_column
    filled = defaults.named(str(rows.first_file), rows.data.schema, used)
    if label and not used.float_labels and not used.label_separator:
        encoded = rows.data.column(label).combine_chunks().dictionary_encode()
        texts = labels.as_one_number(encoded.dictionary.to_pylist()).values()
        rows = rows.replaced(label, pa.chunked_array([pa.array(texts, pa.string()).take(encoded.indices)]))
    kept = [columns.name_and_type(rows.data.schema, text) for text in used.keep_columns]
    for name, wanted in [*kept, *([(label, "float32")] if used.float_labels else [])]:
        texts = rows.data.column(name)
        column, wrong = loaded.typed(texts, wanted, name in filled)
        if wrong is not None:
            row, reason = wrong
            problem = f"column {name!r} has {texts[row].as_py()[:SHOWN]!r}, {reason}"
            advice = "correct it" + f", or keep the column as {name}:string (exact text)" * (name != label)
            advice += "" if wanted == "float32" or reason == loaded.NO_NUMBER else f" or {name}:float32 (rounded)"
            raise rows.refused(row, problem, advice)
        rows = rows.replaced(name, column)
        if not wanted and pa.types.is_string(column.type) and (odd := loaded.first_no_number(texts)) is not None:
            problem = f"column {name!r} has {texts[odd].as_py()[:SHOWN]!r} where most rows have numbers"
            notes.append(
                f"{rows.refused(odd, '').where}: {problem}, so that it is kept as text; {name}:float32 or {name}:int64 "
                "keeps the numbers"
            )
    return rows, notes


def _with_label_numbers(rows: LoadedTable, used: SourceOptions, names: Sequence[str]) -> LoadedTable:
    """Returns the rows with label texts as class numbers: the index of a class name, or the number in the text."""
    label = used.label_column
    column = rows.data.column(label)
    if not pa.types.is_string(column.type):
        return rows
    if not used.na_is_class:
        missing = pa.array([text for text in labels.MISSING if text not in names], pa.string())
        column = pc.if_else(pc.is_in(column, value_set=missing), "", column)
    numbers = pc.index_in(column, value_set=pa.array(names, pa.string())).cast(pa.int64())
    unknown = pc.and_(numbers.is_null(), pc.not_equal(column, "").fill_null(False))
    if not pc.any(unknown).as_py():
        return rows.replaced(label, numbers)
    counted, _ = loaded.typed(column, "")
    if pa.types.is_integer(counted.type):
        return rows.replaced(label, counted)
    row = pc.index(unknown, True).as_py()
    problem = f"column {label!r} has {column[row].as_py()[:SHOWN]!r}, which {LABELS_FILE} does not have"
    raise rows.refused(row, problem, f"correct it, or complete {rows.folder / LABELS_FILE}")


def _image_dir(folder: LocalPath, flag: str, given: str) -> tuple[str, bytes, bytes]:
    """Returns the folder that paths are relative to, and the text before and after the path in a file name."""
    root, sign, after = given.partition(_NAME) if given else (str(folder), "", "")
    root, before = os.path.split(root) if sign else (root, "")
    if not os.path.isdir(root) and not archives.is_archive(root):
        raise UsageError(f"--{flag}={given}: {root} is not a folder, nor an archive (.zip, .tar)")
    return root, os.fsencode(before), os.fsencode(after)


class _Finder:
    """Looks up the files that paths name."""

    def __init__(self, root: str, before: bytes, after: bytes, follows_links: bool) -> None:
        self.root, self._before, self._after, self._follows_links = os.fsencode(root), before, after, follows_links
        self._below = os.path.join(self.root, b"")
        self._real_root = os.path.join(os.path.realpath(self.root), b"")
        self._is_inside = functools.lru_cache(maxsize=_BLOCK)(self._leads_inside)  # once per folder, not per file

    def find(self, folder: bytes, name: str | None) -> tuple[bytes | None, int, int]:
        """Returns (path relative to the root, size or fault, time) of a file that a row names, relative to a folder."""
        if not name or not name.strip():
            return name if name is None else b"", UNNAMED, 0
        written = name.strip().encode()
        for form in dict.fromkeys((written, written.replace(b"\\", b"/"))):  # as written, or a Windows path
            path = os.path.normpath(os.path.join(self.root, folder, self._before + form + self._after))
            place, member = archives.parted(path)
            with streams.errors_of(shown(place)):
                status, is_link = _status(place)
            size = _size_of_member(place, member) if member else status.st_size if status else None
            if size is not None:
                break
        inside = path.removeprefix(self._below)
        if status is None or size is None:
            return inside, MISSING, 0
        if not self._follows_links and not self._is_of_root(place, is_link):
            return path, OUTSIDE, 0
        key = inside if inside != path else os.path.relpath(path, self.root)
        if member:
            return key, size, status.st_mtime_ns
        return (key, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (key, IRREGULAR, 0)

    def _is_of_root(self, place: bytes, is_link: bool) -> bool:
        """Returns whether a file lies below the root, or is the archive that holds the root."""
        if self._below.startswith(os.path.join(place, b"")):
            return True
        return self._is_inside(os.path.dirname(place)) and (not is_link or self._leads_inside(place))

    def _leads_inside(self, path: bytes) -> bool:
        return os.path.join(os.path.realpath(path), b"").startswith(self._real_root)


def _size_of_member(archive: bytes, name: bytes) -> int | None:
    found = archives.opened(archive)
    number = found.find(name)
    return None if number is None else int(found.sizes[number])


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


def _look_up(rows: LoadedTable, name: str, is_below_root: bool, finder: _Finder) -> FileColumn:
    """Returns the files that a column names, below the finder's root or the folders of their tables."""
    column, first = rows.data.column(name), 0
    found: list[pa.Array] = []
    sizes, times = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    for table, count in zip(rows.files.names, rows.files.counts, strict=True):
        folder = b"" if is_below_root else os.fsencode(os.path.dirname(table))
        for start in range(first, first + count, _BLOCK):
            names = column.slice(start, min(_BLOCK, first + count - start)).to_pylist()
            paths, *status = zip(*(finder.find(folder, name) for name in names), strict=True)
            sizes[start : start + len(names)], times[start : start + len(names)] = status
            if OUTSIDE in status[0]:
                row = status[0].index(OUTSIDE)
                advice = "name a folder that holds all of them with --image_dir, or give --follow_links"
                raise rows.refused(start + row, f"{shown(paths[row])} is not in the folder of the images", advice)
            found.append(pa.array(paths, pa.large_binary()))
        first += count
    return FileColumn(name, finder.root, pa.concat_arrays(found), sizes, times)


def _describe(table: PathTable, read: Sequence[LocalPath]) -> tuple[SourceFile, ...]:
    """Returns an entry for each archive not `read` as a table, one for all image files, and one for masks."""
    images, masks = table.images, table.masks
    assert masks is None or isinstance(masks, FileColumn)
    rows, places = images.parted(np.flatnonzero((images.sizes >= 0) & ~table.again).tolist())
    of_masks: list[int] = []
    if masks is not None:
        of_masks, more = masks.parted(np.flatnonzero(masks.sizes >= 0).tolist())
        places |= more
    others = places - {os.fsencode(str(path)) for path in read}
    names = [(os.path.relpath(place, os.fsencode(str(table.folder))), place) for place in others]
    packed = streams.describe([(text(name), LocalPath(os.fsdecode(place))) for name, place in sorted(names)])
    if rows or not places:
        files = ((images.path(row), int(images.sizes[row])) for row in rows)
        with streams.progress_bar(int(images.sizes[rows].sum())) as bar:
            packed += (image_files.describe(images.root, _DESCRIBED, files, bar.update),)
    if masks is not None and of_masks:
        with streams.progress_bar(int(masks.sizes[of_masks].sum())) as bar:
            packed += (masks.described(_DESCRIBED_MASKS, bar.update, of_masks),)
    return packed


def _choice(table: PathTable, used: SourceOptions, options: SourceOptions) -> Iterator[str]:
    count = count_of(len(table.class_names), "class", "classes") if table.class_names else "numbers"
    kinds = {
        "image_column": "names the images",
        "label_column": f"their labels ({count})",
        "split_column": "their splits",
    }
    names = {flag: getattr(used, flag) for flag in kinds}
    given = dataclasses.replace(options, split_column=splits.column_of((), options.split_column))
    if any(name != getattr(given, flag) for flag, name in names.items()):
        told = ", ".join(f"{names[flag]!r} {kind}" for flag, kind in kinds.items() if names[flag])
        yield f"{table.first_file}: column {told}"


def _fractions(table: PathTable, used: SourceOptions) -> Iterator[str]:
    """Yields a line if all classes are numbers, some with a fraction: they may be values to predict."""
    named = [name for name in table.class_names if _FRACTION.fullmatch(name)]
    if named and all(re.fullmatch(loaded.DECIMAL, name) for name in table.class_names):
        yield (
            f"{table.first_file}: column {used.label_column!r} has numbers with fractions, such as {named[0]}, and "
            f"{count_of(len(table.class_names), 'class', 'classes')} are made of them; --float_labels predicts numbers"
        )


def _faults(table: PathTable, options: SourceOptions) -> Iterator[str]:
    """Yields a line about missing files, which are invalid rows; raises DataError if none of the files exist."""
    images = table.images
    missing = np.flatnonzero(images.sizes == MISSING).tolist()
    row = missing[0] if missing else 0
    problem = images.named(row, images.fault(row))
    if not (images.sizes >= 0).any():
        advice = _advice(images, row, options)
        raise table.refused(row, f"{problem}; none of {count_of(len(images.sizes), 'row')} has a file", advice)
    if missing:
        similar = _similar(images.root, images.path(row))
        yield table.told(missing, problem) + (f"; {_how_it_differs(images.path(row), similar)}" if similar else "")


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
    one, other = (unicodedata.normalize("NFC", os.fsdecode(each)) for each in (path, similar))
    if one != other:
        return f"there is {shown(similar)}: upper and lower case differ; rename the file, or correct the table"
    # The two look alike: only escapes show the difference.
    return (
        f"there is {os.fsdecode(similar)!a}, but the table has {os.fsdecode(path)!a}: the same letters in "
        "another form of Unicode (macOS decomposes them); rename the file, or correct the table"
    )


def _advice(images: FileColumn, row: int, options: SourceOptions) -> str:
    """Returns advice if none of the files exist: where a file with that name is, if nearby."""
    path = os.fsdecode(images.path(row))
    if path.startswith(_URLS):
        return "download the files, and name those"
    if os.path.isabs(path) or path[1:2] == ":":  # a Windows path
        return "write the paths relative to the table's folder, or to --image_dir=FOLDER"
    for archive in sorted(glob.glob(os.path.join(glob.escape(os.fsdecode(images.root)), "*"))):
        if archive.lower().endswith(archives.SUFFIXES) and (inner := _folder_in(archive, images.path(row))) is not None:
            return f"give --image_dir={os.path.join(archive, inner)}".rstrip("/")
    if similar := _similar(images.root, images.path(row)):
        return _how_it_differs(images.path(row), similar)
    root = os.path.join(os.fsdecode(images.root), "")
    for form in ("{0}*/{1}", "{0}{1}.*", "{0}*/{1}.*") if not options.image_dir else ():
        for found in sorted(glob.glob(form.format(glob.escape(root), glob.escape(path)))):
            before, _, after = found.rpartition(path)
            return f"give --image_dir={before}{_NAME + after if after else ''}"
    return "--image_dir=FOLDER is the folder that the paths start from, --image_dir=FOLDER/{}.jpg also their extension"


def _folder_in(archive: str, path: bytes) -> str | None:
    names = archives.opened(os.fsencode(archive)).names
    row = pc.index(pc.or_(pc.equal(names, path), pc.ends_with(names, b"/" + path)), True).as_py()
    return os.fsdecode(names[row].as_py()[: -len(path)]) if row >= 0 else None


def _check_folders(table: PathTable) -> None:
    folders = pc.replace_substring_regex(table.images.paths, pattern="[^/]*$", replacement="").dictionary_encode()
    codes, firsts = np.unique(folders.indices.fill_null(-1).to_numpy(), return_index=True)
    rows = firsts[codes >= 0].tolist()
    splits.check_paths(table.first_file, [(row, text(table.images.path(row))) for row in rows])


def _repeats(table: PathTable) -> Iterator[str]:
    if table.again.any():
        row = int(np.argmax(table.again))
        yield (
            f"{table.refused(row, '').where}: an earlier row names {shown(table.images.path(row))} too; rows of this "
            f"kind: {table.again.sum():,}; each becomes an example"
        )
