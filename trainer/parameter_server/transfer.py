"""Weights from parameter servers and gradients to them, one message for all on a server: each message costs a call."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import tensorflow as tf


class Transfer:
    """Moves values between variables on parameter servers and the worker that runs a graph.

    Attributes:
      variables: to and from which.
      groups: indices of the variables of each server and type.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.variables = list(variables)
        self.groups: dict[tuple[str, tf.DType], list[int]] = collections.defaultdict(list)
        for index, variable in enumerate(self.variables):
            self.groups[variable.device, variable.dtype].append(index)

    def sizes(self, group: tuple[str, tf.DType]) -> list[int]:
        """Returns the number of values of each variable of a group."""
        return [self.variables[index].shape.num_elements() for index in self.groups[group]]

    def pull(self) -> list[tf.Tensor]:
        """Returns the values of all variables, here."""
        found: list[tf.Tensor] = [None] * len(self.variables)
        for group, indices in self.groups.items():
            with tf.device(group[0]):
                flat = tf.concat([tf.reshape(self.variables[i].read_value(), [-1]) for i in indices], axis=0)
            self._put(group, tf.identity(flat), found)
        return found

    def flattened(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values for each group's variables in one tensor."""
        return [
            tf.concat([tf.reshape(tf.cast(values[i], group[1]), [-1]) for i in indices], axis=0)
            for group, indices in self.groups.items()
        ]

    def push(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns values for all variables, each where its variable is.

        Args:
          flat: of `flattened`.
        """
        found: list[tf.Tensor] = [None] * len(self.variables)
        for group, values in zip(self.groups, flat, strict=True):
            with tf.device(group[0]):
                self._put(group, tf.identity(values), found)
        return found

    def _put(self, group: tuple[str, tf.DType], flat: tf.Tensor, found: list[tf.Tensor]) -> None:
        parts = tf.split(flat, self.sizes(group))
        for index, part in zip(self.groups[group], parts, strict=True):
            found[index] = tf.reshape(part, self.variables[index].shape)
