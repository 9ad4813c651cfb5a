"""Recipes that move, crop or resize images: crops, shifts, flips, affine maps, resizing."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from pipeline.augmentation import RECIPES, kernels, moves, passes
from pipeline.augmentation.base import Augmentation, Crop, ImageStatistics, Recipe, argument
from pipeline.augmentation.moves import Move
from pipeline.augmentation.passes import Pass
from pipeline.augmentation.pixels import Normalize
from pipeline.lazily import tf
from pipeline.order import graph_hashing

_TOP, _LEFT, _FLIP = range(3)  # draws of shifts
_ROTATE, _SCALE, _DOWN, _RIGHT, _SHEAR = range(5)  # draws of affine


class CropFirst(Recipe):
    """Augmentation that begins with a crop. A caller that has all images in memory may take the crops itself.

    The caller then applies `composed.of_crops(recipe)` to them.
    """

    @property
    def padding(self) -> int:
        """Width in pixels of the zeros to put around an image first; 0 if crops lie inside the image."""
        return 0

    def crop_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Returns the height and width of crops of images of this (height, width, channels)."""
        raise NotImplementedError

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the top and left of each image's crop in the padded image: int32 of the shape of `keys`, in pixels.

        Args:
          image_shape: (height, width, channels), without the padding.
          keys: one key per image, uint64 (rows,).
        """
        raise NotImplementedError

    def augment_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the result of `augment`, given the crops, uint8 (rows, *crop_size, channels)."""
        raise NotImplementedError

    def passes_of_crops(self, statistics: ImageStatistics, training: bool) -> list[Pass] | None:
        """Returns the passes that compute `augment_crops` (in training) or `evaluate`; None if only XLA can."""
        return None

    def in_two(self) -> tuple[Recipe, Recipe]:
        return CropsOf(self), OfCrops(self)

    def passes(
        self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool
    ) -> list[Pass] | None:
        after = self.passes_of_crops(statistics, training)
        if after is None or not training:
            return after
        size = self.crop_size(image_shape)
        return [passes.crop(self.padding, size, lambda keys: self.corners(image_shape, keys)), *after]

    def moves(self, size: tuple[int, int], training: bool) -> list[Move] | None:
        if not training:
            return []
        shape = (*size, 1)
        return [moves.crop(self.padding, self.crop_size(shape), lambda keys: self.corners(shape, keys))]

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        _, height, width, channels = images.shape
        shape, around = (height, width, channels), [self.padding, self.padding]
        padded = tf.pad(images, [[0, 0], around, around, [0, 0]]) if self.padding else images
        lanes = kernels.crop(padded, *self.corners(shape, keys), *self.crop_size(shape))
        return self.augment_crops(kernels.to_images(lanes, channels), keys, statistics)


