"""Evaluates a model on a split: loss and metrics, precision and recall per class, confusions, worst mistakes."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.batch.compose import make_dataset
from pipeline.commands.text import count_of, table
from pipeline.errors import DataError, UsageError
from pipeline.files.fields import finite
from pipeline.random_access import RandomAccess
from pipeline.resolved import ResolvedRequest
from trainer.inference import Trained
from trainer.step.measures import Sums, added, result_of
from trainer.task import Evaluation, classes_of, gives_probabilities

_TINY = 1e-30  # smallest probability whose logarithm is taken

Array = NDArray[Any]
Step = Callable[[Any, Any, tf.Tensor], tuple[Sums, Any]]


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The results of a model on a split.

    Attributes:
      evaluation: loss and metrics of its task.
      report: classes and mistakes; None if the model's outputs are not one number per class.
      images: images of the report's mistakes, as stored, or as fed to the model if records can only be read
        sequentially.
    """

    evaluation: Evaluation
    report: Report | None
    images: list[NDArray[np.generic]]


class Judge:
    """Evaluates a model with its current weights."""

    def __init__(self, trained: Trained, most_mistakes: int) -> None:
        """Opens the split.

        Args:
          trained: model and split.
          most_mistakes: largest number of mistakes in the report.
        """
        self._trained, self._most = trained, most_mistakes
        self._classes = classes_of(trained.model, trained.state.task.data)
        self._passes = {name: _Pass.of(name, split, len(trained.splits)) for name, split in trained.splits.items()}
        self._step = _step(trained)

    def judge(self) -> Judgement:
        """Returns the results on the whole split.

        Raises:
          DataError: a record is corrupt, or an output is not finite.
          PipelineError: the rows fed are not exactly the split's.
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
        """Returns the sums over a split, whose records are numbered from `first` in the tally."""
        totals: dict[str, tf.Tensor] = {}
        for x, y, weights, records in one.batches:
            keys, features = (x["key"], x["image"]) if one.has_keys else (None, x)
            sums, outputs = self._step(features, y, weights)
            labels = tf.argmax(y, axis=1) if tally and y.shape.rank == 2 else y  # rows are not mixed here
            totals = added(totals, sums)
            if one.split.request.images_per_record > 1:
                features = features[:, 0]
            if tally:
                real = weights.numpy() > 0
                named = None if keys is None else [one.prefix + key for key in keys.numpy()[real].tolist()]
                tally.add(records.numpy()[real] + first, named, *(v.numpy()[real] for v in (labels, outputs, features)))
        return totals

    def _stored_images(self, report: Report) -> list[NDArray[np.generic]]:
        """Returns the images of the mistakes as stored; empty if records cannot be read one by one."""
        examples = []
        for split in self._trained.splits.values():
            shards = [segment.shard for segment in split.selection.segments]
            if not (split.manifest.has_images and all(shard.is_seekable for shard in shards)):
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
      split: split to read.
      batches: batches of the split, as fed to the model.
      has_keys: whether the features are a dict with keys.
      prefix: prefix of keys if there are several splits, whose keys may clash.
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
    measure, as_probabilities = trained.state.measure, gives_probabilities(trained.model)

    @tf.function(autograph=False)
    def step(features: Any, labels: Any, weights: tf.Tensor) -> tuple[Sums, Any]:
        forward, outputs = trained.forward(), list[Any]()

        def call(features: Any, training: bool = False) -> Any:
            outputs.append(forward(features, training=training))
            return outputs[-1]

        sums = measure.evaluation_sums(call, features, labels, weights)
        return sums, tf.math.log(tf.maximum(outputs[-1], _TINY)) if as_probabilities else outputs[-1]

    return step


class Tally:
    """Counts a model's outputs, and keeps its worst mistakes with the images that it was fed."""

    def __init__(self, class_names: Sequence[str], worst: int) -> None:
        """Starts without examples.

        Args:
          class_names: class names, by number.
          worst: number of worst mistakes to keep.
        """
        self._names, self._worst, classes = tuple(class_names), worst, len(class_names)
        self._matrix = np.zeros((classes, classes), np.int64)
        self._loss = 0.0
        self._kept: list[tuple[tuple[float, int], Mistake, Array]] = []  # a heap with the mildest on top

    def add(self, records: Array, keys: Sequence[bytes] | None, labels: Array, logits: Array, images: Array) -> None:
        """Adds the real rows of a batch.

        Args:
          records: numbers of the examples in the split, int64 (n,).
          keys: n keys; None if the data set has none.
          labels: int64 (n,).
          logits: float (n, classes).
          images: images as fed to the model, (n, ...).

        Raises:
          UsageError: the logits are not one per class.
          DataError: a logit is not finite.
        """
        if logits.ndim != 2 or logits.shape[1] != len(self._names):
            raise UsageError(
                f"the model gives outputs of shape {logits.shape[1:]}, which are not one logit for each of the "
                f"{len(self._names)} classes; a confusion matrix needs them"
            )
        bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        if bad.size:
            name = f"record {records[bad[0]]}" if keys is None else f"key {_text(keys[bad[0]])}"
            raise DataError(f"{name}: the model's output is NaN or infinite; evaluate an earlier checkpoint")
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        rows, predictions = np.arange(len(labels)), logits.argmax(axis=1)
        losses = -log_probabilities[rows, labels]
        np.add.at(self._matrix, (labels, predictions), 1)
        self._loss += float(losses.sum())
        for i in np.flatnonzero(predictions != labels).tolist():
            rank = (float(losses[i]), -int(records[i]))  # if losses are equal, the earlier record counts as worse
            if len(self._kept) == self._worst and (not self._kept or rank <= self._kept[0][0]):
                continue
            key = None if keys is None else _text(keys[i])
            sure, label = np.exp(log_probabilities[i, [predictions[i], labels[i]]]).tolist()
            mistake = Mistake(int(records[i]), key, int(labels[i]), int(predictions[i]), sure, label, rank[0])
            entry = (rank, mistake, np.array(images[i]))
            push = heapq.heappushpop if len(self._kept) == self._worst else heapq.heappush
            push(self._kept, entry)  # type: ignore[arg-type]  # mypy joins the two types to `object`

    def report(self) -> Report:
        """Returns the report on the added examples; there must be at least one."""
        mistakes = tuple(mistake for _, mistake, _ in self._sorted())
        return Report(self._names, self._matrix.copy(), self._loss / int(self._matrix.sum()), mistakes)

    def images(self) -> list[Array]:
        """Returns the images of the report's mistakes, as fed to the model."""
        return [image for _, _, image in self._sorted()]

    def _sorted(self) -> list[tuple[tuple[float, int], Mistake, Array]]:
        return sorted(self._kept, key=lambda entry: entry[0], reverse=True)


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


