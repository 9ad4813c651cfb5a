"""How training scales with workers: measured on this machine's cores or GPUs, and by a model of the step beyond them.

    python -m benchmarks.scaling [--models=mlp,cifar10_cnn] [--links=1000,100] [--json=FILE] [--chart=FILE.svg]

Each worker has its own core, and the same number of rows for any number of workers. A step is modelled from parts that
are measured separately: one worker's step (for workers on this machine, while others run), and the cost of a message
and of a byte between two. The model is then compared with jobs of two workers, and of a parameter server, on this
machine and over links of the given Mbit/s (network namespaces; needs root), and extrapolated to 256 workers. With GPUs,
replicas on 1, 2, 4, ... of them are measured instead, with the GPUs' utilisation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks import commands, inputs
from benchmarks.scaling import links, runs, scaling_chart, step_model
from benchmarks.scaling.results import Point, Scaling
from benchmarks.scaling.step_model import Link, Parts
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.scaling"
_IMAGES = 6_000
# ResNet-50 gets images of the size it was designed for.
_FLAGS = {"resnet50": ("--resize=224x224", "--augment=none")}
_ROWS, _ROWS_OF = 128, {"mlp": 100, "resnet50": 4}
_FIRST, _LEAST, _MOST = 16, 16, 2_000  # steps of the run that finds the number for --seconds; its bounds
_SPEEDS = {"synchronous": step_model.synchronous, "asynchronous": step_model.asynchronous}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    models: str = flag("mlp,cifar10_cnn,resnet20,resnet50", "models of trainer.run, separated by commas")
    data_dir: str = flag("", "CIFAR-10 as converted; default: random images of its shape, made for the run")
    links: str = flag("1000,100", "Mbit/s of links to compare the model with, separated by commas; empty: none")
    seconds: float = flag(8.0, "length of a run, without its start", least=0.1)
    json: str = flag("", "a file for all figures")
    chart: str = flag("", "a file for the picture: .svg or .png")

    def __post_init__(self) -> None:
        """Checks the values."""
        check(self)
        if self.links:
            inputs.whole_numbers("--links", self.links, 1)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each job; writes the figures and the chart."""
    config = commandline.parse(COMMAND, "Measure how training scales.", BenchmarkConfig, argv)
    commands.say_processor()
    given = [int(rate) for rate in config.links.split(",") if rate]
    if given and (why := links.why_not()):
        print(f"no links are measured: {why}", file=sys.stderr, flush=True)
        given = []
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        gpus = len(inputs.load_tensorflow().config.list_physical_devices("GPU"))
        found = [_measured(model, data_dir, config.seconds, given, gpus) for model in config.models.split(",")]
    errors = [abs(point.error) for one in found for point in one.points if point.error is not None]
    if errors:
        mean = sum(errors) / len(errors)
        print(
            f"the model is off by {mean:.0%} in the mean of {len(errors)} jobs, at most by {max(errors):.0%}",
            flush=True,
        )
    if config.json:
        content = {"processor": commands.processor(), "models": list(map(dataclasses.asdict, found))}
        pathlib.Path(config.json).write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")
    if config.chart:
        scaling_chart.draw(found, config.chart)


