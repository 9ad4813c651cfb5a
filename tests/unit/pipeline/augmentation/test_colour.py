"""`color_jitter` against its four steps, one after another."""

import math

import numpy as np
import pytest

from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.reference import GREY, symmetric
from tests.unit.pipeline.augmentation.running import run

YIQ = np.array([GREY, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])


def expected(image, key, brightness, contrast, saturation, hue):
    grey = GREY if image.shape[2] == 3 else np.ones(1)
    out = image * (1 + brightness * symmetric(key, 0))
    mean = (out @ grey).mean()
    out = mean + (out - mean) * (1 + contrast * symmetric(key, 1))
    if image.shape[2] == 3:
        own = (out @ grey)[..., None]
        out = own + (out - own) * (1 + saturation * symmetric(key, 2))
        y, i, q = np.moveaxis(out @ YIQ.T, -1, 0)
        turned = (i + 1j * q) * np.exp(2j * math.pi * hue * symmetric(key, 3))
        out = np.stack([y, turned.real, turned.imag], axis=-1) @ np.linalg.inv(YIQ).T
    return np.clip(out, 0, 255)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((0.4, 0.4, 0.4, 0.1), (32, 32, 3)),
        ((1.0, 1.0, 1.0, 0.5), (7, 13, 3)),
        ((0.0, 0.0, 0.0, 0.0), (5, 5, 3)),
        ((0.0, 0.0, 0.0, 0.25), (5, 4, 3)),
        ((0.9, 0.7, 0.0, 0.0), (9, 3, 1)),
    ],
)
@pytest.mark.quick(2)
def test_color_jitter_is_its_steps_within_rounding(arguments, shape):
    images, keys = reference.images_of(24, *shape), reference.keys_of(24)
    text = "color_jitter(brightness={}, contrast={}, saturation={}, hue={})".format(*arguments)
    got = run(text, images, keys)
    assert got.dtype == np.uint8
    for image, key, out in zip(images, keys, got, strict=True):
        assert np.abs(out - expected(image.astype(float), key, *arguments)).max() < 0.51
    np.testing.assert_array_equal(run(text, images, keys, training=False), images)


def test_images_without_colours_are_told():
    with pytest.raises(UsageError, match=r"^augment: color_jitter\(hue=0.1\): .* 0 "):
        make_recipe("color_jitter(saturation=0)").check((8, 8, 1))
    with pytest.raises(UsageError, match="^augment: color_jitter: .* 4$"):
        make_recipe("color_jitter").check((8, 8, 4))
    with pytest.raises(UsageError, match=r"^augment: color_jitter\(hue=0.6\): .* 0..0.5$"):
        make_recipe("color_jitter(hue=0.6)")
