"""What a run is going to do, from its config and the manifest alone: checked before TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from pipeline.errors import DataError, UsageError
from pipeline.order import order
from pipeline.order.counts import check_virtual_replicas
from pipeline.order.sharing import sharing_note
from pipeline.request import Request, UserParse
from pipeline.resolved import ResolvedRequest, resolve
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Plan:
    """The numbers of a run.

    Attributes:
      training: the request for training data, with the data set and the order.
      last_step: global step at which training ends.
      evaluation: the request for one pass over the split to evaluate on; None if the config asks for none.
      may_skip: how many of its examples may be left out because their records are corrupt.
      note: how often the workers read the data together, where that is more than once per epoch.
    """

    training: ResolvedRequest
    last_step: int
    evaluation: ResolvedRequest | None
    may_skip: int
    note: str | None = None


def make(config: TrainConfig, cluster: Cluster, parse: UserParse | None = None) -> Plan:
    """Returns the plan of a run.

    Args:
      config: of the run.
      cluster: that runs it.
      parse: makes features and labels of serialized records; None: the data are images.

    Raises:
      DataError: no valid data set.
      UsageError: the config does not fit the data.
    """
    replicas, virtual = max(config.run.num_replicas or 1, cluster.size), config.order.virtual_replicas
    if virtual is not None:
        check_virtual_replicas(config.order.global_batch_size, virtual, replicas)
    order.check_replicas(config.order.global_batch_size, replicas)
    training = resolve(request_of(config, parse, training=True))
    training.check_pairs(replicas)
    evaluation = _evaluation(config, parse) if config.data.evaluates else None
    may_skip = config.data.max_corrupt * cluster.size if config.data.on_corrupt == "skip" else 0
    note = sharing_note(training.spec, training.order, cluster.size)
    return Plan(training, config.last_step(training.order.steps_per_epoch), evaluation, may_skip, note)


def request_of(config: TrainConfig, parse: UserParse | None, training: bool) -> Request:
    """Returns the request for the training split, or for one padded pass over the evaluation split.

    Args:
      config: of the run.
      parse: as in `make`.
      training: which of the two.
    """
    return Request(
        config.data.data_dir,
        config.data.train_split if training else config.data.eval_split,
        training=training,
        global_batch_size=config.order.global_batch_size,
        seed=config.order.seed,
        streams=config.order.streams,
        shuffle_bytes=config.order.shuffle_bytes,
        remainder=config.order.remainder if training else "pad",
        parse=parse,
        distort=None if parse and config.data.distort == "none" else config.data.distort,
        resize=config.data.resize,
        on_corrupt=config.data.on_corrupt,
        max_corrupt=config.data.max_corrupt,
        cache_dir=config.data.cache_dir,
        cache_bytes=config.data.cache_bytes,
    )


def _evaluation(config: TrainConfig, parse: UserParse | None) -> ResolvedRequest:
    try:
        return resolve(request_of(config, parse, training=False))
    except UsageError as error:
        flag = f"--eval_split={config.data.eval_split}"
        raise UsageError(f"{flag}: {error}; --eval_split=none trains without evaluation") from None


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
        raise UsageError(f"{flag}={path}: cannot be created: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{flag}={path}: is not writable")
