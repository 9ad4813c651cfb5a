"""Calls the user's parser on records, and finds the records on which it fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.errors import UsageError, message_of, root_cause
from pipeline.graph_calls import UserFunction

_MOST_TRIED = 16  # most records to try, of a batch and of others, until a parser succeeds on one


class ParseJudge:
    """Finds the records on which the user's parser fails.

    A parser takes a batch, whose size it may rely on, and may fail for several records together. A record is to blame
    only if a batch that the parser accepts fails with this record in place of one of its rows, and a batch of copies of
    this record fails, too. If no batch is found that the parser accepts, no record is blamed.

    Args:
      parse: the user's parser.
      rows: number of records in each batch passed to the parser.
      others: function that returns more records, to find one that the parser accepts.
      training: whether the batches are for training.
    """

    def __init__(
        self, parse: UserFunction, rows: int, others: Callable[[], Iterable[bytes]] = tuple, training: bool = True
    ) -> None:
        self.rows, self._others = rows, others
        self._taken: list[bytes] | None = None  # a batch that the parser accepts

        def called(records: tf.Tensor) -> Any:
            return parse(records, lambda: tf.zeros([rows], tf.uint64), training)

        traced = tf.function(called, [tf.TensorSpec([rows], tf.string)], autograph=False)
        # Traced here, because the threads that check records would wait for each other's trace.
        try:
            with tf.device("CPU:0"):
                self._parse = traced.get_concrete_function()
            self._is_able = True  # whether such a batch may exist
        except Exception:  # not a function of a batch at all, which the input itself reports better
            self._is_able = False

    def problems(self, records: Sequence[bytes]) -> list[str | None]:
        """Returns for each record the parser's error; None for records that are not to blame for one."""
        found: list[str | None] = []
        for first in range(0, len(records), self.rows):
            found += self._of_batch(list(records[first : first + self.rows]))
        return found

    def _of_batch(self, records: list[bytes]) -> list[str | None]:
        batch = [*records, *records[-1:] * (self.rows - len(records))]
        if not self._is_able or self._error(batch) is None:
            self._taken = batch if self._is_able else None
            return [None] * len(records)
        if self._taken is None:
            candidates = itertools.chain(records[:_MOST_TRIED], itertools.islice(self._others(), _MOST_TRIED))
            batches = ([record] * self.rows for record in candidates)
            self._taken = next((batch for batch in batches if self._error(batch) is None), None)
            self._is_able = self._taken is not None
        return self._among(records) if self._taken else [None] * len(records)

    def _among(self, records: list[bytes]) -> list[str | None]:
        """Returns the problems of records, at most a batch: it tries halves of them until one is left."""
        assert self._taken is not None
        if self._error([*records, *self._taken[len(records) :]]) is None:
            return [None] * len(records)
        if len(records) > 1:
            half = len(records) // 2
            return self._among(records[:half]) + self._among(records[half:])
        return [self._error(records * self.rows)]

    def _error(self, batch: list[bytes]) -> str | None:
        try:
            with tf.device("CPU:0"):
                self._parse(tf.constant(batch))
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            return f"parse: {root_cause(message_of(error))[1]}"
        return None


class Supervised(NamedTuple):
    """A parser's result as Keras reads a tuple of two or three: inputs, targets and sample weights.

    Attributes:
      x: inputs.
      y: targets.
      sample_weight: float32, a row per record, in any structure; None if the parser returned a pair.
    """

    x: Any
    y: Any
    sample_weight: Any = None

    @classmethod
    def of(cls, given: Any, name: str = "parse") -> Supervised | None:
        """Returns the parts of a tuple or list of two or three; None for anything else.

        Args:
          given: result of the parser.
          name: name of the parser, for messages.

        Raises:
          UsageError: the third part cannot be sample weights.
        """
        if not isinstance(given, tuple | list) or len(given) not in (2, 3):
            return None
        x, y, *weights = given
        if not weights:
            return cls(x, y)
        for leaf in tf.nest.flatten(weights[0]):
            is_tensor = isinstance(leaf, tf.Tensor) and leaf.shape.rank is not None
            if not is_tensor or not (leaf.dtype.is_floating or leaf.dtype.is_bool):
                kind = f"{leaf.dtype.name} {leaf.shape}" if isinstance(leaf, tf.Tensor) else type(leaf).__name__
                raise UsageError(
                    f"{name}: the third of three parts is Keras' sample_weight, floating-point or bool, one per row; "
                    f"it is {kind}; cast weights to tf.float32, or return a dict for a loop of your own"
                )
        return cls(x, y, tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float32), weights[0]))


def parsed(parse: UserFunction, records: tf.Tensor, keys: Callable[[], tf.Tensor], training: bool) -> Any:
    """Returns the result of the user's parser: dense, ragged or sparse tensors in any structure, a row per record.

    Args:
      parse: the user's function.
      records: serialized records, string (rows,), with a static number of rows.
      keys: function that returns the key of each row, uint64 (rows,).
      training: whether the rows are for training.

    Raises:
      UsageError: the parser fails or returns something else. A number of rows that is not static is checked per batch.
    """
    given = parse(records, keys, training)
    given = _without_lists(given)
    leaves = tf.nest.flatten(given)
    if not leaves:
        raise _wrong(given, records)
    return tf.nest.pack_sequence_as(given, [_with_rows(leaf, given, records) for leaf in leaves])


def _without_lists(given: Any) -> Any:
    """Replaces lists by tuples in a structure, at any depth, because tf.data would stack a list into one tensor."""
    if isinstance(given, list):
        return tuple(map(_without_lists, given))
    if isinstance(given, tuple):
        parts = map(_without_lists, given)
        return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
    if isinstance(given, Mapping):
        return {name: _without_lists(part) for name, part in given.items()}
    return given


def _with_rows(leaf: Any, given: Any, records: tf.Tensor) -> Any:
    rows = records.shape[0]
    if leaf is None:
        raise _wrong(given, records)
    if not isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        leaf = tf.convert_to_tensor(leaf)
    if leaf.shape.rank == 0 or (leaf.shape.rank and leaf.shape[0] not in (None, rows)):
        raise _wrong(given, records)
    if leaf.shape.rank and leaf.shape[0] == rows:
        return leaf
    text = tf.strings.format(f"parse: the function returned {{}} rows for {rows} records", _num_rows(leaf))
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(_num_rows(leaf), rows), [text])]):
        checked = tf.nest.map_structure(tf.identity, leaf, expand_composites=True)
    if isinstance(checked, tf.Tensor) and leaf.shape.rank:
        checked.set_shape([rows, *leaf.shape[1:]])
    return checked


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    shape = leaf.dense_shape if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf, tf.int64)
    return shape[0]


def _wrong(given: Any, records: tf.Tensor) -> UsageError:
    text = tf.nest.map_structure(lambda leaf: str(getattr(leaf, "shape", leaf)), given)
    return UsageError(
        f"parse: the function must return tensors of {records.shape[0]} rows, one per record, in any structure; "
        f"their shapes are {text}"
    )
