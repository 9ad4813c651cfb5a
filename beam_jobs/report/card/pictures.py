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

_TINY = 64  # pixels: images up to this size are shown larger than they are
_THUMBNAIL = 160  # pixels on the longer side: sharp on a screen of two pixels a CSS pixel
_LARGEST_KEPT = 512  # pixels on the longer side
_QUALITY = 82  # of a thumbnail
_DRAFT_GAIN = 8  # a pixel of a large JPEG, decoded small, takes this part of the time of one of a PNG
_KEPT_MODES = ("1", "L", "P", "RGB")  # no transparency, and nothing that browsers show in other colours


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image file.

    Attributes:
      uri: the file, as a `data:` URI.
      height, width: of the original image.
      work: the cost of decoding, in pixels of a PNG file.
    """

    uri: str
    height: int
    width: int
    work: int

    @property
    def is_tiny(self) -> bool:
        """Whether it is shown larger than it is, with sharp pixels."""
        return max(self.height, self.width) <= _TINY


def of_pixels(data: bytes, shape: tuple[int, int, int], most_bytes: int) -> Picture:
    """Returns raw pixels (row-major uint8) as PNG, or as a thumbnail if the PNG has more than `most_bytes`.

    Raises:
      BadImageError: `data` has not the bytes of that shape.
    """
    if len(data) != math.prod(shape):
        raise BadImageError(f"{len(data)} bytes are not an image of shape {shape}")
    array = _shown(np.frombuffer(data, np.uint8).reshape(shape))
    if max(shape[:2]) <= _LARGEST_KEPT:
        png = images.encoded(array, "png")
        if len(png) <= most_bytes:
            return Picture(_uri("png", png), *shape[:2], work=0)
    return Picture(_thumbnail(array), *shape[:2], work=0)


def of_file(data: bytes, most_bytes: int) -> Picture:
    """Returns a PNG or JPEG file unchanged, or as a thumbnail if it has more than `most_bytes`.

    Raises:
      BadImageError: it cannot be decoded.
    """
    opened = images.open_file(data)
    height, width = opened.height, opened.width
    kept = (
        len(data) <= most_bytes
        and max(height, width) <= _LARGEST_KEPT
        and opened.mode in _KEPT_MODES
        and opened.format in images.KEPT_FORMATS
        and "transparency" not in opened.info
        and not getattr(opened, "is_animated", False)
    )
    if not kept:
        opened.draft(None, (2 * _THUMBNAIL, 2 * _THUMBNAIL))  # decodes a JPEG at a fraction of its size
    array = images.pixels(opened)
    uri = _uri(images.KEPT_FORMATS[opened.format or ""], data) if kept else _thumbnail(array)
    return Picture(uri, height, width, work=max(array.shape[0] * array.shape[1], height * width // _DRAFT_GAIN))


def _shown(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the first three channels, or the first where there are two."""
    return array[..., :3] if array.shape[2] >= 3 else array[..., :1]


def _thumbnail(array: NDArray[np.uint8]) -> str:
    scale = min(1.0, _THUMBNAIL / max(array.shape[:2]))
    size = (max(1, round(array.shape[0] * scale)), max(1, round(array.shape[1] * scale)))
    small = images.resized(array, size)
    stream = io.BytesIO()
    PIL.Image.fromarray(small[..., 0] if small.shape[2] == 1 else small).save(stream, "JPEG", quality=_QUALITY)
    return _uri("jpeg", stream.getvalue())


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
