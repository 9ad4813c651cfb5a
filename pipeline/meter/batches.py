"""What is in a batch of any framework: its rows, its padding, its bytes. Device memory is never read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import UsageError


class Content(NamedTuple):
    """What one batch, or several, hold.

    Attributes:
      batches: their number.
      rows: over all local replicas.
      padding: rows of weight 0; None where there are no weights, or they lie on a device.
      num_bytes: of all numbers; strings are not counted.
    """

    batches: int = 0
    rows: int = 0
    padding: int | None = 0
    num_bytes: int = 0

    def plus(self, other: Content, sign: int = 1) -> Content:
        """Returns the content of both; with `sign` -1 that of this one without the other's."""
        unknown = self.padding is None or other.padding is None
        return Content(
            self.batches + sign * other.batches,
            self.rows + sign * other.rows,
            None if unknown else (self.padding or 0) + sign * (other.padding or 0),
            self.num_bytes + sign * other.num_bytes,
        )


def content_of(batch: Any, weights: int | None) -> Content:
    """Returns what a batch holds.

    Args:
      batch: arrays of NumPy, TensorFlow, PyTorch or JAX, or values of replicas, in any structure of tuples, lists and
        dicts.
      weights: the index of the component with one weight per row, if `batch` is a tuple; None: there is none.

    Raises:
      UsageError: there is no such component.
    """
    num_bytes = sum(map(_bytes_of, _leaves(batch)))
    of_rows = _weights(batch, weights)
    if not of_rows:
        return Content(1, sum(map(_rows_of, _first(batch))), None, num_bytes)
    rows = sum(math.prod(leaf.shape) for leaf in of_rows)
    if not all(map(_is_on_host, of_rows)):
        return Content(1, rows, None, num_bytes)
    return Content(1, rows, rows - sum(int(np.count_nonzero(leaf)) for leaf in of_rows), num_bytes)


def _weights(batch: Any, index: int | None) -> list[Any]:
    """Returns the weights, one array per replica; none where that component holds no floats."""
    if index is None or not isinstance(batch, tuple | list) or len(batch) < 2:
        return []
    if not -len(batch) <= index < len(batch):
        raise UsageError(f"weights={index}: a batch has {len(batch)} components; give the index of one, or None")
    found = list(_leaves(batch[index]))
    return found if all(map(_is_floating, found)) else []


def _parts(value: Any) -> Any:
    """Returns the members of a structure, or the values of the local replicas; None of an array."""
    if isinstance(value, tuple | list):
        return value
    if hasattr(value, "shape"):
        return None
    if isinstance(value, Mapping):
        return value.values()
    parts = getattr(value, "values", None)  # of a tf.distribute.DistributedValues
    return parts if isinstance(parts, tuple) else ()


def _leaves(value: Any) -> Iterator[Any]:
    parts = _parts(value)
    if parts is None:
        yield value
    else:
        for part in parts:
            yield from _leaves(part)


def _first(value: Any) -> list[Any]:
    """Returns the first array of a structure, of each local replica."""
    parts = _parts(value)
    if parts is None:
        return [value]
    if isinstance(value, tuple | list | Mapping):
        return next((found for part in parts if (found := _first(part))), [])
    return [leaf for part in parts for leaf in _first(part)]


def _rows_of(array: Any) -> int:
    return int(array.shape[0]) if len(array.shape) else 1


def _bytes_of(array: Any) -> int:
    dtype = array.dtype
    if not isinstance(array, np.ndarray) and not hasattr(array, "device"):  # not dense
        return sum(map(_bytes_of, _dense_parts(array)))
    if getattr(dtype, "hasobject", False) or getattr(dtype, "name", "") == "string":
        return 0
    size = int(getattr(dtype, "size", 0) or dtype.itemsize)
    return math.prod(array.shape) * size


def _dense_parts(array: Any) -> tuple[Any, ...]:
    """Returns what a RaggedTensor or a SparseTensor of TensorFlow is made of."""
    if hasattr(array, "flat_values"):
        return array.flat_values, *array.nested_row_splits
    return tuple(getattr(array, name) for name in ("indices", "values", "dense_shape") if hasattr(array, name))


def _is_floating(array: Any) -> bool:
    dtype = getattr(array, "dtype", None)
    for name in ("is_floating", "is_floating_point"):  # of TensorFlow and PyTorch
        if hasattr(dtype, name):
            return bool(getattr(dtype, name))
    return getattr(dtype, "kind", "") == "f"


def _is_on_host(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return True
    return "cpu" in str(getattr(array, "device", "")).lower().rpartition("device:")[2]
