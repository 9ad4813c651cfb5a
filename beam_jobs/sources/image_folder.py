"""Images in folders named after their class: `class/file.png`, or `train/class/file.png`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import folder_scan, labels, streams
from beam_jobs.sources.base import Block, Source, SourceOptions
from beam_jobs.sources.folder_scan import Images, Listing, text
from beam_jobs.sources.streams import Advance
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.manifest import SourceFile
from pipeline.order import hashing
from pipeline.order.hashing import Domain

MAX_FILE = 256 << 20  # 256 MiB: no image that can be decoded is larger
_MOST_KEPT = 2  # listings per process
_AT_ONCE = 4096  # files that are digested at a time: a million paths as Python objects would take hundreds of MB

_Listing = TypeVar("_Listing", bound="HasDigest")
_lock = threading.Lock()
_listings: dict[tuple[str, str], Any] = {}


class HasDigest(Protocol):
    """A listing of files."""

    @property
    def digest(self) -> str:
        """Says whether another process lists the same."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImageFolderSource(Source):
    """A folder of images. Workers list it again, as a million paths would be large when pickled.

    Attributes:
      folder: its absolute path.
      listing_digest: the digest that a worker's listing must have.
      follow_links: whether links that lead out of it, and links to folders, are followed.
    """

    folder: str
    listing_digest: str
    follow_links: bool = False

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
        scan = functools.partial(folder_scan.scan, os.fsencode(self.folder), self.follow_links)
        return listed(self.folder, self.listing_digest, scan).splits[split]


def open_source(options: SourceOptions) -> ImageFolderSource:
    """Lists a folder and digests its images.

    Raises:
      UsageError: --source is missing.
      DataError: it is not a folder or cannot be listed, or a file changes meanwhile.
    """
    if not options.source:
        raise UsageError("--source is missing: a folder with one folder of images per class")
    folder = os.path.abspath(options.source)
    if not os.path.isdir(folder):
        problem = "is not a folder" if os.path.exists(folder) else "no such folder"
        raise DataError(problem, path=folder, advice="--source of image_folder has one folder of images per class")
    listing = folder_scan.scan(os.fsencode(folder), options.follow_links)
    if listing.ignored:
        print(f"{folder}: {folder_scan.skipped(listing.ignored)}", file=sys.stderr, flush=True)
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
    )


def _folders_of_only_class(listing: Listing) -> list[bytes]:
    """Returns the folders in the class folder, if there is one class and all its images lie in two or more of them."""
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
    """Returns the listing of a place, made once per process; raises DataError if it has not the digest any more."""
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
    """Returns the bytes of an image file, and why it cannot be an image: one of both is empty.

    Args:
      path: of the file.
      size, time: its size and the time of its last change when it was listed.

    Raises:
      DataError: it is not what it was then, or cannot be read.
    """
    extension = folder_scan.extension_of(path)
    if size > MAX_FILE:
        return b"", f"has {count_of(size, 'byte')}, above {MAX_FILE:,}, the most that an image file can be"
    if extension in folder_scan.UNREADABLE:
        return b"", f"{extension.decode()} files cannot be read; convert it to PNG or JPEG, or move it away"
    with streams.errors_of(text(path)), open(path, "rb", buffering=0) as stream:
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
    """Returns the entry of files as one: their bytes, and a SHA-256 over each file's path, size and SHA-256.

    Args:
      folder: that their paths are relative to.
      name: of the entry.
      files: (path, size) of each.
      advance: is told how many bytes were read.

    Raises:
      DataError: a file has another size, or cannot be read.
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
