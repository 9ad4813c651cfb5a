"""This input over encoded JPEGs: `pipeline.input_fn`, in memory or in windows."""

from __future__ import annotations

import math
from typing import Any

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import MAGNITUDE, OPERATIONS, SIZE, touching
from benchmarks.rounds import Take
from pipeline import manifest

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
AUGMENTS = "random_resized_crop, randaugment, normalize by the data set's mean"
_WINDOWS, _STREAMS = 4, 8  # windows per epoch; most streams


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the shards in `data_dir`."""


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    size = manifest.load(setting.data_dir).split("train").num_bytes
    options: dict[str, Any] = {"shuffle_bytes": 2 * size}
    if setting.options.get("windows"):
        # Fewer streams than by default, so that few large images suffice for windows of all of them.
        options = {"shuffle_bytes": size // _WINDOWS, "streams": math.gcd(setting.rows, _STREAMS)}
    scaled = ", scaled_decoding=True" if setting.options.get("scaled") else ""
    recipe = f"random_resized_crop(size={SIZE}, normalize=False{scaled})"
    if setting.augmented:
        recipe += f" | randaugment(n={OPERATIONS}, m={MAGNITUDE}) | normalize"
    batches = inputs.train_input(setting.data_dir, setting.rows, augment=recipe, **options).as_numpy_iterator()
    return touching(lambda: next(batches)[0], setting.rows)
