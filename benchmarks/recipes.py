"""Images per second of each augmentation, as a ratio to `cifar10_tutorial`, in one process and in turns.

    python -m benchmarks.recipes [--data_dir=DIR] [--global_batch_size=128] [--only=affine,mixup]

Each is a whole input: batches of the same training split in memory. Rounds alternate, so that a change of the machine's
speed affects all; the ratio is computed per round, and its median is printed. A recipe's result may be larger than the
tutorial's 24x24.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks import commands, inputs, rounds
from benchmarks.rounds import taking
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.recipes"
_IMAGES = 24_000  # images to make, 4,000 of them in test
BASE = "cifar10_tutorial"
RECIPES = {
    "pad_crop_flip": "pad_crop_flip",
    "shift": "shift",
    "flip": "flip",
    "affine": "affine",
    "cutout": "cutout",
    "random_erasing": "random_erasing",
    "color_jitter": "color_jitter",
    "randaugment": "randaugment",
    "normalize": "normalize",
    "resize": "resize(height=24, width=24)",
    "mixup": "normalize | mixup",
    "cutmix": "normalize | cutmix",
    "mixup_or_cutmix": "normalize | mixup_or_cutmix",
    "composed": "affine | color_jitter | pad_crop_flip | cutout | mixup",
}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "CIFAR-10 as converted; default: random images of its shape, made for the run")
    global_batch_size: int = flag(128, "rows of a batch", least=2)
    rounds: int = flag(5, "rounds of each recipe", least=1)
    seconds: float = flag(1.0, "length of a round")
    only: str = flag("", "recipes to measure, separated by commas; default: all")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per recipe."""
    config = commandline.parse(COMMAND, "Measure each augmentation against cifar10_tutorial.", BenchmarkConfig, argv)
    commands.say_processor()
    check(config)
    names = inputs.parts_of(config.only, RECIPES)
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        for name in names:
            takes = [
                taking(
                    iter(inputs.train_input(data_dir, config.global_batch_size, augment=text)), config.global_batch_size
                )
                for text in (RECIPES[name], BASE)
            ]
            rounds.compare(RECIPES[name], takes[0], {BASE: takes[1]}, config.rounds, config.seconds)


if __name__ == "__main__":
    commandline.run(COMMAND, main)
