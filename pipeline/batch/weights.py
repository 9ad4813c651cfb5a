"""Sample weights in the form that Keras needs: one axis per axis of the target, and nothing else in their place.

Keras interprets an element by its length, `x`, `(x, y)` or `(x, y, sample_weight)`, and multiplies losses by weights
with broadcasting: weights (rows,) for masks (rows, height, width, 1) would weight columns of pixels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from pipeline.batch.internals import UnaryUnchangedStructureDataset
from pipeline.errors import UsageError
from pipeline.request import HOST, Request

_UNCHANGED = ("cache", "prefetch", "repeat", "shuffle", "skip", "take", "with_options")  # methods that keep elements


def of_rank(weights: tf.Tensor, rank: int) -> tf.Tensor:
    """Returns the sample weights with axes of length 1 appended up to a rank: (rows, 1, ..., 1)."""
    return weights[(..., *[tf.newaxis] * (rank - weights.shape.rank))]


def of_targets(weights: Any, targets: Any) -> Any:
    """Returns the sample weights in the shape by which Keras' losses and metrics multiply correctly.

    A loss has the rank of its target, or one axis less. Weights of the target's rank fit both, because Keras drops a
    last axis of length 1. They stay (rows,) only if every loss has one number per row.

    Args:
      weights: sample weights, float32 (rows,), or with further axes within a row; or a structure of them that
        `are_paired`.
      targets: tensor, or a structure of tensors, in which case a structure of weights is returned if any needs more
        axes.
    """
    leaves = tf.nest.flatten(targets)
    if not any(_is_dense(leaf) for leaf in leaves):
        return weights
    given = tf.nest.flatten(weights) if tf.nest.is_nested(weights) else [weights] * len(leaves)
    made = [of_rank(own, leaf.shape.rank) if _is_dense(leaf) else own for own, leaf in zip(given, leaves, strict=True)]
    return tf.nest.pack_sequence_as(targets, made)


def are_paired(weights: Any, targets: Any) -> bool:
    """Returns whether each target has its own weights in the structure: one tensor is for all targets."""
    if not tf.nest.is_nested(weights) or len(tf.nest.flatten(weights)) == len(tf.nest.flatten(targets)) == 1:
        return True
    try:
        tf.nest.assert_same_structure(weights, targets)
    except (ValueError, TypeError):
        return False
    return True


def _is_dense(target: Any) -> bool:
    """Returns whether a target's loss may have several numbers per row."""
    if not isinstance(target, tf.Tensor | tf.TensorSpec) or target.shape.rank is None:
        return False
    # Floats of rank 2 are regression targets or class probabilities. Integers may be classes of tokens, each with a
    # loss, or several classes of a row. (rows, 1) is right for both, although F1Score and FBetaScore fail with it;
    # (rows,) would weight columns if there are as many tokens as rows. For a single column either will do.
    return target.shape.rank > 2 or (target.shape.rank == 2 and target.dtype.is_integer and target.shape[1] != 1)


def of_classes(class_weight: Mapping[int, float], labels: Any, is_image: bool) -> tf.Tensor:
    """Returns the factor of each row's class, by Keras' rule: 1 for a class without a factor.

    A class is a number, or the largest of several probabilities. Masks (rows, height, width, 1) or (rows, height,
    width, classes) have a factor per pixel.

    Args:
      class_weight: {class number: factor}.
      labels: targets (rows, ...), or (elements, rows, ...) of several batches.
      is_image: whether these are labels of images: classes if they are integers, else probabilities.

    Returns:
      Factors, float32, with the shape of the labels without the axis of probabilities.

    Raises:
      UsageError: the labels are not classes.
    """
    if not isinstance(labels, tf.Tensor) or not (labels.dtype.is_integer or labels.dtype.is_floating):
        kind = labels.dtype.name if isinstance(labels, tf.Tensor) else type(labels).__name__
        raise UsageError(f"class_weight: needs one target per example, classes or their probabilities; it is {kind}")
    are_numbers = labels.dtype.is_integer if is_image else labels.shape.rank == 1
    if not are_numbers and labels.shape[-1] == 1:
        labels, are_numbers = tf.squeeze(labels, axis=-1), True
    if not are_numbers and labels.dtype.is_integer:
        raise UsageError(
            f"class_weight: the target is {labels.dtype.name} {labels.shape}: give classes as (rows,) or "
            "(rows, ..., 1), probabilities as tf.float32"
        )
    if are_numbers and labels.dtype.is_floating:
        labels = tf.round(labels)
    numbers = tf.cast(labels, tf.int64) if are_numbers else tf.argmax(labels, axis=-1)
    factors = [class_weight.get(number, 1.0) for number in range(max(class_weight) + 2)]  # the last: all other classes
    last = len(factors) - 1
    places = tf.where((numbers >= 0) & (numbers < last), numbers, last)
    return tf.gather(tf.constant(factors, tf.float32), places)


