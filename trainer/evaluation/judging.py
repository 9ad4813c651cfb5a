"""Evaluates a model on exactly the whole split."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.batch.compose import make_dataset
from pipeline.errors import DataError, UsageError
from pipeline.random_access import RandomAccess
from pipeline.resolved import ResolvedRequest
from trainer.evaluation.report import Mistake, Report
from trainer.inference import Trained
from trainer.step.state import Forward
from trainer.task import Evaluation, Sums, added, classes_of, gives_probabilities, result_of

_TINY = 1e-30  # least probability whose logarithm is taken

Array = NDArray[Any]
Step = Callable[[Any, Any, tf.Tensor], tuple[Sums, Any]]


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Results of a model on a split.

    Attributes:
      evaluation: the loss and the metrics of its task.
      report: of classes and mistakes; None: the model's outputs are not a number for each class.
      images: of the report's mistakes, as stored; as the model got them if records can only be read forward.
    """

    evaluation: Evaluation
    report: Report | None
    images: list[NDArray[np.generic]]


class Judge:
    """Evaluates a model with the weights that it has at the time."""

    def __init__(self, trained: Trained, most_mistakes: int) -> None:
        """Opens the split.

        Args:
          trained: the model and the split.
          most_mistakes: that the report has.
        """
        self._trained, self._most = trained, most_mistakes
        self._classes = classes_of(trained.model, trained.state.task.data)
        self._passes = {name: _Pass.of(name, split, len(trained.splits)) for name, split in trained.splits.items()}
        self._step = _step(trained)

    def judge(self) -> Judgement:
        """Returns the judgement on the whole split.

        Raises:
          DataError: a record is corrupt, or an output is not finite.
          PipelineError: the rows are not exactly those of the split.
        """
        trained, totals, first = self._trained, dict[str, dict[str, tf.Tensor]](), 0
        tally = None if self._classes is None else Tally(self._classes, self._most)
        for name, one in self._passes.items():
            totals[name] = self._sums(one, tally, first)
            first += one.split.order.num_stored
        evaluation = result_of(
            trained.splits, totals, trained.state.measure, trained.may_skip, averaged=trained.averaged
        )
        if tally is None:
            return Judgement(evaluation, None, [])
        report = tally.report()
        return Judgement(evaluation, report, self._stored_images(report) or tally.images())

    def _sums(self, one: _Pass, tally: Tally | None, first: int) -> dict[str, tf.Tensor]:
        """Returns the sums over a split; the tally numbers its records from `first` on."""
        totals: dict[str, tf.Tensor] = {}
        for x, y, weights, records in one.batches:
            keys, features = (x["key"], x["image"]) if one.has_keys else (None, x)
            sums, outputs = self._step(features, y, weights)
            labels = tf.argmax(y, axis=1) if tally and y.shape.rank == 2 else y  # no row is mixed here
            totals = added(totals, sums)
            if tally:
                real = weights.numpy() > 0
                named = None if keys is None else [one.prefix + key for key in keys.numpy()[real].tolist()]
                tally.add(records.numpy()[real] + first, named, *(v.numpy()[real] for v in (labels, outputs, features)))
        return totals

    def _stored_images(self, report: Report) -> list[NDArray[np.generic]]:
        """Returns the images of the mistakes as stored; none if records cannot be read one by one."""
        examples = []
        for split in self._trained.splits.values():
            shards = [segment.shard for segment in split.selection.segments]
            if not (split.manifest.has_images and all(s.is_seekable(split.manifest.compression) for s in shards)):
                return []
            folder, name, cache = split.request.folder, split.request.split, split.request.cache_dir
            examples.append(RandomAccess(folder, name, cache_dir=cache, cache_bytes=split.request.cache_bytes))
        starts = np.cumsum([0, *(split.order.num_stored for split in self._trained.splits.values())])

        def image(record: int) -> NDArray[np.generic]:
            number = int(np.searchsorted(starts, record, "right")) - 1
            found: NDArray[np.generic] = examples[number][record - int(starts[number])]["image"]
            return found

        return [image(mistake.record) for mistake in report.mistakes]


@dataclasses.dataclass(frozen=True, eq=False)
class _Pass:
    """One pass over a split.

    Attributes:
      split: what is read.
      batches: of it.
      has_keys: whether the features are a dict with keys.
      prefix: of the keys if there are several splits, which may have equal ones.
    """

    split: ResolvedRequest
    batches: tf.data.Dataset
    has_keys: bool
    prefix: bytes

    @classmethod
    def of(cls, name: str, split: ResolvedRequest, splits: int) -> _Pass:
        request = split.request
        has_keys = request.parse is None and "key" in split.manifest.features
        batches = make_dataset(dataclasses.replace(request, features=("key",) if has_keys else (), record_ids=True))
        return cls(split, batches, has_keys, f"{name} ".encode() if splits > 1 else b"")


