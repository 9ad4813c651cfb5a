"""`distort_on="device"`: uint8 and a key for each row cross the bus, and the step of each replica distorts them."""

from __future__ import annotations

from typing import Any, Unpack

import tensorflow as tf

from pipeline.batch.batches import distortion_of, recipe_of
from pipeline.errors import UsageError
from pipeline.manifest.sources import Sources
from pipeline.manifest.storage import PathLike
from pipeline.request import DEVICE, DISTORT_EPOCH, DISTORT_KEY, JobOptions, Request
from pipeline.resolved import ResolvedRequest, resolve_all


class DeviceDistortion:
    """Distorts the batches of `distort_on="device"`; to be called inside a replica's step, in a `tf.function`.

    The draws are those of the host to the byte, and the images within 2e-5: on another kind of device, floating-point
    operations may round otherwise.
    """

    def __init__(self, resolved: ResolvedRequest) -> None:
        """Takes the request, of a mixture any source's: all have what matters here in common.

        Raises:
          UsageError: there is no such recipe, or it does not fit the images.
        """
        recipe = recipe_of(resolved)
        assert recipe is not None
        self._distortion = distortion_of(resolved, recipe, _keys_as_given, _as_given)

    def __call__(self, x: dict[str, tf.Tensor], labels: Any, weights: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        """Returns (images, labels, weights) of a batch, as `distort_on="host"` gives them.

        Args:
          x: images, uint8 (rows, height, width, channels), keys, and further features if there are any.
          labels: int64 (rows,).
          weights: float32 (rows,).
        """
        features = {name: value for name, value in x.items() if name not in (DISTORT_KEY, DISTORT_EPOCH)}
        keys, epoch = x[DISTORT_KEY], x.get(DISTORT_EPOCH, tf.constant(0, tf.int64))
        images, labels = self._distortion(features.pop("image"), labels, epoch, keys, weights > 0)
        return {"image": images, **features} if features else images, labels, weights


def distort_fn(data_dir: PathLike | Sources, split: str = "train", **options: Unpack[JobOptions]) -> DeviceDistortion:
    """Returns what distorts the batches of `input_fn` or `distribute` with `distort_on="device"`, in a replica's step.

        options = dict(global_batch_size=1024, training=True, distort="pad_crop_flip | mixup", distort_on="device")
        batches, distort = distribute(strategy, "cifar10", **options), distort_fn("cifar10", **options)

        def step(batch):  # in strategy.run
            images, labels, weights = distort(*batch)

    Args:
      data_dir, split, **options: as of `input_fn`.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value that cannot work, or `distort_on` is not `device`.
    """
    request = Request(data_dir, split, **options)
    if request.distort_on != DEVICE:
        raise UsageError(f"distort_fn: distort_on={request.distort_on!r}: the input distorts by itself; give 'device'")
    return DeviceDistortion(resolve_all(request).first)


def _keys_as_given(epoch: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    del epoch
    return keys


def _as_given(images: tf.Tensor) -> tf.Tensor:
    return images