_MOST_CLASSES = 20  # in the table


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A misclassified example.

    Attributes:
      record: record number in the split; with several splits, numbering continues from one to the next.
      key: key of the record; None if the data set has none.
      label, prediction: class numbers.
      probability: probability that the model gave the prediction.
      label_probability: probability that it gave the label.
      loss: cross-entropy, -log(label_probability).
    """

    record: int
    key: str | None
    label: int
    prediction: int
    probability: float
    label_probability: float
    loss: float


@dataclasses.dataclass(frozen=True)
class Confusion:
    """A label and the class its examples are most confused with: `count` of `support`."""

    label: int
    prediction: int
    count: int
    support: int


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """The classification of a split's examples by a model.

    Attributes:
      class_names: class names, by number.
      matrix: number of examples by label and prediction, int64 (classes, classes).
      loss: mean cross-entropy.
      mistakes: worst mistakes, highest loss first.
    """

    class_names: tuple[str, ...]
    matrix: NDArray[np.int64]
    loss: float
    mistakes: tuple[Mistake, ...]

    @property
    def num_examples(self) -> int:
        """Number of evaluated examples."""
        return int(self.matrix.sum())

    @property
    def correct(self) -> NDArray[np.int64]:
        """Number of correctly classified examples of each class, int64 (classes,)."""
        return np.diagonal(self.matrix)

    @property
    def support(self) -> NDArray[np.int64]:
        """Number of examples of each class, int64 (classes,)."""
        return np.asarray(self.matrix.sum(axis=1))

    @property
    def accuracy(self) -> float:
        """Share of the examples whose prediction is their label."""
        return float(self.correct.sum() / self.num_examples)

    @property
    def recall(self) -> NDArray[np.float64]:
        """Share of each class's examples that were classified correctly, float64 (classes,); NaN if it has none."""
        return _shares(self.correct, self.support)

    @property
    def precision(self) -> NDArray[np.float64]:
        """Share of the examples predicted as each class that belong to it, float64 (classes,); NaN if there is none."""
        return _shares(self.correct, self.matrix.sum(axis=0))

    @property
    def num_mistakes(self) -> int:
        """Number of examples whose prediction is not their label."""
        return self.num_examples - int(self.correct.sum())

    def confusions(self, most: int) -> list[Confusion]:
        """Returns the most frequent pairs of a label and a wrong prediction, most frequent first."""
        wrong = self.matrix * (1 - np.eye(len(self.matrix), dtype=np.int64))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        support = self.support
        return [Confusion(int(i), int(j), int(wrong[i, j]), int(support[i])) for i, j in pairs if wrong[i, j]]

    def to_json(self) -> dict[str, Any]:
        """Returns the report in JSON-compatible types; None for an undefined precision or recall."""
        columns = zip(self.class_names, self.support, self.precision, self.recall, strict=True)
        return {
            "num_examples": self.num_examples,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "classes": [
                {"name": name, "examples": int(support), "precision": finite(precision), "recall": finite(recall)}
                for name, support, precision, recall in columns
            ],
            "confusion": self.matrix.tolist(),
            "mistakes": [dataclasses.asdict(mistake) for mistake in self.mistakes],
        }


