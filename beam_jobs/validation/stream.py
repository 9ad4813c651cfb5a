"""A shard's bytes, read once from its begin to its end: what the records are made of, and the CRC of the whole file."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any

import crc32c

from beam_jobs.storage.paths import AnyPath, RemotePath

_BLOCK = 1 << 20  # 1 MiB, read at a time


class CompressionError(ValueError):
    """The bytes are no GZIP file, or it is cut or corrupt; the message says which."""


class ShardStream:
    """Reads a shard in blocks; a compressed one decompressed.

    Attributes:
      position: bytes read so far, of the decompressed stream.
      is_compressed: whether that differs from the bytes of the file.
    """

    def __init__(self, path: AnyPath, compression: str) -> None:
        file = path.open() if isinstance(path, RemotePath) else open(path, "rb", buffering=0)  # noqa: SIM115
        self._counted = _Counted(file)
        self._buffered = io.BufferedReader(self._counted, _BLOCK)
        self.is_compressed = bool(compression)
        self._stream: Any = gzip.GzipFile(fileobj=self._buffered, mode="rb") if compression else self._buffered
        self.position = 0

    def __enter__(self) -> ShardStream:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self._counted.close()

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes; fewer at the end. A size that a corrupt file makes up costs no memory.

        Raises:
          CompressionError: these bytes cannot be decompressed, nor any after them.
          OSError: the file cannot be read.
        """
        try:
            data: bytes = self._stream.read(min(size, _BLOCK))
            if len(data) < size and len(data) == _BLOCK:
                pieces = [data]
                while pieces[-1] and (left := size - sum(map(len, pieces))):
                    pieces.append(self._stream.read(min(left, _BLOCK)))
                data = b"".join(pieces)
        except EOFError:
            raise CompressionError("the file ends inside its GZIP stream") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise CompressionError(f"its GZIP stream is corrupt ({error})") from None
        self.position += len(data)
        return data

    def finish(self) -> tuple[int, str]:
        """Reads the rest; returns the file's size in bytes and its CRC32C, 8 hexadecimal digits.

        Raises:
          OSError: the file cannot be read.
        """
        while self._buffered.read(_BLOCK):
            pass
        return self._counted.size, f"{self._counted.crc:08x}"


class _Counted(io.RawIOBase):
    """Passes bytes on and takes their CRC32C."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self.crc = 0
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.crc = crc32c.crc32c(data, self.crc)
        self.size += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
