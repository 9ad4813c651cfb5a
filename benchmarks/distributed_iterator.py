"""The cost of distributing the input: images per second and processor time per step, in one process, as ratios.

    python -m benchmarks.distributed_iterator [--data_dir=DIR] [--global_batch_size=512]

The same batches are taken by `next(iterator)` inside a `tf.function` and outside, as
  plain: from `input_fn`'s dataset, with no strategy;
  before: from `strategy.experimental_distribute_dataset(input_fn(...))`, TensorFlow's way with its defaults;
  after: from `pipeline.distribute(strategy, ...)`.
Every replica reads one value of each component. Rounds alternate; the ratio is computed per round, and its median is
printed. On a shared machine, processor time says more than wall time.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import commands, inputs
from benchmarks.rounds import Round, Take, alternate, taking
from pipeline.commands import commandline
from pipeline.commands.flags import flag

COMMAND = "benchmarks.distributed_iterator"
REPLICAS = (1, 2, 4)
_STEPS = 20  # steps of a loop inside a tf.function
_RECIPES = ("none", "cifar10_tutorial")
_IMAGES = 60_000  # images to make, 10,000 of them in test


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "CIFAR-10 as converted; default: random images of its shape, made for the run")
    global_batch_size: int = flag(512, "rows of a batch")
    rounds: int = flag(7, "rounds of each input")
    seconds: float = flag(0.7, "length of a round")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each input."""
    config = commandline.parse(COMMAND, "Measure what distributing the input costs.", BenchmarkConfig, argv)
    commands.say_processor()
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        tf = inputs.load_tensorflow()
        devices = [tf.config.LogicalDeviceConfiguration()] * max(REPLICAS)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
        for recipe in _RECIPES:
            for inside in (True, False):
                report(config, recipe, inside, measure(tf, config, data_dir, recipe, inside))


def measure(tf, config: BenchmarkConfig, data_dir: str, recipe: str, inside: bool) -> dict[str, list[Round]]:
    """Returns the rounds of each input, by name."""
    loops = {
        name: looper(tf, strategy, iter(batches), config.global_batch_size, inside)
        for name, strategy, batches in contestants(tf, config, data_dir, recipe)
    }
    return alternate(loops, config.rounds, config.seconds)


def contestants(tf, config: BenchmarkConfig, data_dir: str, recipe: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, strategy, batches) of the contestants."""
    from pipeline import distribute, input_fn  # noqa: PLC0415

    arguments = {"global_batch_size": config.global_batch_size, "training": True, "augment": recipe}
    yield "plain", tf.distribute.get_strategy(), input_fn(data_dir, **arguments)
    for replicas in REPLICAS:
        devices = [f"CPU:{i}" for i in range(replicas)]
        one = replicas == 1
        strategy = tf.distribute.OneDeviceStrategy("CPU:0") if one else tf.distribute.MirroredStrategy(devices)
        name = "one_device" if one else f"mirrored x{replicas}"
        dataset = input_fn(data_dir, **arguments)
        yield f"{name}, before", strategy, strategy.experimental_distribute_dataset(dataset)
        yield f"{name}, after", strategy, distribute(strategy, data_dir, **arguments)


def looper(tf, strategy, iterator: Iterator, rows: int, inside: bool) -> Take:
    """Returns a Take of steps of `rows` images from an endless iterator."""

    def touch(*batch):
        return tf.add_n([tf.cast(tf.reshape(component, [-1])[0], tf.float32) for component in batch])

    @tf.function
    def loop(taken, steps):
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            total += tf.add_n(strategy.experimental_local_results(strategy.run(touch, next(taken))))
        return total

    def take_inside() -> tuple[int, float]:
        loop(iterator, tf.constant(_STEPS)).numpy()
        return _STEPS * rows, 0.0

    return take_inside if inside else taking(iterator, rows)


def report(config: BenchmarkConfig, recipe: str, inside: bool, rounds: dict[str, list[Round]]) -> None:
    """Prints medians, and the ratios to the plain iterator and of after to before."""
    print(f"{recipe}, batch {config.global_batch_size}, next {'inside' if inside else 'outside'} a tf.function:")
    for name, mine in rounds.items():
        rate, cpu = statistics.median(one.rate for one in mine), statistics.median(one.cpu for one in mine)
        line = f"  {name:20} {rate:11,.0f} img/s {cpu * config.global_batch_size:6,.0f} us of processor a step"
        if name != "plain":
            line += f"; speed of plain x {ratio(mine, rounds['plain']):.2f}"
        if name.endswith("after"):
            line += f", of before x {ratio(mine, rounds[name.replace('after', 'before')]):.2f}"
        print(line, flush=True)


def ratio(mine: list[Round], other: list[Round]) -> float:
    """Returns the median of the ratios of speeds, round by round."""
    return statistics.median(one.rate / two.rate for one, two in zip(mine, other, strict=True))


if __name__ == "__main__":
    commandline.run(COMMAND, main)
