"""What a run is going to do, from its config and the manifest alone: checked before TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.splits import select
from pipeline.order import order
from pipeline.order.order import OrderSpec
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest, resolve
from trainer.cluster import Cluster
from trainer.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Plan:
    """The numbers of a run.

    Attributes:
      training: the request for training data, resolved.
      last_step: global step at which training ends.
      evaluation_steps: batches of one evaluation; 0 where there is none.
      evaluation_examples: that it must see.
    """

    training: ResolvedRequest
    last_step: int
    evaluation_steps: int
    evaluation_examples: int

    @property
    def manifest(self) -> Manifest:
        """Of the data set."""
        return self.training.manifest

    @property
    def spec(self) -> OrderSpec:
        """The arguments of the training order."""
        return self.training.spec

    @property
    def steps_per_epoch(self) -> int:
        """T."""
        return self.training.order.steps_per_epoch

    def evaluation_request(self, split: str) -> Request:
        """Returns the request for a split in its order, padded: every example counts."""
        request = self.training.request
        return dataclasses.replace(
            request,
            data=dataclasses.replace(request.data, split=split),
            order=dataclasses.replace(request.order, training=False, remainder="pad"),
        )

    @property
    def num_classes(self) -> int:
        """Of the labels."""
        return len(self.manifest.class_names)

    def decay_steps(self, decay_epochs: float) -> int:
        """Returns epochs as steps, at least 1."""
        return max(1, int(decay_epochs * self.steps_per_epoch))


def make(config: TrainConfig, cluster: Cluster) -> Plan:
    """Returns the plan of a run.

    Raises:
      DataError: no valid data set.
      UsageError: the config does not fit the data.
    """
    order.check_replicas(config.global_batch_size, max(config.num_replicas or 1, cluster.size))
    training = resolve(
        Request.of(
            config.data_dir,
            config.train_split,
            global_batch_size=config.global_batch_size,
            training=True,
            seed=config.seed,
            remainder=config.remainder,
            streams=config.streams,
            shuffle_bytes=config.shuffle_bytes,
            distort=config.distort,
            resize=config.resize,
            on_corrupt=config.on_corrupt,
            max_corrupt=config.max_corrupt,
        )
    )
    last_step = config.last_step(training.order.steps_per_epoch)
    examples = _count(training.manifest, config.eval_split) if config.evaluates else 0
    return Plan(training, last_step, -(-examples // config.global_batch_size), examples)


def _count(manifest: Manifest, split: str) -> int:
    try:
        return select(manifest, split).num_examples
    except UsageError as error:
        raise UsageError(f"--eval_split={split}: {error}; --eval_split=none trains without evaluation") from None


def prepare_folder(flag: str, path: str) -> None:
    """Makes the folder that a flag names, to write to.

    Raises:
      UsageError: it is a file, or cannot be made.
      DataError: it cannot be written to.
    """
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{flag}={path}: is a file, not a folder") from None
    except OSError as error:
        raise UsageError(f"{flag}={path}: cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{flag}={path}: is not writable")
