"""Images that EXIF data turn: what is decoded of them, against the whole image turned with Pillow."""

import dataclasses
import functools
import io
from typing import ClassVar

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from pipeline import images, operations
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.images import ImageDecoder, InStrings, Stretched, resize, stored_boxes, upright, upright_sizes
from pipeline.order import hashing
from pipeline.order.hashing import Domain

TURNS = range(1, 9)
SIZES = [(37, 61), (40, 48), (1, 33), (96, 75)]  # height, width as stored


def encoded(size, seed, kind):
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), np.uint8)
    stream = io.BytesIO()
    options = {"quality": 90, "subsampling": "4:2:0"} if kind == "jpeg" else {}
    PIL.Image.fromarray(coarse).resize(size[::-1], PIL.Image.Resampling.BICUBIC).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("shape", [(3, 5, 3), (4, 4, 1), (1, 7, 3)])
def test_an_image_is_turned_as_pillow_turns_it(shape):
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    turned = tf.function(upright, autograph=False)
    for turn in TURNS:
        expected = images.turned(image, turn)
        assert np.array_equal(turned(tf.constant(image), tf.constant(turn)), expected)
        assert tuple(upright_sizes(tf.constant(shape[:2]), tf.constant(turn)).numpy()) == expected.shape[:2]


def stored_box(size, turn, box):
    """Returns where a box of the upright image lies in the stored one, by the numbers of its pixels."""
    numbers = np.stack(np.mgrid[: size[0], : size[1]], axis=-1).astype(np.uint8)
    numbers = images.turned(np.concatenate([numbers, numbers[..., :1]], axis=-1), turn)[..., :2]
    top, left, height, width = box
    found = numbers[top : top + height, left : left + width].reshape(-1, 2)
    least = found.min(axis=0)
    return (*least.tolist(), *(found.max(axis=0) - least + 1).tolist())


def test_a_box_is_found_in_the_stored_image():
    for turn in TURNS:
        for size in SIZES:
            height, width = images.turned_size(size, turn)
            for box in ((0, 0, height, width), (0, width // 2, 1, 1), (height // 3, width // 5, height // 2 + 1, 1)):
                sizes, turns = tf.constant([[height, width]]), tf.constant([turn])
                found = stored_boxes(tf.constant([box]), sizes, turns)[0].numpy()
                assert tuple(found) == stored_box(size, turn, box), (turn, size, box)


@functools.cache
def function_of(made):
    def decoded(strings, keys, turns):
        bounds = tf.stack([tf.zeros_like(turns), tf.strings.length(strings)], axis=1)
        encoded = InStrings(strings, tf.cast(bounds, tf.int64) if made.in_place else None)
        return made.decode(encoded, lambda: keys, turns)

    return tf.function(decoded, autograph=False)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("encoding", ["jpeg", "any", "png"])
@pytest.mark.quick(2)
def test_a_crop_is_that_of_the_upright_image(encoding, compiled):
    if compiled and not operations.can_resize():
        pytest.skip("not compiled for this processor")
    crop = make_recipe("random_resized_crop(size=16)").crop(True)
    made = ImageDecoder(encoding, (None, None, 3), crop, compiled)
    cases = [(size, turn) for size in SIZES for turn in TURNS]
    kinds = [encoding if encoding != "any" else ("png", "jpeg")[n % 2] for n in range(len(cases))]
    files = [encoded(size, n, kind) for n, ((size, _), kind) in enumerate(zip(cases, kinds, strict=True))]
    keys = hashing.derive_key(Domain.AUGMENT, 1, 0, np.arange(len(cases)))
    turns = tf.constant([turn for _, turn in cases])
    got = function_of(made)(tf.constant(files), tf.constant(keys), turns).numpy()
    for n, ((size, turn), file) in enumerate(zip(cases, files, strict=True)):
        box = crop.box(*map(tf.constant, images.turned_size(size, turn)), tf.constant(keys[n])).numpy()
        stored = stored_box(size, turn, box)
        if kinds[n] == "png":
            part = tf.io.decode_png(file, 3)[stored[0] : stored[0] + stored[2], stored[1] : stored[1] + stored[3]]
        else:
            part = tf.image.decode_and_crop_jpeg(file, stored, channels=3, dct_method="INTEGER_ACCURATE")
        part = images.turned(part.numpy(), turn)
        if part.shape[:2] != (16, 16):
            part = np.clip(np.round(tf.image.resize(part, (16, 16), antialias=True)), 0, 255)
        assert np.array_equal(got[n], part), (size, turn)


@dataclasses.dataclass(frozen=True)
class Scaled(Stretched):
    """The whole image, which may be decoded scaled."""

    is_scaled: ClassVar[bool] = True


@pytest.mark.parametrize("size", [(16, 16), (12, 45)])
@pytest.mark.quick(1)
def test_a_large_image_is_decoded_scaled_then_turned_then_resized(size):
    made = ImageDecoder("jpeg", (None, None, 3), Scaled(size), operations.can_resize())
    file, ratios = encoded((203, 151), 1, "jpeg"), set()
    for turn in TURNS:
        height, width = images.turned_size((203, 151), turn)
        least = min(height // size[0], width // size[1])
        ratio = max(ratio for ratio in (1, 2, 4, 8) if ratio <= least)
        stored = tf.io.decode_jpeg(file, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE").numpy()
        expected = resize(tf.constant(images.turned(stored, turn)), size)
        got = function_of(made)(tf.constant([file]), tf.zeros(1, tf.uint64), tf.constant([turn]))[0]
        assert np.array_equal(got, expected), turn
        ratios.add(ratio)
    assert ratios == ({8} if size == (16, 16) else {2, 4})
