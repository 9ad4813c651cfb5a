"""The contestants that crop photographs: JPEG files of any size to 224x224, in batches that one consumer touches.

All take a random part of 8% to 100% of the area and of a shape of 3/4 to 4/3, resize it to 224x224 by linear
interpolation, and mirror half of the images. If augmented, RandAugment(n=2, m=9) follows, and float32 of mean 0 and
variance 1; a contestant without RandAugment raises NotImplementedError. Only NumPy is needed here, since some peers
have an environment of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.rounds import Take

SIZE = 224  # height and width of a crop
AREA, SHAPE = (0.08, 1.0), (3 / 4, 4 / 3)
OPERATIONS, MAGNITUDE, BINS = 2, 9, 31  # RandAugment's n and m, and torchvision's number of magnitudes
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # ImageNet's, by channel
_PAGE = 4096


def touching(take: Callable[[], Any], rows: int) -> Take:
    """Returns a Take of one batch of images, anything that NumPy takes as an array, that reads a value of each page."""

    def take_one() -> tuple[int, float]:
        images = np.asarray(take())
        assert images.shape[0] == rows
        assert images.shape.count(SIZE) == 2
        images.reshape(-1)[:: _PAGE // images.itemsize].sum()
        return rows, 0.0

    return take_one


def random_box(random: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Returns (top, left, height, width) of a random part, clipped to the image."""
    area = height * width * random.uniform(*AREA)
    shape = math.exp(random.uniform(*map(math.log, SHAPE)))
    tall = min(max(round(math.sqrt(area / shape)), 1), height)
    wide = min(max(round(math.sqrt(area * shape)), 1), width)
    return int(random.integers(0, height - tall + 1)), int(random.integers(0, width - wide + 1)), tall, wide


def lacks_randaugment(name: str) -> NotImplementedError:
    """Returns the error of a contestant without RandAugment."""
    return NotImplementedError(f"{name} has no RandAugment")
