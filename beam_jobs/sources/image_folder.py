"""Images in folders named after their classes: `class/file.png`, or `train/class/file.png`.

Paths are bytes, as a file name need not be valid text. Links to files in the same folder are followed; other links, and
links to folders, are refused unless the user asks to follow them, so that only what the user named is read. A digest
tells whether another process lists the same files.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import streams
from beam_jobs.sources.base import SOURCES, Block, Source, SourceOptions
from beam_jobs.sources.streams import Advance
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.files.reading import opener
from pipeline.manifest import SourceFile
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.records import labels, schema, splits

MAX_FILE = 256 << 20  # 256 MiB: no image that can be decoded is larger
_MOST_KEPT = 2  # listings per process
_AT_ONCE = 4096  # files digested at a time: a million paths as Python objects would take hundreds of MB

_Listing = TypeVar("_Listing", bound="HasDigest")
_lock = threading.Lock()
_listings: dict[tuple[str, str], Any] = {}


class HasDigest(Protocol):
    """A listing of files."""

    @property
    def digest(self) -> str:
        """Digest that tells whether another process lists the same files."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImageFolderSource(Source):
    """A folder of images. Workers list it again, as a million paths make a large pickle.

    Attributes:
      folder: absolute path of the folder.
      listing_digest: digest that a worker's listing must have.
      follow_links: whether to follow links that lead out of the folder, and links to folders.
      wanted: splits that --splits names; empty for all.
    """

    folder: str
    listing_digest: str
    follow_links: bool = False
    wanted: tuple[str, ...] = ()

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns hashes of the images' paths."""
        images = self._images(split)
        digests = b"".join(hashlib.sha256(images.path(row)).digest()[:8] for row in range(start, stop))
        return hashing.derive_key(Domain.SPLIT, np.frombuffer(digests, "<i8"))

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (path, 0) of an image."""
        return text(self._images(split).path(row)), 0

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns images, with their paths relative to the folder as keys."""
        images = self._images(split)
        folder = os.fsencode(self.folder)
        keys = [images.path(row) for row in rows.tolist()]
        places = (os.path.join(folder, key) for key in keys)
        read = list(map(content, places, images.sizes[rows].tolist(), images.times[rows].tolist()))
        bad = {position: problem for position, (_, problem) in enumerate(read) if problem}
        return Block([data for data, _ in read], images.labels[rows].astype(np.int64), keys, {}, bad)

    def _images(self, split: str) -> Images:
        listing = functools.partial(scan, os.fsencode(self.folder), self.follow_links, self.wanted)
        return listed(self.folder, self.listing_digest, listing).splits[split]


