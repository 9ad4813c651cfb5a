"""Splits elements between the replicas of this process: an element becomes a tuple of the rows of each."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def split(element: tuple[Any, ...], replicas: int | None) -> tuple[Any, ...]:
    """Returns what each replica gets of an element: equal runs of its rows.

    Args:
      element: its components have one number of rows; they may be RaggedTensors.
      replicas: how many; None: the element is not split.
    """
    if replicas is None:
        return element
    runs = [_runs(component, replicas) for component in tf.nest.flatten(element)]
    return tuple(tf.nest.pack_sequence_as(element, [run[replica] for run in runs]) for replica in range(replicas))


def slices(together: tuple[Any, ...], replicas: int | None) -> tf.data.Dataset:
    """Returns the dataset of elements that lie together, each split as `split` does it, in the same memory.

    No function runs for an element, which would cost several times what the slices do.

    Args:
      together: components of shape (elements, rows, ...).
      replicas: as of `split`.
    """
    if replicas is None:
        return tf.data.Dataset.from_tensor_slices(together)
    runs = tf.nest.map_structure(lambda c: tf.reshape(c, [-1, c.shape[1] // replicas, *c.shape[2:]]), together)
    each = tf.data.Dataset.from_tensor_slices(runs)
    return tf.data.Dataset.zip(tuple(each.shard(replicas, replica) for replica in range(replicas)))


def _runs(component: tf.Tensor | tf.RaggedTensor, replicas: int) -> list[Any]:
    """Returns equal runs of rows; of a RaggedTensor, too, which `tf.split` does not take."""
    if isinstance(component, tf.RaggedTensor):
        rows = component.nrows() // replicas
        return [component[replica * rows : (replica + 1) * rows] for replica in range(replicas)]
    return tf.split(component, replicas)
