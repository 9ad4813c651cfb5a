"""Reads the pickles that CIFAR is published in, which are not to be trusted, without ever calling `pickle`.

A pickle is a program for a stack machine, and `pickle` runs it whatever it calls, allocates and nests. The machine of
`pickle_machine` knows what these files need and no more: it can call nothing, and an array stays a place in the file.
"""

from __future__ import annotations

import codecs
import os
import struct
from collections.abc import Iterator
from typing import IO, Any

from beam_jobs.sources import content
from beam_jobs.sources.cifar.pickle_machine import Array, Machine, RefusedError, Span
from pipeline.errors import DataError

MAX_FILE = 1 << 30  # 1 GiB: six times CIFAR-100's train


def load(handle: IO[bytes], where: str) -> Any:
    """Returns the object of a pickle: dict, list, tuple, str, bytes, int, bool, None, `Array` of uint8 and `Span`.

    Args:
      handle: the open file.
      where: its path, for the error.

    Raises:
      DataError: the file is damaged, too large, or holds or calls anything else.
    """
    size = content.size(handle)
    if size > MAX_FILE:
        raise DataError(f"{where}: has {size} bytes; a file of this data set has at most {MAX_FILE}")
    with open(os.dup(handle.fileno()), "rb") as stream:
        stream.seek(0)
        try:
            return Machine(stream, size).run()
        except RefusedError as error:
            reason = str(error)
        except (IndexError, KeyError, ValueError, TypeError, struct.error):
            reason = "its parts do not fit together"
        except OSError as error:
            raise DataError(f"{where}: cannot be read: {error.strerror or error}") from None
        at = stream.tell()
    raise DataError(f"{where}: is no pickle of this data set: {reason}, before byte {at} of {size}; get the file again")


def plain(handle: IO[bytes], array: Array) -> tuple[IO[bytes], int, int]:
    """Returns (open file, first byte, bytes) of an array's data as it lies in memory.

    Args:
      handle: the file that `load` read.
      array: what it found there.

    Raises:
      DataError: the temporary folder has no room for it.
      ValueError: its text holds what is no byte.
    """
    data = array.data
    if isinstance(data, Span) and not data.is_text:
        return handle, data.start, data.size
    copy = content.spool(_latin1(handle, data) if isinstance(data, Span) else [data or b""])
    return copy, 0, content.size(copy)


def _latin1(handle: IO[bytes], span: Span) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for block in content.scan(handle, span.start, span.start + span.size):
        yield decoder.decode(block).encode("latin-1")
    decoder.decode(b"", final=True)
