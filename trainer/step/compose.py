"""Puts the step together that the flags ask for."""

from __future__ import annotations

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.step.apply import Update
from trainer.step.gradients import Gradients
from trainer.step.replicas import Replicas, ReplicaStep
from trainer.step.state import TrainState
from trainer.step.updates import Stepper
from trainer.step.virtual_replicas import VirtualReplicas


def stepper(strategy: tf.distribute.Strategy, state: TrainState, config: TrainConfig) -> Stepper:
    """Returns the loops over a state on a strategy."""
    virtual = config.order.virtual_replicas
    units = virtual or strategy.num_replicas_in_sync
    gradients = Gradients(state, units, config.order.seed, config.model.jit_compile)
    update = Update(state, config.optimizer.clip_norm)
    replicas: ReplicaStep = (VirtualReplicas if virtual else Replicas)(state, gradients, update)
    return Stepper(strategy, state, replicas)