@SOURCES.named("image_folder")
def open_source(options: SourceOptions) -> ImageFolderSource:
    """Lists a folder and computes digests of its images.

    Raises:
      UsageError: --source is missing.
      DataError: it is not a folder or cannot be listed, or a file changes in the meantime.
    """
    if not options.source:
        raise UsageError("--source is missing: a folder with one folder of images per class")
    folder = os.path.abspath(options.source)
    if not os.path.isdir(folder):
        problem = "is not a folder" if os.path.exists(folder) else "no such folder"
        raise DataError(problem, path=folder, advice="--source of image_folder has one folder of images per class")
    listing = scan(os.fsencode(folder), options.follow_links, options.splits)
    if listing.ignored:
        print(f"{folder}: {skipped(listing.ignored)}", file=sys.stderr, flush=True)
    if len(listing.splits) == 1 and (lists := _lists_of_splits(os.fsencode(folder))):
        (split,) = listing.splits
        print(
            f"{folder}: {', '.join(lists)} may list splits, but are not read: all images are of {split!r}; "
            "a table with a column of splits keeps them apart (--dataset=image_table)",
            file=sys.stderr,
            flush=True,
        )
    labels.say_alike(listing.class_names, folder)
    if inner := _folders_of_only_class(listing):
        names = f"{text(inner[0])!r}, {text(inner[1])!r}"
        print(
            f"{folder}: all images are of one class, {listing.class_names[0]!r}; if its folders ({names}, ...) are the "
            "classes, give that folder as --source",
            file=sys.stderr,
            flush=True,
        )
    listed(folder, listing.digest, lambda: listing)
    return ImageFolderSource(
        dataset=options.dataset,
        class_names=listing.class_names,
        files=_files(folder, listing),
        splits={split: len(images) for split, images in listing.splits.items()},
        folder=folder,
        listing_digest=listing.digest,
        follow_links=options.follow_links,
        wanted=options.splits,
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


def _folders_of_only_class(listing: Listing) -> list[bytes]:
    """Returns the subfolders of the class folder if there is one class, with images in two or more of them only."""
    found: dict[bytes, None] = {}
    if len(listing.class_names) > 1:
        return []
    for split, images in listing.splits.items():
        start = len(os.path.join(listing.folders[split], listing.class_names[0].encode(), b""))
        for row in range(len(images)):
            inner, slash, _ = images.path(row)[start:].partition(b"/")
            if not slash:
                return []
            found[inner] = None
    return list(found) if len(found) > 1 else []


def listed(place: str, digest: str, scan: Callable[[], _Listing]) -> _Listing:
    """Returns the listing of a place, made once per process; raises DataError if its digest has changed."""
    with _lock:
        if (place, digest) not in _listings:
            listing = scan()
            if listing.digest != digest:
                raise streams.changed(place)
            while len(_listings) >= _MOST_KEPT:
                _listings.pop(next(iter(_listings)))
            _listings[place, digest] = listing
        kept: _Listing = _listings[place, digest]
        return kept


def content(path: bytes, size: int, time: int) -> tuple[bytes, str]:
    """Returns the bytes of an image file, and the reason if it cannot be an image; one of the two is empty.

    Args:
      path: path of the file.
      size, time: size and modification time of the file when it was listed.

    Raises:
      DataError: the file has changed since then, or cannot be read.
    """
    extension = extension_of(path)
    if size > MAX_FILE:
        return b"", f"has {count_of(size, 'byte')}, above {MAX_FILE:,}, the most that an image file can be"
    if extension in UNREADABLE:
        return b"", f"{extension.decode()} files cannot be read; convert it to PNG or JPEG, or move it away"
    with streams.errors_of(text(path)), open(path, "rb", buffering=0, opener=opener) as stream:
        status = os.fstat(stream.fileno())
        data = stream.readall() if (status.st_size, status.st_mtime_ns) == (size, time) else b""
    if len(data) != size or status.st_mtime_ns != time:
        raise streams.changed(text(path))
    return data, ""


def _files(folder: str, listing: Listing) -> tuple[SourceFile, ...]:
    """Returns one entry per class folder."""
    total = sum(int(images.sizes.sum()) for images in listing.splits.values())
    found = []
    with streams.progress_bar(total) as shown:
        for split, images in listing.splits.items():
            for label, name in enumerate(listing.class_names):
                rows = range(*np.searchsorted(images.labels, [label, label + 1]).tolist())
                if rows:
                    place = os.path.join(text(listing.folders[split]), name)
                    files = ((images.path(row), int(images.sizes[row])) for row in rows)
                    found.append(describe(os.fsencode(folder), place, files, shown.update))
    return tuple(found)


def describe(folder: bytes, name: str, files: Iterable[tuple[bytes, int]], advance: Advance) -> SourceFile:
    """Returns one manifest entry for many files: their bytes, and a SHA-256 over each file's path, size and SHA-256.

    Args:
      folder: folder that the paths are relative to.
      name: name of the entry.
      files: (path, size) pairs.
      advance: function called with the number of bytes read.

    Raises:
      DataError: a file has a different size, or cannot be read.
    """
    sha256, total, rest = hashlib.sha256(), 0, iter(files)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        places = [os.fsdecode(os.path.join(folder, path)) for path, _ in some]
        found = streams.digests([(place, LocalPath(place)) for place in places], advance)
        for (path, size), one in zip(some, found, strict=True):
            if one.num_bytes != size:
                raise streams.changed(text(os.path.join(folder, path)))
            sha256.update(b"%b\0%d\0%b\n" % (path, size, one.sha256.encode()))
            total += size
    return SourceFile(name, total, sha256.hexdigest())


def _extensions(text: str) -> frozenset[bytes]:
    return frozenset(b"." + name.encode() for name in text.split())


# Images, whatever their content. No image of a class folder is left out: one that Pillow cannot read is an invalid row,
# which --max_rejects counts and rejects.jsonl lists.
IMAGES = _extensions(
    """png apng jpg jpeg jpe jfif mpo bmp dib gif webp tif tiff jp2 j2k j2c jpc jpf jpx avif heic heif hif
    ppm pgm pbm pnm"""
)
# Images that cannot be read: drawings, camera raw files (Pillow would return their preview), editors' documents.
UNREADABLE = _extensions(
    """svg svgz eps ai psd xcf kra tga ico cur icns pcx dds exr hdr jxl jxr wdp jng qoi dcm dicom nii fits fit
    dng nef nrw cr2 cr3 crw arw srf sr2 raf orf rw2 pef srw x3f raw 3fr iiq"""
)
# Files often found among images that are not images. Files with other extensions are images if they begin like one.
_OTHERS = _extensions(
    """txt json jsonl ndjson csv tsv xml yaml yml toml md rst html htm pdf log ini cfg db lnk url doc docx xls xlsx py
    ipynb sh npy npz pkl pt pth h5 hdf5 mat parquet tfrecord zip tar gz tgz bz2 xz 7z rar mp4 avi mov mkv webm mp3 wav
    md5 sha256"""
)
_ANNOTATIONS = _extensions("txt json jsonl csv tsv xml")  # COCO, VOC and YOLO, captions, texts and tables
_TABLES = (b".csv", b".tsv", b".jsonl")  # may name images and their labels
_HIDDEN = (b".", b"__MACOSX")  # the second is what macOS puts into archives


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """The images of one split, ordered by class, then by path.

    Attributes:
      paths: paths relative to the folder; an Arrow array, as a million Python objects would take several times the
        memory.
      labels: class numbers, int32 (n,).
      sizes: file sizes in bytes, int64 (n,).
      times: modification times of the files in nanoseconds, int64 (n,).
    """

    paths: pa.LargeBinaryArray
    labels: NDArray[np.int32]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, row: int) -> bytes:
        """Returns the path of an image, relative to the folder."""
        path: bytes = self.paths[row].as_py()
        return path


