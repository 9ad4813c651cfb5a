"""An iterator around any input that measures how long the loop waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from pipeline.errors import UsageError
from pipeline.meter.batches import Content, content_of
from pipeline.meter.snapshot import Snapshot
from pipeline.read import memory
from pipeline.read.cache_counts import cache_counts

Batch = TypeVar("Batch")


class InputMeter(Iterator[Batch], Generic[Batch]):
    """Yields the batches of any input as they are, and measures the waiting, the rows, the padding and the bytes.

        batches = InputMeter(input_fn("demo/digits", global_batch_size=64, training=True))
        for step, (images, labels, weights) in zip(range(1000), batches):
            ...
        print(batches)  # waited 3.1% of 12.4 s (first batch after 0.52 s); 80.6 batches/s, 5,161 rows/s, ...

    It wraps whatever `for` accepts: datasets, what `distribute` returns, a `StepIterator`, PyTorch's DataLoader,
    generators. What else it is asked for (`get_state`, `set_state`, `element_spec`, ...) is that of the wrapped object,
    whose state does not depend on being measured. For `tf.train.Checkpoint` keep the iterator itself:
    `iterator = iter(dataset)`, `Checkpoint(iterator=iterator)`, `InputMeter(iterator)`.

    It measures in Python: iterate outside `tf.function`, and pass the batch in. Keras' `fit` does not take this object,
    but takes a generator of it: `model.fit((batch for batch in meter), steps_per_epoch=...)`. There a thread of Keras
    asks for batches ahead of the steps, so that `waiting_share` is the share of the time in which that thread waited,
    which is more than the steps did.

    A batch costs about ten microseconds. Weights in a device's memory are not looked at, as the loop would wait for
    the device: padding is then None.
    """

    def __init__(self, batches: Iterable[Batch], *, weights: int | None = -1) -> None:
        """Wraps an input; nothing is taken from it yet.

        Args:
          batches: an iterator; or what can be iterated over, which each `for` begins anew, as it would without a meter.
          weights: the index of the batch's component with one weight per row: -1, the last, as of `input_fn`; -2 with
            `record_ids`. None: there are no weights. A component that holds no floats is not taken for weights.

        Raises:
          UsageError: an argument that cannot work.
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
        """Begins an iteration over the wrapped object with the next batch; of an iterator, continues."""
        self._iterator = None
        return self

    def __next__(self) -> Batch:
        """Returns the next batch, whatever it is; raises what the wrapped iterator raises."""
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
        """Returns the figures up to the latest batch; `snapshot().since(earlier)` are those of an interval."""
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
        """Returns the wrapped object's attribute, where there is no own."""
        if name.startswith("__") or "wrapped" not in self.__dict__:  # while it is copied or pickled
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the wrapped object, if it can be pickled; the copy begins to measure anew."""
        return _wrapped, (self.wrapped, self._weights)


def _wrapped(batches: Iterable[Batch], weights: int | None) -> InputMeter[Batch]:
    return InputMeter(batches, weights=weights)
