"""Operations on the pixels of a whole batch, in the form that XLA compiles best on the CPU.

Crops and flips keep a row of an image as one axis of `width * channels` lanes, so that later loops run over a long
contiguous axis. One gather of slices costs a third of a gather of pixels.

Pixels (uint8) stay integers. Parameters, one per image, row or column, are computed in float64 and rounded to fixed
point. So the result does not depend on how XLA orders or fuses sums, and has the same bytes with any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.lazily import tf, xla, xla_data_pb2
from pipeline.order import graph_hashing

_PLACE = 11  # bits of a coordinate's fraction: two such weights and a pixel fit in 31 bits
SHARE_BITS = 16  # bits of the fractions of shares and coefficients
WEIGHT_BITS = 12  # bits of a weight of `resize`, few enough for products and their sums to be exact in float32
BETWEEN_BITS = 4  # bits of fraction that `resize` keeps between its two passes
_MOST_OFF = 1 << WEIGHT_BITS - 9  # bound on the total error of the neighbours' weights: half a level of 255
_MOST_TAPS = 16  # most weights of a pixel that `resize` sums one by one; more are summed by a matrix product


def random_below(bound: tf.Tensor | int, keys: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns int32 of the shape of `keys`, uniform in 0..bound-1."""
    return tf.cast(graph_hashing.uniform(keys, draw) * tf.cast(bound, tf.float32), tf.int32)


