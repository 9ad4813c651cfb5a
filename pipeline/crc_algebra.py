"""CRC32C of concatenations, from the CRCs of their parts: many records are checked at the speed of one.

The CRC of A and B one after the other is shift(crc(A), bytes of B) ^ crc(B), where shift multiplies by x^8 for each
byte, modulo the polynomial (Mark Adler's crc32_combine in zlib). So the CRC of framed records follows from the CRCs
that they store, and one pass over all their bytes tells whether every one is right.
"""

from __future__ import annotations

import dataclasses
import functools

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline import framing

U32 = NDArray[np.uint32]
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_TOGETHER = 1024  # CRCs, a power of two: their columns take 128 KiB


@dataclasses.dataclass(frozen=True, eq=False)
class Shift:
    """Shifts CRCs by a number of bytes.

    Attributes:
      columns: uint32 (32,): what becomes of each bit of a CRC.
    """

    columns: U32

    def __call__(self, crcs: U32) -> U32:
        """Returns shifted CRCs, uint32, any shape."""
        places = np.ascontiguousarray(crcs, "<u4")[..., None].view(np.uint8)
        found: U32 = self._tables[0].take(places[..., 0])
        for i in (1, 2, 3):
            found ^= self._tables[i].take(places[..., i])
        return found

    @functools.cached_property
    def _tables(self) -> U32:
        """What becomes of each byte of a CRC, uint32 (4, 256)."""
        bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
        columns = self.columns.reshape(4, 1, 8)
        return np.bitwise_xor.reduce(np.where(bits[None, :, :] == 1, columns, np.uint32(0)), axis=2)

    def then(self, other: Shift) -> Shift:
        """Returns this shift followed by another."""
        return Shift(other(self.columns))


@functools.lru_cache(maxsize=256)
def shift(num_bytes: int) -> Shift:
    """Returns the shift by a number of bytes, 1 or more."""
    if num_bytes == 1:
        byte = np.uint32(1) << np.arange(32, dtype=np.uint32)
        for _ in range(8):
            byte = np.where(byte & 1, (byte >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), byte >> np.uint32(1))
        return Shift(byte.astype(np.uint32))
    half = shift(num_bytes // 2)
    return half.then(half).then(shift(1)) if num_bytes % 2 else half.then(half)


def crc_of_equal(crcs: U32, num_bytes: int) -> int:
    """Returns the CRC32C of parts of `num_bytes` each, one after the other, from their CRCs: uint32 (n,)."""
    while len(crcs) > _TOGETHER:
        blocks = np.concatenate([np.zeros(-len(crcs) % _TOGETHER, np.uint32), crcs])  # 0 in front changes nothing
        crcs = np.array([_sum(block, num_bytes) for block in blocks.reshape(-1, _TOGETHER)], np.uint32)
        num_bytes *= _TOGETHER
    return _sum(crcs, num_bytes)


def _sum(crcs: U32, num_bytes: int) -> int:
    columns = _columns_by_place(num_bytes)[_TOGETHER - len(crcs) :]
    bits = np.unpackbits(np.ascontiguousarray(crcs, "<u4").view(np.uint8), bitorder="little").astype(np.uint32)
    bits *= columns.reshape(-1)
    return int(np.bitwise_xor.reduce(bits))


@functools.lru_cache(maxsize=64)
def _columns_by_place(num_bytes: int) -> U32:
    """Returns the columns of the shifts by what follows each of some parts, uint32 (_TOGETHER, 32)."""
    columns = shift(num_bytes).columns[None]
    columns = np.concatenate([columns, np.uint32(1) << np.arange(32, dtype=np.uint32)[None]])
    while len(columns) < _TOGETHER:
        columns = np.concatenate([shift(num_bytes * len(columns))(columns), columns])
    return columns


def crc_of_frames(stored: U32, stride: int) -> int:
    """Returns the CRC32C that framed records have, if each is what the masked CRC it stores says.

    Args:
      stored: the masked CRCs, uint32 (n,), n of 1 or more.
      stride: bytes of each record with its frame.
    """
    # A frame is header, record, footer, and the CRC of the footer's 4 bytes is shift(stored ^ ones) ^ ones. So its CRC
    # is shift(record's CRC ^ stored) by the footer, and something that all frames have in common. Shifts are linear:
    # of the first parts the sum is shifted.
    varying = shift(framing.FOOTER)(_one(crc_of_equal(framing.unmask_all(stored) ^ stored, stride)))
    return int(varying[0]) ^ _crc_in_common(len(stored), stride)


@functools.lru_cache(maxsize=256)
def _crc_in_common(count: int, stride: int) -> int:
    header = crc32c.crc32c(framing.header(stride - framing.HEADER - framing.FOOTER))
    ones = _one(0xFFFFFFFF)
    of_one = shift(stride - framing.HEADER)(_one(header)) ^ shift(framing.FOOTER)(ones) ^ ones
    return crc_of_equal(np.repeat(of_one, count), stride)


def _one(crc: int) -> U32:
    return np.array([crc], np.uint32)
