"""What is cut out of encoded images, against Pillow's and TensorFlow's decoding of the whole image."""

import functools
import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from pipeline import operations
from pipeline.augmentation.recipes import make_recipe
from pipeline.decode.images import ImageDecoder, InStrings, Stretched, decode_file
from pipeline.manifest.manifest import EXACT
from pipeline.order import hashing
from pipeline.order.hashing import Domain

# (height, width): even, odd, one pixel, a line, smaller than what is cut.
SIZES = [(40, 48), (37, 61), (1, 1), (1, 33), (17, 2), (12, 15), (24, 24), (23, 25)]
RECIPES = ["random_crop(size=24)", "random_resized_crop(size=24)"]


def encoded(size, image_format, mode="RGB", seed=0):
    shape = size if mode == "L" else (*size, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    stream = io.BytesIO()
    # Colour of full resolution: halved, it would be interpolated otherwise at the border of a part.
    PIL.Image.fromarray(pixels).save(stream, image_format, **({"subsampling": 0} if image_format == "JPEG" else {}))
    return stream.getvalue()


def keys_of(count, epoch=0):
    return tf.constant(hashing.derive_key(Domain.AUGMENT, 1, epoch, np.arange(count)))


def decoder(encoding, recipe, channels=3, training=True, dct="exact"):
    crop = make_recipe(recipe).crop(training)
    return ImageDecoder(encoding, (None, None, channels), crop, operations.can_resize(), dct=dct)


def decode(made, images, keys):
    """Decodes as a data set does: in a function of a batch whose size is known."""
    return function_of(made)(tf.constant(images), keys).numpy()


@functools.cache
def function_of(made):
    def decoded(images, keys):
        if not made.in_place:
            return made.decode(InStrings(images), lambda: keys)
        ends = tf.strings.length(images) + 3
        bounds = tf.cast(tf.stack([tf.fill(tf.shape(ends), 3), ends], axis=1), tf.int64)
        return made.decode(InStrings(tf.strings.join(["abc", images, "d"]), bounds), lambda: keys)

    return tf.function(decoded, autograph=False)


def reference(image, box, channels, size=24, dct="INTEGER_ACCURATE"):
    """The box of the image that TensorFlow decodes whole, resized by `tf.image.resize` where it has another size."""
    top, left, tall, wide = box
    whole = tf.io.decode_jpeg(image, channels=channels, dct_method=dct)  # decodes PNG, too
    part = whole[top : top + tall, left : left + wide]
    if part.shape[:2] != (size, size):
        part = np.clip(np.round(tf.image.resize(part, (size, size), antialias=True)), 0, 255)
    return np.asarray(part, np.uint8)


def box_of(crop, size, key):
    return crop.box(tf.constant(size[0]), tf.constant(size[1]), key).numpy()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("encoding", [pytest.param("png", marks=pytest.mark.slow), "jpeg", "any"])
@pytest.mark.quick(3)
def test_pixels_are_those_of_the_box_of_the_whole_image(recipe, training, encoding):
    formats = {"png": ["PNG"], "jpeg": ["JPEG"], "any": ["PNG", "JPEG"]}[encoding]
    sizes = SIZES * 3
    images = [encoded(size, formats[i % len(formats)], seed=i) for i, size in enumerate(sizes)]
    made, keys = decoder(encoding, recipe, training=training), keys_of(len(sizes))
    got = decode(made, images, keys)
    assert (got.shape, got.dtype) == ((len(sizes), 24, 24, 3), np.uint8)
    for i, size in enumerate(sizes):
        expected = reference(images[i], box_of(made.crop, size, keys[i]), 3)
        assert np.array_equal(got[i], expected), size


def test_a_jpeg_is_as_pillow_decodes_it():
    image = encoded((40, 48), "JPEG", "L")
    made, keys = decoder("jpeg", "random_crop(size=24)", channels=1), keys_of(1)
    top, left, _, _ = box_of(made.crop, (40, 48), keys[0])
    whole = np.asarray(PIL.Image.open(io.BytesIO(image)), int)
    got = decode(made, [image], keys)[0, :, :, 0].astype(int)
    assert np.abs(got - whole[top : top + 24, left : left + 24]).max() <= 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_grey_and_colour_in_two_formats_become_colour(recipe):
    kinds = [(image_format, mode) for image_format in ("PNG", "JPEG") for mode in ("L", "RGB")]
    images = [encoded((30, 31), *kind) for kind in kinds]
    got = decode(decoder("any", recipe, channels=None), images, keys_of(4))
    assert got.shape == (4, 24, 24, 3)
    for image, (_, mode) in zip(got, kinds, strict=True):
        assert (np.ptp(image, axis=2) == 0).all() == (mode == "L")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("training", [True, False])
def test_boxes_lie_inside_images_of_any_size(recipe, training):
    crop = make_recipe(recipe).crop(training)
    sizes = np.array([(h, w) for h in (*range(1, 31), 999) for w in (*range(1, 31), 4097)] * 4, np.int32)
    boxes = crop.box(sizes[:, 0], sizes[:, 1], keys_of(len(sizes))).numpy()
    assert boxes.shape == (len(sizes), 4)
    assert boxes.min(axis=0).tolist() == [0, 0, 1, 1]
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_evaluation_takes_the_middle(recipe):
    crop = make_recipe(recipe).crop(False)
    sizes = np.array([(100, 60), (60, 100), (101, 60), (10, 20)], np.int32)
    boxes = crop.box(sizes[:, 0], sizes[:, 1], keys_of(4)).numpy()
    sides = [24, 24, 24, 10] if recipe.startswith("random_crop") else [52, 52, 52, 9]  # 7/8 of 60 is 52.5, of 10 8.75
    assert boxes[:, 2].tolist() == boxes[:, 3].tolist() == sides
    assert boxes[:, :2].tolist() == ((sizes - np.array(sides)[:, None]) // 2).tolist()


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg", "any"])
def test_stretching_is_tf_image_resize(encoding):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 30, 41, 3), np.uint8)
    image = pixels.tobytes() if encoding == "raw" else encoded((30, 41), "JPEG" if encoding == "jpeg" else "PNG")
    made = ImageDecoder(encoding, (30, 41, 3), Stretched((24, 24)), operations.can_resize())
    whole = pixels[0] if encoding == "raw" else decode_file(tf.constant(image), 3, encoding, EXACT)
    expected = np.clip(np.round(tf.image.resize(whole, (24, 24), antialias=True)), 0, 255)
    assert np.array_equal(decode(made, [image], keys_of(1))[0], expected)


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_an_image_of_another_size_than_the_manifest_says_is_an_error(encoding):
    made = ImageDecoder(encoding, (30, 41, 3), None)
    right, wrong = (encoded(size, encoding.upper()) for size in ((30, 41), (41, 30)))
    assert decode(made, [right], keys_of(1)).shape == (1, 30, 41, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(made, [right, wrong], keys_of(2))


def smooth(height, width):
    """A JPEG of waves that are much longer than a pixel."""
    y, x = np.mgrid[:height, :width] / 40
    pixels = np.stack([np.sin(x) + np.cos(y), np.sin(x + y), np.cos(x - 2 * y)], axis=-1)
    pixels = np.uint8(128 + 50 * pixels)
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "JPEG", quality=95, subsampling=0)
    return stream.getvalue()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.quick(1)
