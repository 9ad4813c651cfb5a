"""A folder of IDX files, as MNIST has them, of images of any size: grey (idx3), or with channels (idx4)."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, idx, labels_file, listing
from beam_jobs.sources.base import Block, Files, Source, SourceOptions
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError, UsageError

# train-images-idx3-ubyte, train-images.idx3-ubyte, t10k-labels-idx1-ubyte.gz, images-idx4-ubyte
_FILE = re.compile(r"(?P<head>.*?)[-._]?(?P<kind>images|labels)[-._]idx(?P<rank>\d)[-._]ubyte(?P<gzip>\.gz)?", re.I)
_RANKS = {"images": (3, 4), "labels": (1,)}
_FORM = "--source of idx is a folder of pairs like train-images-idx3-ubyte and train-labels-idx1-ubyte, gzip or not"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class IdxSource(Source):
    """Pairs of files.

    Attributes:
      pairs: {split: (images, labels)}.
    """

    pairs: dict[str, tuple[RowFile, RowFile]]

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`."""
        images, labels = (file.read(rows) for file in self.pairs[split])
        pixels = images if images.ndim == 4 else images[..., None]
        return Block(pixels, labels.astype(np.int64), self.parts[split].keys(rows))


def open_source(options: SourceOptions) -> IdxSource:
    """Opens and checks the pairs of files in the folder `options.source`.

    The split of a pair is a word of its names (train, validation, test, ...; MNIST's t10k is test). Classes are named
    by labels.txt in the folder; without it, they are "0", "1" and so on to the highest label.

    Raises:
      UsageError: --source is missing.
      DataError: it is not such a folder, a file has no partner or is not a whole IDX file, pairs differ in the size of
        their images, two are of one split, or a label has no name.
    """
    if not options.source:
        raise UsageError(f"--source is missing; {_FORM}")
    folder = LocalPath(options.source).absolute()
    if not folder.is_dir():
        raise DataError(f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}; {_FORM}")
    pairs = _pairs(folder)
    _check_equal_sizes(pairs)
    parts = {split: Files((images.file.file,), images.shape[:1]) for split, (images, _) in pairs.items()}
    first, _ = next(iter(pairs.values()))
    return IdxSource(
        dataset=options.dataset,
        class_names=_class_names(folder, [labels for _, labels in pairs.values()]),
        files=tuple(file.file for pair in pairs.values() for file in pair),
        splits=base.rows_of(parts, folder),
        image_shape=_image_shape(first),
        parts=parts,
        pairs=pairs,
    )


def _pairs(folder: LocalPath) -> dict[str, tuple[RowFile, RowFile]]:
    """Returns {split: (images, labels)}, train first."""
    names = sorted(name for name in folder.names() if _FILE.fullmatch(name))
    listing.check_packed_once(folder, names)
    heads: dict[str, dict[str, list[str]]] = {}
    for name in names:
        match = _parsed(name)
        heads.setdefault(match["head"], {}).setdefault(match["kind"].lower(), []).append(name)
    if not heads:
        raise DataError(f"{folder}: holds no IDX file by its name; {_FORM}")
    by_split: dict[str, str] = {}
    for head in heads:
        split = _split_of(folder, head, is_only=len(heads) == 1)
        if split in by_split:
            raise DataError(
                f"{folder}: the files of {by_split[split]!r} and of {head!r} are both of split {split!r}; "
                "move those of one to another folder"
            )
        by_split[split] = head
    found = {split: _open_pair(folder, heads[head]) for split, head in by_split.items()}
    return {split: found[split] for split in listing.SPLITS if split in found}


def _parsed(name: str) -> re.Match[str]:
    match = _FILE.fullmatch(name)
    assert match
    return match


def _split_of(folder: LocalPath, head: str, is_only: bool) -> str:
    words = ["test" if word == "t10k" else word for word in re.split(r"[-._ ]", head.lower())]
    splits = {listing.SPLIT_OF_WORD[word] for word in words if word in listing.SPLIT_OF_WORD}
    if len(splits) == 1:
        return splits.pop()
    if is_only and not splits:
        return "train"
    problem = f"is their split {' or '.join(sorted(splits))}?" if splits else "does not tell their split"
    raise DataError(f"{folder}: the name of the files {head!r}: {problem}; rename them, as in train-images-idx3-ubyte")


def _open_pair(folder: LocalPath, names: dict[str, list[str]]) -> tuple[RowFile, RowFile]:
    files = []
    for kind, ranks in _RANKS.items():
        present = names.get(kind, [])
        if len(present) != 1:
            others = " and ".join(name for each in names.values() for name in each)
            raise DataError(
                f"{folder}: must hold one file of {kind} for each pair, not {len(present)}: it has {others}"
            )
        match = _parsed(present[0])
        if int(match["rank"]) not in ranks:
            wanted = " or ".join(f"idx{rank}" for rank in ranks)
            raise DataError(f"{folder / present[0]}: {kind} must be {wanted}, not idx{match['rank']}")
        plain = present[0][: -len(match["gzip"])] if match["gzip"] else present[0]
        files.append(idx.open_file(folder / present[0], plain, int(match["rank"])))
    idx.check_pair(files[0], files[1])
    return files[0], files[1]


def _image_shape(images: RowFile) -> tuple[int, int, int]:
    height, width, *channels = images.shape[1:]
    return height, width, channels[0] if channels else 1


def _check_equal_sizes(pairs: dict[str, tuple[RowFile, RowFile]]) -> None:
    first, *others = (images for images, _ in pairs.values())
    for other in others:
        if _image_shape(other) != _image_shape(first):
            sizes = ["x".join(map(str, _image_shape(images))) for images in (other, first)]
            raise DataError(f"{other.path}: its images are {sizes[0]}, those of {first.path} {sizes[1]}; must be equal")


def _class_names(folder: LocalPath, labels: list[RowFile]) -> tuple[str, ...]:
    names = labels_file.read(folder / labels_file.LABELS)
    if not names:
        return tuple(str(label) for label in range(max(file.highest() for file in labels) + 1))
    for file in labels:
        file.check_labels([("label", 0, len(names) - 1)])
    return names
