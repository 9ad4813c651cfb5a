"""PyTorch's `DataLoader` over images in memory, with torchvision's transforms v2 and worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take, taking

PACKAGES = ("torch", "torchvision")
MODULES = ("torch", "torchvision")
AUGMENTS = "RandomCrop(24), flip, ColorJitter(brightness, contrast) on uint8, then standardise, image by image"
DOCS = "https://docs.pytorch.org/vision/stable/transforms.html"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the arrays."""


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
    augmentation = transform("cifar10_tutorial") if setting.augmented else None
    return taking(batches(setting.arrays, setting.rows, setting.cores, augmentation), setting.rows)


def batches(arrays: str, rows: int, workers: int, augmentation: Any) -> Iterator[Any]:
    """Yields shuffled batches of (images, labels) without end.

    Args:
      arrays: folder with images.npy and labels.npy.
      rows: number of rows in a batch.
      workers: number of processes.
      augmentation: function from one image (channels, height, width) to the augmented one; None for images as stored.
    """
    import torch  # noqa: PLC0415

    loader = torch.utils.data.DataLoader(
        Images(arrays, augmentation),
        batch_size=rows,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        drop_last=True,
    )
    while True:
        yield from loader


def transform(recipe: str, side: int = 32) -> Any:
    """Returns the torchvision transform that is closest to a recipe.

    Args:
      recipe: name of the recipe: none, cifar10_tutorial or pad_crop_flip.
      side: height and width of the images in pixels.
    """
    import torch  # noqa: PLC0415
    from torchvision.transforms import v2  # noqa: PLC0415

    def standardised(image: Any) -> Any:
        return (image - image.mean()) / torch.clamp(image.std(), min=image.numel() ** -0.5)

    to_float = v2.ToDtype(torch.float32, scale=True)
    jitter = v2.ColorJitter(brightness=0.25, contrast=(0.2, 1.8))
    steps = {
        "none": [],
        "pad_crop_flip": [v2.RandomCrop(side, padding=4), v2.RandomHorizontalFlip()],
        "cifar10_tutorial": [v2.RandomCrop(24), v2.RandomHorizontalFlip(), jitter, to_float, standardised],
    }
    return v2.Compose(steps[recipe]) if steps[recipe] else None
