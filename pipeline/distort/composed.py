"""Several recipes, one after another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import ImageStatistics, Mixed, Mixing, Recipe, Undistorted, output_spec
from pipeline.distort.crop_first import CropFirst, OfCrops
from pipeline.distort.cropping import CroppingRecipe
from pipeline.errors import UsageError

DRAWS = 64  # of a key, for each recipe: number i of them has the draws 64i to 64i + 63


@dataclasses.dataclass(frozen=True)
class Composed(Recipe):
    """Recipes that follow each other, each an XLA function of its own.

    Attributes:
      names: as the user wrote them, for errors.
      recipes: two or more.

    Raises:
      UsageError: they cannot follow each other so.
    """

    compiled: ClassVar[bool] = False  # as a whole

    names: tuple[str, ...]
    recipes: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        floats, gave, sized = False, "", ""
        for i, (name, recipe) in enumerate(zip(self.names, self.recipes, strict=True)):
            last = i == len(self.recipes) - 1
            if isinstance(recipe, Undistorted):
                raise UsageError("distort: 'none' stands alone; leave it out")
            if isinstance(recipe, CroppingRecipe) and i:
                raise UsageError(f"distort: {name!r} decodes the part that it crops, so it comes first")
            if recipe.mixing and not last:
                raise UsageError(
                    f"distort: {name!r} mixes rows, so it comes last; for both of them use mixup_or_cutmix"
                )
            if recipe.sets_size and sized:
                raise UsageError(f"distort: {name!r} after {sized!r}: only one of them can decide the size")
            if floats and not recipe.takes_floats:
                raise UsageError(
                    f"distort: {name!r} takes pixels, and {gave!r} before it gives floats; put it before {gave!r}"
                )
            gave = name if recipe.gives_floats(floats) and not floats else gave
            floats, sized = recipe.gives_floats(floats), name if recipe.sets_size else sized

    @property
    def cropping(self) -> CroppingRecipe | None:
        """The recipe that chooses the part of an image that is decoded, if there is one."""
        return cropping_of(self.recipes[0])

    @property
    def mixing(self) -> Mixing | None:
        """See `Recipe.mixing`."""
        mixing = self.recipes[-1].mixing
        return mixing and _Later(mixing, len(self.recipes) - 1)

    @property
    def normalizes(self) -> bool:
        """See `Recipe.normalizes`."""
        return any(recipe.normalizes for recipe in self.recipes)

    def gives_floats(self, floats: bool) -> bool:
        """See `Recipe.gives_floats`."""
        return functools.reduce(lambda given, recipe: recipe.gives_floats(given), self.recipes, floats)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError where one of them cannot take what the one before it gives of such images."""
        for recipe in self.recipes:
            image_shape = tuple(output_spec(recipe, image_shape).shape[1:])

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        for i, recipe in enumerate(self.recipes):
            images = _applied(recipe, recipe.distort, images, _keys(keys, i), statistics)
        return images

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.evaluate`."""
        for i, recipe in enumerate(self.recipes):
            images = _applied(recipe, recipe.evaluate, images, _keys(keys, i), statistics)
        return images


@dataclasses.dataclass(frozen=True)
class _Later:
    """A mixing with the draws of its place."""

    mixing: Mixing
    place: int

    def mix(self, images: tf.Tensor, labels: tf.Tensor, keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor) -> Mixed:
        """See `Mixing.mix`."""
        return self.mixing.mix(images, labels, _keys(keys, self.place), epoch, real)


def cropping_of(recipe: Recipe | None) -> CroppingRecipe | None:
    """Returns the recipe that chooses the part of an image that is decoded, if there is one."""
    if isinstance(recipe, Composed):
        return recipe.cropping
    return recipe if isinstance(recipe, CroppingRecipe) else None


def crop_first_of(recipe: Recipe | None) -> CropFirst | None:
    """Returns the recipe that begins by taking a part of each image, if there is one."""
    first = recipe.recipes[0] if isinstance(recipe, Composed) else recipe
    return first if isinstance(first, CropFirst) else None


def of_crops(recipe: Recipe) -> Recipe:
    """Returns a recipe that has a `crop_first_of`, to be called with these parts."""
    first = crop_first_of(recipe)
    assert first is not None
    if isinstance(recipe, Composed):
        return dataclasses.replace(recipe, recipes=(OfCrops(first), *recipe.recipes[1:]))
    return OfCrops(first)


def _applied(
    recipe: Recipe,
    function: Callable[..., tf.Tensor],
    images: tf.Tensor,
    keys: tf.Tensor,
    statistics: ImageStatistics,
) -> tf.Tensor:
    """Returns what a function of a recipe gives, compiled by itself where the recipe is compiled."""
    call = functools.partial(function, statistics=statistics)
    applied: tf.Tensor = (kernels.separate(call) if recipe.compiled else call)(images, keys)
    return applied


def _keys(keys: tf.Tensor, place: int) -> tf.Tensor:
    """Returns the keys whose draw d is draw DRAWS * place + d of the given ones."""
    return keys + tf.constant(DRAWS * place, tf.uint64) if place else keys
