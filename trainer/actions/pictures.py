"""Histograms and images in TensorBoard's own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.inspect.pixels import as_pixels
from trainer.step.train_step import BUCKETS


def histogram(row: Sequence[float]) -> Any:
    """Returns the HistogramProto of a row of `LoopResult.histograms`."""
    least, greatest, total, squares, *counts = (float(number) for number in row)
    limits = least + (greatest - least) * np.arange(1, BUCKETS + 1) / BUCKETS
    limits[-1] = greatest
    return tf.compat.v1.HistogramProto(
        min=least,
        max=greatest,
        num=sum(counts),
        sum=total,
        sum_squares=squares,
        bucket_limit=limits.tolist(),
        bucket=counts,
    )


def image(pixels: tf.Tensor) -> Any:
    """Returns the Summary.Image, a PNG, of pixels (height, width, channels).

    Floats, which may be standardized, are stretched to 0..255: the least is black, the greatest white.
    """
    values = as_pixels(np.asarray(pixels))
    height, width, channels = values.shape
    png = tf.io.encode_png(values).numpy()
    return tf.compat.v1.Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=png)
