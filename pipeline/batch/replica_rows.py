"""Splits elements between the replicas of this process: an element becomes a tuple of the rows of each."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline.order.window_plan import WindowPlan


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


def cut(plan: WindowPlan, replicas: int) -> WindowPlan:
    """Returns a plan of the rows of each replica: element e of replica r becomes element `e * replicas + r`.

    `num_elements` stays the number of whole elements.
    """
    take, real = (tf.reshape(rows, [-1, rows.shape[1] // replicas]) for rows in (plan.take, plan.real))
    return plan._replace(take=take, real=real, real_rows=tf.repeat(plan.real_rows, replicas))


def cut_numbers(numbers: tf.Tensor, replicas: int) -> tf.Tensor:
    """Returns the numbers in a `cut` plan of elements, int64 (n,): those of one replica, then those of the next."""
    return tf.reshape(numbers * replicas + tf.range(replicas, dtype=tf.int64)[:, None], [-1])


def joined_rows(together: tuple[Any, ...], replicas: int | None, count: tf.Tensor) -> tuple[Any, ...]:
    """Returns the rows of the first elements of a group, one element behind the other, in the group's memory.

    Args:
      together: components of shape (elements, rows, ...); with replicas, of the elements that `cut_numbers` gives.
      replicas: how many, each of which gets its own rows; None: all rows stay together.
      count: of the elements.
    """
    return tf.nest.map_structure(lambda c: tf.reshape(c[:count], [-1, *c.shape[2:]]), split(together, replicas))


def _runs(component: tf.Tensor | tf.RaggedTensor, replicas: int) -> list[Any]:
    """Returns equal runs of rows; of a RaggedTensor, too, which `tf.split` does not take."""
    if isinstance(component, tf.RaggedTensor):
        rows = component.nrows() // replicas
        return [component[replica * rows : (replica + 1) * rows] for replica in range(replicas)]
    return tf.split(component, replicas)
