"""The input as an iterator over NumPy arrays with storable state, for loops outside Keras and tf.distribute."""

from __future__ import annotations

import dataclasses
import json
import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.batch.compose import is_stacked, make_dataset
from pipeline.batch.diagnosis import Fed, unusable
from pipeline.errors import UsageError
from pipeline.graph_calls import error_of_input, kept_error
from pipeline.order.order import Spec
from pipeline.order.sharding import as_shard, whole_number
from pipeline.request import Request, Taking
from pipeline.resolved import resolve_all

_logger = logging.getLogger("pipeline")


class StepIterator(Iterator[tuple[Any, ...]]):
    """`input_fn` as an iterator with `get_state` and `set_state`.

        batches = StepIterator("demo/digits", global_batch_size=64, training=True, augment="shift")
        images, labels, weights = next(batches)
        state = json.dumps(batches.get_state())  # in another process: batches.set_state(json.loads(state))

    An element is `input_fn`'s, as NumPy arrays: numbers share the tensors' memory and are read-only; strings, and
    features that vary in length, are object arrays, one object per row. Small batches that are made together, up to 16
    MiB, also stay in memory together.

    The state is the step and the order spec, and does not depend on how far was read ahead. It is the same for all
    shards of a job, which may resume with any number of them. With `local_replicas` > 1 a step has that many elements,
    one per replica: element i belongs to step i // local_replicas, and state only exists between steps.

    Attributes:
      spec: arguments of the order.
    """

    @Taking(Request)
    def __init__(self, request: Request) -> None:
        """Checks the arguments; shards are only opened for the first element.

        Args:
          request: arguments of `input_fn`; global_batch_size and training are required.

        Raises:
          DataError: no valid data set in `data_dir`.
          UsageError: an argument cannot work; some concerning shards and images are only checked with the first
            element.
        """
        self._start(request)

    def _start(self, request: Request) -> None:
        self._request = request
        self.spec: Spec = resolve_all(self._request).spec
        shard = as_shard(self._request.shard)
        self._replicas = shard.local_replicas if shard else 1
        self._open: list[Iterator[Any]] = []  # the dataset's iterator, once it exists
        # Also when the interpreter exits: otherwise it and TensorFlow's read-ahead threads would wait for each other.
        weakref.finalize(self, self._open.clear)
        self._seek(self._request.start_step)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments and the state of `get_state`, so that the copy continues with the next element.

        Raises:
          UsageError: in the middle of a step of several local replicas.
        """
        return _resumed, (self._request, self.get_state())

    def _seek(self, step: int) -> None:
        self._first, self._given = step, 0
        self._open.clear()

    @property
    def step(self) -> int:
        """Global step of the next element."""
        return self._first + self._given // self._replicas

    def __next__(self) -> tuple[Any, ...]:
        """Returns the next element.

        Raises:
          DataError: a shard is missing, changed or corrupt.
          UsageError: an argument cannot work.
        """
        if not self._open:
            dataset = make_dataset(dataclasses.replace(self._request, start_step=self._first), stacked=True)
            self._open.append(_cut(dataset) if is_stacked(dataset, self._request) else _whole(dataset))
        try:
            element: tuple[Any, ...] = next(self._open[0])
        except tf.errors.OpError as error:
            message, fed = error.message, Fed(self._request, self.step, self.step + 1)
            if own := kept_error(message) or unusable(fed) or error_of_input(message):
                raise own from None
            raise
        self._given += 1
        return element

    def get_state(self) -> dict[str, Any]:
        """Returns the JSON-compatible state from which `set_state` resumes: `step`, `spec`, `spec_digest`.

        Raises:
          UsageError: in the middle of a step of several local replicas.
        """
        begun = self._given % self._replicas
        if begun:
            raise UsageError(
                f"get_state in the middle of step {self.step}: {begun} of its {self._replicas} local replicas have "
                "their rows; take the others' rows first"
            )
        return {"step": self.step, "spec": json.loads(self.spec.to_json()), "spec_digest": self.spec.digest}

    def set_state(self, state: Mapping[str, Any], *, allow_order_change: bool = False) -> None:
        """Continues at the step of a state. Nothing before it is read, except the beginning of compressed shards.

        A split that is kept in memory is read again, unless no element has been taken yet.

        Args:
          state: state from `get_state`, of any shard of the job.
          allow_order_change: whether to continue at that step even if the state belongs to a different order.

        Raises:
          UsageError: `state` is not a state, or belongs to a different order; the message names the fields that differ.
        """
        if not isinstance(state, Mapping) or not isinstance(state.get("spec"), Mapping) or "step" not in state:
            raise UsageError(f"state={state!r}: must be what get_state gave, with step, spec and spec_digest")
        step = whole_number("the state's step", state["step"], 0)
        changed = self.spec.differences(dict(state["spec"]), step)
        if changed and not allow_order_change:
            fields = "; ".join(f"{name} was {was}, is {now}" for name, (now, was) in changed.items())
            raise UsageError(
                f"the state is of another order of examples: {fields}; give the old values, or accept the new order "
                "with allow_order_change=True"
            )
        if not changed and state.get("spec_digest") != self.spec.digest:
            raise UsageError(
                f"the state's spec_digest is {state.get('spec_digest')!r}, but that of its spec is "
                f"{self.spec.digest!r}: it was changed by hand or is corrupt"
            )
        if note := self.spec.later_changes(dict(state["spec"]), step):
            _logger.warning("set_state: %s", note)
        if (step, 0) != (self.step, self._given % self._replicas):  # otherwise elements read ahead can be used
            self._seek(step)


def _resumed(request: Request, state: Mapping[str, Any]) -> StepIterator:
    iterator = StepIterator.__new__(StepIterator)
    iterator._start(request)
    iterator.set_state(state)
    return iterator


def _whole(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Yields the elements as NumPy arrays."""
    for element in dataset:
        yield tf.nest.map_structure(_array, element)


def _cut(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Yields the elements of groups as NumPy arrays.

    TensorFlow takes 55 us of processor time to hand three tensors to Python, as long as making a small batch.
    """
    for group in _whole(dataset):
        for number in range(len(group[-1])):
            yield tuple(
                {name: values[number] for name, values in part.items()} if isinstance(part, dict) else part[number]
                for part in group
            )


def _array(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        numbers, ends = np.asarray(value.values), value.row_splits.numpy()
        rows = np.empty(len(ends) - 1, object)
        for i in range(len(rows)):
            rows[i] = numbers[ends[i] : ends[i + 1]]
        return rows
    return np.asarray(value) if isinstance(value, tf.Tensor) else value
