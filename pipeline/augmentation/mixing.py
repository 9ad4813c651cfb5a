"""Recipes that mix row i of a batch with row i xor 1, and their labels: mixup, cutmix, or a random choice per row.

Each row draws for itself how much of its partner it gets. A row stays unmixed if it or its partner is padding or
replaces a corrupt record.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from pipeline.augmentation import RECIPES, kernels
from pipeline.augmentation.base import Augmentation, ImageStatistics, Mixing, Shares, argument
from pipeline.augmentation.passes import Pass
from pipeline.errors import UsageError
from pipeline.lazily import tf
from pipeline.order import graph_hashing

_MOST_ALPHA = 100.0


@dataclasses.dataclass(frozen=True)
class MixingRecipe(Augmentation):
    """Base of the recipes that mix.

    Attributes:
      prob: fraction of the rows to mix.
      until_epoch: first epoch, counted from 0, in which nothing is mixed; None to mix in all epochs.
    """

    compiled: ClassVar[bool] = False  # `augment` only passes images on, which XLA would copy; `mix_images` is compiled
    hands_on: ClassVar[bool] = True
    takes_floats: ClassVar[bool] = True
    mixes_rows: ClassVar[bool] = True

    prob: float = argument(1.0, 0, 1)
    until_epoch: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until_epoch is not None and self.until_epoch < 0:
            raise UsageError(f"augment: {self.name}(until_epoch={self.until_epoch}): must be 0 or more")

    @property
    def mixing(self) -> Mixing:
        return self

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        """Returns no passes; `mixing_pass` comes later."""
        return []

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the images unchanged; `mix_images` comes later."""
        return images

    def shares(self, size: tuple[int, int], keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor) -> Shares:
        mixed = real & kernels.partners(real) & (graph_hashing.uniform(keys, _PROB) < self.prob)
        if self.until_epoch is not None:
            mixed &= epoch < self.until_epoch
        return self._shares(size, keys, mixed)

    def _shares(self, size: tuple[int, int], keys: tf.Tensor, mixed: tf.Tensor) -> Shares:
        """Returns the shares of the rows; those that are not `mixed` get nothing of their partners."""
        raise NotImplementedError


