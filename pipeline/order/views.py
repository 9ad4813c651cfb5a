"""Views: how often each record occurs in an epoch, as integers computed only from columns, seed and epoch.

    classes  the records of some classes, with renumbered labels
    where    a condition for a record to be in an epoch
    limit    the first records of one fixed permutation, so that a smaller limit is a subset of a larger one
    balance  each class fills M positions of every epoch; each of its n records fills floor(M/n) or ceil(M/n) of them
    weigh    a record of weight w fills floor(w) or ceil(w) positions, w on average, of floor(sum w) in every epoch

An epoch's positions are then the records of the permuted shards, each repeated as often as it occurs; everything else
is as in docs/order.md. Sums are integers, because floating-point sums over many records would break the rules
(docs/views.md).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import math
import operator
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError, nearest, unknown
from pipeline.order.hashing import Domain, derive_key, permutation

I64 = NDArray[np.int64]
Where: TypeAlias = "str | Callable[[Mapping[str, NDArray[Any]]], Any] | None"

LABEL = "label"  # column of the labels
ONE_BITS = 20
ONE = 1 << ONE_BITS  # the weight 1 in fixed point
_MOST_POSITIONS = 1 << 40  # most positions per epoch, so that no product or sum below overflows
_BLOCK = 1 << 20  # weights to convert at a time
_MOST_NAMED = 20  # most classes in a message
_KEPT_EPOCHS = 2  # epochs whose positions stay in memory: the current one, and the one being planned
_LIMIT = re.compile(r"([1-9]\d{0,17})(?: per ([^\W\d]\w*))?")
_BALANCE = re.compile(r"([^\W\d]\w*)|sqrt\(([^\W\d]\w*)\)")
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.Mod: np.mod,
}
_OPERATORS = "and, or, not, in, not in, ==, !=, <, <=, >, >=, +, -, *, /, %"


class Columns(Protocol):
    """The part of `pipeline.manifest.columns.Columns` that views need."""

    @property
    def used(self) -> dict[str, str]:
        """CRC32C of each column that was read, by name."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns a column's values, by record id."""

    def names_of(self, name: str) -> tuple[str, ...]:
        """Returns the names that the values 0, 1, ... stand for."""

    def is_text(self, name: str) -> bool:
        """Returns whether a column has strings."""

    def name_of(self, record: int) -> str:
        """Returns the name of a record, for messages."""


