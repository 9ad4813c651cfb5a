"""Runs a recipe as the input does."""

import functools

import numpy as np
import tensorflow as tf

from pipeline import operations
from pipeline.augmentation import mixing
from pipeline.augmentation.composed import augmented_by_passes, mixed_by_passes
from pipeline.augmentation.recipes import make_recipe
from tests.unit.pipeline.augmentation.reference import STATISTICS


def run(text, images, keys, training=True):
    """Returns the augmented images, or those of an evaluation, which are the same by XLA and by passes."""
    make_recipe(text).check(images.shape[1:])
    augmented = compiled(text, training)(images, keys).numpy()
    if operations.is_compiled():
        np.testing.assert_array_equal(by_passes(text, images, keys, training), augmented, strict=True)
    return augmented


def by_passes(text, images, keys, training=True):
    """Returns the same by compiled passes, for recipes that have them."""
    recipe, statistics = make_recipe(text), statistics_of(images.shape[3])
    function = tf.function(lambda i, k: augmented_by_passes(recipe, i, k, statistics, training), autograph=False)
    return function(images, keys).numpy()


def statistics_of(channels):
    """Returns the statistics of so many channels."""
    return type(STATISTICS)(*((each * 2)[:channels] for each in (STATISTICS.mean, STATISTICS.std)))


@functools.cache
def compiled(text, training=True):
    """Returns the function that augments images by their keys; XLA compiles it once per shape, for all tests."""
    recipe = make_recipe(text)
    function = recipe.augment if training else recipe.evaluate
    return tf.function(
        lambda i, k: function(i, k, statistics_of(i.shape[3])), jit_compile=recipe.compiled or None, autograph=False
    )


def mix(text, images, labels, keys, epoch=0, real=None):
    """Returns the images, augmented before, and labels, mixed; they are the same by XLA and by passes."""
    recipe, rows = make_recipe(text), len(images)
    real, epoch = tf.constant(np.ones(rows, bool) if real is None else real), tf.constant(epoch, tf.int64)
    augmented = compiled(text)(images, keys)
    function = tf.function(functools.partial(mixing.mix, recipe.mixing), jit_compile=True, autograph=False)
    mixed = [part.numpy() for part in function(augmented, labels, tf.constant(keys), epoch, real)]
    if operations.is_compiled() and images.dtype == np.uint8:
        statistics = statistics_of(images.shape[3])
        function = tf.function(lambda *given: mixed_by_passes(recipe, *given, statistics, epoch, real), autograph=False)
        for one, other in zip(function(images, labels, keys), mixed, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    return mixed
