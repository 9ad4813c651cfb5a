"""Puts the step together that the flags ask for."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline.batch.on_device import DeviceDistortion
from pipeline.request import DEVICE
from pipeline.resolved import Mixture
from trainer.config import TrainConfig
from trainer.step.apply import Update
from trainer.step.gradients import Gradients
from trainer.step.replicas import Replicas, ReplicaStep
from trainer.step.results import HISTOGRAMS, IMAGES
from trainer.step.state import TrainState
from trainer.step.updates import Stepper
from trainer.step.virtual_replicas import VirtualReplicas

_CHANNELS = (1, 3, 4)  # of what can be shown as an image


def stepper(
    strategy: tf.distribute.Strategy, state: TrainState, config: TrainConfig, training: Mixture | None
) -> Stepper:
    """Returns the loops over a state on a strategy.

    Args:
      strategy: whose replicas compute.
      state: created in its scope.
      config: of the run.
      training: the request for training data; only a step that distorts needs it.
    """
    virtual = config.order.virtual_replicas
    units = virtual or strategy.num_replicas_in_sync
    distort = distortion(training)
    gradients = Gradients(state, units, config.order.seed, config.model.jit_compile, distort)
    update = Update(state, config.optimizer.clip_norm)
    replicas: ReplicaStep = (VirtualReplicas if virtual else Replicas)(state, gradients, update)
    histograms = [HISTOGRAMS] if config.output.histogram_every else []
    images = [IMAGES] if config.output.image_every and are_images(state.task.data.features) else []

    def images_of(rows: tuple[Any, ...]) -> tf.Tensor:
        first = tf.nest.map_structure(lambda part: part[0], rows) if virtual else rows
        return (distort(*first) if distort else first)[0]

    steps_per_epoch = training.steps_per_epoch if training else None
    return Stepper(strategy, state, replicas, [*histograms, *images], images_of, steps_per_epoch=steps_per_epoch)


def distortion(training: Mixture | None) -> DeviceDistortion | None:
    """Returns what distorts a replica's rows in its step; None: the input has done so."""
    if training is None or training.request.distort_on != DEVICE:
        return None
    return DeviceDistortion(training.first)


def are_images(features: Any) -> bool:
    """Returns whether a TensorSpec is that of images: (rows, height, width, channels)."""
    if not isinstance(features, tf.TensorSpec):
        return False
    return features.shape.rank == 4 and features.shape[-1] in _CHANNELS
