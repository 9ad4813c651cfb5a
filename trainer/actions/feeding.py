"""The inner loop with its input: batches from a step on, with or without a log of their keys."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from pipeline.audit.key_log import SourceLogs
from pipeline.distribution import distribute_request
from pipeline.errors import UsageError
from pipeline.request import Request
from trainer import loop
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.loop import InnerLoop
from trainer.plan import Plan
from trainer.step.train_step import TrainStep


@dataclasses.dataclass(eq=False)
class Feed:
    """Makes inputs for the replicas of a stepper.

    Attributes:
      config: of the run.
      plan: with the requests.
      cluster: of which this is a worker.
      stepper: that the batches are for.
      iterator: over the training batches, once there is an inner loop without a log of keys.
    """

    config: TrainConfig
    plan: Plan
    cluster: Cluster
    stepper: TrainStep
    iterator: Any = None

    def batches(self, request: Request, prefetch: int | None = None) -> Any:
        """Returns distributed batches; None: as many of them are ready as --prefetch says."""
        order = self.config.order
        ahead = order.prefetch if prefetch is None else prefetch
        return distribute_request(self.stepper.strategy, request, ahead, order.virtual_replicas)

    @contextlib.contextmanager
    def inner_loop(self, start: int) -> Iterator[InnerLoop]:
        """Context with the loop over the training batches from a step on.

        Raises:
          UsageError: --log_keys cannot work with a task's own parse function.
        """
        request = dataclasses.replace(self.plan.training.request, start_step=start)
        if self.config.run.log_keys:
            with self._logged(request) as inner_loop:
                yield inner_loop
            return
        iterator = self.iterator = iter(self.batches(request))
        yield functools.partial(self.stepper.run, iterator)

    @contextlib.contextmanager
    def _logged(self, request: Request) -> Iterator[InnerLoop]:
        """Context with the loop that writes the keys of this worker's rows to --log_keys."""
        folder, rank = self.config.run.log_keys, self.cluster.rank
        if request.parse:
            raise UsageError(f"--log_keys={folder}: not for a task with its own parse function")
        assert folder is not None
        num_replicas = self.stepper.strategy.num_replicas_in_sync
        with SourceLogs(folder, self.plan.training.spec, rank, self.cluster.size, num_replicas) as log:
            batches = self.batches(dataclasses.replace(request, features=("key",)), prefetch=0)
            first = rank * (num_replicas // self.cluster.size)
            yield loop.logged(self.stepper, iter(batches), log, first)
