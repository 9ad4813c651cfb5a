"""RandAugment in TensorFlow operations, like the Model Garden's: an image computes only the operations that it draws.

Keras' layer RandAugment computes all of its operations for each image, which takes some 30 ms for one of 224x224. The
operations and their ranges are torchvision's.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from benchmarks.feeds.photographs import BINS, MAGNITUDE, OPERATIONS, SIZE

_PART = MAGNITUDE / (BINS - 1)  # of the largest magnitude
_MIDDLE = (SIZE - 1) / 2


def augmented(tf: Any, image: Any) -> Any:
    """Returns an image uint8 (SIZE, SIZE, 3) after OPERATIONS randomly drawn ones of the fourteen operations."""
    for _ in range(OPERATIONS):
        drawn = tf.random.uniform([], 0, len(DRAWN), tf.int32)
        image = tf.ensure_shape(
            tf.switch_case(drawn, [functools.partial(one, tf, image) for one in DRAWN]), (SIZE, SIZE, 3)
        )
    return image


def _signed(tf: Any, value: float) -> Any:
    return tf.where(tf.random.uniform([]) < 0.5, -value, value)


def _moved(tf: Any, image: Any, rows: Any) -> Any:
    """Returns an image whose pixel (x, y) is the given image's (ax + by + c, dx + ey + f); rows: (a, b, c, d, e, f)."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([*rows, 0.0, 0.0])[None],
        output_shape=(SIZE, SIZE),
        fill_value=0.0,
        interpolation="BILINEAR",
    )[0]


def _shear_x(tf: Any, image: Any) -> Any:
    return _moved(tf, image, (1.0, _signed(tf, 0.3 * _PART), 0.0, 0.0, 1.0, 0.0))


def _shear_y(tf: Any, image: Any) -> Any:
    return _moved(tf, image, (1.0, 0.0, 0.0, _signed(tf, 0.3 * _PART), 1.0, 0.0))


def _translate_x(tf: Any, image: Any) -> Any:
    return _moved(tf, image, (1.0, 0.0, _signed(tf, 150 / 331 * SIZE * _PART), 0.0, 1.0, 0.0))


def _translate_y(tf: Any, image: Any) -> Any:
    return _moved(tf, image, (1.0, 0.0, 0.0, 0.0, 1.0, _signed(tf, 150 / 331 * SIZE * _PART)))


def _rotate(tf: Any, image: Any) -> Any:
    angle = _signed(tf, math.radians(30) * _PART)
    cosine, sine = tf.cos(angle), tf.sin(angle)
    x, y = (_MIDDLE * (1 - cosine - sign * sine) for sign in (1, -1))
    return _moved(tf, image, (cosine, sine, x, -sine, cosine, y))


def _blended(tf: Any, image: Any, plain: Any) -> Any:
    factor, plain = 1 + _signed(tf, 0.9 * _PART), tf.cast(plain, tf.float32)
    return tf.saturate_cast(tf.round(plain + factor * (tf.cast(image, tf.float32) - plain)), tf.uint8)


def _brightness(tf: Any, image: Any) -> Any:
    return _blended(tf, image, tf.zeros_like(image))


def _colour(tf: Any, image: Any) -> Any:
    return _blended(tf, image, tf.image.rgb_to_grayscale(image))


def _contrast(tf: Any, image: Any) -> Any:
    return _blended(tf, image, tf.reduce_mean(tf.image.rgb_to_grayscale(tf.cast(image, tf.float32))))


def _sharpness(tf: Any, image: Any) -> Any:
    kernel = tf.constant([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]])[:, :, None, None] / 13
    pixels = tf.cast(image, tf.float32)[None]
    inner = tf.nn.depthwise_conv2d(pixels, tf.tile(kernel, [1, 1, 3, 1]), [1, 1, 1, 1], "VALID")[0]
    inside = tf.pad(tf.ones_like(inner), [[1, 1], [1, 1], [0, 0]]) > 0
    return _blended(tf, image, tf.where(inside, tf.pad(inner, [[1, 1], [1, 1], [0, 0]]), pixels[0]))


def _posterize(tf: Any, image: Any) -> Any:
    dropped = round(MAGNITUDE / ((BINS - 1) / 4))
    return tf.bitwise.left_shift(tf.bitwise.right_shift(image, tf.constant(dropped, tf.uint8)), dropped)


def _solarize(tf: Any, image: Any) -> Any:
    return tf.where(image < round(255 * (1 - _PART)), image, 255 - image)


def _auto_contrast(tf: Any, image: Any) -> Any:
    pixels = tf.cast(image, tf.float32)
    low, high = (reduce(pixels, (0, 1), keepdims=True) for reduce in (tf.reduce_min, tf.reduce_max))
    stretched = tf.saturate_cast((pixels - low) * 255 / tf.maximum(high - low, 1), tf.uint8)
    return tf.where(high > low, stretched, image)


def _equalize(tf: Any, image: Any) -> Any:
    return tf.stack([_equalized(tf, tf.cast(image[..., channel], tf.int32)) for channel in range(3)], axis=-1)


def _equalized(tf: Any, channel: Any) -> Any:
    counts = tf.math.bincount(tf.reshape(channel, [-1]), minlength=256, maxlength=256)
    last = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0))
    step = (SIZE * SIZE - counts[last]) // 255
    table = tf.clip_by_value((tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1), 0, 255)
    return tf.cast(tf.where(step == 0, channel, tf.gather(table, channel)), tf.uint8)


def _identity(tf: Any, image: Any) -> Any:
    del tf
    return image


DRAWN = (
    _identity,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
    _rotate,
    _brightness,
    _colour,
    _contrast,
    _sharpness,
    _posterize,
    _solarize,
    _auto_contrast,
    _equalize,
)