@dataclasses.dataclass(frozen=True)
class OfCrops(Recipe):
    """Augmentation of a `CropFirst` for crops that were already taken; in evaluation they stand for the images.

    Attributes:
      recipe: the `CropFirst`.
    """

    recipe: CropFirst

    @property
    def normalizes(self) -> bool:
        return self.recipe.normalizes

    def gives_floats(self, floats: bool) -> bool:
        return self.recipe.gives_floats(floats)

    def passes(
        self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool
    ) -> list[Pass] | None:
        return self.recipe.passes_of_crops(statistics, training)

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return self.recipe.augment_crops(images, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return self.recipe.evaluate(images, keys, statistics)


@dataclasses.dataclass(frozen=True)
class CropsOf(CropFirst):
    """The initial crops of a `CropFirst`, uint8; in evaluation the whole images, as `OfCrops` expects them.

    Attributes:
      recipe: the `CropFirst`.
    """

    recipe: CropFirst

    @property
    def padding(self) -> int:
        return self.recipe.padding

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if the recipe cannot crop such images."""
        self.recipe.check(image_shape)

    def crop_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        return self.recipe.crop_size(image_shape)

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.recipe.corners(image_shape, keys)

    def augment_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return crops

    def passes_of_crops(self, statistics: ImageStatistics, training: bool) -> list[Pass]:
        return []

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return images


class _FlippedNormalised(Recipe):
    """Base of recipes that end by flipping, and normalising with the training statistics, unless that is turned off."""

    flip_draw: ClassVar[int]  # the draw that decides which images are mirrored
    flip: bool
    normalize: bool

    @property
    def normalizes(self) -> bool:
        return self.normalize

    def gives_floats(self, floats: bool) -> bool:
        return self.normalize

    def in_two(self) -> tuple[Recipe, Recipe]:
        return dataclasses.replace(self, normalize=False), Normalize()  # type: ignore[type-var]

    def _is_flipped(self, keys: tf.Tensor) -> tf.Tensor:
        return graph_hashing.uniform(keys, self.flip_draw) < 0.5

    def _flips(self, statistics: ImageStatistics, training: bool) -> list[Pass]:
        flips = [passes.flip(self._is_flipped)] if self.flip and training else []
        return [*flips, passes.normalise(statistics.mean, statistics.divisor)] if self.normalize else flips

    def _flip_moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        return [moves.flip(size, self._is_flipped)] if self.flip and training else []

    def _flipped(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        if self.flip:
            images = kernels.flip_images(images, self._is_flipped(keys))
        return self.evaluate(images, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return kernels.normalise(images, statistics.mean, statistics.divisor) if self.normalize else images


class _RandomShift(CropFirst):
    """Base of recipes that begin by moving the image by up to `padding` pixels in each direction."""

    def crop_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        return image_shape[:2]

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        top = kernels.random_below(2 * self.padding + 1, keys, _TOP)
        return top, kernels.random_below(2 * self.padding + 1, keys, _LEFT)


@RECIPES.named("shift")
@dataclasses.dataclass(frozen=True)
class Shift(_RandomShift):
    """Shifts by up to `pixels` in each direction, filling with zeros; float32 in [0, 1]. A 6 never becomes a 9."""

    pixels: int = argument(2, 0, 64)

    def gives_floats(self, floats: bool) -> bool:
        return True

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if a shift could move an image out entirely."""
        self.check_bounds("pixels", 0, min(image_shape[:2]) - 1, image_shape)

    @property
    def padding(self) -> int:
        return self.pixels

    def passes_of_crops(self, statistics: ImageStatistics, training: bool) -> list[Pass]:
        count = len(statistics.mean)
        return [passes.normalise((0.0,) * count, (255.0,) * count)]

    def augment_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return self.evaluate(crops, keys, statistics)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the images scaled to [0, 1]."""
        return kernels.normalise(images, (0.0,), (255.0,))


@RECIPES.named("pad_crop_flip")
@dataclasses.dataclass(frozen=True)
class PadCropFlip(_FlippedNormalised, _RandomShift):
    """Pads with zeros, crops to the image's own size, flips, normalises by the training images' statistics.

    The augmentation of the ResNet paper's CIFAR-10 runs (He et al. 2015, section 4.2).

    Attributes:
      pad: pixels on each side.
      flip: whether to mirror half of the images.
      normalize: whether to normalise; if not, the result is uint8, 0..255.
    """

    flip_draw: ClassVar[int] = _FLIP

    pad: int = argument(4, 0, 64)
    flip: bool = True
    normalize: bool = True

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if a crop could contain nothing of an image."""
        self.check_bounds("pad", 0, min(image_shape[:2]) - 1, image_shape)

    @property
    def padding(self) -> int:
        return self.pad

    def passes_of_crops(self, statistics: ImageStatistics, training: bool) -> list[Pass]:
        return self._flips(statistics, training)

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        return [*(super().moves(size, training) or ()), *self._flip_moves(size, training)]

    def augment_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return self._flipped(crops, keys, statistics)


@RECIPES.named("flip")
@dataclasses.dataclass(frozen=True)
class Flip(Augmentation):
    """Mirrors some of the images, left to right.

    Attributes:
      prob: fraction of the images to mirror.
    """

    takes_floats: ClassVar[bool] = True

    prob: float = argument(0.5, 0, 1)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        return [passes.flip(self._is_flipped)] if training else []

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        return [moves.flip(size, self._is_flipped)] if training else []

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return kernels.flip_images(images, self._is_flipped(keys))

    def _is_flipped(self, keys: tf.Tensor) -> tf.Tensor:
        return graph_hashing.uniform(keys, 0) < self.prob


@RECIPES.named("affine")
@dataclasses.dataclass(frozen=True)
class Affine(Augmentation):
    """Rotates, scales, shears and shifts each image in one bilinear interpolation; uint8.

    The order is the same as in torchvision's RandomAffine: shear, scale, rotation about the middle, shift.

    Attributes:
      rotate: degrees counter-clockwise, uniform in +-rotate.
      scale: range of the factor, uniform in 1-scale..1+scale, by which the image is enlarged.
      shift: fraction of the height and of the width, each uniform in +-shift.
      shear: degrees by which the vertical leans, uniform in +-shear.
      fill: value of the pixels that come from outside the image.
    """

    rotate: float = argument(15.0, 0, 180)
    scale: float = argument(0.1, 0, 0.9)
    shift: float = argument(0.1, 0, 1)
    shear: float = argument(0.0, 0, 60)
    fill: int = argument(0, 0, 255)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        move = Pass("move", (self.fill,), lambda keys: [self._places(keys, image_shape[:2])])
        return [move] if training else []

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        return [Move(size, lambda keys: self._maps(keys, size))] if training else []

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return kernels.transform(images, self._places(keys, (images.shape[1], images.shape[2])), self.fill)

    def _places(self, keys: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        return kernels.places(self._maps(keys, size), size)

    def _maps(self, keys: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        height, width = size
        angle = kernels.symmetric(keys, _ROTATE) * math.radians(self.rotate)
        factor = 1.0 + kernels.symmetric(keys, _SCALE) * self.scale
        lean = tf.tan(kernels.symmetric(keys, _SHEAR) * math.radians(self.shear))
        shift = [kernels.symmetric(keys, draw) * self.shift * n for draw, n in ((_RIGHT, width), (_DOWN, height))]
        cos, sin = tf.cos(angle) / factor, tf.sin(angle) / factor
        # The map goes from a place in the result back to the image, so it inverts shift, rotation and shear.
        # It rotates about the middle of the image.
        middle, lines = ((width - 1) / 2, (height - 1) / 2), []
        for i, (a, b) in enumerate([[cos - lean * sin, -sin - lean * cos], [sin, cos]]):
            rest = middle[i] - a * (middle[0] + shift[0]) - b * (middle[1] + shift[1])
            lines.append(tf.stack([a, b, rest], axis=-1))
        return tf.stack(lines, axis=1)


@RECIPES.named("resize")
@dataclasses.dataclass(frozen=True)
class Resize(Recipe):
    """Stretches images to one size, uint8: bilinear, antialiased when shrinking.

    The result equals `tf.image.resize(..., antialias=True)`, rounded.

    Attributes:
      height, width: height and width of the result, pixels.
    """

    sets_size: ClassVar[bool] = True
    draws_nothing: ClassVar[bool] = True

    height: int = argument(224, 1, 4096)
    width: int = argument(224, 1, 4096)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        return [passes.resize(image_shape[:2], (self.height, self.width))]

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        return [moves.stretch(size, (self.height, self.width))]

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return kernels.resize(images, self.height, self.width)

    evaluate = augment


@dataclasses.dataclass(frozen=True)
class CroppingRecipe(_FlippedNormalised):
    """Base of recipes that decode a part of each PNG or JPEG, flip it and normalise it with the training statistics.

    Attributes:
      size: height and width of the result, pixels.
      flip: whether to mirror half of the images.
      normalize: whether to normalise; if not, the result is uint8, 0..255.
    """

    sets_size: ClassVar[bool] = True
    decodes_part: ClassVar[bool] = True

    size: int = argument(224, 1, 4096)
    flip: bool = True
    normalize: bool = True

    def crop(self, training: bool) -> Crop:
        """Returns the part of each image to decode."""
        raise NotImplementedError

    @property
    def hands_on(self) -> bool:  # type: ignore[override]
        return not self.flip and not self.normalize

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        return not self.hands_on

    def mirrored(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns which images are flipped in training, given the keys of `augment`: bool, of the shape of `keys`."""
        return self._is_flipped(keys) if self.flip else tf.zeros_like(keys, tf.bool)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        return self._flips(statistics, training)

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        """Returns the flip of the decoded parts, which have the size of the result."""
        return self._flip_moves(size, training)

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the decoded parts, flipped and normalised."""
        return self._flipped(images, keys, statistics)


def _box(
    height: tf.Tensor, width: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, key: tf.Tensor | None = None, draw: int = 0
) -> tf.Tensor:
    """Returns boxes, like `Crop.box`, of parts `tall` x `wide`: in the middle, or placed by two draws, `draw` first."""
    if key is None:
        top, left = (height - tall) // 2, (width - wide) // 2
    else:
        top, left = (
            kernels.random_below(height - tall + 1, key, draw),
            kernels.random_below(width - wide + 1, key, draw + 1),
        )
    return tf.stack([top, left, tall, wide], axis=-1)


@RECIPES.named("random_crop")
@dataclasses.dataclass(frozen=True)
class RandomCrop(CroppingRecipe):
    """Crops a random part of the result's size without resizing, flips, normalises; crops the middle in evaluation.

    Smaller images are enlarged until the shorter side fits.
    """

    flip_draw: ClassVar[int] = 2  # after the box's draws

    def crop(self, training: bool) -> Crop:
        return _SquareCrop((self.size, self.size), training)


@dataclasses.dataclass(frozen=True)
class _SquareCrop:
    is_scaled: ClassVar[bool] = False

    size: tuple[int, int]
    training: bool

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        side = tf.minimum(tf.minimum(height, width), self.size[0])
        return _box(height, width, side, side, key if self.training else None)


@RECIPES.named("random_resized_crop")
@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(CroppingRecipe):
    """Crops a part of random size and shape, resizes, flips, normalises.

    In evaluation it crops the middle, `central` times the shorter side (224 of 256). Source: Szegedy et al., Going
    deeper with convolutions (2015), section 6: 8% to 100% of the area, aspect ratios of 3/4 to 4/3.

    Attributes:
      min_area: smallest fraction of the image's area.
      max_shape: largest width / height; the smallest is its inverse.
      central: fraction of the shorter side in evaluation.
      scaled_decoding: whether a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if its part is that much larger than the
        result. That costs less, and the pixels differ a little.
    """

    flip_draw: ClassVar[int] = 4  # after the draws of area, shape and box

    min_area: float = argument(0.08, 1e-4, 1)
    max_shape: float = argument(4 / 3, 1, 16)
    central: float = argument(0.875, 0.01, 1)
    scaled_decoding: bool = False

    def crop(self, training: bool) -> Crop:
        size, is_scaled = (self.size, self.size), self.scaled_decoding
        if training:
            return _RandomCrop(size, is_scaled, self.min_area, self.max_shape)
        return _CentralCrop(size, is_scaled, self.central)


@dataclasses.dataclass(frozen=True)
class _RandomCrop:
    size: tuple[int, int]
    is_scaled: bool
    min_area: float
    max_shape: float

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns random boxes; a box that would be wider or taller than the image ends at its border."""
        image_area = tf.cast(height, tf.float32) * tf.cast(width, tf.float32)
        area = image_area * (self.min_area + (1 - self.min_area) * graph_hashing.uniform(key, 0))
        shape = tf.exp(math.log(self.max_shape) * (2 * graph_hashing.uniform(key, 1) - 1))
        wide = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area * shape)), tf.int32), 1, width)
        tall = tf.clip_by_value(tf.cast(tf.round(tf.sqrt(area / shape)), tf.int32), 1, height)
        return _box(height, width, tall, wide, key, draw=2)


@dataclasses.dataclass(frozen=True)
class _CentralCrop:
    size: tuple[int, int]
    is_scaled: bool
    part: float

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        side = tf.cast(tf.round(tf.cast(tf.minimum(height, width), tf.float32) * self.part), tf.int32)
        side = tf.maximum(side, 1)
        return _box(height, width, side, side)
