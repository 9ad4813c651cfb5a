"""The 1,797 handwritten digits that come with scikit-learn: a real data set that needs no download."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import string

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import SOURCES, Block, DealtSource, Files, Source, SourceOptions
from pipeline.errors import DataError, UsageError
from pipeline.manifest import SourceFile

_FILE = "digits"
_TRAIN_PERCENT = 80
_SIDE, _SMALL_SIDE, _SMALL_MAX = 28, 8, 16


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DigitsSource(Source):
    """scikit-learn's digits, upscaled to MNIST's 28x28x1, in one split."""

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        pixels, labels = _load()
        if _describe(pixels, labels) != self.files[0]:
            raise DataError("scikit-learn's digits: this worker's differ; install the same scikit-learn everywhere")
        return Block(upscale(pixels[rows])[..., None], labels[rows], self.parts[split].keys(rows))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DealtDigits(DealtSource):
    """The digits, split 80/20 by a hash of the key."""

    def _rows(self, split: str) -> NDArray[np.int64]:
        return _rows_of_split(sum(self.inner.splits.values()))[split]


@SOURCES.named("digits", packages=("sklearn",))
def open_source(options: SourceOptions) -> DealtDigits:
    """Opens the digits of the installed scikit-learn.

    Raises:
      UsageError: --source is given, which this data set does not take.
    """
    if options.source:
        raise UsageError(f"--source={options.source}: {options.dataset} comes with scikit-learn and takes no --source")
    pixels, labels = _load()
    parts = {"all": Files((_FILE,), (len(labels),))}
    whole = DigitsSource(
        dataset=options.dataset,
        class_names=tuple(string.digits),
        files=(_describe(pixels, labels),),
        splits=base.rows_of(parts, _FILE),
        image_shape=(_SIDE, _SIDE, 1),
        parts=parts,
    )
    return DealtDigits.of(whole, {split: len(rows) for split, rows in _rows_of_split(len(labels)).items()})


def upscale(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Resizes images (n, 8, 8) of 0..16 to (n, 28, 28) of 0..255, bilinearly, in integers.

    Pixel centres are aligned (as `tf.image.resize` does it): output i samples input (4 i - 5) / 14, clamped to the
    image, so that all weights are whole 14ths and the result is the same on every machine.
    """
    step, denominator = 4, 14  # 8 / 28 in 14ths; the centre of output 0 is at -5/14
    position = np.clip(step * np.arange(_SIDE) - 5, 0, denominator * (_SMALL_SIDE - 1))
    low = np.minimum(position // denominator, _SMALL_SIDE - 2)
    weights = np.zeros((_SIDE, _SMALL_SIDE), np.int64)
    weights[np.arange(_SIDE), low] = denominator - (position - denominator * low)
    weights[np.arange(_SIDE), low + 1] = position - denominator * low
    scaled = weights @ images.astype(np.int64) @ weights.T  # 0..16 * 14 * 14
    full = _SMALL_MAX * denominator**2
    return ((scaled * 510 + full) // (2 * full)).astype(np.uint8)  # scaled * 255 / full, halves up


@functools.cache
def _load() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # noqa: PLC0415 (3 s to import; only this source needs it)

    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target.astype(np.int64)


def _describe(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> SourceFile:
    data = pixels.tobytes() + labels.astype(np.uint8).tobytes()
    return SourceFile(_FILE, len(data), hashlib.sha256(data).hexdigest())


@functools.cache
def _rows_of_split(count: int) -> dict[str, NDArray[np.int64]]:
    keys = base.row_keys(_FILE, np.arange(count, dtype=np.int64), base.row_digits(count))
    draws = np.array([int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % 100 for key in keys.tolist()])
    train = draws < _TRAIN_PERCENT
    return {"train": np.flatnonzero(train), "test": np.flatnonzero(~train)}
