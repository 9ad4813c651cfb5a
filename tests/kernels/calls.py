"""Calls of compiled code, as bytes for the drivers, and their results; the numbers are the same as in the drivers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
TYPES = {"float": 1, "int32": 3, "uint8": 4, "string": 7, "int64": 9, "bool": 10}
DTYPES = {"float": np.float32, "int32": np.int32, "uint8": np.uint8, "int64": np.int64, "bool": np.bool_}
DTYPES |= {"string": np.object_}  # of bytes objects
_NUMBER, _BUFFER, _ALIAS, _FILE = range(4)


def _numbers(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def _taken(data: memoryview, size: int) -> tuple[bytes, memoryview]:
    assert len(data) >= size
    return bytes(data[:size]), data[size:]


def _number(data: memoryview) -> tuple[int, memoryview]:
    found, data = _taken(data, 8)
    return int.from_bytes(found, "little", signed=True), data


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array argument of a Python function.

    Attributes:
      content: bytes of the array.
      offset: offset of its start from a multiple of 64 bytes.
    """

    content: bytes
    offset: int = 0

    @classmethod
    def of(cls, array: Array, offset: int = 0) -> Buffer:
        return cls(array.tobytes(), offset)

    def to_bytes(self) -> bytes:
        return _numbers(_BUFFER, len(self.content), self.offset) + self.content


@dataclasses.dataclass(frozen=True)
class Alias:
    """A part of another argument's memory: which argument, from which byte, and how many bytes."""

    of: int
    begin: int
    size: int

    def to_bytes(self) -> bytes:
        return _numbers(_ALIAS, self.of, self.begin, self.size)


@dataclasses.dataclass(frozen=True)
class OpenedFile:
    """A descriptor of a file with some content."""

    content: bytes

    def to_bytes(self) -> bytes:
        return _numbers(_FILE, len(self.content), 0) + self.content


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input of an operation: an array, or a shape given by its values.

    Attributes:
      kind: type as in the operation's inputs.
      array: values of the tensor.
    """

    kind: str
    array: Array

    def to_bytes(self) -> bytes:
        shape = self.array.shape
        if self.kind == "string":
            strings = b"".join(_numbers(len(value)) + value for value in self.array.reshape(-1).tolist())
            return _numbers(TYPES[self.kind], len(shape), *shape, self.array.size) + strings
        array = np.ascontiguousarray(self.array, DTYPES[self.kind])
        return _numbers(TYPES[self.kind], len(shape), *shape, array.nbytes) + array.tobytes()


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a case.

    Attributes:
      problem: error message; empty if there is none.
      value: return value of a function, or status code of an operation.
      buffers: contents of a function's arrays afterwards.
      shape, output: output of an operation: its shape, and bytes, or a list of bytes for strings.
    """

    problem: str
    value: int
    buffers: tuple[bytes, ...] = ()
    shape: tuple[int, ...] = ()
    output: bytes | list[bytes] = b""


@dataclasses.dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
      name: name of a function or an operation.
      arguments: numbers, buffers, aliases and files; or tensors.
      output: type of the operation's output.
    """

    name: str
    arguments: tuple[int | Buffer | Alias | OpenedFile | Tensor, ...]
    output: str = ""

    def to_bytes(self) -> bytes:
        """Returns the call as bytes for a driver."""
        head = _numbers(len(self.name)) + self.name.encode() + _numbers(len(self.arguments))
        if all(isinstance(each, Tensor) for each in self.arguments):
            return head + b"".join(each.to_bytes() for each in self.arguments)  # type: ignore[union-attr]
        return head + b"".join(
            _numbers(_NUMBER, each) if isinstance(each, int) else each.to_bytes() for each in self.arguments
        )

    def result_of(self, data: memoryview) -> tuple[Result, memoryview]:
        """Returns the result at the beginning of a driver's output, and the rest of the output."""
        size, data = _number(data)
        problem, data = _taken(data, size)
        value, data = _number(data)
        if not self.output:
            buffers = []
            for each in self.arguments:
                if isinstance(each, Buffer):
                    content, data = _taken(data, len(each.content))
                    buffers.append(content)
            return Result(problem.decode(), value, tuple(buffers)), data
        if value:
            return Result(problem.decode(), value), data
        rank, data = _number(data)
        shape = []
        for _ in range(rank):
            size, data = _number(data)
            shape.append(size)
        if self.output != "string":
            output, data = _taken(data, math.prod(shape) * np.dtype(DTYPES[self.output]).itemsize)
            return Result("", 0, (), tuple(shape), output), data
        strings = []
        for _ in range(math.prod(shape)):
            size, data = _number(data)
            string, data = _taken(data, size)
            strings.append(string)
        return Result("", 0, (), tuple(shape), strings), data