@dataclasses.dataclass(frozen=True)
class View:
    """The choice of an epoch's records, and how often each occurs; by default every record once.

    Attributes:
      where: expression over columns, or a function of them that returns a mask.
      limit: number of records, or `500 per label`.
      balance: column whose values get the same number of positions, or `sqrt(label)` for half way between that and
        the natural share.
      weigh: column of weights.
      classes: names of the classes to take, in the order of their new numbers, as a sequence or separated by commas.

    Raises:
      UsageError: a value cannot work with any data.
    """

    where: Where = None
    limit: int | str | None = None
    balance: str | None = None
    weigh: str | None = None
    classes: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "classes", _checked_classes(self.classes))
        if self.where is not None and not callable(self.where):
            if not isinstance(self.where, str) or not self.where.strip():
                raise UsageError(f"where={self.where!r}: must be an expression, such as 'label > 3', or a function")
            _parsed(self.where)
        self._limited()
        if self.balance is not None:
            self._balanced()
        for name, column in self.repeating.items():
            if not isinstance(column, str):
                raise UsageError(f"{name}={column!r}: must be the name of a column")
        if len(self.repeating) > 1:
            raise UsageError(
                f"weigh={self.weigh!r} with balance={self.balance!r}: both say how often a record is there; give one"
            )

    def __bool__(self) -> bool:
        return self != View()

    @property
    def repeating(self) -> dict[str, Any]:
        """The values, by name, that may make a record occur more than once in an epoch."""
        given = {"balance": self.balance, "weigh": self.weigh}
        return {name: value for name, value in given.items() if value is not None}

    def resolve(self, columns: Columns, num_records: int, seed: int, split: str) -> tuple[Times, str]:
        """Returns how often each record of a selection occurs in an epoch, and the view's text for the order spec.

        Raises:
          DataError: a column's file is missing, or from another conversion.
          UsageError: a column, class or operator is unknown, the view has no record, or a weight is not a number.
        """
        mask = self.mask(columns, num_records)
        # 32 bits if possible, for half the memory.
        kind = np.int32 if num_records < 1 << 31 else np.int64
        chosen: NDArray[Any] = np.arange(num_records, dtype=kind) if mask is None else np.flatnonzero(mask).astype(kind)
        if not len(chosen):
            given = {"classes": self.classes and ",".join(self.classes), "where": self.where and _shown(self.where)}
            by = " with ".join(f"{name}={value}" for name, value in given.items() if value)
            raise UsageError(f"{by}: keeps none of the {num_records:,} records of {split!r}")
        if self.limit is not None:
            chosen = self._first(chosen, columns)
        if self.balance is not None:
            times = self._balance(chosen, columns, num_records, seed)
        elif self.weigh is not None:
            times = self._weigh(chosen, columns, num_records, seed, split)
        else:
            times = Times(num_records, None if len(chosen) == num_records else chosen, len(chosen), seed)
        return times, self._text(columns, mask)

    def _text(self, columns: Columns, mask: NDArray[np.bool_] | None) -> str:
        """Returns the view as text, with the CRC32Cs of its columns, which reveal changed values."""
        where = ast.unparse(_parsed(self.where)) if isinstance(self.where, str) else None
        if callable(self.where) and mask is not None:
            where = f"mask {hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:16]}"
        classes = None if self.classes is None else ", ".join(self.classes)
        given = {"classes": classes, "where": where, "limit": self.limit, "balance": self.balance, "weigh": self.weigh}
        parts = [f"{name}: {value}" for name, value in given.items() if value is not None]
        parts += [f"column {name}: {crc}" for name, crc in sorted(columns.used.items())]
        return "; ".join(parts)

    def _limited(self) -> tuple[int, str | None] | None:
        """Returns the number of records, and the column if the number applies to each of its values."""
        if self.limit is None:
            return None
        match = None if isinstance(self.limit, bool) else _LIMIT.fullmatch(str(self.limit).strip())
        if match is None:
            raise UsageError(f"limit={self.limit!r}: must be a number of records from 1 on, or such as '500 per label'")
        return int(match[1]), match[2]

    def _balanced(self) -> tuple[str, bool]:
        """Returns the column to balance by, and whether to balance by the square root."""
        match = _BALANCE.fullmatch(self.balance) if isinstance(self.balance, str) else None
        if match is None:
            raise UsageError(f"balance={self.balance!r}: must be the name of a column, or such as 'sqrt(label)'")
        return match[1] or match[2], match[2] is not None

    def mask(self, columns: Columns, num_records: int) -> NDArray[np.bool_] | None:
        """Returns the mask of records that `classes` and `where` keep, bool (records,); None for all."""
        of_classes: NDArray[np.bool_] | None = None
        if self.classes is not None:
            labels = self._column(LABEL, columns, "classes")
            of_classes = np.isin(labels, class_numbers(self.classes, columns.names_of(LABEL)))
        if self.where is None:
            return of_classes
        if callable(self.where):
            found = np.asarray(self.where(columns))  # type: ignore[arg-type]
            if found.dtype != np.bool_ or found.shape != (num_records,):
                raise UsageError(
                    f"where: the function must return bool ({num_records},), a truth value per record; it returned "
                    f"{found.dtype} {found.shape}"
                )
        else:
            found = _Expression(self.where, columns, num_records).mask()
        return found if of_classes is None else of_classes & found

    def _first(self, chosen: NDArray[Any], columns: Columns) -> NDArray[Any]:
        """Returns the records within the limit. A record's rank depends only on its id, not on other records."""
        limit, per = self._limited() or (len(chosen), None)
        with np.errstate(over="ignore"):
            keys = derive_key(Domain.LIMIT, chosen)
        if per is None:
            return np.sort(chosen[np.argsort(keys, kind="stable")[:limit]])
        codes = self._codes(per, columns, "limit", chosen)
        order = np.lexsort((keys, codes))
        ordered = codes[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        return np.sort(chosen[order[rank < limit]])

    def _codes(self, name: str, columns: Columns, argument: str, chosen: NDArray[Any]) -> NDArray[Any]:
        values = self._column(name, columns, argument)
        if values.dtype.kind not in "iu":
            given = getattr(self, argument)
            raise UsageError(f"{argument}={given!r}: the column {name!r} has {values.dtype}, not whole numbers")
        return values if len(chosen) == len(values) else values[chosen]

    def _column(self, name: str, columns: Columns, argument: str) -> NDArray[Any]:
        try:
            return columns[name]
        except UsageError as error:
            raise UsageError(f"{argument}={getattr(self, argument)!r}: {error}") from None

    def _balance(self, chosen: NDArray[Any], columns: Columns, num_records: int, seed: int) -> Times:
        name, by_root = self._balanced()
        codes = self._codes(name, columns, "balance", chosen)
        members = np.argsort(codes, kind="stable").astype(chosen.dtype)
        found, counts = np.unique(codes, return_counts=True)
        # A class that `where` leaves out on purpose is not missing.
        nodes = ast.walk(_parsed(self.where)) if isinstance(self.where, str) else ()
        is_chosen = any(isinstance(node, ast.Name) and node.id == name for node in nodes)
        is_chosen |= self.classes is not None and name == LABEL
        for code, text in enumerate(columns.names_of(name)):
            if code not in found and not is_chosen:
                raise UsageError(
                    f"balance={self.balance!r}: the class {text!r} has no record to fill its rows; choose the others "
                    f"with where, such as '{name} != {text!r}'"
                )
        most = int(counts.max())
        sizes = np.array([math.isqrt(n * most) if by_root else most for n in counts.tolist()], np.int64)
        strata = Strata(members, found.astype(np.int64), counts.astype(np.int64), sizes)
        records = None if len(chosen) == num_records else chosen
        return Times(num_records, records, int(sizes.sum()), seed, strata=strata)

    def _weigh(self, chosen: NDArray[Any], columns: Columns, num_records: int, seed: int, split: str) -> Times:
        assert self.weigh is not None
        weights = self._column(self.weigh, columns, "weigh")
        if columns.is_text(self.weigh):
            raise UsageError(f"weigh={self.weigh!r}: the column has strings, not weights")
        weights = weights if len(chosen) == num_records else weights[chosen]
        with np.errstate(invalid="ignore"):
            wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
        if len(wrong):
            record = int(chosen[wrong[0]])
            raise UsageError(
                f"weigh={self.weigh!r}: the weight of {columns.name_of(record)} is {weights[wrong[0]]}, must be 0 or "
                f"more; leave such records out with where ({len(wrong):,} of {len(weights):,})"
            )
        # Half a unit rounds up, as in docs/views.md. Most weights fit into 32 bits, half the memory of 64.
        most = float(weights.max()) if len(weights) else 0.0
        if float(weights.sum(dtype=np.float64)) >= _MOST_POSITIONS:
            raise UsageError(f"weigh={self.weigh!r}: weights up to {most:g} make too long an epoch; divide them")
        fixed: NDArray[Any] = np.empty(len(weights), np.uint32 if most < (1 << 32 - ONE_BITS) - 1 else np.int64)
        for at in range(0, len(weights), _BLOCK):
            fixed[at : at + _BLOCK] = np.floor(weights[at : at + _BLOCK].astype(np.float64) * ONE + 0.5)
        wanted = fixed > 0
        if not wanted.all():
            chosen, fixed = chosen[wanted], fixed[wanted]
        total = int(fixed.sum(dtype=np.int64))
        if total < ONE:
            raise UsageError(f"weigh={self.weigh!r}: the weights of {split!r} add up to {total / ONE:.3g}, less than 1")
        records = None if len(chosen) == num_records else chosen
        return Times(num_records, records, total >> ONE_BITS, seed, weights=fixed)


class Strata(NamedTuple):
    """The classes to balance.

    Attributes:
      members: chosen records, by number, class by class, int32 or int64 (n,).
      codes, counts, sizes: value, number of records and number of positions of each class; (classes,).
    """

    members: NDArray[Any]
    codes: I64
    counts: I64
    sizes: I64


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """How often each record of a selection occurs in an epoch.

    Attributes:
      num_stored: number of records in the selection. Copy j of record r has the id r + j * num_stored, so that copies
        are augmented differently.
      records: records that ever occur, ascending, int32 or int64 (n,); None for all.
      total: number of positions in every epoch.
      seed: seed of the order.
      strata: classes to balance; None without `balance`.
      weights: weight of each of `records`, in units of 1 / ONE; None without `weigh`.
    """

    num_stored: int
    records: NDArray[Any] | None
    total: int
    seed: int
    strata: Strata | None = None
    weights: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Creates the cache of the latest epochs."""
        object.__setattr__(self, "_kept", {})
        object.__setattr__(self, "_lock", threading.Lock())

    def __reduce__(self) -> tuple[Any, ...]:
        return Times, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def repeats(self) -> bool:
        """Whether a record may occur more than once."""
        return self.strata is not None or self.weights is not None

    @property
    def num_chosen(self) -> int:
        """Number of records that ever occur."""
        return self.num_stored if self.records is None else len(self.records)

    def ids(self, numbers: I64) -> I64:
        """Returns the record ids for numbers of chosen records, int64 (...)."""
        return numbers if self.records is None else self.records[numbers].astype(np.int64, copy=False)

    def of(self, epoch: int) -> NDArray[Any]:
        """Returns how often each chosen record occurs in an epoch, (n,)."""
        if self.strata is not None:
            return self._balanced(self.strata, epoch)
        if self.weights is not None:
            return self._weighed(self.weights, epoch)
        return np.ones(self.num_chosen, np.int64)

    @property
    def _dtype(self) -> type[np.integer[Any]]:
        return np.int32 if self.total < 1 << 31 else np.int64

    def ends(self, epoch: int) -> NDArray[Any] | None:
        """Returns the number of positions of an epoch up to the end of each chosen record, (n,); None if each has one.

        The results for the last two epochs are kept.
        """
        if not self.repeats:
            return None
        kept: dict[int, NDArray[Any]] = self._kept  # type: ignore[attr-defined]
        with self._lock:  # type: ignore[attr-defined]
            if epoch not in kept:
                while len(kept) >= _KEPT_EPOCHS:  # before allocating memory for another epoch
                    kept.pop(next(iter(kept)))
                kept[epoch] = np.cumsum(self.of(epoch), dtype=self._dtype)
            return kept[epoch]

    def _balanced(self, strata: Strata, epoch: int) -> NDArray[Any]:
        times, start = np.empty(self.num_chosen, self._dtype), 0
        keys = derive_key(Domain.BALANCE, self.seed, epoch, strata.codes)
        for key, count, size in zip(keys, strata.counts.tolist(), strata.sizes.tolist(), strict=True):
            bounds = np.arange(count + 1) * size // count
            times[strata.members[start : start + count][permutation(key, count)]] = np.diff(bounds)
            start += count
        return times

    def _weighed(self, weights: NDArray[Any], epoch: int) -> NDArray[Any]:
        # Every weight is an interval on a line, in permuted order; a record occurs once for each whole number that its
        # interval passes or ends at. The line begins where it contains `total` whole numbers in every epoch.
        turn = permutation(derive_key(Domain.WEIGH, self.seed, epoch), len(weights))
        room = ONE - (int(weights.sum(dtype=np.int64)) & ONE - 1)
        at = int(derive_key(Domain.WEIGH_START, self.seed, epoch)) % room
        times = np.empty(len(weights), self._dtype)
        for start in range(0, len(turn), _BLOCK):  # so that only the permutation takes 64 bits per record
            some = turn[start : start + _BLOCK]
            ends = np.cumsum(weights[some], dtype=np.int64) + at
            times[some] = np.diff(ends >> ONE_BITS, prepend=at >> ONE_BITS)
            at = int(ends[-1])
        return times

    def counts(self, firsts: I64) -> I64:
        """Returns the number of chosen records before each record id, int64 (...); for a chosen one, its number."""
        if self.records is None:
            return firsts
        return np.searchsorted(self.records, firsts.astype(self.records.dtype))  # or `records` would be copied


class Located(NamedTuple):
    """The records at some positions.

    Attributes:
      pieces: segment, first record and end of each piece to read, in order, int64 (p, 3). Neighbours are one piece.
      ids: record id at each position, (n,), plus a multiple of `num_stored` for copies.
      times: number of the positions that each record read fills, (records read,); empty if each fills one.
    """

    pieces: I64
    ids: I64
    times: I64


@dataclasses.dataclass(frozen=True, eq=False)
class EpochPositions:
    """An epoch's records in stored order, each repeated as often as it occurs: the stored positions.

    Attributes:
      times: occurrences of records in the view.
      ends: stored position after the last of each chosen record, (n,); None if each occurs once.
    """

    times: Times
    ends: NDArray[Any] | None

    def before(self, numbers: I64) -> I64:
        """Returns the number of stored positions before chosen records, given their numbers, 0..n."""
        if self.ends is None:
            return numbers
        return np.where(numbers > 0, self.ends[np.maximum(numbers - 1, 0)], 0).astype(np.int64, copy=False)

    def located(self, segments: I64, first_records: I64, begin: I64, end: I64) -> Located:
        """Returns the records at stored positions begin[i]..end[i]-1, interval by interval.

        Args:
          segments: segment of each interval.
          first_records: id of the first record of each of these segments.
          begin, end: bounds of each interval; no interval is empty.
        """
        intervals = np.arange(len(begin))
        if self.ends is None:
            numbers, of_interval = consecutive(begin, end - begin), np.repeat(intervals, end - begin)
            ids = records = self.times.ids(numbers)
            counts = np.arange(0)
        else:
            low = self._holding(begin)
            high = self._holding(end - 1) + 1
            numbers, of_interval = consecutive(low, high - low), np.repeat(intervals, high - low)
            starts = self.before(numbers)
            first = np.maximum(starts, begin[of_interval])
            counts = np.minimum(self.ends[numbers], end[of_interval]) - first
            there = counts > 0
            copies = consecutive((first - starts)[there], counts[there])
            numbers, of_interval, counts = numbers[there], of_interval[there], counts[there]
            records = self.times.ids(numbers)
            ids = np.repeat(records, counts) + copies * self.times.num_stored
        return Located(pieces_of(segments[of_interval], records - first_records[of_interval]), ids, counts)

    def _holding(self, positions: I64) -> I64:
        """Returns the number of the chosen record at each stored position."""
        assert self.ends is not None
        # NumPy would convert `ends`, which may be long, if the dtypes differed.
        return np.searchsorted(self.ends, positions.astype(self.ends.dtype, copy=False), "right")


def consecutive(first: I64, counts: I64) -> I64:
    """Returns first[0], first[0] + 1, ... (counts[0] of them), first[1], ...: int64 (sum of counts,)."""
    offsets = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.arange(len(offsets)) + offsets


def pieces_of(segments: I64, numbers: I64) -> I64:
    """Returns the pieces that contain some records, in order: segment, first record and end; int64 (p, 3).

    Args:
      segments: segment of each record, (n,).
      numbers: number of each record in its segment, (n,).
    """
    if not len(numbers):
        return np.zeros((0, 3), np.int64)
    is_apart = (np.diff(numbers) != 1) | (np.diff(segments) != 0)
    first, last = np.append(True, is_apart), np.append(is_apart, True)
    return np.stack([segments[first], numbers[first], numbers[last] + 1], axis=1)


def _checked_classes(given: Any) -> tuple[str, ...]:
    """Returns the class names in a text with commas, or in a sequence."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    is_sequence = isinstance(names, list | tuple) and len(names) > 0
    if not is_sequence or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"classes={given!r}: must be names of classes, such as 'cat,dog' or ['cat', 'dog']")
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise UsageError(f"classes={given!r}: names {twice[0]!r} twice")
    return tuple(names)


