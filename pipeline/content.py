"""What of each record is fed, and what it takes of a window: known from the manifest, before TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from pipeline.distort import recipes
from pipeline.errors import UsageError
from pipeline.manifest import Manifest
from pipeline.manifest.splits import Selection

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")


@dataclasses.dataclass(frozen=True)
class Content:
    """What the user asks for of each record.

    Attributes:
      distort: a recipe's text, the user's own function, or None.
      resize: (height, width) that every image is stretched to; None: as stored.
      features: names of further features.
      parse: the user's function of serialized records (rows,); None: images.
    """

    distort: str | Callable[..., Any] | None = None
    resize: tuple[int, int] | None = None
    features: tuple[str, ...] = ()
    parse: Callable[..., Any] | None = None

    def check(self, manifest: Manifest) -> None:
        """Checks that a data set has what is asked for.

        Without images, nothing may be asked of them: the order is known all the same.

        Raises:
          UsageError: it has not; the message says what would do.
        """
        if self.parse is not None:
            self._check_parse_alone()
        elif not manifest.has_images:
            if self.distort is not None or self.resize or self.features:
                manifest.require_images()
        elif self.crops and (self.resize or manifest.features["image"].encoding == "raw"):
            why = f"resize={self.resize}" if self.resize else "raw images"
            raise UsageError(
                f"distort={self.distort!r} cuts its part out of a PNG or JPEG while that is decoded, which {why} rules "
                "out; use a recipe such as pad_crop_flip"
            )
        elif not self.crops and not self.resize and None in manifest.features["image"].shape[:2]:
            raise UsageError(
                f"{manifest.dataset}: its images differ in size; give resize (such as 224x224), or a recipe that cuts "
                f"all to one size: {', '.join(sorted(recipes.CROPPING))}"
            )

    def _check_parse_alone(self) -> None:
        if not callable(self.parse):
            raise UsageError(f"parse={self.parse!r}: must be a function of serialized records (rows,)")
        others = {"distort": self.distort, "resize": self.resize, "features": self.features}
        for name, value in others.items():
            if value:
                raise UsageError(f"{name}={value!r} with parse: the function of parse makes all that is fed")

    @property
    def crops(self) -> bool:
        """Whether the recipe decides which part of an image is decoded."""
        return isinstance(self.distort, str) and recipes.crops(self.distort)

    def image_shape(self, manifest: Manifest) -> tuple[int, int, int] | None:
        """Returns (height, width, channels) of the images before they are distorted; None: the recipe makes them.

        Raises:
          UsageError: there are no images, and no function that parses what there is.
        """
        if self.parse is not None or self.crops:
            return None
        manifest.require_images()
        if self.resize:
            return (*self.resize, manifest.features["image"].shape[2] or 3)
        height, width, _ = manifest.features["image"].shape
        return int(height or 0), int(width or 0), manifest.features["image"].shape[2] or 3

    def record_bytes(self, manifest: Manifest, selection: Selection) -> int:
        """Returns the bytes that an example takes in a window: decoded pixels, or where they vary the stored mean."""
        shape = self.image_shape(manifest) if manifest.has_images else None
        if shape:
            return math.prod(shape)
        shards = {segment.shard.file: segment.shard for segment in selection.segments}.values()
        return max(1, -(-sum(s.num_bytes for s in shards) // max(1, sum(s.num_examples for s in shards))))


def make_content(
    distort: str | Callable[..., Any] | None, resize: Any, features: Any, parse: Callable[..., Any] | None
) -> Content:
    """Returns the content that `input_fn`'s arguments ask for.

    Raises:
      UsageError: an argument that cannot be read.
    """
    if isinstance(features, str) or not all(isinstance(name, str) for name in features):
        raise UsageError(f"features={features!r}: must be a sequence of names")
    return Content(distort, parse_size(resize), tuple(features), parse)


def parse_size(size: Any, flag: str = "resize") -> tuple[int, int] | None:
    """Returns a size as (height, width): of `224x160`, (224, 160), or None.

    Raises:
      UsageError: it is none.
    """
    if not size:
        return None
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None  # autograph, inside a tf.function, knows no `:=`
    if match:
        return int(match[1]), int(match[2])
    if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(n, int) and 0 < n < 10**5 for n in size):
        return int(size[0]), int(size[1])
    raise UsageError(f"{flag}={size!r}: must be a height and a width, such as 224x224")
