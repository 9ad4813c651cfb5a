"""What a source of examples is: the one interface between the data sets' file formats and the shards."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.manifest import SourceFile


@dataclasses.dataclass(frozen=True)
class Block:
    """Some examples.

    Attributes:
      images: uint8 (n, height, width, channels), 0..255.
      labels: int64 (n,), 0..number of classes - 1.
      keys: ASCII, dtype S (n,), all of one length, each once in the data set.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    keys: NDArray[np.bytes_]


class Source(Protocol):
    """A data set as it was published. Pickles to a few hundred bytes: a worker reads the files itself.

    Attributes:
      dataset: its name (`mnist`).
      class_names: one a label.
      image_shape: (height, width, channels) of every image.
      splits: {name: number of rows}.
      key_sizes: {split: bytes of every key of it}.
      files: what it was read from. Digests are of the content, decompressed, for that alone shapes the shards: the
        same data set gives the same manifest however it was packed.
    """

    @property
    def dataset(self) -> str: ...  # noqa: D102

    @property
    def class_names(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def image_shape(self) -> tuple[int, int, int]: ...  # noqa: D102

    @property
    def splits(self) -> dict[str, int]: ...  # noqa: D102

    @property
    def key_sizes(self) -> dict[str, int]: ...  # noqa: D102

    @property
    def files(self) -> tuple[SourceFile, ...]: ...  # noqa: D102

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, in the order asked for.

        Args:
          split: one of `splits`.
          rows: int64 (n,), each in 0..splits[split] - 1.

        Raises:
          DataError: the files changed since the source was opened, or cannot be read.
        """
        ...


def row_keys(file: str, rows: NDArray[np.int64], digits: int) -> NDArray[np.bytes_]:
    """Returns `<file>#<row>` of each row, the row padded with zeros to `digits`; dtype S (n,)."""
    prefix = np.frombuffer(file.encode("ascii") + b"#", np.uint8)
    keys = np.empty((len(rows), len(prefix) + digits), np.uint8)
    keys[:, : len(prefix)] = prefix
    keys[:, len(prefix) :] = rows[:, None] // 10 ** np.arange(digits - 1, -1, -1) % 10 + ord("0")
    return keys.view(f"S{keys.shape[1]}")[:, 0]


def row_digits(count: int) -> int:
    """Returns the decimal digits of the highest row of `count`."""
    return len(str(max(count - 1, 0)))
