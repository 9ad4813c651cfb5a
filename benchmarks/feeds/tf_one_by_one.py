"""`tf.data` as in the tutorials: read, shuffle, parse and augment one example at a time, batch, prefetch."""

from __future__ import annotations

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.one_by_one import one_by_one
from benchmarks.rounds import Take

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
AUGMENTS = "the same, image by image"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the shards in `data_dir`."""


def take(setting: Setting) -> Take:
    """Returns a Take of whole batches inside a `tf.function`."""
    recipe = "cifar10_tutorial" if setting.augmented else "none"
    return inputs.taking_together(one_by_one(setting.data_dir, setting.rows, recipe), setting.rows)
