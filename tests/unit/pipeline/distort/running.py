"""Runs a recipe as the input does."""

import tensorflow as tf

from pipeline.distort.recipes import make_recipe
from tests.unit.pipeline.distort.reference import STATISTICS


def run(text, images, keys, training=True):
    """Returns the distorted images, or those of an evaluation."""
    make_recipe(text).check(images.shape[1:])
    return compiled(text, training)(images, keys).numpy()


def compiled(text, training=True):
    """Returns the function that distorts images by their keys; XLA compiles it once per shape."""
    recipe = make_recipe(text)
    function = recipe.distort if training else recipe.evaluate
    return tf.function(lambda i, k: function(i, k, STATISTICS), jit_compile=recipe.compiled or None, autograph=False)


def mix(text, images, labels, keys, epoch=0, real=None):
    """Returns the mixed images and labels."""
    recipe, rows = make_recipe(text), len(images)
    real = tf.ones(rows, tf.bool) if real is None else tf.constant(real)
    compiled = tf.function(recipe.mixing.mix, jit_compile=True, autograph=False)
    epoch = tf.constant(epoch, tf.int64)
    mixed = compiled(tf.constant(images), tf.constant(labels), tf.constant(keys), epoch, real)
    return mixed.images.numpy(), mixed.labels.numpy()
