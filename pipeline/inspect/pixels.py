"""Images as people can look at them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def as_pixels(image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns uint8 pixels of an image of any shape; floats, which may be standardized, are stretched to 0..255."""
    values = np.asarray(image)
    if values.dtype == np.uint8:
        return values
    values = values.astype(np.float32)
    least, greatest = float(values.min()), float(values.max())
    return ((values - least) * (255.0 / max(greatest - least, 1e-6))).round().astype(np.uint8)


def as_rgb(image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns `as_pixels` as (height, width, 3); an image that is not RGB is shown by its first channel, in grey."""
    pixels = as_pixels(image)
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels[:, :, :1], 3, axis=2)
