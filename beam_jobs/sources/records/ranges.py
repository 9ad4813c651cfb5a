"""Reads many byte ranges of a local or remote file in few calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow

_GAP = 64 << 10  # 64 KiB: reading across such a small gap is cheaper than another call
_SPAN = 8 << 20  # 8 MiB read at once, or one record
_REMOTE_GAP = 256 << 10  # 256 KiB: a fraction of what a store sends in the time of a request
_WHOLE = 10  # if more than a tenth of a remote file is wanted, it is read from the first range to the last
_REQUESTS = 8  # at a time; as many spans are in memory


def read(stream: pyarrow.NativeFile, starts: Sequence[int], stops: Sequence[int], remote: bool) -> Iterator[bytes]:
    """Yields the bytes of each range; nearby ranges are read together, up to 8 MiB.

    Memory: the ranges; for a remote file also the eight spans of 8 MiB that are read at a time.

    Args:
      stream: the file; if it is remote, several threads read from it, and each call is a request.
      starts, stops: byte offsets of the ranges, which ascend.
      remote: whether the file is remote.
    """

    def cut(span: tuple[int, int]) -> list[bytes]:
        first, end = span
        base = starts[first]
        data = stream.read_at(stops[end - 1] - base, base)
        return [data[starts[i] - base : stops[i] - base] for i in range(first, end)]

    if not remote:
        for span in _spans(starts, stops, _GAP):
            yield from cut(span)
        return
    size = stream.size()
    gap = size if (sum(stops) - sum(starts)) * _WHOLE > size else _REMOTE_GAP
    spans = list(_spans(starts, stops, gap))
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for found in pool.map(cut, spans):
            yield from found


def _spans(starts: Sequence[int], stops: Sequence[int], gap: int) -> Iterator[tuple[int, int]]:
    """Yields (first, end): ranges first..end - 1 are read together."""
    first = 0
    while first < len(starts):
        end = first + 1
        while end < len(starts) and starts[end] <= stops[end - 1] + gap and stops[end] - starts[first] <= _SPAN:
            end += 1
        yield first, end
        first = end
