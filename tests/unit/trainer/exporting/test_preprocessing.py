"""The exported preprocessing against the recipes' own evaluation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.distort.base import ImageStatistics, UserDistorted
from pipeline.distort.recipes import RECIPES, make_recipe
from pipeline.errors import UsageError
from trainer.exporting.preprocessing import preprocess

STATISTICS = ImageStatistics((120.0, 11.5, 0.0), (60.0, 3.25, 0.0))
CASES = [
    "none",
    "shift",
    "pad_crop_flip(pad=3)",
    "cifar10_tutorial",
    "cifar10_tutorial(crop=9)",
    "cifar10_tutorial(crop=9, standardize=False)",
    "random_crop(size=30)",
    "random_resized_crop(size=30, normalize=False)",
    "pad_crop_flip(normalize=False)",
    "resize(height=11, width=40)",
    "randaugment | random_erasing | resize(height=11, width=40) | pad_crop_flip | cutout | mixup",
    "affine | color_jitter | flip | normalize | mixup_or_cutmix",
    "cutmix(prob=0.5)",
]


def batch(shape):
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    images[1], images[2] = 255, 0  # without any deviation
    images[3], images[3, 4, 4, 0] = 7, 8  # with the least
    images[4] //= 200
    return images


def exported(recipe, shape):
    inputs = keras.Input(shape, dtype="uint8")
    return keras.Model(inputs, preprocess(recipe, inputs, STATISTICS))


@pytest.mark.parametrize("shape", [(30, 27, 3), (25, 32, 1)])
@pytest.mark.parametrize("text", CASES)
def test_it_gives_what_an_evaluation_gives(text, shape, tmp_path):
    recipe, images = make_recipe(text), batch(shape)
    statistics = ImageStatistics(STATISTICS.mean[: shape[2]], STATISTICS.std[: shape[2]])
    evaluate = tf.function(lambda rows: recipe.evaluate(rows, tf.zeros(6, tf.uint64), statistics), jit_compile=True)
    expected = evaluate(tf.constant(images)).numpy()
    inputs = keras.Input(shape, dtype="uint8")
    model = keras.Model(inputs, preprocess(recipe, inputs, statistics))
    found = model(images).numpy()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "m.keras")(images).numpy(), found)


def test_every_named_recipe_is_among_the_cases():
    assert {one.partition("(")[0].strip() for text in CASES for one in text.split("|")} == set(RECIPES)


def test_a_users_function_is_refused():
    with pytest.raises(UsageError) as error:
        exported(UserDistorted(lambda images, keys: images), (8, 8, 3))
    assert str(error.value).startswith("--distort: UserDistorted ")
