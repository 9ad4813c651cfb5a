"""Judges a run: measures at its end what its steps alone do not tell."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.plan import Plan
from trainer.step.train_step import TrainStep
from trainer.timing import exchange, headspace
from trainer.timing.advice import Facts
from trainer.timing.verdict import Verdict


class Judge:
    """Measures with a stepper what the verdict needs.

    Attributes:
      verdict: which follows the steps.
      batch: for the headspace; None: it is not measured.
    """

    def __init__(self, config: TrainConfig, plan: Plan, stepper: TrainStep) -> None:
        image, parses = plan.training.first.manifest.features.get("image"), plan.training.request.parse is not None
        gpus, self._replicas = len(tf.config.list_physical_devices("GPU")), stepper.strategy.num_replicas_in_sync
        facts = Facts(self._replicas, gpus, image.encoding if image else None, parses)
        self.verdict = Verdict(config, facts)
        self.batch: Any = None
        self._config, self._stepper = config, stepper

    def measured(self) -> str:
        """Returns the verdict with all that can be measured; every worker has to call it, and nothing may follow."""
        config, stepper, exchanged, constant = self._config, self._stepper, None, None
        if self._replicas > 1:
            sent = tf.int64 if config.order.virtual_replicas else tf.float32
            exchanged = exchange.seconds(stepper.strategy, stepper.state.model.trainable_variables, sent)
        if self.batch is not None:
            steps, steps_per_loop = config.output.headspace, config.steps.steps_per_loop
            constant = headspace.seconds_per_step(stepper, self.batch, steps, steps_per_loop)
        return self.verdict.text(exchanged, constant)
