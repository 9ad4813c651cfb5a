"""The manifest, `manifest.json`, which makes a folder a data set: its values and its seal.

The seal is a digest of the content, which reveals edits. A conversion writes the file last. `loading` reads the file,
and `checks` validates its values.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from pipeline.errors import UsageError, name_of, to_run, unknown
from pipeline.files.fields import OPTIONAL, as_json
from pipeline.manifest import naming

SEAL = "content_sha256"
FORMAT_VERSION = 2
MEMBERS_VERSION = 3  # compressed shards may have tables of their members, unknown in version 2
IN_PLACE_VERSION = 4  # features may have other names in the records than in the manifest
PACKINGS_VERSION = 5  # shards may be compressed with ZLIB, or differ in their compression
LABELS_VERSION = 5  # labels may be numbers or vectors, or stored as texts
ANNOTATIONS_VERSION = 6  # features may be located on the image: masks, boxes, points; images may have no labels
APPENDED_VERSION = 7  # the data set may be a later version of another
EDITED_VERSION = 8  # labels may have been set or records deleted
NEWEST_VERSION = EDITED_VERSION
MOST_CLASSES = 1 << 20  # most classes per data set
_EXACT_SIZES = 100  # most image sizes that a manifest lists exactly
NO_LABEL = -1  # label of a record without one if labels are whole numbers; else NaN
IMAGE_FEATURES = {"image": "uint8", "label": "int64", "key": "string"}  # with their dtypes


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest's JSON object with its seal."""
    return content | {SEAL: _digest(content)}


def seal_problem(content: dict[str, Any]) -> str | None:
    """Returns a problem if a manifest's JSON object was changed after sealing; None otherwise, or without a seal.

    Older manifests have none.
    """
    found = _digest(content)
    if content.get(SEAL, found) == found:
        return None
    return (
        f"was edited: the SHA-256 of its content is {found[:12]}..., but its {SEAL} is {str(content[SEAL])[:12]}...; "
        f"restore it, or convert or index the data again; to keep the edit, remove {SEAL}"
    )