def symmetric(keys: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns float64 of the shape of `keys`, uniform in -1..1."""
    return tf.cast(graph_hashing.uniform(keys, draw), tf.float64) * 2.0 - 1.0


def crop(images: tf.Tensor, top: tf.Tensor, left: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Returns a crop of each image as rows of lanes. Works only in functions compiled by XLA.

    Args:
      images: (rows, image height, image width, channels), static shape.
      top, left: int32 (rows,), the crops' offsets in pixels.
      height, width: the crops' size in pixels.

    Returns:
      (rows, height, width * channels), `images`' dtype.
    """
    rows, image_height, image_width, channels = images.shape
    lanes = tf.reshape(images, (rows, image_height, image_width * channels))
    numbers = xla_data_pb2.GatherDimensionNumbers(
        offset_dims=[1, 2], collapsed_slice_dims=[0], start_index_map=[0, 1, 2], index_vector_dim=1
    )
    start = tf.stack([tf.range(rows), top, left * channels], axis=1)
    return xla.gather(lanes, start, numbers, [1, height, width * channels])


def central_crop(images: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Returns the middle of the images as rows of lanes, (rows, height, width * channels)."""
    rows, image_height, image_width, channels = images.shape
    top, left = (image_height - height) // 2, (image_width - width) // 2
    return tf.reshape(images[:, top : top + height, left : left + width, :], (rows, height, width * channels))


def flip(lanes: tf.Tensor, flipped: tf.Tensor, channels: int) -> tf.Tensor:
    """Mirrors images, (rows, height, width * channels), left to right where `flipped`, bool (rows,)."""
    rows, height, width = lanes.shape
    pixels = tf.reshape(lanes, (rows, height, width // channels, channels))
    mirrored = tf.reshape(tf.reverse(pixels, [2]), lanes.shape)
    return tf.where(flipped[:, None, None], mirrored, lanes)


def flip_images(images: tf.Tensor, flipped: tf.Tensor) -> tf.Tensor:
    """Mirrors images, (rows, height, width, channels), left to right where `flipped`, bool (rows,)."""
    rows, height, width, channels = images.shape
    lanes = tf.reshape(images, (rows, height, width * channels))
    return to_images(flip(lanes, flipped, channels), channels)


def to_images(lanes: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns rows of lanes as (rows, height, width, channels)."""
    rows, height, width = lanes.shape
    return tf.reshape(lanes, (rows, height, width // channels, channels))


def normalise(images: tf.Tensor, mean: Sequence[float], divisor: Sequence[float]) -> tf.Tensor:
    """Subtracts a mean from each channel and multiplies by the inverse of a divisor: float32."""
    return (tf.cast(images, tf.float32) - tf.constant(mean, tf.float32)) * inverse(divisor)


def inverse(divisor: Sequence[float]) -> NDArray[np.float32]:
    """Returns 1 / divisor, by which XLA would multiply anyway."""
    return np.float32(1) / np.array(divisor, np.float32)


def separate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that XLA compiles by itself, unless another compiled function calls it.

    Within one function XLA would fuse the computation of a pixel into each place that reads it, and repeat it there.
    """
    compiled: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
    return compiled


def computed(values: tf.Tensor) -> tf.Tensor:
    """Returns the values so that XLA computes them once, not again in each operation that it fuses them into.

    On the CPU XLA drops its own barriers before it fuses, but it cannot see through a condition that depends on a
    value.
    """
    (values,) = xla.optimization_barrier(values)
    always = tf.cast(tf.reshape(values, (-1,))[0], tf.int32) & 1 < 2
    held: tf.Tensor = tf.cond(always, lambda: values, lambda: tf.zeros_like(values))
    return held


def partners(rows: tf.Tensor) -> tf.Tensor:
    """Swaps neighbours in an even number of rows: row i of the result is row i xor 1."""
    pairs = tf.reshape(rows, (rows.shape[0] // 2, 2, *rows.shape[1:]))
    return tf.reshape(tf.reverse(pairs, [1]), rows.shape)


def inside(
    top: tf.Tensor, left: tf.Tensor, height: tf.Tensor | int, width: tf.Tensor | int, size: tuple[int, int]
) -> tf.Tensor:
    """Returns which pixels are in each image's box, bool (rows, *size, 1). Boxes, int32 (rows,), may exceed images."""
    y, x = tf.range(size[0])[None, :], tf.range(size[1])[None, :]
    top, bottom, left, right = (edge[:, None] for edge in (top, top + height, left, left + width))
    return ((y >= top) & (y < bottom))[:, :, None, None] & ((x >= left) & (x < right))[:, None, :, None]


def fixed(values: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns float64 values as int32 with `bits` bits of fraction; XLA computes them once, not once per pixel."""
    return computed(tf.cast(tf.round(values * float(1 << bits)), tf.int32))


def to_pixels(values: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns int32 values with `bits` bits of fraction, rounded and clipped to uint8."""
    return tf.cast(tf.clip_by_value(_shift_right(values + (1 << bits >> 1), bits), 0, 255), tf.uint8)


def blend(images: tf.Tensor, others: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Returns images with a share of others, in the images' dtype; the share is float64 and broadcasts to them."""
    if images.dtype == tf.uint8:
        one, other = (tf.cast(pixels, tf.int32) for pixels in (images, others))
        return to_pixels(one * (1 << SHARE_BITS) + fixed(share, SHARE_BITS) * (other - one), SHARE_BITS)
    (part,) = xla.optimization_barrier(tf.cast(share, tf.float32))
    return images + part * (others - images)


def places(matrix: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Returns the positions in an image where `transform` finds its pixels: int32 (rows, 2 * (width + height)).

    Each coordinate is the sum of a term for the pixel's column and a term for its row: first the terms of x for all
    columns and for all rows, then the terms of y.

    Args:
      matrix: maps (x, y, 1) of a pixel of the result to (x, y) in the image; float64 (rows, 2, 3).
      size: (height, width).
    """
    across, down = (tf.range(n, dtype=tf.float64)[None, :] for n in size[::-1])
    terms = [
        fixed(term, _PLACE)
        for i in (0, 1)
        for term in (matrix[:, i, 0, None] * across, matrix[:, i, 1, None] * down + matrix[:, i, 2, None])
    ]
    return tf.concat(terms, axis=1)


def places_of(matrix: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.int32]:
    """Returns `places` of maps that do not depend on a key, computed with NumPy."""
    across, down = (np.arange(n, dtype=np.float64)[None, :] for n in size[::-1])
    terms = [
        term
        for i in (0, 1)
        for term in (matrix[:, i, 0, None] * across, matrix[:, i, 1, None] * down + matrix[:, i, 2, None])
    ]
    return np.rint(np.concatenate(terms, axis=1) * (1 << _PLACE)).astype(np.int32)


def transform(images: tf.Tensor, places: tf.Tensor, fill: int) -> tf.Tensor:
    """Applies affine maps to images, with bilinear interpolation; `fill` surrounds an image and blends with its border.

    Args:
      images: uint8 (rows, height, width, channels).
      places: result of the function `places`.
      fill: value of the pixels outside.
    """
    rows, height, width, channels = images.shape
    x_across, x_down, y_across, y_down = tf.split(places, [width, height, width, height], axis=1)
    x, y = (across[:, None, :] + down[:, :, None] for across, down in ((x_across, x_down), (y_across, y_down)))
    x, y = (tf.clip_by_value(at, -1 << _PLACE, size << _PLACE) for at, size in ((x, width), (y, height)))
    padded = tf.pad(images, [[0, 0], [1, 2], [1, 2], [0, 0]], constant_values=fill)
    one, stride = 1 << _PLACE, width + 3
    line = tf.range(rows)[:, None, None] * (height + 3) + _shift_right(y, _PLACE) + 1
    corner, right, below = xla.optimization_barrier(
        line * stride + _shift_right(x, _PLACE) + 1, (x & (one - 1))[..., None], (y & (one - 1))[..., None]
    )
    pixels = tf.reshape(padded, (-1, channels))
    corners = [tf.cast(tf.gather(pixels, corner + step), tf.int32) for step in (0, 1, stride, stride + 1)]
    upper, lower = (a * (one - right) + b * right for a, b in (corners[:2], corners[2:]))
    return to_pixels(upper * (one - below) + lower * below, 2 * _PLACE)


def nearest(masks: tf.Tensor, places: tf.Tensor, size: tuple[int, int], fill: int) -> tf.Tensor:
    """Takes each pixel of the result from the nearest pixel of a mask, the one that `transform` would weight most.

    Args:
      masks: uint8 (rows, mask height, mask width, 1).
      places: result of the function `places` for `size`.
      size: (height, width) of the results.
      fill: value of the pixels that come from outside the image.

    Returns:
      uint8 (rows, *size, 1).
    """
    (rows, height, width, _), (tall, wide), half = masks.shape, size, 1 << _PLACE - 1
    x_across, x_down, y_across, y_down = tf.split(places, [wide, tall, wide, tall], axis=1)
    x, y = (across[:, None, :] + down[:, :, None] for across, down in ((x_across, x_down), (y_across, y_down)))
    x, y = (_shift_right(at + half, _PLACE) for at in (x, y))
    is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    at = (tf.range(rows)[:, None, None] * height + y) * width + x
    found = tf.gather(tf.reshape(masks, [-1]), tf.where(is_inside, at, 0))
    return tf.where(is_inside, found, tf.constant(fill, tf.uint8))[..., None]


def mix_channels(images: tf.Tensor, factors: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Replaces each pixel by matrix @ pixel + offset; returns uint8 images.

    Args:
      images: uint8 (rows, height, width, channels).
      factors: `factors[i, d, c]` is the factor of channel c of image i in channel d; int32 (rows, channels, channels)
        with SHARE_BITS bits of fraction.
      offsets: likewise, (rows, channels).
    """
    parts = [
        factors[:, None, None, :, c] * tf.cast(images[..., c : c + 1], tf.int32) for c in range(images.shape[3])
    ]  # all channels of the result together, because XLA computes stacked ones without vector instructions
    return to_pixels(sum(parts, offsets[:, None, None, :]), SHARE_BITS)


def look_up(images: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
    """Looks up the values of uint8 images in tables, uint8 (rows, channels, 256)."""
    rows, _, _, channels = images.shape
    first = tf.reshape(tf.range(rows * channels) * 256, (rows, 1, 1, channels))
    return tf.gather(tf.reshape(tables, (-1,)), first + tf.cast(images, tf.int32))


def histograms(images: tf.Tensor) -> tf.Tensor:
    """Returns how often each value occurs in each channel of uint8 images: int32 (rows, channels, 256)."""
    rows, _, _, channels = images.shape
    first = tf.reshape(tf.range(rows * channels) * 256, (rows, 1, 1, channels))
    places = tf.reshape(first + tf.cast(images, tf.int32), (-1, 1))
    counts = tf.tensor_scatter_nd_add(tf.zeros(rows * channels * 256, tf.int32), places, tf.ones_like(places[:, 0]))
    return tf.reshape(counts, (rows, channels, 256))


def sums_below(counts: tf.Tensor) -> tf.Tensor:
    """Returns for each value the total count of all lower values, int32 (..., 256): `tf.cumsum(exclusive=True)`.

    XLA computes each value of a `tf.cumsum` as a sum of 256 numbers; here it sums 16 numbers, then 16 such sums.
    """
    parts = tf.reshape(counts, (*counts.shape[:-1], 16, 16))
    lower = tf.range(16)[:, None] > tf.range(16)  # [value, other value]
    within = tf.reduce_sum(tf.where(lower, parts[..., None, :], 0), axis=-1)
    before = tf.reduce_sum(tf.where(lower, tf.reduce_sum(parts, axis=-1)[..., None, :], 0), axis=-1)
    return tf.reshape(computed(within) + computed(before)[..., None], counts.shape)


def sums_of_lines(one: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sums along axis 1 of two tensors of one shape and dtype, in one pass over the data."""
    zero = tf.TensorSpec((), one.dtype)

    @tf.function(autograph=False)
    def add(one: tf.Tensor, other: tf.Tensor, more: tf.Tensor, of_other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return one + more, other + of_other

    reducer, start = add.get_concrete_function(zero, zero, zero, zero), tf.zeros((), one.dtype)
    sums: tuple[tf.Tensor, tf.Tensor] = xla.variadic_reduce((one, other), (start, start), (1,), reducer)
    return sums


def over_pixels(images: tf.Tensor, reduce: Callable[..., tf.Tensor]) -> tf.Tensor:
    """Reduces each image to its sum, least or greatest value per channel: int32 (rows, channels)."""
    rows, height, width, channels = images.shape
    lanes = tf.cast(tf.reshape(images, (rows, height, width * channels)), tf.int32)
    return computed(reduce(tf.reshape(computed(reduce(lanes, axis=1)), (rows, width, channels)), axis=1))


def whole_weights(before: int, after: int) -> NDArray[np.float32]:
    """Returns the weight of each old pixel of a line in each new one, times 2^WEIGHT_BITS: (after, before).

    The weights of a pixel form a triangle around its place in the old line, as wide as the larger of the two pixels.
    """
    places = (np.arange(after)[:, None] + 0.5) * (before / after)
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(before)[None, :] + 0.5 - places) / max(before / after, 1.0))
    exact = weights / weights.sum(axis=1, keepdims=True) * (1 << WEIGHT_BITS)
    whole = np.rint(exact)
    whole[np.arange(after), whole.argmax(axis=1)] += (1 << WEIGHT_BITS) - whole.sum(axis=1)
    # Very many small weights lose their shape when rounded, and no single weight can absorb the error: it would shift
    # the result visibly, or be negative. Then the cumulative sums are rounded, and their differences are the weights.
    off = np.ptp(np.cumsum(whole - exact, axis=1), axis=1)
    for row in ((off > _MOST_OFF) | (whole < 0).any(axis=1)).nonzero()[0]:
        whole[row] = np.diff(np.rint(np.cumsum(exact[row])), prepend=0)
    return whole.astype(np.float32)


def contiguous_weights(before: int, after: int) -> NDArray[np.int32]:
    """Returns `whole_weights` without the zeros: for each new pixel the first old pixel, then the weights from it on.

    Returns:
      int32 (after, 1 + n).
    """
    whole = whole_weights(before, after).astype(np.int32)
    first = (whole != 0).argmax(axis=1)
    taps = int((before - (whole != 0)[:, ::-1].argmax(axis=1) - first).max())
    first = np.minimum(first, before - taps)
    return np.column_stack([first, np.take_along_axis(whole, first[:, None] + np.arange(taps), axis=1)]).astype(
        np.int32
    )


def resize(images: tf.Tensor, new_height: int, new_width: int) -> tf.Tensor:
    """Returns resized images, uint8: bilinear, antialiased when shrinking.

    The weights, and the values between the two passes, are whole numbers, which float32 sums exactly.
    """
    rows, height, width, channels = images.shape
    lanes = tf.cast(tf.reshape(images, (rows, height, width * channels)), tf.float32)
    tall = tf.round(_weighted(lanes, whole_weights(height, new_height)) * 2.0 ** (BETWEEN_BITS - WEIGHT_BITS))
    columns = tf.reshape(computed(tall), (rows * new_height, width, channels))
    wide = tf.round(_weighted(columns, whole_weights(width, new_width)) * 2.0 ** -(BETWEEN_BITS + WEIGHT_BITS))
    return tf.cast(tf.reshape(wide, (rows, new_height, new_width, channels)), tf.uint8)


def _weighted(lines: tf.Tensor, whole: NDArray[np.float32]) -> tf.Tensor:
    """Returns weighted sums of lines: (rows, n, lanes) of (rows, m, lanes), with weights (n, m)."""
    taps = int((whole != 0).sum(axis=1).max())
    if taps > _MOST_TAPS:
        return tf.einsum("oh,bhl->bol", tf.constant(whole), lines)
    places = np.argsort(whole == 0, axis=1, kind="stable")[:, :taps]  # where the weights are not 0
    kept = np.take_along_axis(whole, places, axis=1)
    return sum(
        tf.gather(lines, tf.constant(places[:, t], tf.int32), axis=1) * tf.constant(kept[:, t, None])
        for t in range(taps)
    )


def _shift_right(values: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(values, tf.constant(bits, values.dtype))
