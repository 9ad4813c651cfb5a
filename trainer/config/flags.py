"""The flags of `trainer.run`, one group per concern; each group checks its own values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pipeline.errors import UsageError, unknown
from pipeline.order import order
from pipeline.read import corruption
from pipeline.request import parse_size
from trainer.config.model_defaults import MODEL_DEFAULTS, WITH_DROPOUT

STRATEGIES = ("one_device", "mirrored", "multiworker", "central_storage")
OPTIMIZERS = ("sgd", "momentum", "adam")


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """What is trained and evaluated on."""

    data_dir: str  # folder of the data set, made by beam_jobs.convert
    train_split: str = "train"  # what to train on; slices such as train[1000:] work
    eval_split: str = "test"  # what to evaluate on; 'none' for no evaluation
    resize: str | None = None  # stretch every image to HxW, such as 32x32, before it is distorted
    distort: str = "none"  # a recipe, such as cifar10_tutorial, shift(pixels=2) or random_resized_crop(size=32)
    on_corrupt: str = "raise"  # a corrupt record: raise an error that names it, or skip it (its row gets weight 0)
    max_corrupt: int = corruption.MAX_CORRUPT  # records that each worker may skip

    def __post_init__(self) -> None:
        """Checks the values."""
        _check_name("on_corrupt", self.on_corrupt, corruption.POLICIES)
        parse_size(self.resize, "--resize")
        _check_least(self, 0, "max_corrupt")

    @property
    def evaluates(self) -> bool:
        """Whether there is a split to evaluate on."""
        return self.eval_split not in ("", "none")


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Where it runs, and what it writes."""

    model_dir: str  # folder of checkpoints and logs; a run resumes from the newest checkpoint in it
    strategy: str = "one_device"  # one_device, mirrored, multiworker (reads TF_CONFIG) or central_storage
    num_replicas: int | None = None  # the first N GPUs, else N logical CPUs (None: all GPUs, or one CPU)
    join_timeout: float = 600.0  # seconds that a worker waits at the start until all are there
    collective_timeout: float = 120.0  # seconds at most until a worker that does not answer counts as lost
    deterministic: bool = False  # op determinism of TensorFlow: slower, bit-identical where ops are not already
    log_keys: str | None = None  # folder for the keys of every row trained on, for pipeline.audit --observed; slower

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        _check_name("strategy", self.strategy, STRATEGIES)
        _check_least(self, 1, "num_replicas")
        _check_positive(self, "join_timeout", "collective_timeout")
        if self.num_replicas is not None and self.strategy == "multiworker":
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy=multiworker: the replicas are the workers of "
                "TF_CONFIG and their GPUs; leave --num_replicas out"
            )
        if (self.num_replicas or 1) > 1 and self.strategy == "one_device":
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy=one_device: more than 1 needs --strategy=mirrored"
            )


@dataclasses.dataclass(frozen=True)
class LearningFlags:
    """The model and its optimizer."""

    model: str = "mlp"  # mlp, lenet, cifar10_cnn or resnet20
    dropout: float = 0.0  # share of the features before the last layer that is dropped in training (resnet20)
    optimizer: str = "momentum"  # sgd, momentum or adam
    learning_rate: float = 0.05  # at step 0
    decay_factor: float = 0.99  # learning_rate is multiplied by this every --decay_epochs (a staircase)
    decay_epochs: float = 1.0  # see --decay_factor
    momentum: float = 0.9  # of --optimizer=momentum

    def __post_init__(self) -> None:
        """Checks the values."""
        _check_name("model", self.model, MODEL_DEFAULTS)
        _check_name("optimizer", self.optimizer, OPTIMIZERS)
        _check_positive(self, "learning_rate", "decay_factor", "decay_epochs")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"--dropout={self.dropout}: must be 0 or more and less than 1")
        if self.dropout and self.model not in WITH_DROPOUT:
            raise UsageError(f"--dropout={self.dropout}: --model={self.model} has none; {', '.join(WITH_DROPOUT)} has")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"--momentum={self.momentum}: must be 0 or more and less than 1")


@dataclasses.dataclass(frozen=True)
class OrderFlags:
    """Which examples are in the batch of which step."""

    global_batch_size: int = 100  # rows of a step over all replicas
    virtual_replicas: int | None = None  # V: the same weights, to the bit, on any number of replicas that divides V
    cpu_threads: int = 8  # of an operation on CPUs under --virtual_replicas: kernels split sums by it, not by the cores
    seed: int = 0  # of the weights, the order and the distortions
    streams: int | None = None  # K of the order (None: 1 where the decoded split fits --shuffle_bytes)
    shuffle_bytes: int = order.SHUFFLE_BYTES  # decoded bytes that are shuffled together, over all streams
    remainder: str = "pad"  # the last batch of an epoch: pad it (weight 0) or drop it
    prefetch: int = 2  # batches held ready for every replica
    allow_order_change: bool = False  # resume although the order of examples differs from the checkpoint's

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        _check_name("remainder", self.remainder, order.REMAINDERS)
        _check_least(self, 1, "global_batch_size", "virtual_replicas", "cpu_threads", "streams", "shuffle_bytes")
        _check_least(self, 0, "seed", "prefetch")
        if self.streams is not None:
            order.check_streams(self.global_batch_size, self.streams)


@dataclasses.dataclass(frozen=True)
class StepFlags:
    """How long to train, and what happens every so many steps."""

    train_steps: int | None = None  # global step to train to (or --epochs)
    epochs: int | None = None
    """passes over the training split (neither: mlp 20, lenet 10, cifar10_cnn 100, resnet20 182)"""
    steps_per_loop: int = 20  # steps inside one tf.function; a signal waits for the end of it
    log_every: int = 100  # steps between lines; 0: none
    summary_every: int = 100  # steps between scalars for TensorBoard; 0: no scalars, not even of evaluations
    eval_every: int = 0  # steps between evaluations; 0: only at the end
    checkpoint_every: int = 1000  # steps between checkpoints; 0: none but the one at the end
    max_to_keep: int = 5  # newest checkpoints kept, besides two that are an epoch apart

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        _check_least(self, 1, "train_steps", "epochs", "steps_per_loop", "max_to_keep")
        _check_least(self, 0, "log_every", "summary_every", "eval_every", "checkpoint_every")
        if self.train_steps is not None and self.epochs is not None:
            raise UsageError(f"--train_steps={self.train_steps} and --epochs={self.epochs}: give one of them")


def _check_name(flag: str, value: str, known: Any) -> None:
    if value not in known:
        raise unknown(f"--{flag}", value, known)


def _check_least(flags: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(flags, name)
        if value is not None and value < least:
            raise UsageError(f"--{name}={value}: must be {least} or more")


def _check_positive(flags: object, *names: str) -> None:
    for name in names:
        value = getattr(flags, name)
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"--{name}={value}: must be a number above 0")