def _digest(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rounded_up(side: int) -> int:
    """Returns the side of an image in pixels, rounded up to a multiple of 64."""
    return -(-side // 64) * 64


def size_histogram(sizes: Counter[tuple[int, int]]) -> dict[str, int]:
    """Returns `image_sizes` for a manifest from {(height, width): images}, rounded up to 64 pixels if more than 100."""
    if len(sizes) > _EXACT_SIZES:
        rounded: Counter[tuple[int, int]] = Counter()
        for (height, width), count in sizes.items():
            rounded[rounded_up(height), rounded_up(width)] += count
        sizes = rounded
    return {f"{height}x{width}": count for (height, width), count in sorted(sizes.items())}


def sizes_in(histogram: dict[str, int]) -> Counter[tuple[int, int]]:
    """Returns {(height, width): images} for a manifest's `image_sizes`."""
    return Counter({tuple(map(int, size.split("x"))): count for size, count in histogram.items()})  # type: ignore[misc]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of an example.

    Attributes:
      dtype: `uint8` (image), `int64`, `float32` or `string`.
      shape: shape of one example: (height, width, channels) for images, () for scalars; None for a size that varies.
      encoding: encoding of an image's bytes: `raw` (row-major uint8), `png`, `jpeg`, or `any` (png or jpeg); None for
        other features.
      class_names: names of the values, if the feature is a second label; else empty.
      stored_as: name of the feature in another writer's records; None if it is the same as in the manifest.
      offset: number to add to a stored label; labels that are then negative, or missing, become -1.
      texts: class names by label as stored, if the records have names instead of numbers; else empty.
      convention: meaning of the values as places in the image, a name in `CONVENTIONS`; empty without one.
      parts: names of the records' features with one number of each box or point; empty if one feature has all.
      fill: class, in a mask, of the pixels that a recipe moves in from outside the image.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str | None = None
    class_names: tuple[str, ...] = ()
    stored_as: str | None = dataclasses.field(default=None, metadata={OPTIONAL: True})
    offset: int = dataclasses.field(default=0, metadata={OPTIONAL: True})
    texts: tuple[str, ...] = dataclasses.field(default=(), metadata={OPTIONAL: True})
    convention: str = dataclasses.field(default="", metadata={OPTIONAL: True})
    parts: tuple[str, ...] = dataclasses.field(default=(), metadata={OPTIONAL: True})
    fill: int = dataclasses.field(default=0, metadata={OPTIONAL: True})

    @classmethod
    def of_images(cls, formats: Collection[str], shapes: Collection[tuple[int, ...]]) -> Feature:
        """Returns the feature of images with the given formats (`raw`, `png`, `jpeg`) and (height, width, channels)."""
        sides = [{shape[axis] for shape in shapes} for axis in range(3)]
        shape = tuple(next(iter(side)) if len(side) == 1 else None for side in sides)
        return cls("uint8", shape, next(iter(formats)) if len(formats) == 1 else "any")

    def named(self, name: str) -> str:
        """Returns the feature's name in the records, given its name in the manifest."""
        return self.stored_as or name

    def stored_names(self, name: str) -> tuple[str, ...]:
        """Returns the names of the records' features with its values, given its name in the manifest."""
        return self.parts or (self.named(name),)

    @property
    def stored_dtype(self) -> str:
        """Dtype of the values in the records, which may have class names instead of numbers."""
        return "string" if self.texts else self.dtype

    @property
    def is_class(self) -> bool:
        """Whether each value is one class number, if this is the feature of the labels."""
        return self.dtype == "int64" and not self.shape

    @property
    def no_label(self) -> float:
        """Value of the label, in each component, for a record without one: -1, or NaN."""
        return math.nan if self.dtype == "float32" else NO_LABEL

    def label_of(self, stored: Any) -> Any:
        """Returns the label for a stored value, if this is the feature of the labels.

        Args:
          stored: stored int, float, or bytes for a class name. Vectors are labels as stored.
        """
        if self.texts:
            return self._numbers.get(stored, NO_LABEL)
        if self.stored_as is None or not self.is_class:
            return stored
        return stored + self.offset if stored >= 0 else NO_LABEL

    @functools.cached_property
    def _numbers(self) -> dict[bytes, int]:
        return {text.encode(): label for label, text in enumerate(self.texts)}

    def __str__(self) -> str:
        """Dtype and shape, for messages: `int64`, or `float32 (5,)`."""
        return f"{self.dtype} {self.shape}" if self.shape else self.dtype


MASK, BOXES, POINTS = "mask", "boxes", "points"  # features that are located on the image
BOX_LABELS = "box_labels"  # the class of each box
POINT_LABELS = "keypoint"  # feature with the index of each point's name
_CLASSES = "classes"  # convention of masks, and of the classes of boxes
NUMBERS = ("float32", "int64")  # dtypes of boxes and points in the records
_BOXES = {
    "yxyx": ("ymin", "xmin", "ymax", "xmax"),
    "xyxy": ("xmin", "ymin", "xmax", "ymax"),
    "xywh": ("x", "y", "width", "height"),
}
_POINTS = {"yx": ("y", "x"), "xy": ("x", "y")}
RELATIVE = "rel_"  # prefix of conventions with fractions of the image's height and width instead of pixels
# {feature: {convention: names of the numbers of each box or point}}; conventions have the same names as in Keras.
CONVENTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    MASK: {_CLASSES: ()},
    BOX_LABELS: {_CLASSES: ()},
    BOXES: {relative + name: numbers for relative in (RELATIVE, "") for name, numbers in _BOXES.items()},
    POINTS: {relative + name: numbers for relative in (RELATIVE, "") for name, numbers in _POINTS.items()},
}
ORIENTATIONS = STORED, UPRIGHT = "stored", "upright"  # values of `PixelRule.orientation`
DCTS = FAST, EXACT = "fast", "exact"


@dataclasses.dataclass(frozen=True)
class PixelRule:
    """How the image files of a data set become pixels, wherever they are decoded: training, evaluation, prediction.

    Attributes:
      orientation: `upright` to apply EXIF data: a conversion rotates files when it stores them; existing files are
        rotated whenever they are decoded (`Manifest.turns_images`). `stored` to ignore EXIF data.
      dct: inverse cosine transform for JPEG: `exact`, where TensorFlow and Pillow agree, or `fast`, TensorFlow's
        default, which differs from it by up to 7 of 255 at quality 95, and by dozens at 100.
    """

    orientation: str = UPRIGHT
    dct: str = EXACT

    def __str__(self) -> str:
        """Describes the rule in words, for messages."""
        return f"images {self.words}"

    @property
    def words(self) -> str:
        """Describes images under the rule, for messages: `upright, exact DCT`."""
        return f"{'upright' if self.orientation == UPRIGHT else 'as stored'}, {self.dct} DCT"


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One TFRecord file.

    Attributes:
      file: base name; `folder/name` for a file that `pipeline.index` found in a subfolder of the data set.
      num_examples: number of records in the file.
      num_bytes: size of the file.
      crc32c: CRC32C of the whole file, 8 hexadecimal digits (plain CRC32C, not masked).
      stride: bytes from one record to the next before compression, container included, if all have the same length;
        else None. None for a compressed shard without a table of its members.
      offsets_crc32c: CRC32C of the file `naming.offsets_name(file)`, with the byte offset of each record and the
        file's size, uint64, little-endian; None if there is a stride. For a compressed shard the file has the table of
        members (`pipeline.records.members`); None without a table, so that the shard can only be read forward.
      label_entropy: entropy of its labels, in bits, a measure of how well they are mixed; None without records.
      crcs_crc32c: CRC32C of the file `naming.crcs_name(file)`, with the masked CRC32C of each record as stored in its
        frame, uint32, little-endian. It reveals a window read from another data set's shard. None in older manifests:
        then only reading the whole shard reveals that.
      compression: compression of the file: `GZIP`, `ZLIB`, or empty. If all shards are alike, the manifest states it
        once for all of them.
    """

    file: str
    num_examples: int
    num_bytes: int
    crc32c: str
    stride: int | None
    offsets_crc32c: str | None = None
    label_entropy: float | None = None
    crcs_crc32c: str | None = dataclasses.field(default=None, metadata={OPTIONAL: True})
    compression: str = dataclasses.field(default="", metadata={OPTIONAL: True})

    @property
    def files(self) -> dict[str, str]:
        """The shard and its sidecars: {name in the data set's folder: CRC32C}."""
        crcs = (self.crc32c, self.offsets_crc32c, self.crcs_crc32c)
        each = zip((self.file, *naming.sidecar_names(self.file)), crcs, strict=True)
        return {name: crc for name, crc in each if crc is not None}

    @property
    def is_seekable(self) -> bool:
        """Whether a record can be read without the records before it."""
        return not self.compression or self.offsets_crc32c is not None or self.num_examples == 0


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split.

    Attributes:
      shards: shards in order.
      label_histogram: count of each label, 0 and up; for vectors with a value per class, count of the records with a
        nonzero value for each class; empty if labels are other numbers, or missing.
      image_sizes: {"<height>x<width>": images}; with more than 100 sizes, the sides are `rounded_up`.
      num_rejects: number of the source's invalid rows, which are in no shard; `rejects.jsonl` lists them.
      is_labelled: whether its records have labels, if these are not classes, so that the histogram cannot show it.
    """

    shards: tuple[ShardInfo, ...]
    label_histogram: tuple[int, ...]
    image_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    num_rejects: int = 0
    is_labelled: bool | None = dataclasses.field(default=None, metadata={OPTIONAL: True})

    @property
    def num_examples(self) -> int:
        """Records in the split."""
        return sum(shard.num_examples for shard in self.shards)

    @property
    def firsts(self) -> dict[str, int]:
        """{file of a shard: number of its first record in the split}."""
        ends = itertools.accumulate(shard.num_examples for shard in self.shards)
        return {shard.file: end - shard.num_examples for shard, end in zip(self.shards, ends, strict=True)}

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def has_labels(self) -> bool:
        """Whether the records have labels; a split for prediction only may have none."""
        return any(self.label_histogram) if self.is_labelled is None else self.is_labelled


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A source file (or folder of files) of the data set: its name, size in bytes, SHA-256 in hexadecimal.

    The SHA-256 covers the decompressed content, but only the footer of a Parquet file in an object store or HDFS.
    """

    file: str
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Column:
    """One value per record, next to the shards: see `pipeline.manifest.columns`.

    Attributes:
      dtype: dtype of the numbers in its files: `int8` to `int64`, `float32` or `float64`.
      files: {split: CRC32C of the file with its values}, 8 hexadecimal digits.
      values: sorted strings that the numbers stand for; empty for a column of numbers.
      is_own: whether the values came from a user's file or function, and may differ from a feature of that name.
    """

    dtype: str
    files: dict[str, str]
    values: tuple[str, ...] = ()
    is_own: bool = dataclasses.field(default=False, metadata={OPTIONAL: True})


@dataclasses.dataclass(frozen=True)
class Edit:
    """Changes of a version to the records of its parent.

    Attributes:
      sha256: SHA-256, hexadecimal, of the parent's digest and the edit, so that the same command finds its version.
      labels: number of records whose label it set.
      deleted: number of records that it deleted.
      removed: sorted names of the shards with deleted records; every version that lists them is gone.
    """

    sha256: str
    labels: int = 0
    deleted: int = 0
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Describes the edit in words: `labels set: 2, records deleted: 1`."""
        parts = (("labels set", self.labels), ("records deleted", self.deleted))
        return ", ".join(f"{what}: {number:,}" for what, number in parts if number)


@dataclasses.dataclass(frozen=True)
class Gone:
    """Remains, in `versions/`, of a version that had records deleted later.

    Attributes:
      digest, version, parent: values from its manifest.
      time: time of the deletion, ISO 8601 with time zone.
    """

    digest: str
    version: int
    parent: str
    time: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A data set.

    Attributes:
      dataset: name of the data set (`mnist`).
      class_names: names of the classes, one per label.
      features: features by name: `image`, `label`, `key` and others from the source; empty if `pipeline.index` made the
        manifest without a feature map. Records of other writers may have no key.
      splits: splits by name.
      image_mean: mean of the training images' pixels, 0..255, per channel.
      image_std: standard deviation of these pixels, per channel.
      source: files that the data set was made from.
      options: options of the conversion that shaped the bytes (seed, number of shards).
      compression: compression of all shards: `GZIP`, `ZLIB`, or empty for none, or for each shard's own.
      format_version: version of this file's format.
      columns: columns by name; they may be added to an existing data set, so the data's digest leaves them out.
      pixel_rule: rule by which its image files become pixels; None without image files, or for data sets of releases
        that had no rule.
      parent: digest of the version that it extends or edits; empty if a conversion or an index made all of it.
      version: number of the version: 1, or 1 more than the parent's.
      edit: changes to the parent's records; None if they are unchanged.
    """

    dataset: str
    class_names: tuple[str, ...]
    features: dict[str, Feature]
    splits: dict[str, SplitInfo]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    source: tuple[SourceFile, ...]
    options: dict[str, Any]
    compression: str = ""
    format_version: int = FORMAT_VERSION
    columns: dict[str, Column] = dataclasses.field(default_factory=dict, metadata={OPTIONAL: True})
    pixel_rule: PixelRule | None = dataclasses.field(default=None, metadata={OPTIONAL: True})
    parent: str = dataclasses.field(default="", metadata={OPTIONAL: True})
    version: int = dataclasses.field(default=1, metadata={OPTIONAL: True})
    edit: Edit | None = dataclasses.field(default=None, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        """Sets each shard's compression to the common one."""
        if self.compression and not all(shard.compression for shard in self.shards):
            made = {}
            for name, split in self.splits.items():
                shards = (dataclasses.replace(s, compression=s.compression or self.compression) for s in split.shards)
                made[name] = dataclasses.replace(split, shards=tuple(shards))
            object.__setattr__(self, "splits", made)

    @property
    def packing(self) -> str:
        """How shards are compressed, for messages: `GZIP`, or `GZIP (2 of 5 shards)`; empty if they are not."""
        kinds, shards = Counter(shard.compression for shard in self.shards if shard.compression), len(self.shards)
        of = {kind: "" if self.compression else f" ({count} of {shards} shards)" for kind, count in kinds.items()}
        return " and ".join(f"{kind}{of[kind]}" for kind in sorted(of))

    @property
    def pixels(self) -> PixelRule:
        """Rule by which image files become pixels; in releases without a rule it depended on the encoding."""
        if self.pixel_rule is not None:
            return self.pixel_rule
        image, encoding = self.features.get("image"), self.options.get("image_encoding")
        is_raw = image is not None and image.encoding == "raw"
        # Re-encoded images had been decoded by Pillow, upright; files kept as they were are decoded by TensorFlow.
        upright = is_raw or encoding in ("png", "jpeg")
        return PixelRule(UPRIGHT if upright else STORED, EXACT if is_raw or encoding == "png" else FAST)

    @property
    def has_images(self) -> bool:
        """Whether the records are images with labels and keys. Only the user can parse other records."""
        return any(name in self.features for name in IMAGE_FEATURES)

    @property
    def is_in_place(self) -> bool:
        """Whether `pipeline.index` found the images in another writer's records, which stay unchanged."""
        return any(feature.stored_as is not None for feature in self.features.values())

    @property
    def needs_labels(self) -> bool:
        """Whether images need a label: they have no masks, boxes or points, and labels were found."""
        if any(feature.convention for feature in self.features.values()):
            return False
        return not self.has_images or bool(self.class_names) or not self.features["label"].is_class

    @property
    def turns_images(self) -> bool:
        """Whether images are rotated by the column `ORIENTATION` whenever they are decoded."""
        return self.is_in_place and self.pixel_rule is not None and self.pixel_rule.orientation == UPRIGHT

    @property
    def key_feature(self) -> str | None:
        """Name of the records' feature with the keys; None if they have no keys."""
        key = self.features.get("key")
        return None if key is None else key.named("key")

    def class_name(self, label: int) -> str:
        """Returns the name of a class, or its number if it has no name; `none` for a record without a class."""
        if label == NO_LABEL:
            return "none"
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def labelled(self, names: Iterable[str]) -> list[str]:
        """Returns the splits among `names` whose records have labels.

        Returns all of them if the records are not images, or are images that need no label.
        """
        need_labels = self.has_images and self.needs_labels
        return [name for name in names if not need_labels or self.split(name).has_labels]

    def require_images(self) -> None:
        """Raises UsageError if the records are not images, because `pipeline.index` made the manifest."""
        if not self.has_images:
            raise UsageError(
                f"{self.dataset}: its manifest is from {name_of('pipeline.index')} and describes no images; feed its "
                "records with pipeline.input_fn(..., parse=FUNCTION); if they are images, index them with "
                "--feature_map=image:FEATURE,label:FEATURE, or convert them: " + to_run("beam_jobs.convert")
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image.

        Raises:
          UsageError: the images differ in size, or there are no images.
        """
        self.require_images()
        height, width, channels = self.features["image"].shape
        if height is None or width is None or channels is None:
            raise UsageError(f"{self.dataset}: its images differ in size; convert it with --resize=HxW")
        return height, width, channels

    @property
    def num_examples(self) -> int:
        """Records in all splits."""
        return sum(split.num_examples for split in self.splits.values())

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """Shards of all splits, in order."""
        return tuple(shard for split in self.splits.values() for shard in split.shards)

    @property
    def image_sizes(self) -> list[tuple[str, int]]:
        """(`<height>x<width>`, images) over all splits, the most common size first."""
        sizes: Counter[str] = Counter()
        for split in self.splits.values():
            sizes.update(split.image_sizes)
        return sorted(sizes.items(), key=lambda item: (-item[1], [int(side) for side in item[0].split("x")]))

    @property
    def digest(self) -> str:
        """Identity of the data: SHA-256, hexadecimal, of the file's bytes without `crcs_crc32c`, columns and the seal.

        Without these, older manifests of the same data have the same identity. It covers the pixel rule.
        """
        content = self._content(with_crcs=False)
        content.pop("columns", None)
        return hashlib.sha256(_text(content)).hexdigest()

    def has_deleted(self, other: Manifest) -> bool:
        """Returns whether another version lists shards with records that this one deleted."""
        return self.edit is not None and not {shard.file for shard in other.shards}.isdisjoint(self.edit.removed)

    @property
    def short(self) -> str:
        """First digits of the digest, as a name for the version."""
        return self.digest[:12]

    def split(self, name: str) -> SplitInfo:
        """Returns a split.

        Raises:
          UsageError: there is no split of that name; the error suggests the nearest.
        """
        if name not in self.splits:
            raise unknown("split", name, self.splits)
        return self.splits[name]

    def to_bytes(self) -> bytes:
        """Returns the file's bytes, which are the same for equal manifests."""
        return _text(sealed(self._content(with_crcs=True)))

    def _content(self, with_crcs: bool) -> dict[str, Any]:
        content: dict[str, Any] = as_json(self)
        for shard in (shard for split in content["splits"].values() for shard in split["shards"]):
            if not with_crcs:
                shard.pop("crcs_crc32c", None)
            if self.compression:  # the manifest states it once for all shards, as in earlier releases
                del shard["compression"]
        return content


def _text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
