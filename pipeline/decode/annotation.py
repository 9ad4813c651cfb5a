"""Masks, boxes and points of a batch: read from the records, cropped and moved by the recipes like the images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline.augmentation import moves
from pipeline.augmentation.composed import batchwise
from pipeline.augmentation.moves import Move
from pipeline.decode.images import Encoded, ImageDecoder
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, BOXES, CONVENTIONS, MASK, NO_LABEL, RELATIVE
from pipeline.records.annotation import WEIGHT, in_order

_DTYPES = {"float32": tf.float32, "int64": tf.int64}


@dataclasses.dataclass(frozen=True, eq=False)
class Annotations:
    """The features of a batch that are located on its images.

    Attributes:
      features: masks, boxes and points of the manifest, by name.
      decoder: decoder of the images, or of a part of each.
      moves: moves of the recipe, in order.
      by_passes: whether compiled passes move masks if a move has one.
    """

    features: dict[str, Feature]
    decoder: ImageDecoder
    moves: Sequence[Move]
    by_passes: bool = False

    def decoded(
        self, records: tf.Tensor, images: Encoded, keys: Callable[[], tf.Tensor], turns: tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        """Returns masks, boxes and points of the images as `ImageDecoder.decode` returns them.

        Args:
          records: serialized Examples, string (rows,).
          images, keys, turns: arguments of `ImageDecoder.decode`.

        Returns:
          `mask`: uint8 (rows, height, width, 1). `boxes`: float32 (rows, most, 4), `rel_yxyx`, clipped. `points`:
          float32 (rows, most, 2), `rel_yx`. Weights of boxes and points, float32 (rows, most): 1, or 0 if they have no
          part in the picture, and for the padding with zeros. `box_labels`: int64 (rows, most), -1 as padding.
        """
        found, columns = tf.io.parse_example(records, self._kinds()), {}
        sizes, parts = self.decoder.parts(images, keys, turns, tf.shape(records)[0])
        for name, feature in self.features.items():
            if name == MASK:
                columns[name] = self._masks(found[feature.named(name)], feature, sizes, parts)
            elif name == BOX_LABELS:
                columns[name] = found[feature.named(name)].to_tensor(NO_LABEL, shape=(None, feature.shape[0]))
            else:
                pixels, there = _stored(found, name, feature, sizes)
                maps = moves.rounded_maps(moves.part(parts, self._size))
                columns |= _as_fed(name, *_moved(name)(pixels, there, maps, self._size), self._size)
        return columns

    def moved(self, columns: dict[str, tf.Tensor], keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """Moves the results of `decoded` in the same way as the recipe moved the images.

        Args:
          columns: columns of one batch, or of several with a leading axis.
          keys: one key per row, uint64 (rows,), or (batches, rows).
        """
        if not self.moves:
            return columns

        def moved(*values: tf.Tensor) -> dict[str, tf.Tensor]:
            *given, keys = values
            return self._moved(dict(zip(columns, given, strict=True)), keys)

        made: dict[str, tf.Tensor] = batchwise(moved)(*columns.values(), keys)
        return made

    def renamed(self, labels: tf.RaggedTensor, names: Sequence[str], keys: tf.Tensor) -> tf.RaggedTensor:
        """Returns which named point each point is after the moves: a mirrored left eye is a right eye.

        Args:
          labels: indices into `names`, int64 (rows, None).
          names: names of the points; empty if unknown, so that nothing is renamed.
          keys: one key per row, uint64 (rows,).
        """
        others = moves.opposites(names)
        if not self.moves or others == [*range(len(names))] or not isinstance(labels, tf.RaggedTensor):
            return labels
        mirrored = tf.gather(moves.mirrored(keys, self.moves), labels.value_rowids())
        flat = tf.where(mirrored, tf.gather(tf.constant(others, tf.int64), labels.values), labels.values)
        return labels.with_values(flat)

    @property
    def _size(self) -> tuple[int, int]:
        return self.decoder.image_shape[:2]

    def _moved(self, columns: dict[str, tf.Tensor], keys: tf.Tensor) -> dict[str, tf.Tensor]:
        made: dict[str, tf.Tensor] = {}
        others = self.features.keys() - {MASK, BOX_LABELS}
        maps = moves.maps_of(keys, self.moves) if others else []
        for name, feature in self.features.items():
            if name == MASK:
                made[name] = moves.masks_moved(columns[name], keys, self.moves, feature.fill, self.by_passes)
                continue
            if name == BOX_LABELS:
                made[name] = columns[name]
                continue
            numbers = tf.tile(tf.constant(self._size, tf.float64), [columns[name].shape[-1] // 2])
            pixels, visible = tf.cast(columns[name], tf.float64) * numbers, columns[name + WEIGHT] > 0
            for move, own in zip(self.moves, maps, strict=True):
                pixels, visible = _moved(name)(pixels, visible, own, move.size)
            made |= _as_fed(name, pixels, visible, self.moves[-1].size)
        return made

    def _kinds(self) -> dict[str, Any]:
        kinds: dict[str, Any] = {}
        for name, feature in self.features.items():
            is_mask = name == MASK
            kind = tf.io.FixedLenFeature([], tf.string) if is_mask else tf.io.RaggedFeature(_DTYPES[feature.dtype])
            kinds |= dict.fromkeys(feature.stored_names(name), kind)
        return kinds

    def _masks(self, stored: tf.Tensor, feature: Feature, sizes: tf.Tensor, parts: tf.Tensor) -> tf.Tensor:
        shape = tf.TensorSpec((*self._size, 1), tf.uint8)

        def decoded(values: tuple[tf.Tensor, ...]) -> tf.Tensor:
            data, size, part = values
            if feature.encoding == "raw":
                pixels = tf.reshape(tf.io.decode_raw(data, tf.uint8), [size[0], size[1], 1])
            else:
                pixels = tf.io.decode_png(data, channels=1)
            if self.decoder.crop is not None:
                for axis, side in enumerate(self._size):  # each pixel of the result is the nearest pixel of the part
                    nearest = part[axis] + (2 * tf.range(side) + 1) * part[axis + 2] // (2 * side)
                    pixels = tf.gather(pixels, nearest, axis=axis)
            return tf.ensure_shape(pixels, shape.shape)

        return tf.map_fn(decoded, (stored, sizes, parts), fn_output_signature=shape)


def _moved(name: str) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    return moves.boxes_moved if name == BOXES else moves.points_moved


def _stored(found: dict[str, Any], name: str, feature: Feature, sizes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns boxes or points in pixels, float64 (rows, most, 4 or 2), and which are stored, bool (rows, most)."""
    most, own, count = feature.shape[0] or 0, feature.stored_names(name), len(CONVENTIONS[name][feature.convention])
    each = most if feature.parts else most * count
    dense = [tf.cast(found[part].to_tensor(0, shape=(None, each)), tf.float64) for part in own]
    values = tf.stack(dense, axis=-1) if feature.parts else tf.reshape(dense[0], (-1, most, count))
    lengths = found[own[0]].row_lengths() // (1 if feature.parts else count)
    there = tf.range(most, dtype=lengths.dtype) < lengths[:, None]
    pixels = in_order(values, name, feature.convention, lambda parts: tf.stack(parts, axis=-1))
    if feature.convention.startswith(RELATIVE):
        pixels *= tf.tile(tf.cast(sizes, tf.float64), [1, pixels.shape[-1] // 2])[:, None, :]
    return pixels, there


def _as_fed(name: str, pixels: tf.Tensor, visible: tf.Tensor, size: tuple[int, int]) -> dict[str, tf.Tensor]:
    """Returns boxes or points as fractions of the picture's sides, and their weights; invisible ones are 0."""
    sides = tf.tile(tf.constant(size, tf.float64), [pixels.shape[-1] // 2])
    shown = tf.where(visible[..., None], pixels / sides, 0.0)
    return {name: tf.cast(shown, tf.float32), name + WEIGHT: tf.cast(visible, tf.float32)}
