"""Images as the card shows them: small files in `data:` URIs."""

from __future__ import annotations

import base64
import dataclasses
import io
import math

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from beam_jobs.examples import images
from beam_jobs.examples.images import BadImageError
from pipeline.commands.text import count_of

_LARGEST = 160  # pixels on the longer side: sharp on a screen of two pixels per CSS pixel
_QUALITY = 82  # of a thumbnail


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image file.

    Attributes:
      uri: the file, as a `data:` URI.
      height, width: of the original image.
    """

    uri: str
    height: int
    width: int


def of_pixels(data: bytes, shape: tuple[int, int, int], most_bytes: int) -> Picture:
    """Returns the picture of raw pixels (row-major uint8).

    Raises:
      BadImageError: `data` does not have the bytes of that shape.
    """
    if len(data) != math.prod(shape):
        raise BadImageError(f"{count_of(len(data), 'byte')} cannot be an image of shape {shape}")
    array = np.frombuffer(data, np.uint8).reshape(shape)
    return Picture(_uri(array[..., :3] if shape[2] >= 3 else array[..., :1], most_bytes), *shape[:2])


def of_file(data: bytes, most_bytes: int) -> Picture:
    """Returns the picture of an image file.

    Raises:
      BadImageError: it cannot be decoded.
    """
    opened = images.open_file(data)
    height, width = opened.height, opened.width
    opened.draft(None, (2 * _LARGEST, 2 * _LARGEST))  # decodes a JPEG at a fraction of its size
    return Picture(_uri(images.pixels(opened), most_bytes), height, width)


def _uri(array: NDArray[np.uint8], most_bytes: int) -> str:
    """Returns an image as PNG if it is small and the PNG has at most `most_bytes`, otherwise as a JPEG thumbnail."""
    longer = max(array.shape[:2])
    kind, data = "png", images.encoded(array, "png") if longer <= _LARGEST else b""
    if not 0 < len(data) <= most_bytes:
        scale = min(1.0, _LARGEST / longer)
        small = images.resized(array, tuple(max(1, round(side * scale)) for side in array.shape[:2]))
        stream = io.BytesIO()
        PIL.Image.fromarray(small[..., 0] if small.shape[2] == 1 else small).save(stream, "JPEG", quality=_QUALITY)
        kind, data = "jpeg", stream.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