def _shares(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def summary(report: Report) -> list[str]:
    """Returns the lines of the tables: classes (if many, those with the lowest recall), and the worst mistakes."""
    return [*_class_lines(report), *_mistake_lines(report)]


def _class_lines(report: Report) -> list[str]:
    count = len(report.class_names)
    shown, more = range(count), []
    if count > _MOST_CLASSES:
        recall = np.where(np.isnan(report.recall), np.inf, report.recall)  # a class without examples comes last
        shown = np.argsort(recall, kind="stable")[:_MOST_CLASSES].tolist()
        more = [f"and {count_of(count - _MOST_CLASSES, 'more class', 'more classes')} of higher recall"]
    return [*table([_class_row(report, number) for number in shown], left=("most confused with",)), *more]


def _class_row(report: Report, number: int) -> list[tuple[str, str]]:
    others = report.matrix[number].copy()
    others[number] = 0
    most = int(others.argmax())
    return [
        ("class", report.class_names[number]),
        ("examples", f"{report.support[number]:,}"),
        ("precision", _share_text(report.precision[number])),
        ("recall", _share_text(report.recall[number])),
        ("most confused with", f"{report.class_names[most]} ({others[most]:,})" if others[most] else ""),
    ]


def _mistake_lines(report: Report) -> list[str]:
    rows = [
        [
            ("worst mistakes", mistake.key or f"record {mistake.record}"),
            ("label", report.class_names[mistake.label]),
            ("prediction", report.class_names[mistake.prediction]),
            ("probability", f"{mistake.probability:.4f}"),
            ("loss", f"{mistake.loss:.2f}"),
        ]
        for mistake in report.mistakes[:5]
    ]
    return ["", *table(rows, left=("label", "prediction"))] if rows else []


def _share_text(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}"
