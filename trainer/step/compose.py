"""Puts the step together that the flags ask for."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.step.apply import Update
from trainer.step.gradients import Gradients
from trainer.step.replicas import Replicas, ReplicaStep
from trainer.step.results import HISTOGRAMS, IMAGES
from trainer.step.state import TrainState
from trainer.step.updates import Stepper
from trainer.step.virtual_replicas import VirtualReplicas

_CHANNELS = (1, 3, 4)  # of what can be shown as an image


def stepper(strategy: tf.distribute.Strategy, state: TrainState, config: TrainConfig) -> Stepper:
    """Returns the loops over a state on a strategy."""
    virtual = config.order.virtual_replicas
    units = virtual or strategy.num_replicas_in_sync
    gradients = Gradients(state, units, config.order.seed, config.model.jit_compile)
    update = Update(state, config.optimizer.clip_norm)
    replicas: ReplicaStep = (VirtualReplicas if virtual else Replicas)(state, gradients, update)
    histograms = [HISTOGRAMS] if config.output.histogram_every else []
    images = [IMAGES] if config.output.image_every and are_images(state.task.data.features) else []
    return Stepper(strategy, state, replicas, [*histograms, *images])


def are_images(features: Any) -> bool:
    """Returns whether a TensorSpec is that of images: (rows, height, width, channels)."""
    if not isinstance(features, tf.TensorSpec):
        return False
    return features.shape.rank == 4 and features.shape[-1] in _CHANNELS
