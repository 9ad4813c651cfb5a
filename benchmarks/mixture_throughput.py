"""The cost of a mixture: two halves of a data set, fed together, compared with the whole data set, as ratios.

    python -m benchmarks.mixture_throughput [--data_dir=DIR] [--rounds=5]

Both feed the same images in batches of the same size, out of memory. Batches are taken inside a tf.function, as a
training loop does. Rounds alternate; the ratio, of images per second of processor time, is computed per round, and its
median is printed. Wall time would mean little: one's prefetched batches are made while the other is measured.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import commands, inputs
from benchmarks.rounds import Take, alternate, ratio_text
from pipeline import input_fn
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.mixture_throughput"
_BATCHES = (128, 512)
_RECIPES = ("none", "cifar10_tutorial")
_IMAGES = 60_000  # images to make, 10,000 of them in test
_STEPS = 20  # of a loop inside a tf.function


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "CIFAR-10 as converted; default: random images of its shape, made for the run")
    rounds: int = flag(5, "rounds of each input", least=1)
    seconds: float = flag(1.0, "length of a round", least=0.001)

    def __post_init__(self) -> None:
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each recipe and size of batch."""
    config = commandline.parse(COMMAND, "Measure what a mixture costs, as ratios.", BenchmarkConfig, argv)
    commands.say_processor()
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        for recipe in _RECIPES:
            for rows in _BATCHES:
                print(_compared(config, data_dir, recipe, rows), flush=True)


def _compared(config: BenchmarkConfig, data_dir: str, recipe: str, rows: int) -> str:
    tf = inputs.load_tensorflow()
    from pipeline.bench.measure import taking  # noqa: PLC0415, here because it loads TensorFlow

    halves = [(f"{data_dir}:train[:50%]", 1), (f"{data_dir}:train[50%:]", 1)]
    options: Any = {"global_batch_size": rows, "training": True, "augment": recipe}
    contestants: dict[str, Take] = {}
    for name, given in (("mixture", halves), ("whole", data_dir)):
        take = taking(input_fn(given, **options), lambda _: tf.constant(rows, tf.int64))
        contestants[name] = functools.partial(lambda take: (take(_STEPS), 0.0), take)
    found = alternate(contestants, config.rounds, config.seconds)
    pairs = zip(found["mixture"], found["whole"], strict=True)
    ratio = ratio_text([whole.cpu / mixture.cpu for mixture, whole in pairs])
    mine, other = (statistics.median(one.cpu for one in found[name]) for name in ("mixture", "whole"))
    return f"{recipe}, batch {rows}: {mine:.2f} us of processor per image against {other:.2f}: {ratio}"


if __name__ == "__main__":
    commandline.run(COMMAND, main)