def class_numbers(classes: Sequence[str], class_names: Sequence[str]) -> list[int]:
    """Returns the numbers of classes, given their names and the names of all classes.

    Raises:
      UsageError: there is no class of that name.
    """
    numbers = {name: number for number, name in enumerate(class_names)}
    for name in classes:
        if name not in numbers:
            raise unknown("classes", name, class_names)
    return [numbers[name] for name in classes]


def _shown(where: Where) -> str:
    return repr(where) if isinstance(where, str) else getattr(where, "__name__", "a function")


@functools.lru_cache(64)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(
            f"where={text!r}: is not an expression; write such as 'label in (3, 5) and width >= 28'"
        ) from None


class _Expression:
    """Evaluates an expression over whole columns. Only listed constructs are allowed; nothing is run as code."""

    def __init__(self, text: str, columns: Columns, num_records: int) -> None:
        self._text, self._columns, self._count = text, columns, num_records

    def mask(self) -> NDArray[np.bool_]:
        """Returns the mask of records that the expression keeps, bool (records,)."""
        try:
            with np.errstate(all="ignore"):
                return np.broadcast_to(self._truth(_parsed(self._text)), self._count)
        except RecursionError:
            raise UsageError(f"where={self._text[:80]!r}...: is nested too deeply; write it shorter") from None

    def _error(self, problem: str) -> UsageError:
        return UsageError(f"where={self._text!r}: {problem}")

    def _truth(self, node: ast.expr) -> Any:
        """Returns a condition as bool (records,)."""
        if isinstance(node, ast.BoolOp):
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return functools.reduce(combine, map(self._truth, node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return np.logical_not(self._truth(node.operand))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            compared = [self._compared(*each) for each in zip(sides, node.ops, sides[1:], strict=False)]
            return functools.reduce(np.logical_and, compared)
        if isinstance(node, ast.BinOp | ast.Constant | ast.Name | ast.UnaryOp):
            raise self._error(
                f"{ast.unparse(node)!r} is not a condition; compare it, such as '{ast.unparse(node)} > 0'"
            )
        raise self._refused(node)

    def _refused(self, node: ast.AST) -> UsageError:
        name = getattr(node, "op", node)
        return self._error(
            f"{ast.unparse(node)!r} ({type(name).__name__}) is not understood; "
            f"there are names of columns, numbers, strings, and {_OPERATORS}"
        )

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(operator, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
                raise self._error(f"after 'in' comes a list of values, such as (3, 5), not {ast.unparse(right)!r}")
            found = functools.reduce(np.logical_or, (self._equal(left, each) for each in right.elts))
            return np.logical_not(found) if isinstance(operator, ast.NotIn) else found
        if isinstance(operator, ast.Eq):
            return self._equal(left, right)
        if isinstance(operator, ast.NotEq):
            return np.logical_not(self._equal(left, right))
        if type(operator) not in _COMPARISONS:
            raise self._error(f"{type(operator).__name__} is not understood; there are {_OPERATORS}")
        return _COMPARISONS[type(operator)](self._number(left), self._number(right))

    def _equal(self, left: ast.expr, right: ast.expr) -> Any:
        for one, other in ((left, right), (right, left)):
            if isinstance(other, ast.Constant) and isinstance(other.value, str):
                if not isinstance(one, ast.Name):
                    shown = ast.unparse(other), ast.unparse(one)
                    raise self._error(f"{shown[0]} can only be compared with a column, not {shown[1]!r}")
                return np.equal(self._column(one.id), self._code(one.id, other.value))
        return np.equal(self._number(left), self._number(right))

    def _code(self, name: str, value: str) -> int:
        names = self._columns.names_of(name)
        if value not in names:
            near = nearest(value, names)
            hint = f"did you mean {near!r}? " if near else ""
            some = ", ".join(names[:_MOST_NAMED]) + (
                f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED)
            )
            known = f"known: {some}" if names else "its values are numbers"
            raise self._error(f"the column {name!r} has no value {value!r}; {hint}{known}")
        return names.index(value)

    def _column(self, name: str) -> Any:
        try:
            return self._columns[name]
        except UsageError as error:
            raise UsageError(f"where={self._text!r}: {error}") from None

    def _number(self, node: ast.expr) -> Any:
        """Returns an operand: a scalar, or the values of a column, computed in 64 bits."""
        if isinstance(node, ast.Name):
            found = self._column(node.id)
            if self._columns.is_text(node.id):
                raise self._error(f"the column {node.id!r} has strings; compare it with one by ==, != or in")
            return found
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            if isinstance(node.value, int) and not -(1 << 63) <= node.value < 1 << 63:
                raise self._error(f"{node.value} is not in the range of a signed 64-bit integer")
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = _wide(self._number(node.operand))
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return self._computed(node)
        raise self._refused(node)

    def _computed(self, node: ast.BinOp) -> Any:
        compute = _ARITHMETIC[type(node.op)]
        left, right = _wide(self._number(node.left)), _wide(self._number(node.right))
        if isinstance(node.op, ast.Div | ast.Mod) and np.ndim(right) == 0 and right == 0:
            raise self._error(f"{ast.unparse(node)!r} divides by 0")
        found = compute(left, right)
        if np.asarray(found).dtype.kind in "iuO":
            near = compute(np.asarray(left, np.float64), np.asarray(right, np.float64))
            if np.any(np.abs(near) >= 1 << 63):
                raise self._error(f"{ast.unparse(node)!r} leaves the range of signed 64-bit integers")
        return found


def _wide(value: Any) -> Any:
    """Returns a value in 64 bits, so that sums and products of columns do not overflow."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64 if value.dtype.kind == "f" else np.int64)
    return value


Intervals: TypeAlias = tuple[tuple[int, int], ...]


def checked_skips(given: Any) -> Intervals:
    """Returns the steps to skip as (first, end) pairs, sorted and merged.

    Args:
      given: pairs, or a text such as `12300:12360,20000:20010`.

    Raises:
      UsageError: `given` is neither, or a pair is empty or negative.
    """
    pairs = [part.split(":") for part in given.split(",") if part.strip()] if isinstance(given, str) else given
    found: list[tuple[int, int]] = []
    try:
        whole: Any = int if isinstance(given, str) else operator.index
        for first, stop in sorted((whole(first), whole(stop)) for first, stop in pairs):
            if not 0 <= first < stop < 1 << 62:
                raise UsageError(f"skip_steps: {first}:{stop} has no step; give the first and the one after the last")
            if found and first <= found[-1][1]:
                found[-1] = found[-1][0], max(stop, found[-1][1])
            else:
                found.append((first, stop))
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"skip_steps={given!r}: must be pairs of a first step and the one after the last, such as [(12300, 12360)]"
        ) from None
    return tuple(found)


def skips_text(skips: Intervals) -> str:
    """Returns steps to skip in the form of the flag: `12300:12360,20000:20010`, or `none`."""
    return ",".join(f"{first}:{stop}" for first, stop in skips) or "none"


def covers(skips: Intervals, step: int) -> bool:
    """Returns whether a global step is skipped."""
    return any(first <= step < stop for first, stop in skips)


def is_skipped(steps: I64, skips: Intervals) -> NDArray[np.bool_]:
    """Returns whether each global step (n,) is skipped, bool (n,)."""
    return np.searchsorted(np.array(skips, np.int64).reshape(-1), steps, "right") % 2 == 1
