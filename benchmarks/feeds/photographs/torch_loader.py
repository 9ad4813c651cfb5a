"""PyTorch's `DataLoader` over the JPEG files: torchvision's libjpeg-turbo and transforms v2, in processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import AREA, BINS, MAGNITUDE, MEAN, OPERATIONS, SHAPE, SIZE, STD, touching
from benchmarks.rounds import Take

PACKAGES = ("torch", "torchvision")
MODULES = ("torch", "torchvision")
AUGMENTS = "io.decode_jpeg of all, then v2.RandomResizedCrop, RandomHorizontalFlip, RandAugment, Normalize"
DOCS = "https://docs.pytorch.org/vision/stable/transforms.html"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the files."""


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    loader = torch.utils.data.DataLoader(
        torchvision.datasets.ImageFolder(setting.arrays, _transform(setting.augmented), loader=_decoded),
        batch_size=setting.rows,
        shuffle=True,
        num_workers=setting.cores,
        persistent_workers=True,
        drop_last=True,
    )
    batches = _epochs(loader)
    return touching(lambda: next(batches)[0], setting.rows)


def _epochs(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _decoded(path: str) -> Any:
    from torchvision import io  # noqa: PLC0415

    return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)


def _transform(augmented: bool) -> Any:
    import torch  # noqa: PLC0415
    from torchvision.transforms import v2  # noqa: PLC0415

    steps = [v2.RandomResizedCrop(SIZE, scale=AREA, ratio=SHAPE, antialias=True), v2.RandomHorizontalFlip()]
    if augmented:
        bilinear = v2.InterpolationMode.BILINEAR
        steps += [
            v2.RandAugment(OPERATIONS, MAGNITUDE, num_magnitude_bins=BINS, interpolation=bilinear),
            v2.ToDtype(torch.float32),
            v2.Normalize(MEAN, STD),
        ]
    return v2.Compose(steps)
