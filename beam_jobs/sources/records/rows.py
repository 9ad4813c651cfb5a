"""A source of `tf.train.Example` records by any writer: which of their features are image, label and key."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, BlockBuilder, Files, Source
from beam_jobs.sources.records import files as record_files
from beam_jobs.sources.records.files import RecordFile
from pipeline.commands.text import count_of, shape_of
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature, SourceFile
from pipeline.records import tf_example
from pipeline.records.tf_example import Layout

DTYPES = {"bytes": "string", "int64": "int64", "float": "float32"}  # {kind of values: dtype of a feature}
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of features in the records.

    Attributes:
      image, label: bytes; one int64, or bytes if `has_text_labels`.
      key: bytes or one int64; "" if records have none.
      image_shape: (height, width, channels) of raw pixels; None if images are encoded.
      sizes: the features with height, width and channels of raw pixels; empty if records have none.
      extra: the other features that are kept.
      has_text_labels: whether labels are the names of classes.
    """

    image: str
    label: str
    key: str = ""
    image_shape: tuple[int, int, int] | None = None
    sizes: tuple[str, ...] = ()
    extra: dict[str, Feature] = dataclasses.field(default_factory=dict)
    has_text_labels: bool = False

    def block(
        self, records: Sequence[bytes], keys: NDArray[np.bytes_] | None, class_names: Sequence[str] = ()
    ) -> Block:
        """Returns the block of serialized Examples.

        Args:
          records: the Examples.
          keys: their keys, if the Examples have none.
          class_names: the names of all classes, if labels are such names.
        """
        numbers = {name.encode(): label for label, name in enumerate(class_names)} if self.has_text_labels else {}
        builder = BlockBuilder(len(records), self.extra, self.image_shape, keys)
        names = (self.image, self.label, *([self.key] if self.key else []), *self.sizes, *self.extra)
        for row, record in enumerate(records):
            try:
                features = tf_example.decode(record, names)
                builder.images[row] = self._image(features)
                builder.labels[row] = self._label(features, numbers)
                if self.key:
                    builder.keys[row] = self._key(features)
                for name, feature in self.extra.items():
                    builder.extra[name][row] = _kept(features, name, feature)
            except ValueError as error:
                builder.bad[row] = str(error)
        return builder.finished()

    def _image(self, features: dict[str, Any]) -> bytes | NDArray[np.uint8]:
        image: bytes = _one(features, self.image, "bytes")
        if self.image_shape is None:
            return image
        if self.sizes:
            shape = tuple(int(_one(features, name, "int64")) for name in self.sizes)
            if shape != self.image_shape:
                raise ValueError(f"the image is {shape_of(shape)}; the first is {shape_of(self.image_shape)}")
        if len(image) != math.prod(self.image_shape):
            size = math.prod(self.image_shape)
            raise ValueError(
                f"the image has {count_of(len(image), 'byte')}; {shape_of(self.image_shape)} pixels are {size:,}"
            )
        return np.frombuffer(image, np.uint8).reshape(self.image_shape)

    def _label(self, features: dict[str, Any], numbers: Mapping[bytes, int]) -> int:
        if not self.has_text_labels:
            return int(_one(features, self.label, "int64"))
        text: bytes = _one(features, self.label, "bytes")
        if text not in numbers:
            problem = f"is {text.decode(errors='backslashreplace')!r}, which names no class" if text else "is empty"
            raise ValueError(f"feature {self.label!r} {problem}")
        return numbers[text]

    def _key(self, features: dict[str, Any]) -> bytes:
        value = _one(features, self.key, "bytes or int64")
        key = value if isinstance(value, bytes) else str(value).encode()
        if not key:
            raise ValueError(f"feature {self.key!r}, the key, is empty")
        return key


def kind(values: Any) -> str:
    """Returns the kind of values that `tf_example.decode` returned: `bytes`, `int64`, `float`, or `nothing`."""
    if isinstance(values, list):
        return "bytes" if values else "nothing"
    return "int64" if values.dtype == np.int64 else "float"