def _step(trained: Trained) -> Step:
    """Returns a function of (features, labels, weights): the measure's sums, and the model's outputs as logits."""
    model, measure = trained.model, trained.state.measure
    as_probabilities = gives_probabilities(model)

    @tf.function(autograph=False)
    def step(features: Any, labels: Any, weights: tf.Tensor) -> tuple[Sums, Any]:
        kinds = model.trainable_variables, model.non_trainable_variables
        trainable, fixed = ([tf.convert_to_tensor(v.value) for v in variables] for variables in kinds)
        forward = Forward(model, trainable, fixed, trained.state.eval_flip)
        outputs: list[Any] = []

        def call(features: Any, training: bool = False) -> Any:
            outputs.append(forward(features, training=training))
            return outputs[-1]

        sums = measure.evaluation_sums(call, features, labels, weights)
        return sums, tf.math.log(tf.maximum(outputs[-1], _TINY)) if as_probabilities else outputs[-1]

    return step


class Tally:
    """Counts the outputs of a model, and keeps its worst mistakes with the images that it got."""

    def __init__(self, class_names: Sequence[str], worst: int) -> None:
        """Starts without examples.

        Args:
          class_names: by class number.
          worst: most mistakes to keep.
        """
        self._names, self._worst, classes = tuple(class_names), worst, len(class_names)
        self._matrix = np.zeros((classes, classes), np.int64)
        self._loss = 0.0
        self._kept: list[tuple[tuple[float, int], Mistake, Array]] = []  # a heap, the mildest on top

    def add(self, records: Array, keys: Sequence[bytes] | None, labels: Array, logits: Array, images: Array) -> None:
        """Adds the real rows of a batch.

        Args:
          records: int64 (n,), numbers of the examples in the split.
          keys: n keys; None: the data set has none.
          labels: int64 (n,).
          logits: float (n, classes).
          images: (n, ...), as the model got them.

        Raises:
          UsageError: the logits are not one per class.
          DataError: a logit is not finite.
        """
        if logits.ndim != 2 or logits.shape[1] != len(self._names):
            raise UsageError(
                f"the model gives outputs of shape {logits.shape[1:]}, which are not one logit for each of the "
                f"{len(self._names)} classes; a confusion matrix needs these"
            )
        bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        if bad.size:
            name = f"record {records[bad[0]]}" if keys is None else f"key {_text(keys[bad[0]])}"
            raise DataError(f"{name}: the model's output is NaN or infinite; evaluate an earlier checkpoint")
        log_probabilities = _log_softmax(logits)
        rows, predictions = np.arange(len(labels)), logits.argmax(axis=1)
        losses = -log_probabilities[rows, labels]
        np.add.at(self._matrix, (labels, predictions), 1)
        self._loss += float(losses.sum())
        for i in np.flatnonzero(predictions != labels).tolist():
            rank = (float(losses[i]), -int(records[i]))  # of equal losses the first record's counts as worse
            if len(self._kept) == self._worst and (not self._kept or rank <= self._kept[0][0]):
                continue
            key = None if keys is None else _text(keys[i])
            sure, label = np.exp(log_probabilities[i, [predictions[i], labels[i]]]).tolist()
            mistake = Mistake(int(records[i]), key, int(labels[i]), int(predictions[i]), sure, label, rank[0])
            entry = (rank, mistake, np.array(images[i]))
            push = heapq.heappushpop if len(self._kept) == self._worst else heapq.heappush
            push(self._kept, entry)  # type: ignore[arg-type]  # of one type, mypy joins the two to `object`

    def report(self) -> Report:
        """Returns the report on the examples that were added, at least one."""
        mistakes = tuple(mistake for _, mistake, _ in self._sorted())
        return Report(self._names, self._matrix.copy(), self._loss / int(self._matrix.sum()), mistakes)

    def images(self) -> list[Array]:
        """Returns the images of the report's mistakes, as the model got them."""
        return [image for _, _, image in self._sorted()]

    def _sorted(self) -> list[tuple[tuple[float, int], Mistake, Array]]:
        return sorted(self._kept, key=lambda entry: entry[0], reverse=True)


def _log_softmax(logits: Array) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")
