"""FFCV's `Loader` over a file of JPEGs, which its writer re-encodes with quality 90."""

from __future__ import annotations

import pathlib

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import AREA, SHAPE, SIZE, lacks_randaugment, touching
from benchmarks.rounds import Take

PACKAGES = ("ffcv", "torch")
MODULES = ("ffcv", "PIL")
AUGMENTS = "RandomResizedCropRGBImageDecoder, RandomHorizontalFlip; no RandAugment"
DOCS = "https://docs.ffcv.io/api/decoders.html"


class Images:
    """An indexable data set, as `DatasetWriter` expects it."""

    def __init__(self, folder: str) -> None:
        self._paths = sorted(pathlib.Path(folder).glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        import PIL.Image  # noqa: PLC0415

        path = self._paths[index]
        return np.asarray(PIL.Image.open(path).convert("RGB")), int(path.parent.name)


def prepare(setting: Setting) -> None:
    """Writes a file of JPEGs in their full size."""
    from ffcv.fields import IntField, RGBImageField  # noqa: PLC0415
    from ffcv.writer import DatasetWriter  # noqa: PLC0415

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    writer = DatasetWriter(f"{setting.own}/train.beton", fields, num_workers=setting.cores)
    writer.from_indexed_dataset(Images(setting.arrays))


def take(setting: Setting) -> Take:
    """Returns a Take of batches, epoch after epoch."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder  # noqa: PLC0415
    from ffcv.loader import Loader, OrderOption  # noqa: PLC0415
    from ffcv.transforms import RandomHorizontalFlip, ToTensor  # noqa: PLC0415

    if setting.augmented:
        raise lacks_randaugment("FFCV")
    loader = Loader(
        f"{setting.own}/train.beton",
        batch_size=setting.rows,
        num_workers=setting.cores,
        order=OrderOption.RANDOM,
        os_cache=True,
        seed=1,
        drop_last=True,
        pipelines={
            "image": [
                RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=AREA, ratio=SHAPE),
                RandomHorizontalFlip(),
                ToTensor(),
            ],
            "label": [IntDecoder(), ToTensor()],
        },
    )

    def epochs():
        while True:
            yield from loader

    batches = epochs()
    return touching(lambda: next(batches)[0], setting.rows)
