"""Several batches in one call: each row has the bits that it has where its batch is augmented alone."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.augmentation import RECIPES, mixing
from pipeline.augmentation.base import ImageStatistics
from pipeline.augmentation.composed import batchwise
from pipeline.augmentation.recipes import make_recipe

STATISTICS = ImageStatistics((120.0, 110.0, 100.0), (60.0, 61.0, 62.0))
FAST = ["cifar10_tutorial(crop=6)", "normalize | mixup_or_cutmix"]
MIXING = sorted(name for name, recipe in RECIPES.items() if recipe.mixes_rows)
CROPPING = {name for name, recipe in RECIPES.items() if recipe.decodes_part}
OTHERS = sorted(set(RECIPES) - {"cifar10_tutorial", "randaugment", "none", *CROPPING, *MIXING})
ARGUMENTS = {"cutout": "(size=3)", "resize": "(height=9, width=7)", "pad_crop_flip": "(pad=2)"}
SLOW = (
    ["randaugment"] + [name + ARGUMENTS.get(name, "") for name in OTHERS] + MIXING + ["affine | cutout(size=3) | mixup"]
)


def augmenting(recipe):
    """Returns what gives images and labels as the input makes them, of (rows, ...) or (batches, rows, ...)."""

    def augment(images, keys):
        return recipe.augment(images, keys, STATISTICS)

    augment = tf.function(batchwise(augment), jit_compile=recipe.compiled or None, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def mix(images, labels, keys, epoch):
        real = tf.ones_like(keys, tf.bool)
        return batchwise(lambda *arguments: mixing.mix(recipe.mixing, *arguments[:3], epoch, arguments[3]))(
            images, labels, keys, real
        )

    def augmented(images, keys, labels):
        images = augment(images, keys)
        return mix(images, labels, keys, tf.constant(0, tf.int64)) if recipe.mixing else (images, labels)

    return augmented


@pytest.mark.parametrize("text", [*FAST, *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)])
@pytest.mark.parametrize("rows", [6, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.quick(1)
def test_a_batch_has_the_same_bits_alone_and_among_others(text, rows):
    random, count = np.random.default_rng(rows), 5
    images = random.integers(0, 256, (count, rows, 11, 8, 3), np.uint8)
    keys = random.integers(0, 1 << 63, (count, rows)).astype(np.uint64)
    labels = np.eye(4, dtype=np.float32)[random.integers(0, 4, (count, rows))]
    augmented = augmenting(make_recipe(text))
    together = augmented(*map(tf.constant, (images, keys, labels)))
    assert together[0].shape[:2] == (count, rows)
    for number in range(count):
        alone = augmented(*(tf.constant(each[number]) for each in (images, keys, labels)))
        for one, all_of in zip(alone, together, strict=True):
            assert one.numpy().tobytes() == all_of[number].numpy().tobytes()
    assert len(np.unique(together[0].numpy().reshape(count * rows, -1), axis=0)) > 0.9 * count * rows  # mixup may copy
