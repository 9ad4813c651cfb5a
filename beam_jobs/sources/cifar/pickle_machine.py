"""The stack machine of a pickle, with the few operations that a dictionary of lists, strings and one array needs.

Format: the table of operations in Python's `pickletools`.
"""

from __future__ import annotations

import dataclasses
import io
import os
import struct
from collections.abc import Callable
from typing import Any

MAX_OPERATIONS = 2_000_000  # several times those of CIFAR-100's train
_LARGE = 1 << 16  # 64 KiB; a longer string stays in the file
_NEWEST_PROTOCOL = 4
_LATIN1 = ("latin1", b"latin1")
_UINT8 = ("u1", b"u1", "|u1", b"|u1")


class RefusedError(Exception):
    """Says why the file is not read."""


@dataclasses.dataclass(frozen=True)
class Span:
    """A long string that stays in its file: `size` bytes from `start`, bytes, or UTF-8 of them as text."""

    start: int
    size: int
    is_text: bool


@dataclasses.dataclass
class Array:
    """A NumPy array of a pickle; all None until its state is read.

    Attributes:
      shape: as pickled.
      is_fortran: whether the first axis varies fastest.
      data: the elements' bytes.
    """

    shape: Any = None
    is_fortran: bool = False
    data: Span | bytes | None = None


@dataclasses.dataclass(frozen=True)
class _Global:
    """What a pickle calls, by its name: it stays a name."""

    module: str
    name: str