def _one(features: dict[str, Any], name: str, kinds: str) -> Any:
    if name not in features:
        raise ValueError(f"there is no feature {name!r}")
    values = features[name]
    if kind(values) not in kinds:
        raise ValueError(f"feature {name!r} holds {kind(values)}, not {kinds}")
    if len(values) != 1:
        raise ValueError(f"feature {name!r} has {count_of(len(values), 'value')}, not 1")
    return values[0]


def _kept(features: dict[str, Any], name: str, feature: Feature) -> Any:
    kind_wanted = _KINDS[feature.dtype]
    if not feature.shape:
        return _one(features, name, kind_wanted)
    values = features.get(name, [])
    if not len(values):
        values = np.zeros(0, feature.dtype)
    elif kind(values) != kind_wanted:
        raise ValueError(f"feature {name!r} holds {kind(values)}, not {kind_wanted}")
    if None in feature.shape:
        return values
    shape = [size for size in feature.shape if size is not None]
    if len(values) != math.prod(shape):
        raise ValueError(f"feature {name!r} has {count_of(len(values), 'value')}, not {shape_of(shape)}")
    return values.reshape(shape)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RecordSource(Source):
    """Indexed files of records. It pickles to some 200 bytes per file, and 8 per piece if records differ in length.

    Attributes:
      columns: the features to read.
      records: {split: its files}.
    """

    columns: Columns
    records: dict[str, tuple[RecordFile, ...]]

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the rows of each piece of a file; None if records can be read one by one."""
        filled = [file for file in self.records[split] if file.num_records]
        if all(file.has_random_access for file in filled):
            return None
        return np.array([rows for file in filled for rows in file.pieces], np.int64)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split. Every record's CRCs are checked.

        Raises:
          DataError: a file has changed, cannot be read, or is corrupt; names the record and its offset.
        """
        files, columns = self.parts[split], self.columns
        records = [b""] * len(rows)
        for number, chosen, own in base.by_part(files.counts, rows):
            found = record_files.read(self.records[split][number], own)
            for row, record in zip(chosen.tolist(), found, strict=True):
                records[row] = record
        if columns == Columns(*base.OWN_FEATURES, image_shape=columns.image_shape) and columns.image_shape and records:
            block = _as_matrix(records, columns.image_shape)
            if block is not None:
                return block
        return columns.block(records, None if columns.key else files.keys(rows), self.class_names)


def make(
    dataset: str,
    class_names: tuple[str, ...],
    root: StoragePath,
    columns: Columns,
    records: dict[str, tuple[RecordFile, ...]],
    files: tuple[SourceFile, ...],
    unique_keys: bool = True,
) -> RecordSource:
    """Returns a source of some files, whose names in keys and errors are relative to the folder `root`."""
    parts = {
        split: Files(tuple(file.path.name_in(root) for file in own), tuple(file.num_records for file in own))
        for split, own in records.items()
    }
    return RecordSource(
        dataset=dataset,
        class_names=class_names,
        files=files,
        splits=base.rows_of(parts, root),
        image_shape=columns.image_shape,
        features=columns.extra,
        unique_keys=unique_keys,
        parts=parts,
        columns=columns,
        records=records,
    )


def _as_matrix(records: Sequence[bytes], image_shape: tuple[int, int, int]) -> Block | None:
    """Returns the block of records that differ in the bytes of image, label and key alone; None if others do."""
    size = len(records[0])
    if any(len(record) != size for record in records):
        return None
    layout = Layout.fit(size, math.prod(image_shape))
    if layout is None or layout.key.start == layout.key.stop:
        return None
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
    if layout.mismatch(rows).any():
        return None
    keys = np.ascontiguousarray(rows[:, layout.key])
    if not keys[:, -1].all():  # NumPy would take zeros at the end for padding
        return None
    images = np.ascontiguousarray(rows[:, layout.image]).reshape(len(records), *image_shape)
    return Block(images, rows[:, layout.label.start].astype(np.int64), keys.view(f"S{keys.shape[1]}")[:, 0])