def _measured(model: str, data_dir: str, seconds: float, given: Sequence[int], gpus: int) -> Scaling:
    rows = _ROWS_OF.get(model, _ROWS)
    flags = [f"--data_dir={data_dir}", f"--model={model}", "--ema=0", *_FLAGS.get(model, ())]
    if gpus:
        return Scaling(model, None, tuple(_shown(_on_gpus(model, flags, rows, seconds, gpus))))

    def batch(workers: int) -> list[str]:
        return [*flags, f"--global_batch_size={workers * rows}"]

    steps = _steps(rows / runs.alone(batch(1), _FIRST).rate, seconds)
    one = runs.alone(batch(1), steps)
    server = runs.asynchronous(batch(1), steps, 1, Link())
    parts = _parts(runs.exchange(batch(2)), rows, rows / one.rate, rows / server.rate)
    print(
        f"{model}: {rows} rows per worker, {1e3 * parts.compute:.1f} ms per step, {parts.gradients / 1e6:.2f} MB of "
        f"gradients; {1e3 * parts.hop:.2f} ms per message, {1e9 * parts.copy:.2f} ns per byte; "
        f"{1e3 * parts.server:.1f} ms more with a parameter server",
        flush=True,
    )
    points = [Point("synchronous", 1, None, one.rate, None, one.loss)]
    points += [Point("asynchronous", 1, None, server.rate, None, server.loss)]
    counts = _counts(len(os.sched_getaffinity(0)))
    jobs: list[tuple[str, int, int | None]] = [("synchronous", workers, None) for workers in counts]
    jobs += [("synchronous", 2, rate) for rate in given] + [("asynchronous", 2, None)]
    jobs += [("asynchronous", 1, rate) for rate in given]
    here = {1: parts}
    for count in {*counts, 2}:
        shared = rows / runs.side_by_side(batch(1), steps, count).rate
        print(f"  {count} at once, each alone: {1e3 * shared:.1f} ms per step", flush=True)
        here[count] = dataclasses.replace(parts, compute=shared)
    return Scaling(model, parts, (*_shown(points), *_shown(_checked(jobs, batch, seconds, steps, here))))


def _checked(
    jobs: Iterable[tuple[str, int, int | None]],
    batch: Callable[[int], list[str]],
    seconds: float,
    steps: int,
    here: dict[int, Parts],
) -> Iterator[Point]:
    """Yields the jobs of a strategy, for each number of workers and link in Mbit/s, with the model's predictions.

    `here` has the parts of a step by the number of workers on this machine.
    """
    for strategy, workers, rate in jobs:
        link = Link() if rate is None else Link(bits=rate * 1e6)
        run = runs.synchronous if strategy == "synchronous" else runs.asynchronous
        predicted = _SPEEDS[strategy](here[workers], workers, link)
        count = steps if rate is None else min(steps, _steps(workers * here[workers].rows / predicted, seconds))
        found = run(batch(workers), count, workers, link)
        yield Point(strategy, workers, rate, found.rate, predicted, found.loss)


def _shown(points: Iterable[Point]) -> Iterator[Point]:
    """Yields and prints points."""
    for point in points:
        print(f"  {point}", flush=True)
        yield point


def _on_gpus(model: str, flags: list[str], rows: int, seconds: float, gpus: int) -> Iterator[Point]:
    steps = 0
    for count in [1, *_counts(gpus)]:
        batch = [*flags, f"--global_batch_size={count * rows}"]
        steps = steps or _steps(rows / runs.on_gpus(batch, _FIRST, 1).rate, seconds)
        run = runs.on_gpus(batch, steps, count)
        yield Point("mirrored", count, None, run.rate, None, run.loss, run.busy, run.gpu_use)


def _counts(most: int) -> list[int]:
    """Returns 2, 4, 8, ... up to a number."""
    return [1 << power for power in range(1, most.bit_length()) if 1 << power <= most]


def _steps(each: float, seconds: float) -> int:
    """Returns the number of steps, of `each` seconds, in a run of some seconds."""
    return max(_LEAST, min(_MOST, round(seconds / each)))


def _parts(found: dict[str, float], rows: int, compute: float, with_server: float) -> Parts:
    """Returns the parts of a step, from the time in which two workers sum gradients.

    A ring of two sends each worker's half twice: two messages, with the bytes of all gradients.
    """
    num_bytes = int(found["bytes"])
    hop, copy = found["small"] / 2, max(0.0, found["all"] - found["small"]) / num_bytes
    return Parts(rows, compute, num_bytes, hop, copy, max(0.0, with_server - compute))


if __name__ == "__main__":
    commandline.run(COMMAND, main)