_MARK, _DTYPE_UINT8 = object(), object()
_NDARRAY, _DTYPE, _ENCODE = _Global("numpy", "ndarray"), _Global("numpy", "dtype"), _Global("_codecs", "encode")
_RECONSTRUCT = tuple(_Global(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core"))
_ADMITTED = (*_RECONSTRUCT, _NDARRAY, _DTYPE, _ENCODE)


class Machine:
    """Runs one pickle.

    Raises:
      RefusedError: the file is cut short, or does what it must not.
      IndexError, KeyError, ValueError, TypeError, struct.error: its parts do not fit together.
    """

    def __init__(self, stream: io.BufferedReader, size: int) -> None:
        self._stream = stream
        self._size = size
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._encoded_bytes = 0

    def run(self) -> Any:
        """Returns what the program leaves on the stack."""
        for _ in range(MAX_OPERATIONS):
            code = self._take(1)
            if code == b".":
                return self._stack.pop()
            if code in _PUSH:
                self._stack.append(_PUSH[code](self))
            elif code in _CHANGE:
                _CHANGE[code](self)
            else:
                raise RefusedError(f"operation 0x{code.hex()} is not one that it needs")
        raise RefusedError(f"it has more than {MAX_OPERATIONS} operations")

    def _take(self, count: int) -> bytes:
        data = self._stream.read(count) if count <= self._size else b""
        if len(data) != count:
            raise RefusedError("it is cut short")
        return data

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _string(self, form: str, is_text: bool) -> Any:
        size = self._number(form)
        start = self._stream.tell()
        if size > self._size - start:
            raise RefusedError(f"it is cut short: a string of {size} bytes at byte {start}")
        if size > _LARGE:
            self._stream.seek(size, os.SEEK_CUR)
            return Span(start, size, is_text)
        data = self._take(size)
        return data.decode() if is_text else data

    def _global(self) -> _Global:
        names = [self._stream.readline(_LARGE).rstrip(b"\n").decode() for _ in range(2)]
        return _admitted(names[0], names[1])

    def _stack_global(self) -> _Global:
        module, name = self._last(2)
        return _admitted(module, name)

    def _to_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while at >= 0 and self._stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise RefusedError("a mark is missing")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _last(self, count: int) -> tuple[Any, ...]:
        if count > len(self._stack):
            raise RefusedError("its stack is empty")
        items = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        return items

    def _reduce(self) -> Any:
        function, arguments = self._last(2)
        if function in _RECONSTRUCT and arguments[0] == _NDARRAY:
            return Array()
        if function == _DTYPE and arguments[0] in _UINT8:
            return _DTYPE_UINT8
        if function == _ENCODE and arguments[1] in _LATIN1:
            return arguments[0] if isinstance(arguments[0], Span) else self._encoded(arguments[0])
        raise RefusedError("it makes something else than an array of uint8")

    def _encoded(self, text: str) -> bytes:
        self._encoded_bytes += len(text)
        if self._encoded_bytes > self._size:  # one string, encoded again and again
            raise RefusedError("its strings are more than the file")
        return text.encode("latin-1")

    def _append(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise RefusedError("it appends to what is no list")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict) or not all(isinstance(key, str | bytes) for key in items[::2]):
            raise RefusedError("it has a dictionary whose keys are no strings")
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _build(self) -> None:
        (state,) = self._last(1)
        built = self._stack[-1]
        if isinstance(built, Array):
            _, built.shape, dtype, is_fortran, data = state
            if dtype is not _DTYPE_UINT8 or not isinstance(data, bytes | Span):
                raise RefusedError("it holds an array of something else than uint8")
            built.data, built.is_fortran = data, is_fortran is True
        elif built is not _DTYPE_UINT8:
            raise RefusedError("it gives a state to something else than an array")

    def _check_protocol(self) -> None:
        if self._number("<B") > _NEWEST_PROTOCOL:
            raise RefusedError(f"it is of a protocol above {_NEWEST_PROTOCOL}")


def _admitted(module: Any, name: Any) -> _Global:
    found = _Global(module, name)
    if not (isinstance(module, str) and isinstance(name, str)) or found not in _ADMITTED:
        raise RefusedError(f"it calls {f'{module}.{name}' if isinstance(module, str) else 'something'!r:.80}")
    return found


_PUSH: dict[bytes, Callable[[Machine], Any]] = {
    b"N": lambda machine: None,
    b"\x88": lambda machine: True,
    b"\x89": lambda machine: False,
    b"(": lambda machine: _MARK,
    b"}": lambda machine: {},
    b"]": lambda machine: [],
    b")": lambda machine: (),
    b"K": lambda machine: machine._number("<B"),
    b"M": lambda machine: machine._number("<H"),
    b"J": lambda machine: machine._number("<i"),
    b"U": lambda machine: machine._string("<B", False),
    b"T": lambda machine: machine._string("<I", False),
    b"C": lambda machine: machine._string("<B", False),
    b"B": lambda machine: machine._string("<I", False),
    b"\x8e": lambda machine: machine._string("<Q", False),
    b"\x8c": lambda machine: machine._string("<B", True),
    b"X": lambda machine: machine._string("<I", True),
    b"h": lambda machine: machine._memo[machine._number("<B")],
    b"j": lambda machine: machine._memo[machine._number("<I")],
    b"c": lambda machine: machine._global(),
    b"\x93": lambda machine: machine._stack_global(),
    b"t": lambda machine: tuple(machine._to_mark()),
    b"\x85": lambda machine: machine._last(1),
    b"\x86": lambda machine: machine._last(2),
    b"\x87": lambda machine: machine._last(3),
    b"R": lambda machine: machine._reduce(),
}
_CHANGE: dict[bytes, Callable[[Machine], Any]] = {
    b"\x80": lambda machine: machine._check_protocol(),
    b"\x95": lambda machine: machine._take(8),  # a frame's length
    b"q": lambda machine: machine._memo.__setitem__(machine._number("<B"), machine._stack[-1]),
    b"r": lambda machine: machine._memo.__setitem__(machine._number("<I"), machine._stack[-1]),
    b"\x94": lambda machine: machine._memo.__setitem__(len(machine._memo), machine._stack[-1]),
    b"a": lambda machine: machine._append([machine._stack.pop()]),
    b"e": lambda machine: machine._append(machine._to_mark()),
    b"s": lambda machine: machine._set(list(machine._last(2))),
    b"u": lambda machine: machine._set(machine._to_mark()),
    b"b": lambda machine: machine._build(),
}