@dataclasses.dataclass(frozen=True, eq=False)
class Listing:
    """All images of a folder.

    Attributes:
      class_names: class names of all splits, ordered by `labels.in_order`.
      splits: {name: its images}.
      folders: {split: its folder, relative to the listed one}; b"" if splits have no folders.
      ignored: {extension: number of files that are not images}.
    """

    class_names: tuple[str, ...]
    splits: dict[str, Images]
    folders: dict[str, bytes]
    ignored: collections.Counter[bytes]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of every path, size and time."""
        digest = hashlib.sha256()
        for images in self.splits.values():
            digest.update(len(images).to_bytes(8, "little"))
            for column in (*images.paths.buffers()[1:], images.labels, images.sizes, images.times):
                digest.update(column)
        return digest.hexdigest()


def scan(root: bytes, follow_links: bool = False, wanted: Sequence[str] = ()) -> Listing:
    """Lists a folder that has one subfolder per class, or one per split with a subfolder per class in each.

    Args:
      root: folder to list.
      follow_links: whether to follow links that lead out of it, and links to folders.
      wanted: splits that --splits names, so that only their folders are listed; empty for all.

    Raises:
      UsageError: a wanted split has no folder.
      DataError: it has neither, or both; a class has no image; an image is in no class or is not a regular file; a link
        must not be followed, or leads to one of its parent folders; a class name is not valid UTF-8, or looks like
        another one; a folder cannot be read.
    """
    return _Scan(root, follow_links, wanted).listing()


def text(path: bytes) -> str:
    """Returns a path for messages, with bytes that are not UTF-8 in hexadecimal."""
    return path.decode(errors="backslashreplace")


class _Scan:
    """One pass over a folder.

    Attributes:
      ignored: {extension: number of files that are not images}.
    """

    def __init__(self, root: bytes, follow_links: bool, wanted: Sequence[str]) -> None:
        self._root, self._follows_links, self._wanted = root, follow_links, wanted
        self._real_root = os.path.join(os.path.realpath(root), b"")
        self._refused: dict[bytes, str] = {}  # {link that must not be followed: why}
        self.ignored: collections.Counter[bytes] = collections.Counter()

    def listing(self) -> Listing:
        folders = self._split_folders()
        classes = {split: self._class_folders(folder) for split, folder in folders.items()}
        names = [name.encode() for name in labels.in_order(name.decode() for name in set().union(*classes.values()))]
        if not names:
            self._check_links()
            raise DataError(
                "has no class folders; images are expected as class/file.png",
                path=text(self._root),
                advice=self._advice(),
            )
        self._check_names_differ(classes)
        images = {split: self._images(folder, names, classes[split]) for split, folder in folders.items()}
        self._check_links()
        if folders == {splits.TRAIN: b""}:
            self._check_levels(names, images[splits.TRAIN])
        self._check_not_empty(names, images)
        class_names = tuple(name.decode() for name in names)
        return Listing(class_names, images, folders, self.ignored)

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
            advice = f"if they are no classes, --splits={','.join(splits.in_order(set(known.values())))} leaves it out"
            raise DataError(
                f"has split folders ({', '.join(map(text, known))}) next to {text(other)!r}; are "
                "they classes? move one kind elsewhere",
                path=text(self._root),
                advice=advice,
            )
        found: dict[str, list[bytes]] = {}
        in_order = [*splits.SPLIT_OF_WORD]
        for name in sorted(known, key=lambda name: (word := text(name).lower()) in in_order and in_order.index(word)):
            found.setdefault(known[name], []).append(name)
        chosen = splits.among(splits.in_order(found), self._wanted)
        for split in chosen:
            if len(found[split]) > 1:
                one, other, *_ = found[split]
                raise DataError(
                    f"{text(one)!r} and {text(other)!r} are both split {split!r}",
                    path=text(self._root),
                    advice="join them",
                )
        return {split: found[split][0] for split in chosen}

    def _is_nested(self, name: bytes) -> bool:
        """Returns whether a folder holds folders and no image."""
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

    def _images(self, folder: bytes, names: Sequence[bytes], present: Set[bytes]) -> Images:
        start = len(os.path.join(self._root, b""))
        found = [
            (path[start:], label, size, time)
            for label, name in enumerate(names)
            if name in present
            for path, size, time in sorted(self._walk(os.path.join(self._root, folder, name)))
        ]
        paths, labels, sizes, times = zip(*found, strict=True) if found else ((), (), (), ())
        columns = np.array(labels, np.int32), np.array(sizes, np.int64), np.array(times, np.int64)
        return Images(pa.array(paths, pa.large_binary()), *columns)

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

    def _is_folder(self, entry: os.DirEntry[bytes]) -> bool:
        if entry.is_symlink() and entry.is_dir() and not self._follows_links:
            self._refused[entry.path] = "is a link to a folder, which is not followed; put the folder there"
            return False
        return entry.is_dir()

    def _is_image(self, entry: os.DirEntry[bytes]) -> bool:
        if entry.path in self._refused:
            return False
        extension = extension_of(entry.name)
        if extension in IMAGES or extension in UNREADABLE:
            return True
        # A link that must not be followed is not read either.
        if extension not in _OTHERS and entry.is_file() and (self._follows_links or not self._leads_out(entry)):
            with streams.errors_of(text(entry.path)), open(entry.path, "rb", buffering=0, opener=opener) as file:
                if schema.image_format(file.read(schema.IMAGE_START)):
                    return True
        self.ignored[extension] += 1
        return False

    def _leads_out(self, entry: os.DirEntry[bytes]) -> bool:
        return entry.is_symlink() and not os.path.realpath(entry.path).startswith(self._real_root)

    def _status(self, entry: os.DirEntry[bytes]) -> tuple[int, int]:
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
            raise DataError(
                f"the class folders {names} {problem}", path=text(self._root), advice="join them, or rename one"
            )

    def _check_levels(self, names: Sequence[bytes], images: Images) -> None:
        """Raises DataError if split folders were taken for classes, or class folders for folders inside one class."""
        for label, name in enumerate(names):
            if splits.of_folder(text(name)) and len(names) > 1:
                rows = range(*np.searchsorted(images.labels, [label, label + 1]).tolist())
                if rows and all(images.path(row).count(b"/") > 1 for row in rows):
                    rows_shown = rows.start, 0 if rows.start else rows.stop
                    split, other = (repr(text(images.path(row))) for row in rows_shown)
                    raise DataError(
                        f"{split} is split/class/file by the name of its folder, {other} is not",
                        path=text(self._root),
                        advice="put all images at one level",
                    )
        inner: dict[str, bytes] = {}  # {split: an image below a folder with its name inside a class}
        for word, split in splits.SPLIT_OF_WORD.items():
            found = pc.match_substring_regex(images.paths, f"^[^/]+/(split=)?{word}/", ignore_case=True)
            if (row := pc.index(found, True).as_py()) >= 0:
                inner.setdefault(split, images.path(row))
        if len(inner) > 1:
            pair = " and ".join(repr(text(path)) for path in list(inner.values())[:2])
            raise DataError(
                f"{pair} are of different splits, inside a class; images are expected as split/class/file.png",
                path=text(self._root),
            )

    def _check_links(self) -> None:
        for path, problem in self._refused.items():
            more = f" ({count_of(len(self._refused), 'such link')})" if len(self._refused) > 1 else ""
            raise DataError(f"{problem}, or give --follow_links{more}", path=text(path))

    def _check_not_empty(self, names: Sequence[bytes], found: dict[str, Images]) -> None:
        present = set(np.concatenate([images.labels for images in found.values()]).tolist())
        empty = [f"class {text(name)!r}" for label, name in enumerate(names) if label not in present]
        empty += [f"split {split!r}" for split, images in found.items() if not len(images)]
        if empty:
            others = f"; {skipped(self.ignored)}" if self.ignored else ""
            error = DataError(f"{empty[0]} has no image{others}", path=text(self._root))
            raise error.advised("remove it, or put images there").advised(self._advice())

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


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    with streams.errors_of(text(folder)), os.scandir(folder) as found:
        return sorted((entry for entry in found if not entry.name.startswith(_HIDDEN)), key=lambda entry: entry.name)


def extension_of(path: bytes) -> bytes:
    """Returns a file name's extension in lower case, with its dot; empty if there is none."""
    return os.path.splitext(path)[1].lower()


def skipped(ignored: collections.Counter[bytes]) -> str:
    """Returns the number of skipped files and their most frequent extensions, for messages."""
    extensions = ", ".join(text(extension) or "without extension" for extension, _ in ignored.most_common(5))
    return f"skipped {count_of(ignored.total(), 'file')}: no image ({extensions})"
