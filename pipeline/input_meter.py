"""`InputMeter`: measures how long a loop waits for its input, and how much it gets."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from pipeline.commands.text import count_of, size_of
from pipeline.errors import UsageError
from pipeline.read import memory
from pipeline.read.shard_cache import CacheCounts, cache_counts

_MB = 1e6
_NO_CACHE = CacheCounts()
Batch = TypeVar("Batch")


class Content(NamedTuple):
    """The content of one or several batches.

    Attributes:
      batches: number of batches.
      rows: number of rows over all local replicas.
      padding: number of rows of weight 0; None if there are no weights, or they are in a device's memory.
      num_bytes: number of bytes, not counting strings.
    """

    batches: int = 0
    rows: int = 0
    padding: int | None = 0
    num_bytes: int = 0

    def plus(self, other: Content, sign: int = 1) -> Content:
        """Returns the sum, or the difference if `sign` is -1."""
        unknown = self.padding is None or other.padding is None
        return Content(
            self.batches + sign * other.batches,
            self.rows + sign * other.rows,
            None if unknown else (self.padding or 0) + sign * (other.padding or 0),
            self.num_bytes + sign * other.num_bytes,
        )


def content_of(batch: Any, weights: int | None) -> Content:
    """Returns the content of a batch.

    Args:
      batch: NumPy, TensorFlow, PyTorch or JAX arrays, or per-replica values, in any structure of tuples, lists and
        dicts.
      weights: index of the component with one weight per row, if `batch` is a tuple; None if there is none.

    Raises:
      UsageError: there is no such component.
    """
    num_bytes = sum(map(_bytes_of, _leaves(batch)))
    of_rows = _weights(batch, weights)
    if not of_rows:
        return Content(1, sum(int(leaf.shape[0]) if len(leaf.shape) else 1 for leaf in _first(batch)), None, num_bytes)
    rows = sum(math.prod(leaf.shape) for leaf in of_rows)
    if not all(map(_is_on_host, of_rows)):
        return Content(1, rows, None, num_bytes)
    return Content(1, rows, rows - sum(int(np.count_nonzero(leaf)) for leaf in of_rows), num_bytes)


def _weights(batch: Any, index: int | None) -> list[Any]:
    """Returns the weights, one array per replica; empty if that component is not floating-point."""
    if index is None or not isinstance(batch, tuple | list) or len(batch) < 2:
        return []
    if not -len(batch) <= index < len(batch):
        raise UsageError(f"weights={index}: a batch has {len(batch)} components; give the index of one, or None")
    found = list(_leaves(batch[index]))
    return found if all(map(_is_floating, found)) else []


def _parts(value: Any) -> Any:
    """Returns the members of a structure, or the values of the local replicas; None for an array."""
    if isinstance(value, tuple | list):
        return value
    if hasattr(value, "shape"):
        return None
    if isinstance(value, Mapping):
        return value.values()
    parts = getattr(value, "values", None)  # a tf.distribute.DistributedValues
    return parts if isinstance(parts, tuple) else ()


def _leaves(value: Any) -> Iterator[Any]:
    parts = _parts(value)
    if parts is None:
        yield value
    else:
        for part in parts:
            yield from _leaves(part)


def _first(value: Any) -> list[Any]:
    """Returns the first array of a structure for each local replica."""
    parts = _parts(value)
    if parts is None:
        return [value]
    if isinstance(value, tuple | list | Mapping):
        return next((found for part in parts if (found := _first(part))), [])
    return [leaf for part in parts for leaf in _first(part)]


def _bytes_of(array: Any) -> int:
    dtype = array.dtype
    if not isinstance(array, np.ndarray) and not hasattr(array, "device"):
        if hasattr(array, "flat_values"):  # a RaggedTensor, else a SparseTensor
            parts = (array.flat_values, *array.nested_row_splits)
        else:
            parts = tuple(getattr(array, name) for name in ("indices", "values", "dense_shape") if hasattr(array, name))
        return sum(map(_bytes_of, parts))
    if getattr(dtype, "hasobject", False) or getattr(dtype, "name", "") == "string":
        return 0
    size = int(getattr(dtype, "size", 0) or dtype.itemsize)
    return math.prod(array.shape) * size


def _is_floating(array: Any) -> bool:
    dtype = getattr(array, "dtype", None)
    for name in ("is_floating", "is_floating_point"):  # in TensorFlow and PyTorch
        if hasattr(dtype, name):
            return bool(getattr(dtype, name))
    return getattr(dtype, "kind", "") == "f"


def _is_on_host(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return True
    return "cpu" in str(getattr(array, "device", "")).lower().rpartition("device:")[2]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The amount of input that a loop has received so far, and the time it has waited.

    Times and rates leave out the first batch, which includes the start-up of the input: they cover the time from the
    first batch to the latest.

    Attributes:
      total: content of all batches.
      first: content of the first batch; empty if it is not part of `total`.
      start_seconds: seconds that the loop waited for the first batch.
      seconds: seconds since the first batch.
      waiting_seconds: seconds of these that the loop waited in `next`.
      resident_bytes: current memory of this process; 0 if unknown.
      peak_bytes: peak memory of this process; 0 if unknown.
      cache: cache counts over all inputs of this process (`cache_dir` of `input_fn`).
    """

    total: Content
    first: Content
    start_seconds: float
    seconds: float
    waiting_seconds: float
    resident_bytes: int
    peak_bytes: int
    cache: CacheCounts = _NO_CACHE

    @property
    def waiting_share(self) -> float:
        """Share of the time that the loop waits for its input: 0 if never, 1 if it does nothing else."""
        return self.waiting_seconds / self.seconds if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches per second."""
        return self._rate(self._timed.batches)

    @property
    def rows_per_second(self) -> float:
        """Rows per second, including padding."""
        return self._rate(self._timed.rows)

    @property
    def padding_per_second(self) -> float | None:
        """Rows of weight 0 per second; None if unknown."""
        padding = self._timed.padding
        return None if padding is None else self._rate(padding)

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second."""
        return self._rate(self._timed.num_bytes)

    def since(self, earlier: Snapshot) -> Snapshot:
        """Returns the figures for the interval since an earlier snapshot of the same meter."""
        return dataclasses.replace(
            self,
            total=self.total.plus(earlier.total, -1),
            first=self.first.plus(earlier.first, -1),
            seconds=self.seconds - earlier.seconds,
            waiting_seconds=self.waiting_seconds - earlier.waiting_seconds,
            cache=self.cache.plus(earlier.cache, -1),
        )

    def __str__(self) -> str:
        """Returns a one-line summary."""
        if not self.total.batches:
            return "no batch yet"
        start = f"first batch after {self.start_seconds:.2f} s"
        memory = f"memory {size_of(self.resident_bytes)}, at most {size_of(self.peak_bytes)}"
        memory += f"; {self.cache}" if any(self.cache) else ""
        if not self._timed.batches:
            return f"{count_of(self.total.rows, 'row')}, {start}; {memory}"
        padding = self.padding_per_second
        padded = "" if padding is None else f", {padding:,.1f} of them padding"
        return (
            f"waited {self.waiting_share:.1%} of {self.seconds:.3g} s ({start}); "
            f"{self.batches_per_second:,.1f} batches/s, {self.rows_per_second:,.0f} rows/s{padded}, "
            f"{self.bytes_per_second / _MB:,.1f} MB/s; {memory}"
        )

    @property
    def _timed(self) -> Content:
        return self.total.plus(self.first, -1)

    def _rate(self, amount: int) -> float:
        return amount / self.seconds if self.seconds else 0.0


