"""The recipe that a request asks for, and what it needs besides a batch."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from pipeline import user_function
from pipeline.distort.base import ImageStatistics, Recipe, UserDistorted
from pipeline.distort.composed import cropping_of
from pipeline.distort.distortion import Distortion
from pipeline.distort.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.resolved import ResolvedRequest


def recipe_of(resolved: ResolvedRequest) -> Recipe | None:
    """Returns the recipe of a request; None: the user's parser returns everything.

    Raises:
      UsageError: there is no such recipe, or it does not fit the images.
    """
    distort = resolved.request.distort
    if resolved.request.parse is not None:
        return None
    if callable(distort):
        return UserDistorted(user_function.as_given(distort))
    if not isinstance(distort, str | None):
        raise UsageError(f"distort={distort!r}: must be a recipe's name, a function of (images, keys), or None")
    recipe = make_recipe("none" if distort is None else distort)
    cropping = cropping_of(recipe)
    image = resolved.manifest.features.get("image")
    channels = (image.shape[2] if image else None) or 3
    recipe.check((*cropping.crop(True).size, channels) if cropping else resolved.image_shape or (0, 0, 0))
    if recipe.mixing and not resolved.manifest.class_names:
        raise UsageError(f"distort={distort!r}: mixes labels, but the data set's manifest has no class_names")
    return recipe


def distortion_of(
    resolved: ResolvedRequest,
    recipe: Recipe,
    keys_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    images_of: Callable[[tf.Tensor], tf.Tensor],
) -> Distortion:
    """Returns a request's recipe with all that it needs; the functions are as of `Distortion`."""
    of = resolved.statistics
    statistics = ImageStatistics(of.image_mean, of.image_std)
    classes = len(resolved.manifest.class_names)
    return Distortion(recipe, statistics, classes, resolved.order.training, keys_of, images_of)
