"""Finds the record that caused an error in a batch, as errors of `tf.data` name no record."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from pipeline.batch.compose import judge_of, maker
from pipeline.errors import DataError, PipelineError, message_of
from pipeline.files.paths import folder
from pipeline.graph_calls import kept_error
from pipeline.order.order import MAX_STEP
from pipeline.order.views import LABEL
from pipeline.request import HOST, Request
from pipeline.resolved import ResolvedRequest, resolve_all

_OF_INPUT = "IteratorGetNext"  # the op that raises `tf.data`'s errors, as their messages name it
_ADVICE = "convert the data again, or skip it with on_corrupt='skip' (--on_corrupt=skip)"


@dataclasses.dataclass(frozen=True)
class Fed:
    """Steps of a request in which an error may have occurred.

    Attributes:
      request: request of the input that makes the batches.
      first_step, last_step: first step, and the one after the last.
    """

    request: Request
    first_step: int = 0
    last_step: int = MAX_STEP


@contextlib.contextmanager
def naming_records(fed: Callable[[], Iterable[Fed]]) -> Iterator[None]:
    """Context that turns an error of `tf.data` caused by one record into a DataError that names the record.

    Args:
      fed: function that returns the steps that may have failed; called after an error.

    Raises:
      DataError: a record is invalid.
    """
    try:
        yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        message = message_of(error)
        if _OF_INPUT in message and kept_error(message) is None:
            for steps in fed():
                if found := unusable(steps):
                    raise found from None
        raise


def unusable(fed: Fed) -> DataError | None:
    """Returns an error about the first invalid record of some steps; None if there is none.

    The records are read again and decoded one by one, or parsed as in their batches.
    """
    try:
        with tf.device("CPU:0"):
            resolved, shares = resolve_all(fed.request), fed.request.shares
            steps = fed.first_step, min(fed.last_step, resolved.last_step())
            each = (
                _of_source(part, *(min(shares.units_before(number, step), MAX_STEP) for step in steps))
                for number, part in enumerate(resolved.parts)
            )
            return next(filter(None, each), None)
    except (PipelineError, tf.errors.OpError):  # the original error says more
        return None


def _of_source(part: ResolvedRequest, first_step: int, last_step: int) -> DataError | None:
    """Returns an error about the first invalid record of some of a source's own steps; None if there is none."""
    request, judge = part.request, judge_of(part)
    plain = dataclasses.replace(
        request,
        parse=lambda records: records,
        augment=None,
        augment_on=HOST,
        resize=None,
        features=(),
        label=LABEL,
        weights="mask",
        class_weight=None,
        record_ids=True,
        on_corrupt="raise",
        max_corrupt=0,
        portable=False,
    )
    # Keep the request's order: it depends on the size of an example, which differs without images.
    made = maker(dataclasses.replace(part, request=plain))
    for records, *_, ids in made(first_step, last_step, None, False):
        problems = judge.problems(records.numpy().tolist())
        for problem, number in zip(problems, ids.numpy().tolist(), strict=True):
            if problem:
                file, row = part.selection.locate(number % part.order.num_stored)
                return DataError(problem, path=folder(request.folder) / file, record=row, advice=_ADVICE)
    return None
