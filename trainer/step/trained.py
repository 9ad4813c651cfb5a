"""The parts of a model that each phase trains: weights, statistics, and how often they were trained."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Iterator

import keras
import tensorflow as tf

from pipeline.errors import UsageError, unknown
from pipeline.order.views import Intervals
from trainer.checkpoint import structure
from trainer.config.phases import BASE, FLAG, NOTHING, Phase, Phases


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """The parts that one phase trains. Nothing else in the model changes in that phase, not even by a bit.

    Attributes:
      number: index of the phase.
      weights: indices of its weights in `model.trainable_variables`.
      statistics: indices in `model.non_trainable_variables` of the floating-point state that may change.
      frozen: frozen layers, including nested ones, of the model that computes the phase's steps.
      updates: (first, end) of the steps that have updated each of `weights` before or in this phase; None for all
        steps.
    """

    number: int
    weights: tuple[int, ...]
    statistics: tuple[int, ...]
    frozen: tuple[keras.layers.Layer, ...] = ()
    updates: tuple[Intervals | None, ...] = ()
    _entered: list[list[bool]] = dataclasses.field(default_factory=list, init=False)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Context in which frozen layers compute as Keras' do with `trainable = False`: BatchNorm as in inference.

        Setting `trainable` itself would reorder the model's variables. A layer that sums over replicas lets other
        replicas be traced in between: the last one to leave restores it.
        """
        self._entered.append(self._entered[0] if self._entered else [layer._trainable for layer in self.frozen])
        for layer in self.frozen:
            layer._trainable = False
        try:
            yield
        finally:
            before = self._entered.pop()
            for layer, was in zip(self.frozen, before, strict=True) if not self._entered else ():
                layer._trainable = was


def count_of(updates: Intervals, step: tf.Tensor) -> tf.Tensor:
    """Returns how many of some steps come before a global step; int64 scalars."""
    first, end = (tf.constant(each, tf.int64) for each in zip(*updates, strict=True))
    return tf.reduce_sum(tf.clip_by_value(step - first, 0, end - first))


def of(model: keras.Model, phases: Phases) -> tuple[Trained, ...]:
    """Returns the part of a model that each phase trains.

    Raises:
      UsageError: a name in `freeze` matches no layer, or a phase trains nothing.
    """
    variables, state = model.trainable_variables, model.non_trainable_variables
    floating = [i for i, v in enumerate(state) if tf.as_dtype(v.dtype).is_floating]
    if len(phases.each) == 1 and phases.each[0].freeze == NOTHING:
        return (Trained(0, tuple(range(len(variables))), tuple(floating), (), (None,) * len(variables)),)
    layers, kept = structure.layers_of(model), list[set[int]]()
    found = list[Trained]()
    for number, phase in enumerate(phases.each):
        frozen = {id(part): part for layer in _frozen(model, layers, phase) for part in layer._flatten_layers()}
        fixed = {id(v) for layer in frozen.values() for v in layer.variables}
        weights = tuple(i for i, v in enumerate(variables) if id(v) not in fixed)
        if not weights:
            raise UsageError(f"{FLAG}: {str(phase)!r}: leaves nothing to train; freeze fewer layers")
        kept.append(set(weights))
        in_phases = [[at for at, trained in enumerate(kept) if i in trained] for i in weights]
        updates = tuple(None if len(at) == number + 1 else phases.updates_of(at) for at in in_phases)
        statistics = tuple(i for i in floating if id(state[i]) not in fixed)
        found.append(Trained(number, weights, statistics, tuple(frozen.values()), updates))
    return tuple(found)


def _frozen(model: keras.Model, layers: dict[str, keras.layers.Layer], phase: Phase) -> list[keras.layers.Layer]:
    """Returns the layers that a phase names."""
    if phase.freeze == NOTHING:
        return []
    with_weights = {name: layer for name, layer in layers.items() if layer.weights}
    if phase.freeze == BASE:
        base = [part for part in with_weights.values() if hasattr(part, "application")]  # built by `pretrained`
        return base or [layer for layer in with_weights.values() if not layer._layers][:-1]
    found = list[keras.layers.Layer]()
    for pattern in (part.strip() for part in phase.freeze.split("+")):
        named = [layer for name, layer in with_weights.items() if _matches(name, pattern)]
        if not named:
            names = [name.rpartition("/")[2] for name in with_weights]
            raise unknown(f"{FLAG}: {str(phase)!r}: layer", pattern, [BASE, NOTHING, *names])
        found += named
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)
