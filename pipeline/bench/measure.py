"""Measures the parts of an input in turns, so that a change of the machine's speed affects all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tqdm

from pipeline.bench.result import Sample
from pipeline.decode.forms import Form
from pipeline.errors import DataError, root_cause
from pipeline.read.numpy_calls import message_of_input

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
READY = 5 + CORES  # elements that may be ready when a round begins: tf.data's buffers, and one per parallel call
_LONGEST = 2.0  # seconds of a round that is made longer to hold whole windows
_SHORTEST = 0.1  # of the wanted time, for a first estimate
_IDLE, _IDLE_SECONDS = 0.1, 0.005  # of a core, over this time: the threads of the other parts have filled their buffers
_MOST_WAITS = 100


@dataclasses.dataclass
class Part:
    """Something that is measured.

    Attributes:
      name: of the part.
      take: does so many units of work (steps, windows, passes) and returns their rows.
      ready: units that are taken before each round, since they may be ready.
      whole: units that belong together: a window's elements.
      by_steps: whether --steps says how many units a round has.
      settles: whether other parts are measured between its rounds; else these follow each other.
      count: units of a round.
    """

    name: str
    take: Callable[[int], int]
    ready: int = 0
    whole: int = 1
    by_steps: bool = False
    settles: bool = True
    count: int = 1

    def calibrate(self, seconds: float, steps: int | None) -> None:
        """Sets `count` to take about `seconds`, or to `steps`; compiles what is compiled first."""
        self.take(1)
        count, took = 1, _seconds(self.take, 1)
        while took < _SHORTEST * seconds:
            count *= 4
            took = _seconds(self.take, count)
        self.count = max(1, round(count * seconds / took))
        if steps is not None and self.by_steps:
            self.count = steps
        elif self.whole * took / count <= _LONGEST:
            self.count = -(-self.count // self.whole) * self.whole

    def sample(self) -> Sample:
        """Returns a round, after what was ready."""
        if self.settles:
            _settle()
        if self.ready:
            self.take(self.ready)
        began, processor = time.perf_counter(), time.process_time()
        rows = self.take(self.count)
        return Sample(rows, time.perf_counter() - began, time.process_time() - processor)


def measure(
    parts: Sequence[Part], rounds: int, seconds: float, steps: int | None, text: str
) -> dict[str, list[Sample]]:
    """Returns the samples of each part, by name; shows its progress on a terminal.

    Args:
      parts: what is measured.
      rounds: samples of each.
      seconds: of a sample, about.
      steps: of a sample of the parts that go by steps; None: as `seconds` says.
      text: what the progress bar says.
    """
    found: dict[str, list[Sample]] = {part.name: [] for part in parts}
    with tqdm.tqdm(total=len(parts) * (rounds + 1), desc=text, unit=" rounds", disable=None, leave=False) as bar:
        for part in parts:
            part.calibrate(seconds, steps)
            bar.update()
        for _ in range(rounds):
            for part in parts:
                found[part.name].append(part.sample())
                bar.update()
    return found


def _seconds(take: Callable[[int], int], count: int) -> float:
    began = time.perf_counter()
    take(count)
    return max(time.perf_counter() - began, 1e-9)


def _settle() -> None:
    """Waits until the threads of other parts have nothing more to do."""
    for _ in range(_MOST_WAITS):
        before = time.process_time()
        time.sleep(_IDLE_SECONDS)
        if time.process_time() - before < _IDLE * _IDLE_SECONDS:
            return


_DECODED_TOGETHER = 256  # as `decoded_split` does


def decoding(form: Form, records: tf.Tensor) -> Callable[[int], int]:
    """Returns a function that decodes images as a split that is kept is decoded, and returns how many.

    Args:
      form: of the records.
      records: serialized, string (n,); each call decodes the next 256 of them, so many times.
    """
    count = min(_DECODED_TOGETHER, int(records.shape[0]))

    @tf.function(autograph=False)
    def decode(part: tf.Tensor) -> Any:
        examples = form.examples({"record": part}, lambda: tf.zeros(tf.shape(part), tf.uint64))
        return examples.images, examples.labels, examples.features

    def take(times: int) -> int:
        for i in range(times):
            first = i * count % (int(records.shape[0]) - count + 1)
            decode(records[first : first + count])
        return times * count

    return take


def taking(batches: Any, rows_of: Callable[[Any], Any]) -> Callable[[int], int]:
    """Returns a function that takes so many elements, in one `tf.function` as the trainer does, and returns their rows.

    Args:
      batches: a dataset, of a strategy or not; of endless length.
      rows_of: returns the rows of an element, an int or an int64 scalar.
    """
    iterator = iter(batches)

    @tf.function(autograph=False)
    def advance(elements: Iterator[Any], count: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            element = next(elements)
            with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
                return done + 1, rows + rows_of(element)

        zero = tf.constant(0, tf.int64)
        return tf.while_loop(lambda done, _: done < count, body, (zero, zero), parallel_iterations=1)[1]

    def take(count: int) -> int:
        return int(advance(iterator, tf.constant(count, tf.int64)))

    return take


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """Context that reads the input.

    Raises:
      DataError: a shard is missing, changed or corrupt, or a function of the user failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        said = message_of_input(error.message) or root_cause(error.message)[1]
        raise DataError(said or type(error).__name__) from None