def times(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns the product of two weights of the same rows; one may have more axes within a row."""
    return of_rank(one, other.shape.rank) * of_rank(other, one.shape.rank)


@tf.autograph.experimental.do_not_convert
def for_keras(dataset: tf.data.Dataset, request: Request) -> tf.data.Dataset:
    """Returns a request's dataset for Keras: weights have their targets' rank; what Keras would misread, it refuses.

    Args:
      dataset: batches of `make_dataset`, not split for replicas.
      request: request that `dataset` was made from.
    """
    spec, has_weights = dataset.element_spec, request.weights != "none"
    own_parts = len(spec) - request.record_ids - has_weights
    if own_parts == 1:
        # With weights="none" elements are (parsed,), which Keras rightly takes for x.
        parts = "(parsed, weights)" if has_weights else "(parsed, record ids)"
        problem = (
            f"parse returns neither (x, y) nor (x, y, sample_weight), so that an element is {parts}: Keras would take "
            "its second part for labels; return one of the two, or feed a loop of your own"
        )
        return NotForKeras(dataset, problem) if len(spec) > 1 else dataset
    if (has_weights or own_parts == 3) and any(_is_dense(leaf) for leaf in tf.nest.flatten(spec[1])):
        if not are_paired(spec[2], spec[1]):
            problem = (
                f"parse returns sample_weight as {_places(spec[2])} for the target {_places(spec[1])}: it is not known "
                "which weights belong to which target; return one tensor for all targets, or one for each at its place"
            )
            return NotForKeras(dataset, problem)
        dataset = dataset.map(lambda x, y, weights, *ids: (x, y, of_targets(weights, y), *ids))
    if request.record_ids:
        problem = "record_ids=True: Keras would take the ids for weights or refuse them; leave it out"
        return NotForKeras(dataset, problem)
    if request.augment_on != HOST:
        problem = f"augment_on={request.augment_on!r}: Keras does not call augment_fn in its step; leave it out"
        return NotForKeras(dataset, problem)
    return dataset


def _places(structure: Any) -> Any:
    """Returns a structure with the shape of a tensor at its place."""
    return tf.nest.map_structure(lambda leaf: tuple(leaf.shape), structure)


class NotForKeras(UnaryUnchangedStructureDataset):  # type: ignore[misc]
    """A dataset for custom loops: Keras' `fit` and `evaluate` refuse it, `predict` takes its first component.

    Methods that keep the elements unchanged return a dataset of this type, too.
    """

    def __init__(self, dataset: tf.data.Dataset, problem: str) -> None:
        """Wraps a dataset.

        Args:
          dataset: dataset to wrap.
          problem: what Keras would do, and what to do instead.
        """
        self._problem = problem
        super().__init__(dataset, dataset._variant_tensor)

    def cardinality(self) -> tf.Tensor:
        """Returns the number of elements. Keras asks for it before it reads any.

        Raises:
          UsageError: called by a Keras method other than `predict`.
        """
        self._check(sys._getframe(1))
        return super().cardinality()

    def map(self, *arguments: Any, **named: Any) -> tf.data.Dataset:
        """Maps the elements like `tf.data.Dataset.map`. Keras maps class weights before it asks for anything else.

        Raises:
          UsageError: see `cardinality`.
        """
        self._check(sys._getframe(1))
        return super().map(*arguments, **named)

    def _check(self, frame: Any) -> None:
        names = []
        while frame is not None and frame.f_globals.get("__name__", "").startswith("keras."):
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if names and "predict" not in names:
            raise UsageError(self._problem)


def _handing_on(name: str) -> Callable[..., tf.data.Dataset]:
    def method(self: NotForKeras, *arguments: Any, **named: Any) -> tf.data.Dataset:
        return NotForKeras(getattr(super(NotForKeras, self), name)(*arguments, **named), self._problem)

    method.__name__ = name
    method.__doc__ = f"Returns `tf.data.Dataset.{name}` of this dataset, which Keras refuses as well."
    return method


for _name in _UNCHANGED:
    setattr(NotForKeras, _name, _handing_on(_name))