def test_scaled_decoding_scales_while_it_decodes_and_shows_the_same(training):
    images, keys = [smooth(500 + i, 700 - i) for i in range(40)], keys_of(40)
    plain, scaled = (
        decoder("jpeg", f"random_resized_crop(size=24, scaled_decoding={way})", training=training)
        for way in (False, True)
    )
    expected, found = decode(plain, images, keys), decode(scaled, images, keys)
    ratios = set()
    for i, image in enumerate(images):
        top, left, tall, wide = box_of(scaled.crop, (500 + i, 700 - i), keys[i])
        times = min(tall, wide) // 24
        ratio = max(r for r in (1, 2, 4, 8) if r <= max(1, times))
        ratios.add(ratio)
        if ratio == 1:
            assert np.array_equal(found[i], expected[i])
            continue
        pixels = tf.io.decode_jpeg(image, 3, ratio=ratio)
        part = pixels[top // ratio : -(-(top + tall) // ratio), left // ratio : -(-(left + wide) // ratio)]
        reduced = np.clip(np.round(tf.image.resize(part, (24, 24), antialias=True)), 0, 255)
        assert np.abs(found[i] - reduced).max() <= 1
        error = np.mean((np.float64(found[i]) - expected[i]) ** 2)
        assert 10 * np.log10(255**2 / error) > 30, (i, ratio)  # dB
    assert ratios >= ({4, 8} if training else {8})


def test_scaled_decoding_changes_nothing_in_parts_that_are_hardly_larger_than_the_result():
    images, keys = [encoded((40, 47), "JPEG", seed=i) for i in range(8)], keys_of(8)
    plain, scaled = (decoder("jpeg", f"random_resized_crop(size=24, scaled_decoding={way})") for way in (False, True))
    assert np.array_equal(decode(plain, images, keys), decode(scaled, images, keys))
