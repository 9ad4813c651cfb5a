"""The model for the steps of each phase: the run's or, for images of another size, one built for them.

The weights of a model that pools over the whole image do not depend on its size. Such a model is built again for the
size of a phase, by the same code, and takes over the variables of the run's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.config.phases import FLAG, Phases
from trainer.plan import Plan
from trainer.step.measures import ClassLosses, Measure, RowMeasure
from trainer.task import DataSpec, Task, data_spec_of


class Fed(NamedTuple):
    """The model that computes the steps of a phase.

    Attributes:
      data: shapes and dtypes of the batches.
      model: model for the phase's images, with the variables of the run's model.
      measure: loss and metrics of the model.
    """

    data: DataSpec
    model: keras.Model
    measure: Measure

    def twins(self, model: keras.Model, layers: Sequence[keras.layers.Layer]) -> tuple[keras.layers.Layer, ...]:
        """Returns this model's counterparts of some layers of the run's model."""
        wanted = {id(layer) for layer in layers}
        pairs = zip(model._flatten_layers(), self.model._flatten_layers(), strict=True)
        return tuple(own for one, own in pairs if id(one) in wanted)


def specs_of(data: DataSpec, plan: Plan) -> list[DataSpec]:
    """Returns the shapes of the batches of each phase.

    Args:
      data: shapes of the batches of the run's images, which are evaluated.
      plan: plan of the run.

    Raises:
      UsageError: the images of a phase differ from the run's in more than their size, or change it within an epoch.
    """
    specs, in_epoch = list[DataSpec](), plan.training.steps_per_epoch
    for phase, found in zip(plan.phases.each, plan.inputs, strict=True):
        where = f"{FLAG}: {str(phase)!r}"
        try:
            spec = data if found is plan.training else data_spec_of(found.first)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        if _but_for_size(spec) != _but_for_size(data):
            here, of_run = (f"{one.features.dtype.name} {tuple(one.features.shape[1:])}" for one in (spec, data))
            raise UsageError(
                f"{where}: its images are {here}, those of evaluations {of_run}; only their size may differ"
            )
        before = specs[-1] if specs else spec
        if phase.start % in_epoch and before.features != spec.features:
            raise UsageError(
                f"{where}: changes images of {_size(before)} to {_size(spec)} within an epoch, which has "
                f"{in_epoch} steps; let it begin with one, such as "
                f"'{max(1, phase.start // in_epoch)} epochs'"
            )
        specs.append(spec)
    return specs


def _but_for_size(data: DataSpec) -> Any:
    """Returns the properties that all phases must share: dtype and channels of images."""
    features = data.features
    are_images = isinstance(features, tf.TensorSpec) and features.shape.rank == 4
    return (features.dtype, features.shape[3]) if are_images else features


def _size(data: DataSpec) -> str:
    return "x".join(map(str, data.features.shape[1:3]))


def fed_by(run: Fed, task: Task, specs: Sequence[DataSpec], phases: Phases, flag: str) -> tuple[Fed, ...]:
    """Returns an object for each phase that computes its steps. Call it in the strategy's scope.

    Args:
      run: model that evaluates, and trains in phases with the run's images.
      task: task that has built its model.
      specs: shapes of the batches of each phase.
      phases: phases of the run.
      flag: flag that names the model.

    Raises:
      UsageError: the model's weights depend on the size of its images, or it does not accept a phase's images.
    """
    found = [run]
    for phase, data in zip(phases.each, specs, strict=True):
        if all(one.data != data for one in found):
            other = type(task)(task.config, data)
            known = [one.model for one in found if one.data.features == data.features]
            model = known[0] if known else _built(other, run, f"{FLAG}: {str(phase)!r}: {flag}")
            found.append(Fed(data, model, RowMeasure(other, ClassLosses.of(other))))
    return tuple(next(one for one in found if one.data == data) for data in specs)


def _built(task: Task, run: Fed, where: str) -> keras.Model:
    """Returns the model that a task builds for other images, with the variables of the run's."""
    model, sizes = task.build_model(), [_size(one) for one in (run.data, task.data)]
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple) and not task.data.features.shape.is_compatible_with(shape):
        raise UsageError(f"{where}: takes images of {shape} alone; build it for the shape that its function is given")
    for one, other in itertools.zip_longest(run.model.variables, model.variables):
        shapes = [tuple(each.shape) if each is not None else "not there" for each in (one, other)]
        if shapes[0] != shapes[1]:
            path = (other if one is None else one).path
            raise UsageError(
                f"{where}: has weights that depend on the size of the images: {path} is {shapes[0]} for "
                f"{sizes[0]}, {shapes[1]} for {sizes[1]}; use a model that pools over the whole image, as by "
                "GlobalAveragePooling2D in place of Flatten"
            )
    for one, other in zip(run.model.variables, model.variables, strict=True):
        other._value = one._value  # frees the value that it was built with
    return model
