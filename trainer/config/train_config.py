"""The whole config of a run, from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import typing
from collections.abc import Sequence

from pipeline.commands import commandline
from pipeline.errors import UsageError, unknown
from pipeline.request import Request
from trainer.config.flags import DataFlags, LearningFlags, OrderFlags, RunFlags, StepFlags
from trainer.config.model_defaults import DEFAULT_EPOCHS, MODEL_DEFAULTS


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All flags. The defaults shown are those of the model that is named before --help."""

    data: DataFlags
    run: RunFlags
    learning: LearningFlags
    order: OrderFlags
    steps: StepFlags

    def __post_init__(self) -> None:
        """Checks values of several groups together."""
        if self.order.virtual_replicas is not None and self.run.strategy == "central_storage":
            raise UsageError(
                f"--virtual_replicas={self.order.virtual_replicas} with --strategy=central_storage: is not supported; "
                "use one_device, mirrored or multiworker"
            )

    def request(self, training: bool) -> Request:
        """Returns the request for the training split, or for one padded pass over the evaluation split."""
        return Request(
            self.data.data_dir,
            self.data.train_split if training else self.data.eval_split,
            training=training,
            global_batch_size=self.order.global_batch_size,
            seed=self.order.seed,
            streams=self.order.streams,
            shuffle_bytes=self.order.shuffle_bytes,
            remainder=self.order.remainder if training else "pad",
            distort=self.data.distort,
            resize=self.data.resize,
            on_corrupt=self.data.on_corrupt,
            max_corrupt=self.data.max_corrupt,
        )

    def last_step(self, steps_per_epoch: int) -> int:
        """Returns the global step at which training ends, given T."""
        epochs = self.steps.epochs or DEFAULT_EPOCHS[self.learning.model]
        return self.steps.train_steps or epochs * steps_per_epoch


def parse(argv: Sequence[str] | None) -> TrainConfig:
    """Returns the config of the command line; its defaults are those of the model that it names.

    Raises:
      UsageError: an unknown flag or a value that cannot work.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--model", nargs="?")
    model = first.parse_known_args(arguments)[0].model or LearningFlags.model
    description = "Trains an image model on one device or many; resumes where it stopped."
    if model not in MODEL_DEFAULTS:
        raise unknown("--model", model, MODEL_DEFAULTS)
    flags = {**MODEL_DEFAULTS[model], "model": model}
    defaults = {
        name: {
            field.name: flags.get(field.name, field.default)
            for field in dataclasses.fields(group)
            if field.name in flags or field.default is not dataclasses.MISSING
        }
        for name, group in typing.get_type_hints(TrainConfig).items()
    }
    return commandline.parse("trainer.run", description, TrainConfig, arguments, defaults)
