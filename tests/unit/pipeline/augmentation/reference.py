"""Augmentations of one image, step by step in float64 NumPy, as their papers and libraries define them."""

import math

import numpy as np

from pipeline.augmentation.base import ImageStatistics
from pipeline.order import hashing
from pipeline.order.hashing import Domain

STATISTICS = ImageStatistics((120.0, 110.0, 100.0), (60.0, 50.0, 40.0))
GREY = np.array([0.299, 0.587, 0.114])


def keys_of(rows, seed=5):
    return hashing.derive_key(Domain.AUGMENT, seed, 2, np.arange(rows))


def images_of(rows, height, width, channels=3):
    """Noise, then images of the edge values alone, a ramp, and two values in one pixel."""
    images = np.random.default_rng(height * width).integers(0, 256, (rows, height, width, channels), np.uint8)
    images[0], images[1] = 0, 255
    images[2] = np.linspace(0, 255, height * width).astype(np.uint8).reshape(height, width, 1)
    images[3], images[3, 0, 0] = 7, 8
    images[4] = images[4] // 200 * 255
    return images


def draw(key, number):
    return float(hashing.uniform(key, number))


def below(bound, key, number):
    return int(np.float32(draw(key, number)) * np.float32(bound))


def symmetric(key, number):
    return 2 * draw(key, number) - 1


def sampled(image, back, fill):
    """Returns the image seen through `back`, 3x3, from a place (x, y, 1) of the result to one in the image."""
    height, width, channels = image.shape
    padded = np.full((height + 2, width + 2, channels), float(fill))
    padded[1:-1, 1:-1] = image
    out = np.empty(image.shape)
    for v in range(height):
        for u in range(width):
            x, y, _ = back @ (u, v, 1)
            x, y = min(max(x, -1), width), min(max(y, -1), height)
            left, top = min(math.floor(x), width - 1), min(math.floor(y), height - 1)
            part = padded[top + 1 : top + 3, left + 1 : left + 3]
            across = part[:, 0] * (1 - (x - left)) + part[:, 1] * (x - left)
            out[v, u] = across[0] * (1 - (y - top)) + across[1] * (y - top)
    return out


def moved(right, down):
    return np.array([[1, 0, right], [0, 1, down], [0, 0, 1.0]])


def turned(degrees):
    """Returns the map that turns by degrees, counter-clockwise as one sees it: y points down."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])


def about(image, forward):
    """Returns a map about the image's middle."""
    y, x = ((n - 1) / 2 for n in image.shape[:2])
    return moved(x, y) @ forward @ moved(-x, -y)


def to_uint8(image):
    return np.clip(np.rint(image), 0, 255)


def beta(alpha, key):
    """Devroye's one line."""
    power, cosine = draw(key, 1) ** (1 / alpha), math.cos(2 * math.pi * draw(key, 2))
    spread = (1 - power) * cosine**2
    return 0.5 + 0.5 * np.sign(cosine) * math.sqrt(spread / (power + spread))
