"""What the images of a data set are, beyond what its manifest says: all their sizes, and which are stored turned."""

from __future__ import annotations

import dataclasses
from collections import Counter

from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.storage import paths
from pipeline.manifest import Manifest


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """The images of all splits.

    Attributes:
      sizes: {(height, width): images}, exact, however many there are.
      turned: images that are stored with an EXIF orientation, which readers of the records ignore.
    """

    sizes: Counter[tuple[int, int]]
    turned: int = 0

    @property
    def by_count(self) -> list[str]:
        """The sizes, `<height>x<width>`, the most common first."""
        ordered = sorted(self.sizes.items(), key=lambda item: (-item[1], item[0]))
        return [f"{height}x{width}" for (height, width), _ in ordered]

    @property
    def largest(self) -> str:
        """The size with the most pixels, `<height>x<width>`."""
        height, width = max(self.sizes, key=lambda size: (size[0] * size[1], size))
        return f"{height}x{width}"


def of_plan(plan: Plan) -> ImageFacts:
    """Returns the facts from the receipts of a conversion, which are there until it is published."""
    names = [plan.receipts_dir / receipts.name_of(name) for name in plan.file_names]
    sizes: Counter[tuple[int, int]] = Counter()
    turned = 0
    for receipt in paths.each(receipts.load, names, plan.receipts_dir.is_remote):
        if receipt:
            turned += receipt.turned
            for (height, width, _), count in receipt.sizes:
                sizes[height, width] += count
    return ImageFacts(sizes, turned)


def of_manifest(made: Manifest) -> ImageFacts:
    """Returns what a manifest says: of more than 100 sizes, it has them rounded up."""
    sizes: Counter[tuple[int, int]] = Counter()
    for text, count in made.image_sizes:
        height, width = map(int, text.split("x"))
        sizes[height, width] = count
    return ImageFacts(sizes)
