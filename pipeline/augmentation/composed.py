"""Recipes applied one after another, and the augmentation of batches by a recipe, on the host or on a device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from pipeline.augmentation import kernels, passes
from pipeline.augmentation.base import ImageStatistics, Mixing, Recipe, Shares, Unaugmented, UserAugmented, output_spec
from pipeline.augmentation.geometry import CropFirst, CroppingRecipe, OfCrops
from pipeline.augmentation.mixing import mix, mix_images, mix_labels, mixing_pass
from pipeline.augmentation.moves import Move
from pipeline.augmentation.passes import Pass
from pipeline.errors import UsageError

DRAWS = 64  # draws of a key per recipe: recipe i has 64i to 64i + 63


@dataclasses.dataclass(frozen=True)
class Composed(Recipe):
    """Recipes applied one after another, each compiled by itself.

    Attributes:
      names: names as the user wrote them, for errors.
      recipes: one or more.
      place: number of recipes before the first of these in the whole text; see `cut`.

    Raises:
      UsageError: the recipes cannot follow each other in this order.
    """

    compiled: ClassVar[bool] = False  # as a whole

    names: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    place: int = 0

    def __post_init__(self) -> None:
        floats, gave, sized = False, "", ""
        for i, (name, recipe) in enumerate(zip(self.names, self.recipes, strict=True)):
            last = i == len(self.recipes) - 1
            if isinstance(recipe, Unaugmented):
                raise UsageError("augment: 'none' stands alone; leave it out")
            if isinstance(recipe, CroppingRecipe) and i:
                raise UsageError(f"augment: {name!r} decodes the part that it crops, so it comes first")
            if recipe.mixing and not last:
                raise UsageError(
                    f"augment: {name!r} mixes rows, so it comes last; for both of them use mixup_or_cutmix"
                )
            if recipe.sets_size and sized:
                raise UsageError(f"augment: {name!r} after {sized!r}: only one of them can decide the size")
            if floats and not recipe.takes_floats:
                raise UsageError(
                    f"augment: {name!r} takes pixels, and {gave!r} before it gives floats; put it before {gave!r}"
                )
            gave = name if recipe.gives_floats(floats) and not floats else gave
            floats, sized = recipe.gives_floats(floats), name if recipe.sets_size else sized

    @property
    def hands_on(self) -> bool:  # type: ignore[override]
        return all(recipe.hands_on for recipe in self.recipes)

    @property
    def mixing(self) -> Mixing | None:
        mixing = self.recipes[-1].mixing
        return mixing and _Later(mixing, self.place + len(self.recipes) - 1)

    @property
    def normalizes(self) -> bool:
        return any(recipe.normalizes for recipe in self.recipes)

    def gives_floats(self, floats: bool) -> bool:
        return functools.reduce(lambda given, recipe: recipe.gives_floats(given), self.recipes, floats)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if a recipe cannot take the result of the one before it, for images of this shape."""
        for recipe in self.recipes:
            image_shape = tuple(output_spec(recipe, image_shape).shape[1:])

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        for i, recipe in enumerate(self.recipes, self.place):
            images = _applied(recipe, recipe.augment, images, _keys(keys, i), statistics)
        return images

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        for i, recipe in enumerate(self.recipes, self.place):
            images = _applied(recipe, recipe.evaluate, images, _keys(keys, i), statistics)
        return images


@dataclasses.dataclass(frozen=True)
class _Later:
    """A mixing that uses the draws of its place among the recipes."""

    mixing: Mixing
    place: int

    def shares(self, size: tuple[int, int], keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor) -> Shares:
        return self.mixing.shares(size, _keys(keys, self.place), epoch, real)


def cropping_of(recipe: Recipe | None) -> CroppingRecipe | None:
    """Returns the recipe that chooses the part of each image to decode, if there is one."""
    first = recipe.recipes[0] if isinstance(recipe, Composed) else recipe
    return first if isinstance(first, CroppingRecipe) else None


def of_flipped(recipe: Recipe | None) -> Recipe:
    """Returns a recipe that decodes a part of each image, for images that are already flipped."""
    cropping = cropping_of(recipe)
    assert cropping is not None
    return _with_first(recipe, dataclasses.replace(cropping, flip=False))


def unmixed(recipe: Recipe) -> Recipe:
    """Returns a recipe without the one that mixes rows, which comes last."""
    if not recipe.mixing:
        return recipe
    if isinstance(recipe, Composed) and len(recipe.recipes) > 1:
        return dataclasses.replace(recipe, names=recipe.names[:-1], recipes=recipe.recipes[:-1])
    return Unaugmented()


def crop_first_of(recipe: Recipe | None) -> CropFirst | None:
    """Returns the recipe that begins by taking a crop of each image, if there is one."""
    first = recipe.recipes[0] if isinstance(recipe, Composed) else recipe
    return first if isinstance(first, CropFirst) else None


def of_crops(recipe: Recipe) -> Recipe:
    """Returns a recipe that begins with crops, for images that are already cropped."""
    first = crop_first_of(recipe)
    assert first is not None
    return _with_first(recipe, OfCrops(first))


