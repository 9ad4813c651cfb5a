"""Images in folders named after their class: `class/file.png`, or `train/class/file.png`."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import threading

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

_lock = threading.Lock()
_listings: dict[tuple[str, str], Listing] = {}


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
        found, bad = [], {}
        keys = [images.path(row) for row in rows.tolist()]
        for position, row in enumerate(rows.tolist()):
            size, extension = int(images.sizes[row]), folder_scan.extension_of(keys[position])
            if size > MAX_FILE:
                bad[position] = f"has {count_of(size, 'byte')}, above {MAX_FILE:,}, the most that an image file can be"
            elif extension in folder_scan.UNREADABLE:
                bad[position] = f"{extension.decode()} files cannot be read; convert it to PNG or JPEG, or move it away"
            else:
                path = os.path.join(os.fsencode(self.folder), keys[position])
                found.append(_content(path, size, int(images.times[row])))
                continue
            found.append(b"")
        return Block(found, images.labels[rows].astype(np.int64), keys, {}, bad)

    def _images(self, split: str) -> Images:
        with _lock:
            listing = _listings.get((self.folder, self.listing_digest))
            if listing is None:
                listing = folder_scan.scan(os.fsencode(self.folder), self.follow_links)
                if listing.digest != self.listing_digest:
                    raise streams.changed(self.folder)
                _keep(self.folder, listing)
        return listing.splits[split]


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
    with _lock:
        _keep(folder, listing)
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


def _keep(folder: str, listing: Listing) -> None:
    while len(_listings) >= _MOST_KEPT:
        _listings.pop(next(iter(_listings)))
    _listings[folder, listing.digest] = listing


def _content(path: bytes, size: int, time: int) -> bytes:
    """Returns the content of a file; raises DataError if it changed since it was listed."""
    with streams.errors_of(text(path)), open(path, "rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        data = stream.readall() if (status.st_size, status.st_mtime_ns) == (size, time) else b""
    if len(data) != size or status.st_mtime_ns != time:
        raise streams.changed(text(path))
    return data


def _files(folder: str, listing: Listing) -> tuple[SourceFile, ...]:
    """Returns one entry per class folder: its bytes, and a SHA-256 over each file's path, size and SHA-256."""
    total = sum(int(images.sizes.sum()) for images in listing.splits.values())
    found = []
    with streams.progress_bar(total) as shown:
        for split, images in listing.splits.items():
            for label, name in enumerate(listing.class_names):
                rows = range(*np.searchsorted(images.labels, [label, label + 1]).tolist())
                if rows:
                    place = os.path.join(text(listing.folders[split]), name)
                    found.append(_describe(os.fsencode(folder), place, images, rows, shown.update))
    return tuple(found)


def _describe(folder: bytes, name: str, images: Images, rows: range, advance: Advance) -> SourceFile:
    places = [os.fsdecode(os.path.join(folder, images.path(row))) for row in rows]
    content = streams.digests([(place, LocalPath(place)) for place in places], advance)
    sha256 = hashlib.sha256()
    for row, one in zip(rows, content, strict=True):
        path = images.path(row)
        if one.num_bytes != images.sizes[row]:
            raise streams.changed(text(os.path.join(folder, path)))
        sha256.update(b"%b\0%d\0%b\n" % (path, one.num_bytes, one.sha256.encode()))
    return SourceFile(name, sum(one.num_bytes for one in content), sha256.hexdigest())
