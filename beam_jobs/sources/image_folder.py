"""Images in folders named after their classes: `class/file.png`, or `train/class/file.png`; also within an archive.

A folder is read as a table of paths and labels, with the folders of splits as its files. Links to files in the same
folder are followed; other links, and links to folders, are refused unless the user asks to follow them, so that only
what the user named is read.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import stat
import sys
from collections.abc import Iterator, Sequence, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import flag_values
from beam_jobs.sources import archives, image_files, streams
from beam_jobs.sources.archives import Entry
from beam_jobs.sources.base import LABEL, SOURCES, Files, SourceOptions
from beam_jobs.sources.columns import Columns
from beam_jobs.sources.image_files import IMAGES, UNREADABLE, PathSource, PathTable, extension_of, extensions, text
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.files.reading import opener
from pipeline.manifest import SourceFile
from pipeline.records import labels, schema, splits

# Files often found among images that are not images. Files with other extensions are images if they begin like one.
_OTHERS = extensions(
    """txt json jsonl ndjson csv tsv xml yaml yml toml md rst html htm pdf log ini cfg db lnk url doc docx xls xlsx py
    ipynb sh npy npz pkl pt pth h5 hdf5 mat parquet tfrecord zip tar gz tgz bz2 xz 7z rar mp4 avi mov mkv webm mp3 wav
    md5 sha256"""
)
_ANNOTATIONS = extensions("txt json jsonl csv tsv xml")  # COCO, VOC and YOLO, captions, texts and tables
_TABLES = (b".csv", b".tsv", b".jsonl")  # may name images and their labels
_HIDDEN = (b".", b"__MACOSX")  # the second is what macOS puts into archives
_COLUMNS = Columns("file", False, "label", "int", "", ())


@SOURCES.named("image_folder", needs="a folder with one folder of images per class")
def open_source(options: SourceOptions) -> PathSource:
    """Lists a folder and computes digests of its images.

    Raises:
      UsageError: --group_by or --stratify names a column.
      DataError: it is not a folder or cannot be listed, or a file changes in the meantime.
    """
    for flag, value in (("group_by", options.group_by), ("stratify", options.stratify)):
        if value not in ("", LABEL) and flag_values.path_pattern(value) is None:
            raise UsageError(
                f"--{flag}={value}: a folder of images has no columns; take a part of an image's path, such as its "
                f"folder with --{flag}='file:(.*)/', or name the images in a table (--dataset=image_table)"
            )
    folder = os.path.abspath(options.source)
    if not os.path.isdir(folder) and not archives.is_archive(folder):
        problem = "is neither a folder nor an archive (.zip, .tar)" if os.path.exists(folder) else "no such folder"
        advice = "--source of image_folder has one folder of images per class"
        if os.path.isfile(folder) and folder.lower().endswith(archives.GZIPPED):
            problem, advice = archives.NOT_ONE_BY_ONE, archives.GUNZIP
        raise DataError(problem, path=folder, advice=advice)
    scan = _Scan(folder, options.follow_links, options.splits)
    table = scan.table()
    for line in _notes(scan, table):
        print(f"{folder}: {line}", file=sys.stderr, flush=True)
    labels.say_alike(table.class_names, folder)
    by_split = {split: [text(name)] for split, name in scan.folders.items()}
    again = functools.partial(_table, folder, options.follow_links, options.splits)
    source = image_files.source_of(options.dataset, table, by_split, again)
    return dataclasses.replace(source, files=_describe(table))


def _table(folder: str, follow_links: bool, wanted: Sequence[str]) -> PathTable:
    return _Scan(folder, follow_links, wanted).table()


def _notes(scan: _Scan, table: PathTable) -> Iterator[str]:
    if scan.ignored:
        yield _skipped(scan.ignored)
    if len(scan.folders) == 1 and (lists := _lists_of_splits(os.fsencode(str(table.folder)))):
        (split,) = scan.folders
        yield (
            f"{', '.join(lists)} may list splits, but are not read: all images are of {split!r}; "
            "a table with a column of splits keeps them apart (--dataset=image_table)"
        )
    if inner := _folders_of_only_class(table):
        names = f"{text(inner[0])!r}, {text(inner[1])!r}"
        yield (
            f"all images are of one class, {table.class_names[0]!r}; if its folders ({names}, ...) are the classes, "
            "give that folder as --source"
        )


def _lists_of_splits(folder: bytes) -> list[str]:
    """Returns the files in a folder that seem to assign images to splits, such as `train.txt`."""
    found: dict[str, set[str]] = {}
    for entry in _entries(folder):
        stem, extension = os.path.splitext(text(entry.name))
        if extension.lower().encode() in _ANNOTATIONS and entry.is_file():
            means = {splits.SPLIT_OF_WORD[word] for word in splits.words(stem) if word in splits.SPLIT_OF_WORD}
            found |= {text(entry.name): means} if means else {}
    return list(found) if len(set().union(*found.values())) > 1 else []


def _folders_of_only_class(table: PathTable) -> list[bytes]:
    """Returns the subfolders of the only class folder if all its images are in two or more of them; else none."""
    found: dict[bytes, None] = {}
    if len(table.class_names) > 1:
        return []
    for folder, first, count in zip(table.files.names, table.files.starts, table.files.counts, strict=True):
        start = len(os.path.join(folder.encode(), table.class_names[0].encode(), b""))
        for row in range(first, first + count):
            inner, slash, _ = table.images.path(row)[start:].partition(b"/")
            if not slash:
                return []
            found[inner] = None
    return list(found) if len(found) > 1 else []


def _describe(table: PathTable) -> tuple[SourceFile, ...]:
    """Returns one entry per class folder."""
    found, of_rows, images = [], table.data.column("label").to_numpy(), table.images
    with streams.progress_bar(int(images.sizes.sum())) as shown:
        for folder, first, count in zip(table.files.names, table.files.starts, table.files.counts, strict=True):
            for label, name in enumerate(table.class_names):
                bounds = np.searchsorted(of_rows[first : first + count], [label, label + 1]) + first
                if rows := range(*bounds.tolist()):
                    files = ((images.path(row), int(images.sizes[row])) for row in rows)
                    found.append(image_files.describe(images.root, os.path.join(folder, name), files, shown.update))
    return tuple(found)


class _FolderTable(PathTable):
    def where(self, row: int) -> tuple[str, int]:
        return text(self.images.path(row)), 0


class _Scan:
    """One pass over a folder.

    Args:
      folder: folder with one subfolder per class, or one per split with a subfolder per class in each.
      follow_links: whether to follow links that lead out of it, and links to folders.
      wanted: splits that --splits names, so that only their folders are listed; empty for all.

    Attributes:
      folders: {split: its folder, relative to the listed one}; b"" if splits have no folders.
      ignored: {extension: number of files that are not images}.
    """

    def __init__(self, folder: str, follow_links: bool, wanted: Sequence[str]) -> None:
        self._root, self._follows_links, self._wanted = os.fsencode(folder), follow_links, wanted
        root = self._root
        self.folders: dict[str, bytes] = {}
        self._real_root = os.path.join(os.path.realpath(root), b"")
        self._refused: dict[bytes, str] = {}  # {link that must not be followed: why}
        self.ignored: collections.Counter[bytes] = collections.Counter()

    def table(self) -> PathTable:
        """Lists the images of each split, ordered by class, then by path; classes are ordered by `labels.in_order`.

        Raises:
          UsageError: a wanted split has no folder.
          DataError: there are neither folders of classes nor of splits, or both; a class has no image; an image is in
            no class or is not a regular file; a link must not be followed, or leads to one of its parent folders; a
            class name is not valid UTF-8, or looks like another one; a folder cannot be read.
        """
        self.folders = folders = self._split_folders()
        classes = {split: self._class_folders(folder) for split, folder in folders.items()}
        names = [name.encode() for name in labels.in_order(name.decode() for name in set().union(*classes.values()))]
        if not names:
            self._check_links()
            raise self._error("has no class folders; images are expected as class/file.png", self._advice())
        self._check_names_differ(classes)
        images = {split: self._images(folder, names, classes[split]) for split, folder in folders.items()}
        self._check_links()
        if folders == {splits.TRAIN: b""}:
            self._check_levels(names, images[splits.TRAIN])
        self._check_not_empty(names, images)
        data = pa.concat_tables(images.values()).combine_chunks()
        return _FolderTable(
            folder=LocalPath(os.fsdecode(self._root)),
            files=Files(tuple(map(text, folders.values())), tuple(map(len, images.values()))),
            data=data,
            columns=_COLUMNS,
            class_names=tuple(name.decode() for name in names),
            images=image_files.FileColumn(
                *("file", self._root, data.column("file").combine_chunks()),
                sizes=data.column("size").to_numpy(),
                times=data.column("time").to_numpy(),
            ),
            again=np.zeros(len(data), bool),
        )

    def _split_folders(self) -> dict[str, bytes]:
        names = [entry.name for entry in _entries(self._root) if self._is_folder(entry)]
        # "train" is a split; "train_images" may be a class, unless it holds folders and there are other such names.
        known = {name: split for name in names if (split := splits.of_folder(text(name)))}
        longer = {name: split for name in names if (split := splits.in_folder(text(name))) and self._is_nested(name)}
        if len({*known.values(), *longer.values()}) > 1:
            known |= longer
        if not known or (len(known) < len(names) and len(known) == 1 and not self._wanted):
            return {splits.TRAIN: b""}
        if len(known) < len(names) and not self._wanted:
            other = next(name for name in names if name not in known)
            there = f"split folders ({', '.join(map(text, known))}) next to {text(other)!r}"
            advice = f"if they are no classes, --splits={','.join(splits.in_order(set(known.values())))} leaves it out"
            raise self._error(f"has {there}; are they classes? move one kind elsewhere", advice)
        found: dict[str, list[bytes]] = {}
        in_order = [*splits.SPLIT_OF_WORD]
        for name in sorted(known, key=lambda name: (word := text(name).lower()) in in_order and in_order.index(word)):
            found.setdefault(known[name], []).append(name)
        chosen = splits.among(splits.in_order(found), self._wanted)
        for split in chosen:
            if len(found[split]) > 1:
                one, other, *_ = found[split]
                raise self._error(f"{text(one)!r} and {text(other)!r} are both split {split!r}", "join them")
        return {split: found[split][0] for split in chosen}

    def _is_nested(self, name: bytes) -> bool:
        entries = _entries(os.path.join(self._root, name))
        return any(map(self._is_folder, entries)) and not any(
            extension_of(entry.name) in IMAGES for entry in entries if not self._is_folder(entry)
        )

    def _class_folders(self, folder: bytes) -> set[bytes]:
        names = set()
        for entry in _entries(os.path.join(self._root, folder)):
            if self._is_folder(entry):
                try:
                    entry.name.decode()
                except UnicodeDecodeError:
                    raise DataError(
                        "the name of a class must be valid UTF-8", path=text(entry.path), advice="rename it"
                    ) from None
                names.add(entry.name)
            elif self._is_image(entry):
                for other in _entries(os.path.join(self._root, folder)):
                    if not self._is_folder(other):
                        self._is_image(other)  # counts the files that are not images, for the advice
                raise DataError(
                    "is not in a class folder; images are expected as class/file.png",
                    path=text(entry.path),
                    advice=self._advice(),
                ).advised("--splits names the splits to convert, and leaves out others" if folder else "")
        return names

    def _images(self, folder: bytes, names: Sequence[bytes], present: Set[bytes]) -> pa.Table:
        start = len(os.path.join(self._root, b""))
        found = [
            (path[start:], label, size, time)
            for label, name in enumerate(names)
            if name in present
            for path, size, time in sorted(self._walk(os.path.join(self._root, folder, name)))
        ]
        kinds = {"file": pa.large_binary(), "label": pa.int32(), "size": pa.int64(), "time": pa.int64()}
        columns = zip(*found, strict=True) if found else ((),) * len(kinds)
        return pa.table({name: pa.array(values, kinds[name]) for name, values in zip(kinds, columns, strict=True)})

    def _walk(self, folder: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Yields (path, size, modification time) of the images in a folder, at any depth."""
        folders = [(folder, frozenset((os.path.realpath(self._root),)))]
        while folders:
            place, above = folders.pop()
            real = os.path.realpath(place)
            if real in above:
                raise DataError("is a link to a folder that it lies in", path=text(place), advice="remove it")
            for entry in _entries(place):
                if self._is_folder(entry):
                    folders.append((entry.path, above | {real}))
                elif self._is_image(entry):
                    yield (entry.path, *self._status(entry))

    def _is_folder(self, entry: os.DirEntry[bytes] | Entry) -> bool:
        if entry.is_symlink() and entry.is_dir() and not self._follows_links:
            self._refused[entry.path] = "is a link to a folder, which is not followed; put the folder there"
            return False
        return entry.is_dir()

    def _is_image(self, entry: os.DirEntry[bytes] | Entry) -> bool:
        if entry.path in self._refused:
            return False
        extension = extension_of(entry.name)
        if extension in IMAGES or extension in UNREADABLE:
            return True
        # A link that must not be followed is not read either.
        may_be = extension not in _OTHERS and entry.is_file() and (self._follows_links or not self._leads_out(entry))
        if may_be and schema.image_format(_start(entry)):
            return True
        self.ignored[extension] += 1
        return False

    def _leads_out(self, entry: os.DirEntry[bytes] | Entry) -> bool:
        return entry.is_symlink() and not os.path.realpath(entry.path).startswith(self._real_root)

    def _status(self, entry: os.DirEntry[bytes] | Entry) -> tuple[int, int]:
        if isinstance(entry, Entry):
            return entry.stamp()
        if self._leads_out(entry) and not self._follows_links:
            self._refused[entry.path] = "is a link that leads out of the folder, which is not followed; copy the file"
        with streams.errors_of(text(entry.path)):
            status = entry.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError("is not a regular file", path=text(entry.path))
        return status.st_size, status.st_mtime_ns

    def _check_names_differ(self, classes: dict[str, set[bytes]]) -> None:
        by_split = [{name.decode() for name in names} for names in classes.values()]
        every = set().union(*by_split)
        problem, pairs = "look alike (spaces, Unicode's form of a letter, zeros before a number)", labels.alike(every)
        if not pairs:
            # "A" and "a" may be two letters in one split; "Cat" in one split and "cat" in another are the same class.
            problem, in_case = "of different splits differ only in case", labels.alike(every, ignore_case=True)
            pairs = [pair for pair in in_case if not any(set(pair) <= names for names in by_split)]
        for pair in pairs:
            names = " and ".join(map(ascii, pair))
            raise self._error(f"the class folders {names} {problem}", "join them, or rename one")

    def _check_levels(self, names: Sequence[bytes], images: pa.Table) -> None:
        """Raises DataError if split folders were taken for classes, or class folders for folders inside one class."""
        paths, of_rows = images.column("file"), images.column("label").to_numpy()
        for label, name in enumerate(names):
            if splits.of_folder(text(name)) and len(names) > 1:
                rows = range(*np.searchsorted(of_rows, [label, label + 1]).tolist())
                if rows and all(path.as_py().count(b"/") > 1 for path in paths.slice(rows.start, len(rows))):
                    rows_shown = rows.start, 0 if rows.start else rows.stop
                    split, other = (repr(text(paths[row].as_py())) for row in rows_shown)
                    problem = f"{split} is split/class/file by the name of its folder, {other} is not"
                    raise self._error(problem, "put all images at one level")
        inner: dict[str, bytes] = {}  # {split: an image below a folder with its name inside a class}
        for word, split in splits.SPLIT_OF_WORD.items():
            found = pc.match_substring_regex(paths, f"^[^/]+/(split=)?{word}/", ignore_case=True)
            if (row := pc.index(found, True).as_py()) >= 0:
                inner.setdefault(split, paths[row].as_py())
        if len(inner) > 1:
            pair = " and ".join(repr(text(path)) for path in list(inner.values())[:2])
            only = f"; give --source={text(os.path.join(self._root, *names))}" if len(names) == 1 else ""
            advice = f"images are expected as split/class/file.png{only}"
            raise self._error(f"{pair} are of different splits, inside a class", advice)

    def _error(self, problem: str, advice: str) -> DataError:
        return DataError(problem, path=text(self._root), advice=advice)

    def _check_links(self) -> None:
        for path, problem in self._refused.items():
            more = f" ({count_of(len(self._refused), 'such link')})" if len(self._refused) > 1 else ""
            raise DataError(f"{problem}, or give --follow_links{more}", path=text(path))

    def _check_not_empty(self, names: Sequence[bytes], found: dict[str, pa.Table]) -> None:
        present = set(pc.unique(pa.concat_tables(found.values()).column("label")).to_pylist())
        empty = [f"class {text(name)!r}" for label, name in enumerate(names) if label not in present]
        empty += [f"split {split!r}" for split, images in found.items() if not len(images)]
        if empty:
            others = f"; {_skipped(self.ignored)}" if self.ignored else ""
            error = self._error(f"{empty[0]} has no image{others}", "remove it, or put images there")
            raise error.advised(self._advice())

    def _advice(self) -> str:
        """Returns advice on converting the other files if they look like a data set; else ""."""
        for extension, dataset in ((b".parquet", "parquet"), (b".tfrecord", "tfrecord")):
            if self.ignored[extension]:
                return f"for {text(extension)} files give --dataset={dataset}"
        others = schema.OTHER_DATA if any(self.ignored[extension] for extension in _ANNOTATIONS) else ""
        for extension in _TABLES:
            if self.ignored[extension]:
                advice = f"if a {text(extension)} file names the images, give it as --source of --dataset=image_table"
                return f"{advice}; {others}"
        return others


def _entries(folder: bytes) -> list[os.DirEntry[bytes] | Entry]:
    found: list[os.DirEntry[bytes]] | list[Entry] | None = archives.entries(folder)
    if found is None:
        with streams.errors_of(text(folder)), os.scandir(folder) as each:
            found = [*each]
    return sorted((entry for entry in found if not entry.name.startswith(_HIDDEN)), key=lambda entry: entry.name)


def _start(entry: os.DirEntry[bytes] | Entry) -> bytes:
    if isinstance(entry, Entry):
        return entry.content()[: schema.IMAGE_START]
    with streams.errors_of(text(entry.path)), open(entry.path, "rb", buffering=0, opener=opener) as file:
        return file.read(schema.IMAGE_START)


def _skipped(ignored: collections.Counter[bytes]) -> str:
    extensions = ", ".join(text(extension) or "without extension" for extension, _ in ignored.most_common(5))
    return f"skipped {count_of(ignored.total(), 'file')}: no image ({extensions})"