def _with_first(recipe: Recipe | None, first: Recipe) -> Recipe:
    return dataclasses.replace(recipe, recipes=(first, *recipe.recipes[1:])) if isinstance(recipe, Composed) else first


def cut(recipe: Recipe) -> tuple[Recipe, Recipe] | None:
    """Splits a recipe into a part that keeps pixels uint8 and the rest, with the same draws as the whole.

    Returns None if it is not known to turn pixels into floats.
    """
    several = recipe.recipes if isinstance(recipe, Composed) else (recipe,)
    names = recipe.names if isinstance(recipe, Composed) else ("",)
    at = next((i for i, each in enumerate(several) if each.gives_floats(False)), None)
    if at is None:
        return None
    head, tail = several[at].in_two()
    before = several[:at] if isinstance(head, Unaugmented) else (*several[:at], head)
    after: Recipe = tail
    if len(several) > 1:
        after = Composed(names[at:], (tail, *several[at + 1 :]), at)
    if len(before) > 1:
        return Composed(names[: len(before)], before), after
    return before[0] if before else head, after


def moves_of(recipe: Recipe, size: tuple[int, int], training: bool, what: str) -> list[Move]:
    """Returns the moves of a recipe, which make masks, boxes and points follow the image; `what` names the ones in use.

    Raises:
      UsageError: a recipe cannot move them.
    """
    several, first = (recipe.recipes, recipe.place) if isinstance(recipe, Composed) else ((recipe,), 0)
    found: list[Move] = []
    for place, each in enumerate(several, first):
        own = each.moves(found[-1].size if found else size, training)
        if own is None or each.mixing:
            raise UsageError(f"augment: {_named(each)}, so it cannot be used with {what}; leave out one of them")
        found += [move.of(functools.partial(_keys, place=place)) for move in own]
    return found


def _named(recipe: Recipe) -> str:
    """Returns the name of a recipe that cannot move masks or boxes, and why it cannot."""
    if isinstance(recipe, UserAugmented):
        return f"{recipe.function.name} is a function of images alone"
    return f"{recipe.name!r} mixes images"


def _applied(
    recipe: Recipe, function: Callable[..., tf.Tensor], images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics
) -> tf.Tensor:
    """Returns the result of a recipe's function, compiled by itself if the recipe is compiled."""
    call = functools.partial(function, statistics=statistics)
    applied: tf.Tensor = (kernels.separate(call) if recipe.compiled else call)(images, keys)
    return applied


def _keys(keys: tf.Tensor, place: int) -> tf.Tensor:
    """Returns keys whose draw d is the draw DRAWS * place + d of the given keys."""
    return keys + tf.constant(DRAWS * place, tf.uint64) if place else keys


class _Chain(NamedTuple):
    """Images after some of the recipes, the passes that are still to be applied, and the (height, width) after them."""

    images: tf.Tensor
    waiting: list[Pass]
    size: tuple[int, int]


def _chain(recipe: Recipe, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics, training: bool) -> _Chain:
    """Applies recipes up to the last one without passes; has the arguments of `augmented_by_passes`."""
    waiting: list[Pass] = []  # applied together, before the next recipe without passes
    shape = images.shape[1:]
    several, first = (recipe.recipes, recipe.place) if isinstance(recipe, Composed) else ((recipe,), 0)
    for place, each in enumerate(several, first):
        own_keys = functools.partial(_keys, place=place)
        own = each.passes(tuple(shape), statistics, training) if images.dtype == tf.uint8 else None
        if own is None:
            images = passes.apply(images, keys, waiting) if waiting else images
            images = _applied(each, each.augment if training else each.evaluate, images, own_keys(keys), statistics)
            waiting, shape = [], images.shape[1:]
        else:
            waiting += [one.of(own_keys) for one in own]
            shape = (*next((one.size for one in reversed(own) if one.size), shape[:2]), shape[2])
    return _Chain(images, waiting, (shape[0], shape[1]))


def augmented_by_passes(
    recipe: Recipe, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics, training: bool
) -> tf.Tensor:
    """Returns the same bytes as `recipe.augment` (in training) or `recipe.evaluate`, using passes where it has them."""
    after, waiting, _ = _chain(recipe, images, keys, statistics, training)
    # Without any pass, `apply` copies: images in a window's memory would keep the whole window alive.
    return passes.apply(after, keys, waiting) if waiting or after is images else after


