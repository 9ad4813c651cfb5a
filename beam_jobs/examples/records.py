"""The bytes of a shard: framed records of `tf.train.Example`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

from beam_jobs.drafts import Bytes
from beam_jobs.sources.base import Block
from pipeline.read import sidecars
from pipeline.records import framing, members, tf_example
from pipeline.records.tf_example import MAX_LABEL_SIZE, MAX_ONE_BYTE, Layout

_BLOCK = 768 << 10  # 768 KiB at a time stay in a core's cache until they are written


@dataclasses.dataclass(frozen=True)
class Records:
    """Framed records, end to end.

    Attributes:
      blocks: function that yields the bytes of the file in pieces, bytes or uint8 (n,), made on demand.
      num_bytes: size of the file before compression.
      count: number of records.
      stride: bytes from one record to the next before compression; None if records differ in length.
      offsets: offset of each record and of the end before compression, uint64 (count + 1,); None with a stride.
      crcs: masked CRC32C of each record, uint32 (count,); complete once all blocks have been made.
      member_offsets: offset of each GZIP member and of the end; complete once all blocks have been made. None without
        compression.
    """

    blocks: Callable[[], Iterable[Bytes]]
    num_bytes: int
    count: int
    stride: int | None
    offsets: NDArray[np.uint64] | None
    crcs: NDArray[np.uint32]
    member_offsets: list[int] | None = None

    @property
    def begins(self) -> NDArray[np.int64]:
        """Offset of each record and of the end, before compression; int64 (count + 1,)."""
        if self.offsets is not None:
            return self.offsets.astype(np.int64)
        return np.arange(self.count + 1, dtype=np.int64) * (self.stride or 0)

    def beside(self) -> bytes | None:
        """Returns the content of the offsets sidecar, once all blocks have been made; None without a sidecar."""
        if self.member_offsets is None:
            return None if self.offsets is None else self.offsets.tobytes()
        if not self.count:
            return None
        begins = None if self.offsets is None else self.begins
        return members.to_bytes(self.member_offsets, members.first_records(self.begins), begins)

    @property
    def data(self) -> bytes:
        """All bytes of the file."""
        return b"".join(self.blocks())  # type: ignore[arg-type]


def make_records(rows: Block) -> Records:
    """Returns the records of valid rows, in the same order."""
    count = len(rows.labels)
    if _are_matrices(rows):
        images, keys = np.asarray(rows.images), np.ascontiguousarray(rows.keys)
        label_sizes = np.ones(count, np.int64)
        for size in range(1, MAX_LABEL_SIZE):
            label_sizes += rows.labels >> 7 * size > 0
        layouts = {n: Layout.build(images[0].size, keys.itemsize, n) for n in np.unique(label_sizes).tolist()}
        lengths = np.zeros(MAX_LABEL_SIZE + 1, np.int64)
        for size, layout in layouts.items():
            lengths[size] = framing.HEADER + len(layout.template) + framing.FOOTER
        crcs = np.empty(count, sidecars.CRCS)
        blocks = functools.partial(_matrices, layouts, label_sizes, images, rows.labels, keys, crcs)
        return _of_lengths(blocks, lengths[label_sizes], crcs)
    return of_serialized(_examples(rows))


def of_serialized(examples: Iterable[bytes]) -> Records:
    """Returns the records of serialized Examples, in the same order."""
    framed = [framing.frame(record) for record in examples]
    crcs = np.frombuffer(b"".join(record[-framing.FOOTER :] for record in framed), sidecars.CRCS)
    return _of_lengths(functools.partial(_joined, framed), np.array([len(record) for record in framed], np.int64), crcs)


def _of_lengths(blocks: Callable[[], Iterable[Bytes]], lengths: NDArray[np.int64], crcs: NDArray[np.uint32]) -> Records:
    if len(lengths) and (lengths == lengths[0]).all():
        return Records(blocks, int(lengths.sum()), len(lengths), int(lengths[0]), None, crcs)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(sidecars.OFFSETS)
    return Records(blocks, int(offsets[-1]), len(lengths), None, offsets, crcs)


def compressed(records: Records) -> Records:
    """Compresses records into GZIP members that end at record boundaries; no records give one empty member."""
    offsets: list[int] = []
    return dataclasses.replace(records, blocks=lambda: _members(records, offsets), member_offsets=offsets)


def _members(records: Records, offsets: list[int]) -> Iterator[bytes]:
    """Yields the members, filling `offsets` with the start of each and the end."""
    begins = records.begins
    sizes = np.diff(begins[members.first_records(begins)]).tolist() or [0]
    offsets[:] = [0]
    held, blocks = bytearray(), iter(records.blocks())
    for size in sizes:
        while len(held) < size:
            held.extend(memoryview(next(blocks)))  # type: ignore[arg-type]  # arrays are buffers
        member = members.deflate(bytes(held[:size]))
        del held[:size]
        offsets.append(offsets[-1] + len(member))
        yield member


def _are_matrices(rows: Block) -> bool:
    """Returns whether only the labels make records differ in length."""
    if isinstance(rows.images, list) or isinstance(rows.keys, list) or rows.extra or not len(rows.labels):
        return False
    if not rows.has_classes:
        return False
    ends = np.ascontiguousarray(rows.keys).view(np.uint8).reshape(len(rows.labels), -1)[:, -1]
    return bool(ends.all())  # NumPy pads shorter keys with zeros


def _matrices(
    layouts: Mapping[int, Layout],
    label_sizes: NDArray[np.int64],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    keys: NDArray[np.bytes_],
    crcs: NDArray[np.uint32],
) -> Iterator[Bytes]:
    """Yields framed records in pieces small enough to stay in the cache, and fills `crcs`, uint32 (n,).

    Records whose labels take the same number of bytes share one of `layouts`, and are made as one matrix with a row per
    record.
    """
    flat, key_bytes = images.reshape(len(labels), -1), keys.view(np.uint8).reshape(len(labels), -1)
    step = _rows_at_once(max(len(layout.template) for layout in layouts.values()) + framing.OVERHEAD)
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        sizes = np.unique(label_sizes[rows]).tolist() if len(layouts) > 1 else [*layouts]
        if len(sizes) == 1:
            yield _matrix(layouts[sizes[0]], flat[rows], labels[rows], key_bytes[rows], crcs[rows]).reshape(-1)
            continue
        framed: list[Any] = [b""] * len(labels[rows])
        for size in sizes:
            which = start + np.flatnonzero(label_sizes[rows] == size)
            own = np.empty(len(which), np.uint32)
            matrix = _matrix(layouts[size], flat[which], labels[which], key_bytes[which], own)
            crcs[which] = own
            for row, record in zip((which - start).tolist(), matrix, strict=True):
                framed[row] = record
        yield b"".join(framed)


def _matrix(
    layout: Layout,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    keys: NDArray[np.uint8],
    crcs: NDArray[np.uint32],
) -> NDArray[np.uint8]:
    """Returns framed records with one layout, uint8 (n, length); fills `crcs`. Images and keys are uint8 (n, bytes)."""
    empty = np.frombuffer(framing.frame(layout.template.tobytes()), np.uint8)
    matrix = np.empty((len(labels), len(empty)), np.uint8)
    records = matrix[:, framing.HEADER : -framing.FOOTER]
    image_end = framing.HEADER + layout.image.stop
    matrix[:, : framing.HEADER + layout.image.start] = empty[: framing.HEADER + layout.image.start]
    matrix[:, image_end:] = empty[image_end:]
    records[:, layout.image] = images
    records[:, layout.key] = keys
    last = layout.label.stop - 1
    for place, column in enumerate(range(layout.label.start, last + 1)):
        goes_on = 0 if column == last else MAX_ONE_BYTE + 1
        records[:, column] = labels >> 7 * place & MAX_ONE_BYTE | goes_on
    plain = np.fromiter(map(crc32c.crc32c, records), np.uint32, len(records))  # rows are not copied
    crcs[:] = framing.mask(plain)
    matrix[:, -framing.FOOTER :] = crcs.view(np.uint8).reshape(-1, framing.FOOTER)
    return matrix


def _joined(framed: list[bytes]) -> Iterator[bytes]:
    step = _rows_at_once(sum(map(len, framed)) // max(1, len(framed)))
    for start in range(0, len(framed), step):
        yield b"".join(framed[start : start + step])


def _rows_at_once(record_bytes: int) -> int:
    return max(1, _BLOCK // max(1, record_bytes))


def _examples(rows: Block) -> Sequence[bytes]:
    raw = not isinstance(rows.images, list)
    made = []
    labels = rows.labels.tolist() if rows.has_classes else rows.labels
    for row, (image, label, key) in enumerate(zip(rows.images, labels, rows.keys, strict=True)):
        features = {name: values[row] for name, values in rows.extra.items()}
        features |= {"image": image.tobytes() if raw else image, "label": label, "key": bytes(key)}  # type: ignore[union-attr]
        made.append(tf_example.encode(features))
    return made
