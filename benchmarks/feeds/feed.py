"""What a contestant is: a module with the names of the `Feed` protocol."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from benchmarks.rounds import Take


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a contestant is asked for.

    Attributes:
      arrays: a folder with images.npy, uint8 (N, 32, 32, 3), and labels.npy, int64 (N,); of `feeds.photographs`, one of
        JPEG files, each in the folder of its class.
      data_dir: the same images as `beam_jobs.convert` wrote them; of `feeds.photographs`, their bytes unchanged.
      own: a folder for what `prepare` writes.
      rows: rows of a batch.
      augmented: as the CIFAR-10 tutorial does, or as nearly as the contestant offers; else uint8 as stored. Photographs
        are cropped and flipped anyway, and augmented by RandAugment and normalised.
      cores: cores of the machine.
      options: the contestant's own.
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
      MODULES: what must be importable.
      AUGMENTS: what it does where it is asked to augment.
    """

    PACKAGES: tuple[str, ...]
    MODULES: tuple[str, ...]
    AUGMENTS: str

    def prepare(self, setting: Setting) -> None:
        """Writes the images in the contestant's format to `own`, which exists and is empty."""

    def take(self, setting: Setting) -> Take:
        """Returns what takes a batch, or some, of training in shuffled order without end."""
