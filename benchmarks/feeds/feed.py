"""The interface of contestants: a module with the names of the `Feed` protocol."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from benchmarks.rounds import Take


@dataclasses.dataclass(frozen=True)
class Setting:
    """The task of a contestant.

    Attributes:
      arrays: folder with images.npy, uint8 (N, 32, 32, 3), and labels.npy, int64 (N,); for `feeds.photographs`, with a
        folder of JPEG files per class.
      data_dir: folder with the same images as written by `beam_jobs.convert`; for `feeds.photographs`, with unchanged
        JPEGs.
      own: folder for the output of `prepare`.
      rows: number of rows in a batch.
      augmented: whether to augment like the CIFAR-10 tutorial, or as closely as the contestant can; otherwise uint8 as
        stored. Photographs are always cropped and flipped; if augmented, also by RandAugment and normalised.
      cores: number of cores of the machine.
      options: options of the contestant.
    """

    arrays: str
    data_dir: str
    own: str
    rows: int = 128
    augmented: bool = False
    cores: int = 1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


class Feed(Protocol):
    """A module of this package.

    Attributes:
      PACKAGES: distributions whose versions are reported.
      MODULES: modules that must be importable.
      AUGMENTS: description of its augmentation.
    """

    PACKAGES: tuple[str, ...]
    MODULES: tuple[str, ...]
    AUGMENTS: str

    def prepare(self, setting: Setting) -> None:
        """Writes the images in the contestant's format to `own`, which exists and is empty."""

    def take(self, setting: Setting) -> Take:
        """Returns a function that takes one or more training batches, shuffled, from an endless stream."""
