"""FFCV's `Loader` over raw images in memory."""

from __future__ import annotations

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take

PACKAGES = ("ffcv", "torch")
MODULES = ("ffcv",)
AUGMENTS = "flip, translate by up to 4 (32x32), brightness, contrast, normalise by the data set's mean: it has no crop"
DOCS = "https://docs.ffcv.io/ffcv_examples/cifar10.html"
_MEAN, _STD = np.array([125.307, 122.961, 113.8575]), np.array([51.5865, 50.847, 51.255])  # from the example in DOCS


class Images:
    """An indexable data set, as `DatasetWriter` expects it."""

    def __init__(self, folder: str) -> None:
        self._images, self._labels = (np.load(f"{folder}/{name}.npy", "r") for name in ("images", "labels"))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.array(self._images[index]), int(self._labels[index])


def prepare(setting: Setting) -> None:
    """Writes a file of raw images."""
    from ffcv.fields import IntField, RGBImageField  # noqa: PLC0415
    from ffcv.writer import DatasetWriter  # noqa: PLC0415

    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter(f"{setting.own}/train.beton", fields, num_workers=1).from_indexed_dataset(Images(setting.arrays))


def take(setting: Setting) -> Take:
    """Returns a Take of batches, epoch after epoch."""
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder  # noqa: PLC0415
    from ffcv.loader import Loader, OrderOption  # noqa: PLC0415
    from ffcv.transforms import ToTensor  # noqa: PLC0415

    loader = Loader(
        f"{setting.own}/train.beton",
        batch_size=setting.rows,
        num_workers=setting.cores,
        order=OrderOption.RANDOM,
        os_cache=True,
        seed=1,
        drop_last=True,
        pipelines={
            "image": [SimpleRGBImageDecoder(), *(_augmentations() if setting.augmented else []), ToTensor()],
            "label": [IntDecoder(), ToTensor()],
        },
    )
    batches = iter(loader)

    def take_one() -> tuple[int, float]:
        nonlocal batches
        if next(batches, None) is None:
            batches = iter(loader)
            next(batches)
        return setting.rows, 0.0

    return take_one


def _augmentations() -> list:
    from ffcv.transforms import (  # noqa: PLC0415
        NormalizeImage,
        RandomBrightness,
        RandomContrast,
        RandomHorizontalFlip,
        RandomTranslate,
    )

    fill = tuple(map(int, _MEAN))
    colours = [RandomBrightness(magnitude=0.25, p=1.0), RandomContrast(magnitude=0.8, p=1.0)]
    return [
        RandomHorizontalFlip(),
        RandomTranslate(padding=4, fill=fill),
        *colours,
        NormalizeImage(_MEAN, _STD, np.float32),
    ]
