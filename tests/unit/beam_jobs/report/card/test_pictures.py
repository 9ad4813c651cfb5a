import base64
import io

import numpy as np
import PIL.Image
import pytest

from beam_jobs.examples.images import BadImageError
from beam_jobs.report.card import pictures


def file_of(kind, height=20, width=30, mode="RGB", seed=0, **options):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).convert("RGB").convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def data_of(uri):
    return base64.b64decode(uri.partition(",")[2])


@pytest.mark.parametrize(
    "data",
    [file_of("PNG"), file_of("JPEG"), file_of("PNG", mode="RGBA"), file_of("PNG", mode="P", transparency=3)],
    ids=["png", "jpeg", "alpha", "transparent"],
)
def test_small_files_are_shown_pixel_by_pixel(data):
    made = pictures.of_file(data, 1 << 16)
    assert made.uri.startswith("data:image/png;base64,")
    shown = np.asarray(PIL.Image.open(io.BytesIO(data_of(made.uri))))
    assert np.array_equal(shown, np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")))
    assert (made.height, made.width) == (20, 30)


@pytest.mark.parametrize(
    ("data", "most_bytes"),
    [
        (file_of("PNG", 300, 400), 1 << 20),
        (file_of("JPEG", 600, 800), 1 << 20),
        (file_of("JPEG", 300, 400, mode="CMYK"), 1 << 20),
        (file_of("PNG", 1, 600), 1 << 20),
        (file_of("PNG", 100, 100), 10_000),
    ],
    ids=["large png", "large jpeg", "cmyk", "long", "many bytes"],
)
def test_other_files_are_shown_as_thumbnails(data, most_bytes):
    made = pictures.of_file(data, most_bytes)
    thumbnail = PIL.Image.open(io.BytesIO(data_of(made.uri)))
    assert thumbnail.format == "JPEG"
    assert max(thumbnail.size) <= 160
    assert len(made.uri) < 40_000


@pytest.mark.parametrize("shape", [(300, 400, 3), (40, 40, 1), (9, 9, 2), (9, 9, 4)])
def test_pixels_are_shown_whatever_their_shape(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    made = pictures.of_pixels(pixels.tobytes(), shape, 10_000)
    shown = PIL.Image.open(io.BytesIO(data_of(made.uri)))
    assert (made.height, made.width) == shape[:2]
    if shape[0] < 100:
        assert shown.format == "PNG"
        assert np.array_equal(np.asarray(shown), pixels[..., :3] if shape[2] >= 3 else pixels[..., 0])
    with pytest.raises(BadImageError):
        pictures.of_pixels(pixels.tobytes()[1:], shape, 10_000)
