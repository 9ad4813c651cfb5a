"""NVIDIA DALI on the CPU, over the JPEG files."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import AREA, BINS, MAGNITUDE, MEAN, OPERATIONS, SHAPE, SIZE, STD, touching
from benchmarks.rounds import Take

PACKAGES = ("nvidia-dali-cuda130",)
MODULES = ("nvidia.dali",)
AUGMENTS = "decoders.image_random_crop, resize, flip, auto_aug.rand_augment, crop_mirror_normalize"
DOCS = "https://docs.nvidia.com/deeplearning/dali/user-guide/docs/auto_aug/rand_augment.html"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the files."""


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    pipe = _pipeline(setting)
    pipe.build()
    return touching(lambda: np.asarray(pipe.run()[0].as_tensor()), setting.rows)


def _pipeline(setting: Setting) -> Any:
    from nvidia.dali import fn, pipeline_def, types  # noqa: PLC0415
    from nvidia.dali.auto_aug import rand_augment  # noqa: PLC0415

    @pipeline_def(
        batch_size=setting.rows,
        num_threads=setting.cores,
        device_id=None,
        seed=1,
        enable_conditionals=setting.augmented,
    )
    def made() -> tuple[Any, Any]:
        files, labels = fn.readers.file(file_root=setting.arrays, random_shuffle=True, name="files")
        parts = fn.decoders.image_random_crop(
            files, random_area=list(AREA), random_aspect_ratio=list(SHAPE), output_type=types.RGB
        )
        images = fn.resize(parts, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR)
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        if setting.augmented:
            images = rand_augment.rand_augment(
                images, n=OPERATIONS, m=MAGNITUDE, num_magnitude_bins=BINS, shape=(SIZE, SIZE), fill_value=0
            )
            images = fn.crop_mirror_normalize(images, dtype=types.FLOAT, mean=list(MEAN), std=list(STD))
        return images, labels

    return made()
