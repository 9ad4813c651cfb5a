"""Reads the pickles that CIFAR is published in without trusting them.

A pickle is a program for a stack machine. Here Python's own machine runs it, restricted to the operations that a
dictionary of lists, strings and one array needs; the four names that such files call are stand-ins. The machine is the
one written in Python, as the one in C can be made to allocate gigabytes by six bytes of a pickle.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import pickletools
from collections.abc import Callable
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import streams
from pipeline.commands.text import count_of
from pipeline.errors import DataError, reason_of

MAX_FILE = 256 << 20  # 256 MiB: one and a half times CIFAR-100's train
MAX_READS = 2_000_000  # at least one for each operation: several times those of CIFAR-100's train
_UINT8_NAMES = ("u1", b"u1", "|u1", b"|u1")
_NDARRAY, _UINT8 = object(), object()
_OPERATIONS = """
    NONE NEWTRUE NEWFALSE MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE BININT1 BININT2 BININT SHORT_BINSTRING BINSTRING
    SHORT_BINBYTES BINBYTES BINBYTES8 SHORT_BINUNICODE BINUNICODE BINGET LONG_BINGET GLOBAL STACK_GLOBAL TUPLE TUPLE1
    TUPLE2 TUPLE3 REDUCE PROTO FRAME BINPUT LONG_BINPUT MEMOIZE APPEND APPENDS SETITEM SETITEMS BUILD STOP
"""
_CODES = {operation.name: ord(operation.code) for operation in pickletools.opcodes}


class RefusedError(Exception):
    """The file is not read; the message says why."""


@dataclasses.dataclass
class Array:
    """A uint8 NumPy array of a pickle; it has no shape until its state is read."""

    shape: Any = None
    is_fortran: bool = False
    data: bytes = b""

    def values(self) -> NDArray[np.uint8]:
        """Returns the array; raises ValueError or TypeError if its shape does not fit its data."""
        return np.frombuffer(self.data, np.uint8).reshape(self.shape, order="F" if self.is_fortran else "C")


def load(handle: IO[bytes], where: str) -> Any:
    """Returns the object of a pickle: dict, list, tuple, str, bytes, int, bool, None, and `Array`.

    Raises:
      DataError: the file is damaged, too large, or contains or calls anything else. The message begins with `where`.
    """
    size = streams.size(handle)
    if size > MAX_FILE:
        raise DataError(f"has {count_of(size, 'byte')}; a file of this data set has at most {MAX_FILE}", path=where)
    with _Counted(io.FileIO(os.dup(handle.fileno()))) as stream:
        stream.seek(0)
        try:
            return _Unpickler(stream, size).load()
        except RefusedError as error:
            reason = str(error)
        except EOFError:
            reason = "it is cut short"
        except OSError as error:
            raise DataError(f"cannot be read: {reason_of(error)}", path=where) from None
        except Exception:  # operations of the machine check little, and some are missing
            reason = "it is damaged, or does what these files do not need"
        at = stream.tell()
    raise DataError(
        f"is not a pickle of this data set: {reason}, before byte {at} of {size}",
        path=where,
        advice="get the file again",
    )


class _Counted(io.BufferedReader):
    """A stream that ends a program after too many operations."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        """Returns the next bytes, fewer at the end."""
        self.reads += 1
        if self.reads > MAX_READS:
            raise RefusedError(f"it has more than {MAX_READS} operations")
        return super().read(size)


_Base: Any = pickle._Unpickler  # type: ignore[attr-defined]  # unknown to mypy


class _Unpickler(_Base):  # type: ignore[misc]
    """Python's machine, which calls nothing but the stand-ins below."""

    def __init__(self, stream: _Counted, size: int) -> None:
        super().__init__(stream, encoding="bytes")
        self._left_to_encode = size
        self._named: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): _NDARRAY,
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
            ("numpy.core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): self._reconstruct,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._named:
            raise RefusedError(f"it calls {f'{module}.{name}'!r:.80}")
        return self._named[module, name]

    def _reconstruct(self, kind: object, *_: object) -> Array:
        if kind is not _NDARRAY:
            raise RefusedError("it makes something other than an array")
        return Array()

    def _dtype(self, name: object, *_: object) -> object:
        if name not in _UINT8_NAMES:
            raise RefusedError("it holds an array of something other than uint8")
        return _UINT8

    def _encode(self, text: str, _: object) -> bytes:
        self._left_to_encode -= len(text)
        if self._left_to_encode < 0:  # one string, encoded again and again
            raise RefusedError("its strings are longer than the file")
        return text.encode("latin-1")

    def _build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, Array):
            _, built.shape, dtype, built.is_fortran, built.data = state
            if dtype is not _UINT8 or not isinstance(built.data, bytes):
                raise RefusedError("it holds an array of something other than uint8")
        elif built is not _UINT8:
            raise RefusedError("it gives a state to something other than an array")

    def _set_items(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or not all(isinstance(key, str | bytes) for key in items[::2]):
            raise RefusedError("it has a dictionary whose keys are not strings")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Callable[[Any], Any]]] = {
        **{_CODES[name]: _Base.dispatch[_CODES[name]] for name in _OPERATIONS.split()},
        _CODES["FRAME"]: lambda self: self.read(8),  # its length; the content is read like the rest
        _CODES["BUILD"]: _build,
        _CODES["SETITEM"]: lambda self: self._set_items([self.stack.pop(-2), self.stack.pop()]),
        _CODES["SETITEMS"]: lambda self: self._set_items(self.pop_mark()),
    }
