"""What a run keeps: its checkpoints, and the best of them."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from pipeline.read.cache_counts import cache_counts
from trainer import description
from trainer.actions import announcing
from trainer.actions import best as bests
from trainer.actions.best import Best
from trainer.actions.checkpoints import Checkpoints, Restored
from trainer.actions.heartbeat import Heartbeat
from trainer.actions.output import Output
from trainer.actions.ranking import Ranking
from trainer.actions.remembered import Remembered
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.loop import NotFiniteError
from trainer.plan import Plan
from trainer.step.state import TrainState


class Keeper:
    """Restores the state of a run, saves it, and keeps the best checkpoints beside the newest.

    Attributes:
      best: checkpoints; None: evaluations are not ranked.
    """

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        cluster: Cluster,
        state: TrainState,
        output: Output,
        heartbeat: Heartbeat,
        remembered: Mapping[str, Remembered],
        io_device: str | None = None,
    ) -> None:
        """Takes what `Checkpoints` takes, and the heartbeat, which says that the run is saving."""
        self._state, self._output, self._heartbeat, self._last_step = state, output, heartbeat, plan.last_step
        flags, training = config.steps, plan.training
        self._cached = cache_counts()  # by earlier runs of this process
        data = {name: split.spec.manifest_digest for name, split in plan.evaluation.items()}
        ranking = Ranking(flags.keep_best, flags.early_stopping, flags.best_metric, flags.best_mode, data)
        self._checkpoints = Checkpoints(
            state,
            training.spec,
            training.steps_per_epoch,
            config,
            cluster,
            output,
            {**remembered, bests.NAME: ranking},  # a run that ranks nothing hands it on
            io_device,
            {part.spec.manifest_digest: description.of_data(part) for part in training.parts},
        )
        model_dir, is_chief = config.run.model_dir, cluster.is_chief
        self.best = Best(ranking, self._checkpoints, model_dir, is_chief) if flags.ranks else None

    def restore(self) -> Restored | None:
        """Restores the newest checkpoint; returns None if there is none."""
        restored = self._checkpoints.restore()
        if restored and self.best and self.best.ranking.anew:
            anew = f"{self.best.ranking.anew}, so the ranking of evaluations begins anew"
            return dataclasses.replace(restored, changes=(*restored.changes, anew))
        return restored

    def begin(self, strategy: tf.distribute.Strategy, restored: Restored | None) -> None:
        """Initializes the state of a new run as its task wants, and the best checkpoints of a resumed one."""
        if restored is None:
            with strategy.scope():
                self._state.task.initialize(self._state.model)
            if self._state.averages:
                self._state.averages.reset()
        if self.best:
            self.best.resume(self._state.step)

    def save(self) -> None:
        """Saves the state, then removes what is no longer among the best."""
        with self._heartbeat.during("saving"):
            self._checkpoints.save()
            self.tidy()

    def tidy(self) -> None:
        """Removes what is no longer among the best; to be called once the state is saved."""
        if self.best:
            self.best.tidy()

    @property
    def ends_early(self) -> bool:
        """Whether the evaluations have stopped getting better."""
        return self.best is not None and self.best.ranking.ended

    @contextlib.contextmanager
    def naming_the_way_back(self) -> Iterator[None]:
        """Adds to the error of a state that is not finite from which checkpoint to go on."""
        try:
            yield
        except NotFiniteError as error:
            raise NotFiniteError(f"{error}; {self._checkpoints.way_back()}") from None

    def say_end(self, logs: pathlib.Path) -> None:
        """Says why the run ended early, if it did, what its cache did, and where to find what it has written."""
        if self.best and self.ends_early and self._state.step < self._last_step:
            self._output.line(self.best.why_ended())
        cached = cache_counts().plus(self._cached, -1)
        announcing.say_end(self._output, self._state.step, cached, self._checkpoints.newest, self.best, logs)
