"""What a run is made of: one frozen dataclass, the defaults of each model, and the flags made from them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.commands import commandline
from pipeline.errors import UsageError, unknown
from pipeline.order import order
from pipeline.read import corruption
from pipeline.request import parse_size

STRATEGIES = ("one_device", "mirrored", "multiworker", "central_storage")
OPTIMIZERS = ("sgd", "momentum", "adam")

# What differs from TrainConfig's own defaults, by model.
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    # 784-500-10 of the MNIST chapter of "TensorFlow: a practical Google deep-learning framework" (Zheng, Gu): batch
    # 100, decay 0.99 an epoch. Its plain gradient at a rate of 0.8 gets MNIST to 98.2% in 8 epochs, but our 1,429
    # digits to 14% only; momentum at 0.05 gets both to where they go (98.2%, 96.5%).
    "mlp": {},
    # LeNet-5 (LeCun et al. 1998), trained by momentum as is usual today.
    "lenet": {
        "global_batch_size": 100,
        "optimizer": "momentum",
        "learning_rate": 0.01,
        "decay_factor": 0.98,
        "decay_epochs": 1.0,
    },
    # The CIFAR-10 tutorial's cifar10.py: batch 128, rate 0.1 times 0.1 every 350 epochs, distorted 24x24 crops.
    "cifar10_cnn": {
        "global_batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "decay_factor": 0.1,
        "decay_epochs": 350.0,
        "distort": "cifar10_tutorial",
    },
}
DEFAULT_EPOCHS = {"mlp": 20, "lenet": 10, "cifar10_cnn": 100}  # where neither --train_steps nor --epochs is given


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Flags of a run. Defaults that depend on --model are shown for the model that is named before --help."""

    data_dir: str  # folder of the data set, made by beam_jobs.convert
    model_dir: str  # folder of checkpoints and logs; a run goes on from the newest checkpoint in it
    model: str = "mlp"  # mlp, lenet or cifar10_cnn
    strategy: str = "one_device"  # one_device, mirrored, multiworker (reads TF_CONFIG) or central_storage
    num_replicas: int | None = None  # the first N GPUs, else N logical CPUs (None: all GPUs, or one CPU)
    train_split: str = "train"  # what to train on; slices such as train[1000:] work
    eval_split: str = "test"  # what to evaluate on; 'none' for no evaluation
    global_batch_size: int = 100  # rows of a step over all replicas
    train_steps: int | None = None  # global step to train to (or --epochs)
    epochs: int | None = None  # passes over the training split (neither: mlp 20, lenet 10, cifar10_cnn 100)
    steps_per_loop: int = 20  # steps inside one tf.function; a signal waits for the end of it
    log_every: int = 100  # steps between lines; 0: none
    checkpoint_every: int = 1000  # steps between checkpoints; one is always saved at the end
    eval_every: int = 0  # steps between evaluations; 0: only at the end
    max_to_keep: int = 5  # checkpoints kept
    optimizer: str = "momentum"  # sgd, momentum or adam
    learning_rate: float = 0.05  # at step 0
    decay_factor: float = 0.99  # learning_rate is multiplied by this every --decay_epochs (a staircase)
    decay_epochs: float = 1.0  # see --decay_factor
    momentum: float = 0.9  # of --optimizer=momentum
    resize: str | None = None  # stretch every image to HxW, such as 32x32, before it is distorted
    distort: str = "none"  # a recipe, such as cifar10_tutorial, shift(pixels=2) or random_resized_crop(size=32)
    on_corrupt: str = "raise"  # a corrupt record: raise an error that names it, or skip it (its row gets weight 0)
    max_corrupt: int = corruption.MAX_CORRUPT  # records that each worker may skip
    log_keys: str | None = None  # folder for the keys of every row trained on, for pipeline.audit --observed; slower
    streams: int | None = None  # K of the order (None: 1 where the decoded split fits --shuffle_bytes)
    shuffle_bytes: int = order.SHUFFLE_BYTES  # decoded bytes that are shuffled together, over all streams
    remainder: str = "pad"  # the last batch of an epoch: pad it (weight 0) or drop it
    prefetch: int = 2  # batches held ready for every replica
    seed: int = 0  # of the weights, the order and the distortions
    deterministic: bool = False  # op determinism of TensorFlow: slower, bit-identical where ops are not already
    collective_timeout: float = 120.0  # seconds after which a worker that does not answer counts as lost
    allow_order_change: bool = False  # resume although the order of examples differs from the checkpoint's

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        _check_name("--model", self.model, MODEL_DEFAULTS)
        _check_name("--strategy", self.strategy, STRATEGIES)
        _check_name("--optimizer", self.optimizer, OPTIMIZERS)
        _check_name("--remainder", self.remainder, order.REMAINDERS)
        _check_name("--on_corrupt", self.on_corrupt, corruption.POLICIES)
        parse_size(self.resize, "--resize")
        self._check_ranges()
        self._check_together()

    def _check_ranges(self) -> None:
        for name in ("global_batch_size", "steps_per_loop", "checkpoint_every", "max_to_keep", "shuffle_bytes"):
            _check_range(name, getattr(self, name), 1)
        for name in ("num_replicas", "train_steps", "epochs", "streams"):
            if getattr(self, name) is not None:
                _check_range(name, getattr(self, name), 1)
        for name in ("log_every", "eval_every", "prefetch", "seed", "max_corrupt"):
            _check_range(name, getattr(self, name), 0)
        for name in ("learning_rate", "decay_factor", "decay_epochs", "collective_timeout"):
            _check_positive(name, getattr(self, name))
        if not 0 <= self.momentum < 1:
            raise UsageError(f"--momentum={self.momentum}: must be 0 or more and less than 1")

    def _check_together(self) -> None:
        if self.train_steps is not None and self.epochs is not None:
            raise UsageError(f"--train_steps={self.train_steps} and --epochs={self.epochs}: give one of them")
        if self.num_replicas is not None and self.strategy == "multiworker":
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy=multiworker: its replicas are the workers of "
                "TF_CONFIG and their GPUs; leave --num_replicas out"
            )
        if (self.num_replicas or 1) > 1 and self.strategy == "one_device":
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy=one_device: more than 1 needs --strategy=mirrored"
            )
        if self.streams is not None:
            order.check_streams(self.global_batch_size, self.streams)

    @property
    def evaluates(self) -> bool:
        """Whether there is a split to evaluate on."""
        return self.eval_split not in ("", "none")

    def last_step(self, steps_per_epoch: int) -> int:
        """Returns the global step at which training ends, given T."""
        return self.train_steps or (self.epochs or DEFAULT_EPOCHS[self.model]) * steps_per_epoch

    @classmethod
    def for_model(cls, model: str, **values: Any) -> TrainConfig:
        """Returns the config with the model's defaults, overridden by `values`.

        Raises:
          UsageError: a value that cannot work.
        """
        return cls(**{**defaults(model), **values})


def defaults(model: str) -> dict[str, Any]:
    """Returns every field that has a default, with the model's own.

    Raises:
      UsageError: unknown model.
    """
    _check_name("--model", model, MODEL_DEFAULTS)
    own = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.default is not dataclasses.MISSING}
    return {**own, **MODEL_DEFAULTS[model], "model": model}


def parse(argv: Sequence[str] | None) -> TrainConfig:
    """Returns the config of the command line; its defaults are those of the model that it names.

    Raises:
      UsageError: an unknown flag or a value that cannot work.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    description = "Trains an image model on one device or many; resumes where it stopped."
    default = defaults(_named_model(arguments))
    return commandline.parse("trainer.run", description, TrainConfig, arguments, default)


def _named_model(arguments: list[str]) -> str:
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--model", nargs="?")
    return first.parse_known_args(arguments)[0].model or TrainConfig.model


def _check_name(flag: str, value: str, known: Any) -> None:
    if value not in known:
        raise unknown(flag, value, known)


def _check_range(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"--{name}={value}: must be {least} or more")


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"--{name}={value}: must be a number above 0")
