"""PyTorch's `DataLoader` over images in memory, with torchvision's transforms v2 and worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take, taking

PACKAGES = ("torch", "torchvision")
MODULES = ("torch", "torchvision")
DISTORTS = "RandomCrop(24), flip, ColorJitter(brightness, contrast) on uint8, then standardise, image by image"
DOCS = "https://docs.pytorch.org/vision/stable/transforms.html"


def prepare(setting: Setting) -> None:
    """Has nothing to do: it reads the arrays."""


class Images:
    """A map-style data set with a transform."""

    def __init__(self, folder: str, transform: Any) -> None:
        import torch  # noqa: PLC0415

        self._images = torch.from_numpy(np.load(f"{folder}/images.npy")).permute(0, 3, 1, 2).contiguous()
        self._labels, self._transform = np.load(f"{folder}/labels.npy"), transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self._images[index]
        return (self._transform(image) if self._transform else image), int(self._labels[index])


def take(setting: Setting) -> Take:
    """Returns a Take of batches."""
    import torch  # noqa: PLC0415

    loader = torch.utils.data.DataLoader(
        Images(setting.arrays, _transform() if setting.distorted else None),
        batch_size=setting.rows,
        shuffle=True,
        num_workers=setting.cores,
        persistent_workers=True,
        drop_last=True,
    )
    return taking(_epochs(loader), setting.rows)


def _epochs(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _transform() -> Any:
    import torch  # noqa: PLC0415
    from torchvision.transforms import v2  # noqa: PLC0415

    def standardised(image: Any) -> Any:
        return (image - image.mean()) / torch.clamp(image.std(), min=image.numel() ** -0.5)

    jitter = v2.ColorJitter(brightness=0.25, contrast=(0.2, 1.8))
    steps = [v2.RandomCrop(24), v2.RandomHorizontalFlip(), jitter, v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose([*steps, standardised])
