"""`python -m pipeline.bench DATA_DIR`: times each stage of an input on this machine, and says which bounds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import simple_parsing

from pipeline.commands import commandline
from pipeline.errors import UsageError
from pipeline.request import HOST

COMMAND = "pipeline.bench"
_LEAST = {"global_batch_size": 1, "replicas": 1, "rounds": 1, "steps": 1}


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """The input that is timed: the arguments of input_fn, as the run has them."""

    data_dir: str = simple_parsing.field(positional=True, metavar="DATA_DIR")  # the data set's folder
    split: str = "train"  # or a slice of one
    global_batch_size: int = 128  # rows per step over all replicas
    distort: str | None = None  # a recipe, such as cifar10_tutorial; default: none
    distort_on: str = HOST  # device: batches are handed over as they are, and what the steps do with them is not timed
    resize: str | None = None  # stretch every image to this first, such as 224x224
    shuffle_bytes: int | None = None  # decoded bytes that are shuffled together; default: 1 GiB
    streams: int | None = None  # default: that of input_fn
    remainder: str = "pad"  # pad or drop
    seed: int = 0  # of the order
    evaluation: bool = False  # the input of evaluation; default: of training
    replicas: int | None = None  # on GPUs, or on logical CPUs if there are none; default: all GPUs, or one CPU
    rounds: int = 5  # of each measurement, in turns; medians are reported
    steps: int | None = None  # per round; default: as many as take 0.2 s
    json: bool = False  # print one JSON object instead

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name}={value}: must be {least} or more")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints what each stage costs.

    Raises:
      DataError: there is no valid data set, or a shard is missing or corrupt.
      UsageError: a flag cannot work, or the data set has no images.
    """
    description = "Time each stage of an input: read, check, decode, order, gather, distort, batch, copy to device."
    config = commandline.parse(COMMAND, description, BenchConfig, argv)
    commandline.require("tensorflow")
    from pipeline.bench import command  # noqa: PLC0415, here because --help must be fast

    command.run(config)


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