def mixed_by_passes(
    recipe: Recipe,
    images: tf.Tensor,
    labels: tf.Tensor,
    keys: tf.Tensor,
    statistics: ImageStatistics,
    epoch: tf.Tensor,
    real: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the same bytes as `mix` after `recipe.augment`, for a recipe that mixes, and the mixed labels."""
    mixing = recipe.mixing
    assert mixing is not None
    after, waiting, size = _chain(recipe, images, keys, statistics, True)

    def draw(labels: tf.Tensor, keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor) -> tuple[Shares, tf.Tensor]:
        shares = mixing.shares(size, keys, epoch, real)
        return shares, mix_labels(labels, shares)

    shares, labels = kernels.separate(draw)(labels, keys, epoch, real)
    if after.dtype != tf.uint8:  # no pass begins with floats, so none is waiting
        return kernels.separate(mix_images)(after, shares), labels
    return passes.apply(after, keys, [*waiting, mixing_pass(shares)]), labels


def batchwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that also takes several batches and computes them as one.

    Args:
      function: function of tensors (rows, ...), the last of them (rows,); returns tensors in any structure, with the
        same bits for a row in a batch of any size.

    Returns:
      The function, which also takes and returns tensors (batches, rows, ...).
    """

    def of_one_or_several(*arguments: tf.Tensor) -> Any:
        if arguments[-1].shape.rank == 1:
            return function(*arguments)
        count, rows = arguments[-1].shape
        made = function(*(tf.reshape(each, (count * rows, *each.shape[2:])) for each in arguments))
        return tf.nest.map_structure(lambda each: tf.reshape(each, (count, rows, *each.shape[1:])), made)

    return of_one_or_several


@dataclasses.dataclass(frozen=True, eq=False)
class Augmenter:
    """Augments batches and mixes their rows.

    Attributes:
      recipe: the augmentation.
      statistics: statistics of the training images.
      num_classes: number of classes, for recipes that mix labels.
      training: whether to augment and mix; if not, the recipe's form for evaluation is used.
      by_passes: whether compiled code augments where the recipe has passes; otherwise XLA does.
      keys_of: function from an epoch and its rows to their keys, uint64; XLA compiles it with the recipe.
      images_of: function that shapes the images to uint8 (rows, height, width, channels); XLA compiles it, too.
    """

    recipe: Recipe
    statistics: ImageStatistics
    num_classes: int
    training: bool
    by_passes: bool
    keys_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    images_of: Callable[[tf.Tensor], tf.Tensor]

    def __call__(
        self, images: tf.Tensor, labels: Any, epoch: tf.Tensor, rows: tf.Tensor, real: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        """Returns the images and the labels, which are probabilities if the recipe mixes, also in evaluation.

        Args:
          images: argument of `images_of`: one batch, or several with an extra leading axis.
          labels: int64 (rows,), or a value per class, (rows, classes); any numbers if the recipe does not mix.
          epoch: int64 scalar, or (rows,).
          rows: argument of `keys_of`, (rows,).
          real: mask of the rows that may be mixed if their partners are real, too; bool (rows,).
        """
        if self.recipe.mixing:  # a label that is a vector already has a value per class
            is_vector = labels.shape.rank > rows.shape.rank
            labels = tf.cast(labels, tf.float32) if is_vector else tf.one_hot(labels, self.num_classes)
        if self.by_passes and self._has_passes(images):
            return self._passed(images, labels, epoch, rows, real)
        images = (self._compiled if self.recipe.compiled else self._augmented)(images, epoch, rows)
        if self.recipe.mixing and self.training:
            images, labels = self._mixed(images, labels, epoch, rows, real)
        return images, labels

    def _has_passes(self, images: tf.Tensor) -> bool:
        """Whether the recipe has passes. Without any, a single XLA function that also computes the keys is cheaper."""
        if self.recipe.mixing and self.training:
            return True
        if self.recipe.hands_on or isinstance(self.recipe, Composed):
            return not self.recipe.hands_on
        shape = tuple(self.images_of(images).shape[-3:])
        return self.recipe.passes(shape, self.statistics, self.training) is not None

    def _passed(
        self, images: tf.Tensor, labels: Any, epoch: tf.Tensor, rows: tf.Tensor, real: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        def augmented(images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            return augmented_by_passes(self.recipe, images, keys, self.statistics, self.training)

        def mixed(
            images: tf.Tensor, labels: tf.Tensor, real: tf.Tensor, keys: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            return mixed_by_passes(self.recipe, images, labels, keys, self.statistics, epoch, real)

        keys, images = kernels.separate(self.keys_of)(epoch, rows), self.images_of(images)
        if self.recipe.mixing and self.training:
            both: tuple[tf.Tensor, tf.Tensor] = batchwise(mixed)(images, labels, real, keys)
            return both
        return batchwise(augmented)(images, keys), labels

    @tf.function(jit_compile=True, autograph=False)
    def _compiled(self, images: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return self._augmented(images, epoch, rows)

    def _augmented(self, images: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        function = self.recipe.augment if self.training else self.recipe.evaluate

        def call(images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            return function(images, keys, self.statistics)

        augmented: tf.Tensor = batchwise(call)(self.images_of(images), self.keys_of(epoch, rows))
        return augmented

    @tf.function(jit_compile=True, autograph=False)
    def _mixed(
        self, images: tf.Tensor, labels: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor, real: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        mixing = self.recipe.mixing
        assert mixing is not None

        # Several batches can be mixed as one: partners stay next to each other, and nothing is summed over rows.
        def mixed(
            images: tf.Tensor, labels: tf.Tensor, keys: tf.Tensor, real: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            return mix(mixing, images, labels, keys, epoch, real)

        both: tuple[tf.Tensor, tf.Tensor] = batchwise(mixed)(images, labels, self.keys_of(epoch, rows), real)
        return both
