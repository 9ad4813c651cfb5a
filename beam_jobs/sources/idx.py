"""Folders of IDX files in MNIST's layout, with images of any size: grey (idx3) or with channels (idx4).

An IDX file is `0 0 type rank`, the sizes as big-endian uint32, then the bytes. Format: the bottom of
http://yann.lecun.com/exdb/mnist/. Only type 8 (unsigned byte) is read; these data sets use it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, streams
from beam_jobs.sources.base import SOURCES, Block, Files, Source, SourceOptions
from beam_jobs.sources.row_files import RowFile
from pipeline.commands.text import count_of, shape_of
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from pipeline.records import splits
from pipeline.records.labels import LABELS_FILE, read_labels

_UINT8 = 0x08
MAX_BYTES = 16 << 30  # 16 GiB: a header with a larger size is damaged
_MAX_PACKED = 2 << 30  # 2 GiB in the temporary folder: four times EMNIST's largest file
# train-images-idx3-ubyte, train-images.idx3-ubyte, t10k-labels-idx1-ubyte.gz, images-idx4-ubyte
_FILE = re.compile(r"(?P<head>.*?)[-._]?(?P<kind>images|labels)[-._]idx(?P<rank>\d)[-._]ubyte(?P<gzip>\.gz)?", re.I)
_RANKS = {"images": (3, 4), "labels": (1,)}
_FORM = "--source of idx is a folder of pairs like train-images-idx3-ubyte and train-labels-idx1-ubyte, gzip or not"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class IdxSource(Source):
    """Pairs of image and label files.

    Attributes:
      pairs: {split: (images, labels)}.
      is_transposed: whether images are stored column by column.
      first_label: label of the first class in the files.
    """

    pairs: dict[str, tuple[RowFile, RowFile]]
    is_transposed: bool = False
    first_label: int = 0

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        images, labels = (file.read(rows) for file in self.pairs[split])
        if self.is_transposed:
            images = np.ascontiguousarray(images.transpose(0, 2, 1))
        pixels = images if images.ndim == 4 else images[..., None]
        return Block(pixels, labels.astype(np.int64) - self.first_label, self.parts[split].keys(rows))


@SOURCES.named("idx", needs=_FORM)
def open_source(options: SourceOptions) -> IdxSource:
    """Opens and checks the pairs of files in the folder `options.source`.

    The split of a pair is a word in its names (train, validation, test, ...; MNIST's t10k is test). labels.txt in the
    folder names the classes; without it, they are "0", "1" and so on to the highest label.

    Raises:
      DataError: it is not such a folder, a file has no partner or is not a complete IDX file, pairs differ in image
        size, two pairs belong to the same split, or a label has no name.
    """
    folder = LocalPath(options.source).absolute()
    if not folder.is_dir():
        raise DataError("is not a folder" if folder.exists() else "no such folder", path=folder, advice=_FORM)
    pairs = _pairs(folder, options.splits)
    first, *others = (images for images, _ in pairs.values())
    for other in others:
        if _image_shape(other) != _image_shape(first):
            sizes = [shape_of(_image_shape(images)) for images in (other, first)]
            raise DataError(
                f"its images are {sizes[0]}, those of {first.path} {sizes[1]}; must be equal", path=other.path
            )
    names, files = read_labels(folder / LABELS_FILE), [labels for _, labels in pairs.values()]
    for file in files if names else ():
        file.check_labels([("label", 0, len(names) - 1)])
    names = names or tuple(str(label) for label in range(max(file.highest() for file in files) + 1))
    return make(options.dataset, folder, pairs, names)


def make(
    dataset: str,
    folder: LocalPath,
    pairs: dict[str, tuple[RowFile, RowFile]],
    class_names: tuple[str, ...],
    is_transposed: bool = False,
    first_label: int = 0,
) -> IdxSource:
    """Returns the source for pairs of files in a folder; images must have the same size."""
    parts = {split: Files((images.file.file,), images.shape[:1]) for split, (images, _) in pairs.items()}
    return IdxSource(
        dataset=dataset,
        class_names=class_names,
        files=tuple(file.file for pair in pairs.values() for file in pair),
        splits=base.rows_of(parts, folder),
        image_shape=_image_shape(next(iter(pairs.values()))[0]),
        parts=parts,
        pairs=pairs,
        is_transposed=is_transposed,
        first_label=first_label,
    )


def open_file(path: LocalPath, name: str, rank: int) -> RowFile:
    """Opens a file of images (rank 3, or 4 with channels) or labels (rank 1), plain or gzip.

    Checks its header, its size and gzip's CRC.

    Args:
      path: path of the file.
      name: name in keys and the manifest, without `.gz`.
      rank: number of axes of its array.

    Raises:
      DataError: it cannot be read, has another type or rank, is empty, or is shorter or longer than its header says.
    """
    stamp = streams.stamp(path)
    handle = streams.open_plain(path)
    packed = streams.is_packed(handle)
    with streams.opened(path) as stream:
        header = stream.read(4 + 4 * rank)
        shape = _shape(header, rank, _MAX_PACKED if packed else MAX_BYTES, path)
        size = math.prod(shape)
        if packed:
            handle.close()
            # One byte more than the header says reveals a longer file without unpacking a gzip bomb.
            handle = streams.spool(itertools.chain([header], streams.blocks(stream, size + 1)))
        found = streams.size(handle) - len(header)
        if found != size:
            text = "more" if found > size else str(found)
            hint = "it is not what its header says" if found > size else "it is cut short; get the file again"
            raise DataError(
                f"its header says {shape_of(shape)} = {count_of(size, 'byte')}, it has {text}: {hint}",
                path=path,
            )
    unpack = functools.partial(open_file, path, name, rank) if packed else None
    file = RowFile(path, stamp, streams.entry_of(name, handle), shape, len(header), unpack)
    file.keep(handle)
    return file


def check_pair(images: RowFile, labels: RowFile) -> None:
    """Raises DataError if images and labels differ in number."""
    if images.shape[0] != labels.shape[0]:
        counts = count_of(images.shape[0], "image"), count_of(labels.shape[0], "label")
        raise DataError(f"{images.path} has {counts[0]}, but {labels.path} has {counts[1]}")


def _shape(header: bytes, rank: int, most: int, path: LocalPath) -> tuple[int, ...]:
    magic = bytes((0, 0, _UINT8, rank))
    if header[:4] != magic:
        found = f"0x{header[:4].hex()}" if header else "an empty file"
        kind = "labels" if rank == 1 else "images"
        raise DataError(f"begins with {found}, not 0x{magic.hex()}: not an IDX file of {kind}", path=path)
    if len(header) < 4 + 4 * rank:
        raise DataError(f"ends inside its header ({len(header)} of {4 + 4 * rank} bytes)", path=path)
    shape = tuple(np.frombuffer(header[4:], ">u4").tolist())
    if not 0 < math.prod(shape) <= most:
        raise DataError(f"its header says {shape_of(shape)}; must be 1 to {most} values", path=path)
    return shape


def _pairs(folder: LocalPath, wanted: Sequence[str]) -> dict[str, tuple[RowFile, RowFile]]:
    """Returns {split: (images, labels)} of the wanted splits, train first."""
    names = sorted(name for name in folder.names() if _FILE.fullmatch(name))
    splits.check_packed_once(folder, names)
    heads: dict[str, dict[str, list[re.Match[str]]]] = {}
    for match in filter(None, map(_FILE.fullmatch, names)):
        heads.setdefault(match["head"], {}).setdefault(match["kind"].lower(), []).append(match)
    if not heads:
        raise DataError("holds no IDX file by its name", path=folder, advice=_FORM)
    by_split: dict[str, str] = {}
    for head in heads:
        split = _split_of(folder, head, is_only=len(heads) == 1)
        if split in by_split:
            raise DataError(
                f"the files of {by_split[split]!r} and of {head!r} are both in split {split!r}",
                path=folder,
                advice="move one pair to another folder",
            )
        by_split[split] = head
    chosen = splits.among(splits.in_order(by_split), wanted)
    return {split: _open_pair(folder, heads[by_split[split]]) for split in chosen}


def _split_of(folder: LocalPath, head: str, is_only: bool) -> str:
    words = splits.words(re.sub("t10k", "test", head, flags=re.IGNORECASE))  # MNIST's name for its test images
    found = {splits.SPLIT_OF_WORD[word] for word in words if word in splits.SPLIT_OF_WORD}
    if len(found) == 1:
        return found.pop()
    if is_only and not found:
        return splits.TRAIN
    problem = f"is their split {' or '.join(sorted(found))}?" if found else "does not tell their split"
    raise DataError(
        f"the name of the files {head!r}: {problem}", path=folder, advice="rename them, as in train-images-idx3-ubyte"
    )


def _open_pair(folder: LocalPath, by_kind: dict[str, list[re.Match[str]]]) -> tuple[RowFile, RowFile]:
    files = []
    for kind, ranks in _RANKS.items():
        present = by_kind.get(kind, [])
        if len(present) != 1:
            others = " and ".join(match[0] for matches in by_kind.values() for match in matches)
            raise DataError(
                f"must hold one file of {kind} for each pair, not {len(present)}: it has {others}", path=folder
            )
        match = present[0]
        if int(match["rank"]) not in ranks:
            wanted = " or ".join(f"idx{rank}" for rank in ranks)
            raise DataError(f"{kind} must be {wanted}, not idx{match['rank']}", path=folder / match[0])
        plain = match[0].removesuffix(match["gzip"] or "")
        files.append(open_file(folder / match[0], plain, int(match["rank"])))
    check_pair(files[0], files[1])
    return files[0], files[1]


def _image_shape(images: RowFile) -> tuple[int, int, int]:
    height, width, *channels = images.shape[1:]
    return height, width, channels[0] if channels else 1