class InputMeter(Iterator[Batch], Generic[Batch]):
    """Yields the batches of any input unchanged, and measures waiting time, rows, padding and bytes.

        batches = InputMeter(input_fn("demo/digits", global_batch_size=64, training=True))
        for step, (images, labels, weights) in zip(range(1000), batches):
            ...
        print(batches)  # waited 3.1% of 12.4 s (first batch after 0.52 s); 80.6 batches/s, 5,161 rows/s, ...

    It wraps anything that `for` accepts: datasets, the result of `distribute`, a `StepIterator`, PyTorch's DataLoader,
    generators. All other attributes (`get_state`, `set_state`, `element_spec`, ...) are the wrapped object's, whose
    state does not depend on being measured. For `tf.train.Checkpoint` keep the iterator itself: `iterator =
    iter(dataset)`, `Checkpoint(iterator=iterator)`, `InputMeter(iterator)`.

    It measures in Python: iterate outside `tf.function`, and pass the batch in. Keras' `fit` does not take this object,
    but takes a generator of it: `model.fit((batch for batch in meter), steps_per_epoch=...)`. A Keras thread then
    requests batches ahead of the steps, so that `waiting_share` is the share of the time that this thread waited, which
    is more than the steps waited.

    It costs about ten microseconds per batch. Weights in a device's memory are not inspected, because the loop would
    wait for the device; `padding` is then None.
    """

    def __init__(self, batches: Iterable[Batch], *, weights: int | None = -1) -> None:
        """Wraps an input.

        Args:
          batches: iterator, or an iterable, which each `for` starts again, as it would without a meter.
          weights: index of the batch's component with one weight per row: -1, the last, as in `input_fn`; -2 with
            `record_ids`. None if there are no weights. A component that is not floating-point does not count as
            weights.

        Raises:
          UsageError: an argument cannot work.
        """
        if not isinstance(batches, Iterable):
            raise UsageError(f"batches={batches!r}: must be something that can be iterated over")
        if weights is not None and (isinstance(weights, bool) or not isinstance(weights, int)):
            raise UsageError(f"weights={weights!r}: must be the index of a batch's component, such as -1, or None")
        self.wrapped = batches
        self._weights = weights
        self._iterator: Iterator[Batch] | None = None
        self._clock: Callable[[], float] = time.perf_counter
        self._total = self._first = Content()
        self._began = self._latest = self._start = self._waiting = 0.0

    def __iter__(self) -> InputMeter[Batch]:
        """Starts iterating over the wrapped object with the next batch; an iterator continues."""
        self._iterator = None
        return self

    def __next__(self) -> Batch:
        """Returns the next batch; raises the wrapped iterator's errors."""
        before = self._clock()
        try:
            if self._iterator is None:
                self._iterator = iter(self.wrapped)
            batch = next(self._iterator)
        finally:
            self._latest = self._clock()
            if self._total.batches:
                self._waiting += self._latest - before
            else:
                self._start += self._latest - before
                self._began = self._latest
        content = content_of(batch, self._weights)
        if not self._total.batches:
            self._first = content
        self._total = self._total.plus(content)
        return batch

    def snapshot(self) -> Snapshot:
        """Returns the figures up to the latest batch; `snapshot().since(earlier)` gives the figures for an interval."""
        used = memory.used()
        return Snapshot(
            self._total,
            self._first,
            self._start,
            self._latest - self._began,
            self._waiting,
            used.resident,
            used.peak,
            cache_counts(),
        )

    def __str__(self) -> str:
        return str(self.snapshot())

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped object."""
        if name.startswith("__") or "wrapped" not in self.__dict__:  # while the meter is copied or pickled
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the wrapped object, if possible; the copy starts measuring from zero."""
        return functools.partial(InputMeter, weights=self._weights), (self.wrapped,)
