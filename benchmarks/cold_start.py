"""Seconds to the first batch: resuming far into a run compared with a cold start.

    python -m benchmarks.cold_start [--data_dir=DIR] [--step=10000000]

Every start is its own process; those at step 0 and at --step alternate. The time is from the call of `input_fn` to the
first batch, without the start-up of Python and TensorFlow. The ratio is computed per round; its median is printed.
`resident` keeps the decoded split in memory; `windowed` reads it in windows of an eighth. The files are in the page
cache.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

from benchmarks import commands, inputs
from benchmarks.rounds import ratio_text
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.cold_start"
_WINDOWS = 8


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "raw images as converted; default: random images of CIFAR-10's shape, made for the run")
    images: int = flag(60_000, "images to make")
    step: int = flag(10_000_000, "where the resume starts", least=0)
    global_batch_size: int = flag(128, "rows of a batch")
    augment: str = flag("cifar10_tutorial", "the recipe")
    rounds: int = flag(5, "rounds of each", least=1)
    start_at: int = flag(-1, "start once at this step, print the seconds and exit, as each round does")
    windowed: bool = flag(False, "with --start_at: in windows")

    def __post_init__(self) -> None:
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each kind of input."""
    config = commandline.parse(COMMAND, "Measure the time to the first batch.", BenchmarkConfig, argv)
    commands.say_processor()
    if config.start_at >= 0:
        print(start(config))
        return
    with inputs.data_set(
        config.data_dir, lambda folder: inputs.make_cifar(folder, config.images, "--num_shards=train:16,test:1")
    ) as data_dir:
        for is_windowed in (False, True):
            compare(dataclasses.replace(config, data_dir=data_dir), is_windowed)


def start(config: BenchmarkConfig) -> float:
    """Returns the seconds from the call of `input_fn` to its first batch."""
    tf = inputs.load_tensorflow()
    from pipeline.batch.compose import make_dataset  # noqa: F401, PLC0415 (what input_fn imports)

    tf.constant(0).numpy()  # initialises the devices
    decoded = inputs.decoded_bytes(config.data_dir)
    began = time.perf_counter()
    batches = inputs.train_input(
        config.data_dir,
        config.global_batch_size,
        augment=config.augment,
        start_step=config.start_at,
        shuffle_bytes=decoded // _WINDOWS if config.windowed else decoded,
    )
    next(iter(batches))
    return time.perf_counter() - began


def compare(config: BenchmarkConfig, is_windowed: bool) -> None:
    """Starts processes in turn and prints the medians and the ratio."""
    flags = [f"--data_dir={config.data_dir}", f"--global_batch_size={config.global_batch_size}"]
    flags += [f"--augment={config.augment}", f"--windowed={is_windowed}"]
    resumes: list[float] = []
    colds: list[float] = []
    whole = []
    for _ in range(config.rounds):
        for seconds, step in ((colds, 0), (resumes, config.step)):
            run = commands.run(COMMAND, [*flags, f"--start_at={step}"])
            seconds.append(float(run.output.strip().splitlines()[-1]))
            whole.append(run.wall)
    ratios = [one / two for one, two in zip(resumes, colds, strict=True)]
    print(
        f"{'windowed' if is_windowed else 'resident'}, first batch after {statistics.median(resumes):.2f} s at step "
        f"{config.step:,} against {statistics.median(colds):.2f} s at step 0 (the whole process: "
        f"{statistics.median(whole):.1f} s): {ratio_text(ratios)}",
        flush=True,
    )


if __name__ == "__main__":
    commandline.run(COMMAND, main)
