"""The keys of a data set, as a table of hashes in which the keys of rows to append are looked up."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline.files.paths import StoragePath

HASH_BYTES = 16  # any two of 60 million keys share a hash with probability 5e-24


class KnownKey(str):
    """Reason why a row is invalid: the data set that it is appended to has its key."""

    __slots__ = ()

    @classmethod
    def of(cls, key: bytes) -> Self:
        """Returns the reason for a row with this key."""
        return cls(f"its key, {key.decode(errors='backslashreplace')!r}, is in the data set")


def hash_of(key: bytes) -> bytes:
    """Returns the hash of a key."""
    return hashlib.blake2b(key, digest_size=HASH_BYTES).digest()


@dataclasses.dataclass(frozen=True, eq=False)
class KeyTable:
    """Hashes of keys.

    Attributes:
      hashes: the halves of each hash, uint64 (n, 2), sorted.
    """

    hashes: NDArray[np.uint64]

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> KeyTable:
        """Returns the table of some keys."""
        hashes = _halves(keys)
        return cls(hashes[np.lexsort((hashes[:, 1], hashes[:, 0]))])

    @classmethod
    def load(cls, path: StoragePath) -> KeyTable:
        """Returns the table in a file; raises OSError or ValueError if it cannot be read."""
        return cls(np.load(io.BytesIO(path.read_bytes()), allow_pickle=False))

    def to_bytes(self) -> bytes:
        """Returns the content of its file."""
        file = io.BytesIO()
        np.save(file, self.hashes, allow_pickle=False)
        return file.getvalue()

    def has(self, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Returns whether each of some keys is in the table, (n,)."""
        wanted, firsts = _halves(keys), self.hashes[:, 0]
        found = np.zeros(len(keys), np.bool_)
        at, end = (np.searchsorted(firsts, wanted[:, 0], side) for side in ("left", "right"))
        for row in np.flatnonzero(at < end):  # nearly always one hash
            found[row] = bool((self.hashes[at[row] : end[row], 1] == wanted[row, 1]).any())
        return found


def _halves(keys: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(map(hash_of, keys)), "<u8").reshape(-1, 2)