def mix(
    mixing: Mixing, images: tf.Tensor, labels: tf.Tensor, keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mixed images and labels; has the arguments of `mix_images`, `mix_labels` and `Mixing.shares`."""
    shares = mixing.shares((images.shape[1], images.shape[2]), keys, epoch, real)
    return mix_images(images, shares), mix_labels(labels, shares)


def mix_images(images: tf.Tensor, shares: Shares) -> tf.Tensor:
    """Returns mixed images in the images' dtype, (rows, height, width, channels)."""
    if images.dtype != tf.uint8:  # else XLA fuses the operations before into the blend, and rounds differently
        images = kernels.computed(images)
    partners, mixed = kernels.partners(images), images
    if shares.blended is not None:
        mixed = kernels.blend(images, partners, shares.blended[:, None, None, None])
    if shares.box is not None:
        mixed = tf.where(kernels.inside(*shares.box, (images.shape[1], images.shape[2])), partners, mixed)
    return mixed


def mix_labels(labels: tf.Tensor, shares: Shares) -> tf.Tensor:
    """Returns mixed labels, from labels that are probabilities, float32 (rows, classes)."""
    of_label = tf.cast(shares.of_label, tf.float32)[:, None]
    return labels * (1.0 - of_label) + kernels.partners(labels) * of_label


def mixing_pass(shares: Shares) -> Pass:
    """Returns the pass of `mix_images`, which comes last."""

    def parameters(keys: tf.Tensor) -> list[tf.Tensor]:
        nothing = tf.zeros_like(keys, tf.int32)
        box = shares.box or (nothing,) * 4
        if shares.blended is None:
            return [*box, nothing, nothing]
        of_floats = tf.bitcast(tf.cast(shares.blended, tf.float32), tf.int32)
        return [*box, kernels.fixed(shares.blended, kernels.SHARE_BITS), of_floats]

    return Pass("mix", (), parameters)


_PROB, _RADIUS, _ANGLE, _TOP, _LEFT, _WHICH = range(6)  # draws


@RECIPES.named("mixup")
@dataclasses.dataclass(frozen=True)
class Mixup(MixingRecipe):
    """The weighted mean of two images and of their labels. Source: Zhang et al., mixup (2017).

    Attributes:
      alpha: parameter of the weight's distribution, Beta(alpha, alpha).
    """

    alpha: float = argument(0.2, 0.01, _MOST_ALPHA)

    def _shares(self, size: tuple[int, int], keys: tf.Tensor, mixed: tf.Tensor) -> Shares:
        share = tf.where(mixed, 1.0 - symmetric_beta(self.alpha, keys), 0.0)
        return Shares(share, None, share)


@RECIPES.named("cutmix")
@dataclasses.dataclass(frozen=True)
class CutMix(MixingRecipe):
    """Pastes a rectangle of the partner into each image; mixes labels by area. Source: Yun et al., CutMix (2019).

    Attributes:
      alpha: parameter of the distribution of the rectangle's area before clipping, Beta(alpha, alpha).
    """

    alpha: float = argument(1.0, 0.01, _MOST_ALPHA)

    def _shares(self, size: tuple[int, int], keys: tf.Tensor, mixed: tf.Tensor) -> Shares:
        return _pasted(size, keys, tf.where(mixed, 1.0 - symmetric_beta(self.alpha, keys), 0.0))


@RECIPES.named("mixup_or_cutmix")
@dataclasses.dataclass(frozen=True)
class MixupOrCutMix(MixingRecipe):
    """Mixup or cutmix, drawn for each image.

    Attributes:
      mixup_alpha, cutmix_alpha: `alpha` of mixup and of cutmix.
      cutmix_prob: fraction of the mixed rows that get cutmix.
    """

    mixup_alpha: float = argument(0.2, 0.01, _MOST_ALPHA)
    cutmix_alpha: float = argument(1.0, 0.01, _MOST_ALPHA)
    cutmix_prob: float = argument(0.5, 0, 1)

    def _shares(self, size: tuple[int, int], keys: tf.Tensor, mixed: tf.Tensor) -> Shares:
        cut = graph_hashing.uniform(keys, _WHICH) < self.cutmix_prob
        shares = (1.0 - symmetric_beta(alpha, keys) for alpha in (self.mixup_alpha, self.cutmix_alpha))
        blend_share, cut_share = (tf.where(mixed & which, s, 0.0) for which, s in zip((~cut, cut), shares, strict=True))
        pasted = _pasted(size, keys, cut_share)
        return Shares(blend_share, pasted.box, blend_share + pasted.of_label)


def symmetric_beta(alpha: float, keys: tf.Tensor) -> tf.Tensor:
    """Returns draws from the distribution Beta(alpha, alpha), float64 of the shape of `keys`.

    Source: Devroye, Random variate generation in one line of code (1996), after Bailey's polar method for Student's t.
    """
    power = tf.pow(tf.cast(graph_hashing.uniform(keys, _RADIUS), tf.float64), 1.0 / alpha)
    cosine = tf.cos(tf.cast(graph_hashing.uniform(keys, _ANGLE), tf.float64) * (2.0 * math.pi))
    spread = (1.0 - power) * cosine * cosine
    return 0.5 + 0.5 * tf.sign(cosine) * tf.sqrt(spread / (power + spread))


def _pasted(size: tuple[int, int], keys: tf.Tensor, area: tf.Tensor) -> Shares:
    """Returns shares for rectangles with this fraction of the area; labels get the fraction inside the image."""
    tall, wide = (tf.cast(tf.sqrt(area) * n, tf.int32) for n in size)
    middle = (kernels.random_below(n, keys, draw) for n, draw in zip(size, (_TOP, _LEFT), strict=True))
    top, left = (at - part // 2 for at, part in zip(middle, (tall, wide), strict=True))
    kept = [
        tf.minimum(first + part, n) - tf.maximum(first, 0)
        for first, part, n in zip((top, left), (tall, wide), size, strict=True)
    ]
    share = tf.cast(kept[0] * kept[1], tf.float64) / (size[0] * size[1])
    return Shares(None, (top, left, tall, wide), share)
