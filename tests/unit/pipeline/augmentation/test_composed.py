"""Recipes that follow each other: their draws, their order, their errors."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation import RECIPES, recipes
from pipeline.augmentation.base import output_spec
from pipeline.augmentation.composed import DRAWS, crop_first_of, of_crops
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import UsageError
from tests.unit.pipeline.augmentation import reference
from tests.unit.pipeline.augmentation.running import run

ROWS = 16
IMAGES, KEYS = reference.images_of(ROWS, 20, 17), reference.keys_of(ROWS)


def test_each_recipe_has_draws_of_its_own_and_the_first_those_that_it_has_alone():
    first = run("affine", IMAGES, KEYS)
    both = run("affine | cutout(size=4)", IMAGES, KEYS)
    with np.errstate(over="ignore"):
        later = KEYS + np.uint64(DRAWS)
    np.testing.assert_array_equal(both, run("cutout(size=4)", first, later))
    np.testing.assert_array_equal(run("affine|cutout(size=4)|flip(prob=0)", IMAGES, KEYS), both)


def test_an_evaluation_keeps_what_is_not_random():
    text = "color_jitter | resize(height=10, width=9) | pad_crop_flip(pad=2) | cutout(size=3) | mixup"
    assert output_spec(make_recipe(text), (20, 17, 3)) == tf.TensorSpec((1, 10, 9, 3), tf.float32)
    expected = run("resize(height=10, width=9) | normalize", IMAGES, KEYS, training=False)
    np.testing.assert_array_equal(run(text, IMAGES, KEYS, training=False), expected)


def test_recipes_that_stood_before_are_the_same_in_a_composition():
    for text in ("shift(pixels=3)", "pad_crop_flip(pad=3)", "cifar10_tutorial(crop=9)"):
        np.testing.assert_allclose(
            run(f"flip(prob=0) | {text}", IMAGES, KEYS - np.uint64(DRAWS)), run(text, IMAGES, KEYS)
        )
    pixels = run("pad_crop_flip(normalize=False)", IMAGES, KEYS)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(run("normalize", pixels, KEYS), run("pad_crop_flip", IMAGES, KEYS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("affine | cutuot", "^augment: unknown 'cutuot'; did you mean 'cutout'\\? known: affine, "),
        (
            "affine || cutout",
            r"^augment: 'affine \|\| cutout' is not a recipe; write name\(argument=value\), and \| between",
        ),
        ("affine | cutout(8)", "is not a recipe"),
        ("affine & cutout", "is not a recipe"),
        ("affine | cutout(size=8) |", "is not a recipe"),
        ("affine(**{'a': 1})", "is not a recipe"),
        ("affine | cutout(sise=8)", "^augment: .*cutout: .*'sise'.*'size'"),
        ("affine | none", "^augment: 'none' "),
        ("flip | random_crop", "^augment: 'random_crop' .* first$"),
        ("random_crop(size=24) | random_resized_crop(size=20)", "so it comes first$"),
        ("mixup | cutout", "^augment: 'mixup' .* last; .*mixup_or_cutmix$"),
        ("mixup | cutmix", "^augment: 'mixup' .* last;"),
        (
            "normalize | affine",
            "^augment: 'affine' .*'normalize'.*'normalize'$",
        ),
        (
            "pad_crop_flip | cutout | randaugment",
            "'randaugment' .*'pad_crop_flip'$",
        ),
        ("cifar10_tutorial | pad_crop_flip", "'pad_crop_flip' .*'cifar10_tutorial'"),
        ("resize | resize(height=9)", "^augment: 'resize' after 'resize': "),
        ("random_crop(normalize=False) | resize", "^augment: 'resize' after 'random_crop': "),
    ],
)
def test_what_cannot_be_composed_is_one_clear_error(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_recipe(text)
    assert "\n" not in str(caught.value)


def test_a_later_recipe_is_checked_against_what_it_gets():
    with pytest.raises(UsageError, match=r"^augment: cutout\(size=8\): .* 1..6 for images of 6x9$"):
        make_recipe("resize(height=6, width=9) | cutout(size=8)").check((32, 32, 3))


def test_what_is_said_of_a_text_without_loading_recipes_is_what_they_do():
    for name in RECIPES:
        recipe = make_recipe(name)
        assert recipes.mixes(name) == (recipe.mixing is not None)
        assert recipes.crops(name) == hasattr(recipe, "crop") - (name == "cifar10_tutorial")
    assert recipes.mixes("affine | mixup(alpha=1)")
    assert recipes.crops(" random_crop(size=8)|mixup")
    assert not recipes.crops("flip | resize")


@pytest.mark.parametrize(
    "text", ["cifar10_tutorial", "pad_crop_flip", "pad_crop_flip(normalize=False)", "shift", "pad_crop_flip | mixup"]
)
def test_a_recipe_of_crops_is_otherwise_the_same(text):
    recipe = make_recipe(text)
    crops = of_crops(recipe)
    assert (crops.normalizes, crops.mixing, crops.gives_floats(False)) == (
        recipe.normalizes,
        recipe.mixing,
        recipe.gives_floats(False),
    )
    assert crops.compiled == recipe.compiled
    assert crop_first_of(recipe) is not None
    assert crop_first_of(crops) is None  # they are taken once
