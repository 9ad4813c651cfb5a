"""The interface of sources: rows of images, labels and keys in splits, whatever files hold them."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from beam_jobs import flag_values
from pipeline.commands import values
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.manifest import Feature, SourceFile
from pipeline.manifest.manifest import BOXES, CONVENTIONS, POINTS
from pipeline.order import hashing
from pipeline.order.hashing import Domain
from pipeline.records import labels, schema
from pipeline.registry import Registry

_TABLES = ("parquet", "arrow", "image_table", "webdataset")  # data sets whose rows have columns
_TABLES_ARE = ", ".join(_TABLES)
_HIGHEST_CLASS = 255  # the largest value of a mask's pixels


def _option(
    default: Any,
    text: str,
    *takers: str,
    parse: Callable[[str, Any], Any] = lambda _, value: value,
    shapes: bool = True,
    foreign: bool = False,
    repeated: bool = False,
) -> Any:
    """Returns a field of `SourceOptions` for a flag that some sources accept.

    Args:
      default: value if the flag is not given.
      text: help text.
      *takers: names, in `SOURCES`, of the data sets that accept the flag; none stands for all.
      parse: function that parses the value, from the flag's name and its value on the command line.
      shapes: whether the option shapes the bytes of the shards, so that the manifest records it.
      foreign: whether the option only concerns other programs' records, where a source has both kinds.
      repeated: whether the flag may be given several times; `parse` then gets the list of its values.
    """
    metadata: dict[str, Any] = {"takers": takers} if takers else {}
    metadata |= {"text": text, "parse": parse, "shapes": shapes, "foreign": foreign, "repeated": repeated}
    return dataclasses.field(default=default, metadata=metadata)


def _convention(name: str, flag: str, value: str) -> str:
    if value and value not in CONVENTIONS[name]:
        raise unknown(f"--{flag}", value, CONVENTIONS[name])
    return value


def _class_of_pixels(flag: str, value: str) -> int | None:
    if not value:
        return None
    if not value.isdecimal() or int(value) > _HIGHEST_CLASS:
        raise UsageError(f"--{flag}={value}: must be a class of masks, 0 to {_HIGHEST_CLASS}")
    return int(value)


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """Parsed flags that concern the source. `beam_jobs.config.ConvertConfig` has them as texts.

    Attributes:
      dataset: value of --dataset (`mnist`, `parquet`, `tfds:imagenette`).
      source: files of the source: a folder, an archive, a file or a glob; "" if not given.
      feature_map: (our name, their name) of `image`, `label` and `key` in other programs' records.
      image_shape: (height, width, channels) of raw pixels in other programs' records.
    """

    dataset: str = _option(
        dataclasses.MISSING,
        "what to convert: mnist, fashion_mnist, kmnist, emnist_balanced (byclass, bymerge, digits, letters, mnist), "
        "cifar10, cifar100, digits; or a layout of your own data: image_folder, image_table, webdataset, parquet, "
        "arrow, coco, voc, tfrecord, idx; or tfds:NAME",
        shapes=False,
    )
    source: str = _option(
        "",
        "the data set's files: a folder, an archive, a file or a glob; mnist and cifar are downloaded without it",
        shapes=False,
    )
    splits: tuple[str, ...] = _option(
        (), "the source's splits to convert: train,test; default: all that it has", parse=values.names
    )
    image_column: str = _option(
        "",
        "parquet, arrow: the column of images, bytes or Hugging Face's struct; default: image or img; image_table: of "
        "their paths; default: file_name, path, file, image, ...; webdataset: an ending; default: the only image",
        *_TABLES,
    )
    label_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of labels, integers or strings; default: label, in image_table also class, "
        "category or target; in webdataset cls first, or a field of json",
        *_TABLES,
    )
    key_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of unique keys; default: <file>#<row>, in image_table the path",
        *_TABLES,
    )
    split_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of splits; default: split, if there is one; none: names of files and folders "
        "give the splits, in tfrecord too, whatever columns there are",
        *(*_TABLES, "tfrecord"),
    )
    group_by: str = _option(
        "",
        f"{_TABLES_ARE}, image_folder, tfrecord: the column of groups, such as patient: with --split or --folds, rows "
        "of one group are all in one split; file:REGEX takes the group from the path of the image: its first (...)",
        *(*_TABLES, "image_folder", "tfrecord"),
        parse=flag_values.column_or_path,
    )
    stratify: str = _option(
        "",
        f"{_TABLES_ARE}, image_folder, tfrecord: with --split or --folds, every value of this column has its share in "
        "each split; label: every class; file:REGEX: a part of the image's path",
        *(*_TABLES, "image_folder", "tfrecord"),
        parse=flag_values.column_or_path,
    )
    label_separator: str = _option(
        "",
        f"{_TABLES_ARE}: the text between the labels of an image that has several, such as ' ' in 'beach sea'; "
        "columns of lists need none",
        *_TABLES,
    )
    float_labels: bool = _option(
        False,
        f"{_TABLES_ARE}: labels are numbers to predict, not classes; they become float32, rounded",
        *_TABLES,
    )
    boxes_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of boxes, lists of four numbers each; objects.bbox: a field of a struct, or "
        "of the structs of a list",
        *_TABLES,
    )
    box_format: str = _option(
        "",
        f"{_TABLES_ARE}: what the numbers of a box are: {', '.join(CONVENTIONS[BOXES])}; default: rel_yxyx",
        *_TABLES,
        parse=functools.partial(_convention, BOXES),
    )
    box_labels_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of the boxes' classes, lists of strings or integers; without "
        "--label_column they are also the labels",
        *_TABLES,
    )
    points_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of points, lists of two numbers each; coco: keypoints",
        *(*_TABLES, "coco"),
    )
    point_format: str = _option(
        "",
        f"{_TABLES_ARE}: what the numbers of a point are: {', '.join(CONVENTIONS[POINTS])}; default: rel_yx",
        *_TABLES,
        parse=functools.partial(_convention, POINTS),
    )
    mask_column: str = _option(
        "",
        f"{_TABLES_ARE}: the column of masks: the bytes or paths of PNG files, grey or with a palette, that have "
        "the class of each pixel; coco: segmentation, from which masks are drawn",
        *(*_TABLES, "coco"),
    )
    mask_fill: int | None = _option(
        None,
        f"{_TABLES_ARE}, coco, voc: the class of a mask's pixels that recipes move in; default: 0",
        *(*_TABLES, "coco", "voc"),
        parse=_class_of_pixels,
    )
    mask_dir: str = _option(
        "",
        "image_table: like --image_dir, for the masks' paths; default: the images' folder",
        "image_table",
        shapes=False,
    )
    image_set: str = _option(
        "",
        "voc: the folder of lists in ImageSets: Main (default), or Segmentation, whose images have masks",
        "voc",
    )
    image_dir: str = _option(
        "",
        "coco: folder of the images, or of the folders of images; image_table: folder that the paths are "
        "relative to; default: the table's; with {} in place of the path, text may follow: images/{}.jpg",
        *("image_table", "coco"),
        shapes=False,
    )
    na_is_class: bool = _option(
        False,
        f"{_TABLES_ARE}, tfrecord: labels such as NA, nan, None and null name a class; default: they are missing "
        "values, and the rows are invalid",
        *(*_TABLES, "tfrecord"),
    )
    delimiter: str = _option(
        "",
        "image_table: the character between the columns of CSV and TSV, or tab; default: a tab in .tsv, else whichever "
        "of ',', tab, ';' and '|' is most frequent in the first line",
        "image_table",
        parse=flag_values.delimiter,
    )
    keep_columns: tuple[str, ...] = _option(
        (),
        f"{_TABLES_ARE}, tfrecord, tfds:NAME: other columns to keep as features: a,b,...; in tables "
        "NAME:TYPE converts to float32 (rounded), int64 or string (text); coco: caption, with boxes too",
        *(*_TABLES, "tfrecord", "tfds:NAME", "coco"),
        parse=schema.KEEP_COLUMNS.parse,
        foreign=True,
    )
    default: tuple[str, ...] = _option(
        (),
        f"{_TABLES_ARE}: a value for nulls of a column, which otherwise make rows invalid: NAME:VALUE, such as "
        "score:0.0, for labels and splits too; in CSV an empty field is a null",
        *_TABLES,
        parse=flag_values.defaults,
        repeated=True,
    )
    feature_map: tuple[tuple[str, str], ...] = _option(
        (),
        f"tfrecord: {schema.FEATURE_MAP.text}",
        "tfrecord",
        parse=schema.FEATURE_MAP.parse,
        foreign=True,
    )
    image_shape: tuple[int, int, int] | None = _option(
        None,
        f"tfrecord: {schema.IMAGE_SHAPE.text}",
        "tfrecord",
        parse=schema.IMAGE_SHAPE.parse,
        foreign=True,
    )
    follow_links: bool = _option(
        False,
        "image_folder: follow links to folders, and links that lead out of the source; image_table: links and paths "
        "that lead out of the images' folder",
        *("image_folder", "image_table"),
        shapes=False,
    )

    @property
    def has_annotations(self) -> bool:
        """Whether flags name masks, boxes or points, so that images need no label."""
        return bool(self.boxes_column or self.points_column or self.mask_column)

    def __reduce__(self) -> tuple[Callable[[], SourceOptions], tuple[()]]:
        """Pickles only the options that were given: options make up much of a source's pickle."""
        fields = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        given = {field.name: value for field, value in fields if value != field.default}
        return functools.partial(SourceOptions, **given), ()


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """A kind of source. `SourceOptions` says which flags it takes in addition to --source.

    Attributes:
      open: function that opens a source and checks its files.
      needs: what --source must name; empty if it need not be given.
      packages: packages needed in addition to Beam.
      remote: whether --source may be in an object store or HDFS.
    """

    open: Callable[[SourceOptions], Source]
    needs: str = ""
    packages: tuple[str, ...] = ()
    remote: bool = False


LABEL = "label"  # in flags that name a column: the classes, whatever their column is called
CLASS = Feature("int64")  # label of an image with one class

# By name of the data set or layout; a name that ends with `:NAME` stands for all names with that prefix.
SOURCES: Registry[SourceKind] = Registry("beam_jobs.sources", SourceKind)


@dataclasses.dataclass(frozen=True)
class Block:
    """Some examples, as columns.

    Attributes:
      images: pixels, uint8 (n, height, width, channels), or a list of n encoded files (PNG, JPEG, ...). Encoded images
        may be invalid; whoever reads the block checks them. The image of a bad row is any value of that type.
      labels: int64 (n,), with a range that whoever reads the block checks; or float32 (n,), or a value for each class
        (n, classes), depending on the source's label feature.
      keys: dtype S (n,) without trailing NULs, or a list of n.
      extra: other features of the source: {name: values}, an array (n, ...) or a list of n: one-dimensional int64 or
        float32 arrays if the feature's shape is (None,), bytes if its dtype is string.
      bad: {row of the block: reason} for invalid rows (no label, no image).
    """

    images: NDArray[np.uint8] | list[bytes]
    labels: NDArray[Any]
    keys: NDArray[np.bytes_] | list[bytes]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    bad: dict[int, str] = dataclasses.field(default_factory=dict)

    @property
    def has_classes(self) -> bool:
        """Whether each label is one class number."""
        return self.labels.ndim == 1 and self.labels.dtype == np.int64

    def taken(self, images: Any, rows: NDArray[np.int64]) -> Block:
        """Returns a block of the given rows, int64 (n,), none of them bad, with `images` as their images."""
        extra = {name: _taken(values, rows) for name, values in self.extra.items()}
        return Block(images, self.labels[rows], _taken(self.keys, rows), extra)

    def part(self, rows: NDArray[np.int64]) -> Block:
        """Returns a block of the given rows, int64 (n,), each at most once; some may be bad."""
        places = {row: place for place, row in enumerate(rows.tolist())}
        bad = {places[row]: reason for row, reason in self.bad.items() if row in places}
        return dataclasses.replace(self.taken(_taken(self.images, rows), rows), bad=bad)

    def without_class(self, classes: int) -> dict[int, str]:
        """Returns {row: reason} of the rows whose label, one class number, is not in 0..classes - 1."""
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= classes)).tolist()
        return {row: f"label {self.labels[row]} is not in 0..{classes - 1}" for row in wrong}

    @classmethod
    def joined(cls, parts: Sequence[tuple[NDArray[np.int64], Block]]) -> Block:
        """Joins parts (positions of the rows, int64 (n,); rows) into one block, ordered by position."""
        order = np.argsort(np.concatenate([positions for positions, _ in parts]))
        blocks = [block for _, block in parts]

        def column(values: list[Any]) -> Any:
            if any(isinstance(part, list) for part in values):
                return _taken(list(itertools.chain.from_iterable(values)), order)
            return np.concatenate(values)[order]

        return cls(
            column([block.images for block in blocks]),
            column([block.labels for block in blocks]),
            column([block.keys for block in blocks]),
            {name: column([block.extra[name] for block in blocks]) for name in blocks[0].extra},
            {int(positions[row]): reason for positions, block in parts for row, reason in block.bad.items()},
        )


def _taken(values: Any, rows: NDArray[np.int64]) -> Any:
    return [values[row] for row in rows.tolist()] if isinstance(values, list) else values[rows]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Source(abc.ABC):
    """A data set as published. It pickles to a few kilobytes: workers read the files themselves.

    Rows of a split are numbered 0..splits[split] - 1, over all its files.

    Attributes:
      dataset: name of the data set (`mnist`).
      class_names: name of each class, by label.
      files: files that it is read from. Digests cover the decompressed content, so that a data set gives the same
        manifest however it is packed; for remote Parquet files they cover the footer.
      splits: {name: number of rows}.
      image_shape: (height, width, channels) of every image if blocks hold pixels; None if they hold encoded images.
      label: feature of the labels.
      features: features other than `image`, `label` and `key`.
      unique_keys: whether keys are unique by construction; otherwise they are checked.
      parts: {split: its files} if the rows of files follow one another; else empty.
    """

    dataset: str
    class_names: tuple[str, ...]
    files: tuple[SourceFile, ...]
    splits: dict[str, int]
    image_shape: tuple[int, int, int] | None = None
    label: Feature = CLASS
    features: dict[str, Feature] = dataclasses.field(default_factory=dict)
    unique_keys: bool = True
    parts: dict[str, Files] = dataclasses.field(default_factory=dict)

    @classmethod
    def like(cls, other: Source, **own: Any) -> Self:
        """Returns a source with the fields of another one, except for those given in `own`."""
        names = {field.name for field in dataclasses.fields(Source)} - own.keys()
        return cls(**{name: getattr(other, name) for name in names}, **own)

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the number of rows in each unit of random access (a row group, a file) of a split, int64 (n,).

        Returns None if rows can be read one by one at no extra cost.
        """
        del split
        return None

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns a hash of each of the rows start..stop - 1, uint64 (n,), from which new splits are drawn.

        The hash depends only on the row's file and number there (or its path), so it stays the same when files are
        added.
        """
        return self.parts[split].hashes(start, stop)

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in that file) for messages; default keys, `<file>#<row>`, are made from it."""
        return self.parts[split].where(row)

    def invalid(self, split: str, row: int, reason: str) -> tuple[str, int, str]:
        """Returns (file, row in it, reason) of an invalid row; the reason begins with the image's path, if any."""
        return (*self.where(split, row), reason)

    def texts(self, column: str, needed: str = "") -> Texts:
        """Returns the values of a column for all rows, numbered across all splits.

        Args:
          column: name of the column; `label` for the classes, `file:REGEX` for a part of the image's path.
          needed: flag that needs a value in each row; "" if rows may have none.

        Raises:
          UsageError: the source has no such column.
          DataError: a row has no value, but needs one.
        """
        del needed
        raise UsageError(f"{self.dataset} has no column {column!r}")

    @abc.abstractmethod
    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, in the requested order.

        Memory: the rows and one unit of random access.

        Args:
          split: one of `splits`.
          rows: int64 (n,), each in 0..splits[split] - 1.

        Raises:
          DataError: the files changed since the source was opened, or cannot be read.
        """


@dataclasses.dataclass(frozen=True)
class Texts:
    """The values of a column as texts.

    Attributes:
      codes: index of each row's value in `values`, int64 (n,).
      values: distinct values; "" stands for rows without a value.
    """

    codes: NDArray[np.int64]
    values: tuple[str, ...]

    @property
    def hashes(self) -> NDArray[np.int64]:
        """A hash of each of `values`, int64, computed from its text as people see it.

        A patient called `7` in one file and `7.0` in another, which pandas wrote, is one group. So is a day stored as a
        date in one file and as a time in nanoseconds in another.
        """
        seen = (labels.as_seen(value, ignore_case=True, as_numbers=True) for value in self.values)
        return hashes_of(value.encode(errors="surrogateescape") for value in seen)


def hashes_of(texts: Iterable[bytes]) -> NDArray[np.int64]:
    """Returns a hash of each text, int64 (n,)."""
    return np.frombuffer(b"".join(hashlib.sha256(text).digest()[:8] for text in texts), "<i8")


@dataclasses.dataclass(frozen=True)
class Files:
    """The files of a split, with rows numbered across all of them.

    Attributes:
      names: file names in keys.
      counts: number of rows in each file.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Number of rows in all files."""
        return sum(self.counts)

    @property
    def starts(self) -> list[int]:
        """The number of the first row of each file."""
        return [end - count for end, count in zip(itertools.accumulate(self.counts), self.counts, strict=True)]

    def where(self, row: int) -> tuple[str, int]:
        """Returns (file, row in it) of a row."""
        number, _, own = next(by_part(self.counts, np.array([row], np.int64)))
        return self.names[number], int(own[0])

    def hashes(self, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns a hash of (file, row in it) for rows start..stop - 1, uint64 (n,)."""
        files, rows = locate(self.counts, np.arange(start, stop, dtype=np.int64))
        return hashing.derive_key(Domain.SPLIT, hashes_of(name.encode() for name in self.names)[files], rows)

    def keys(self, rows: NDArray[np.int64], equal_digits: bool = True) -> NDArray[np.bytes_]:
        """Returns `<file>#<row in it>` of each row, dtype S (n,).

        Args:
          rows: row numbers across all files, int64 (n,).
          equal_digits: whether to pad row numbers to as many digits as the longest file needs.
        """
        digits = [row_digits(max(self.counts) if equal_digits else count) for count in self.counts]
        keys = np.empty(len(rows), f"S{max(len(name.encode()) for name in self.names) + 1 + max(digits)}")
        for number, chosen, own in by_part(self.counts, rows):
            keys[chosen] = row_keys(self.names[number], own, digits[number])
        return keys


def by_part(
    counts: Sequence[int], rows: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yields (number of the part, positions in `rows`, row numbers in the part, ascending) for each part with rows.

    Args:
      counts: number of rows in each part (file, row group, split); rows are numbered across the parts.
      rows: row numbers across all parts, int64 (n,), in any order.
    """
    numbers, own = locate(counts, rows)
    order = np.lexsort((own, numbers))
    wanted, starts = np.unique(numbers[order], return_index=True)
    for number, chosen in zip(wanted.tolist(), np.split(order, starts[1:]), strict=False):  # no rows: one empty part
        yield number, chosen, own[chosen]


def locate(counts: Sequence[int], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (number of the part, row in it) of each row; rows are numbered across the parts."""
    bounds = np.cumsum([0, *counts])
    numbers = np.searchsorted(bounds, rows, side="right") - 1
    return numbers, rows - bounds[numbers]


def rows_of(parts: Mapping[str, Files], folder: object) -> dict[str, int]:
    """Returns {split: number of rows}.

    Raises:
      DataError: a split has no row; the message names `folder`, the folder of the files.
    """
    for split, part in parts.items():
        if not part.num_rows:
            names = f"{part.names[0]}, ..." if len(part.names) > 1 else part.names[0]
            raise DataError(
                f"split {split!r} has no row",
                path=folder,
                advice=f"leave out {count_of(len(part.names), 'file')} ({names}), or name other splits with --splits",
            )
    return {split: part.num_rows for split, part in parts.items()}


def row_keys(file: str, rows: NDArray[np.int64], digits: int) -> NDArray[np.bytes_]:
    """Returns `<file>#<row>` of each row, the row padded with zeros to `digits`; dtype S (n,)."""
    prefix = np.frombuffer(file.encode() + b"#", np.uint8)
    keys = np.empty((len(rows), len(prefix) + digits), np.uint8)
    keys[:, : len(prefix)] = prefix
    keys[:, len(prefix) :] = rows[:, None] // 10 ** np.arange(digits - 1, -1, -1) % 10 + ord("0")
    return keys.view(f"S{keys.shape[1]}")[:, 0]


def renumbered(classes: NDArray[np.int64], numbers: Sequence[int]) -> NDArray[np.int64]:
    """Returns the new numbers of some classes, given the new number of each class; -1 if there is no such class."""
    is_class = (classes >= 0) & (classes < len(numbers))
    return np.where(is_class, np.array(numbers, np.int64)[np.where(is_class, classes, 0)], -1)


def row_digits(count: int) -> int:
    """Returns the number of decimal digits of the highest of `count` row numbers."""
    return len(str(max(count - 1, 0)))


class BlockBuilder:
    """Columns of a block to fill in place; rows that cannot be filled must be added to `bad`.

    Attributes:
      images: pixels, uint8 (n, height, width, channels), or an object array (n,) of the bytes of image files.
      labels: values of the label's feature, (n, ...).
      keys: dtype S (n,), or objects (n,).
      extra: {feature: values}, with the feature's dtype and shape, or an object array (n,) if no other array can hold
        them.
      bad: {row: reason}.
    """

    def __init__(
        self,
        count: int,
        features: Mapping[str, Feature],
        image_shape: tuple[int, int, int] | None = None,
        keys: NDArray[np.bytes_] | None = None,
        label: Feature = CLASS,
    ) -> None:
        """Makes the columns.

        Args:
          count: number of rows.
          features: features other than image, label and key.
          image_shape: (height, width, channels) of pixels; None for encoded images.
          keys: keys of all rows, if already known.
          label: feature of the labels.
        """
        self.images: NDArray[Any] = _files(count) if image_shape is None else np.zeros((count, *image_shape), np.uint8)
        self.labels = _empty(count, label)
        self.keys: NDArray[Any] = _files(count) if keys is None else keys
        self.extra = {name: _empty(count, feature) for name, feature in features.items()}
        self.bad: dict[int, str] = {}

    def finished(self) -> Block:
        """Returns the block."""
        extra = {name: _listed(column) for name, column in self.extra.items()}
        return Block(_listed(self.images), self.labels, _listed(self.keys), extra, dict(sorted(self.bad.items())))


def _files(count: int) -> NDArray[np.object_]:
    return np.full(count, b"", object)


def _empty(count: int, feature: Feature) -> NDArray[Any]:
    if feature.dtype == "string" or None in feature.shape:
        return _files(count)
    return np.zeros((count, *(size or 0 for size in feature.shape)), feature.dtype)


def _listed(column: NDArray[Any]) -> Any:
    return column.tolist() if column.dtype == object else column


def joined_chunks(parts: Sequence[tuple[Source, str]]) -> NDArray[np.int64] | None:
    """Returns the chunks of splits of sources, one after another, int64 (n,); None if none of them has chunks."""
    found = [(source.splits[split], source.chunks(split)) for source, split in parts]
    if all(chunks is None for _, chunks in found):
        return None
    return np.concatenate([np.ones(rows, np.int64) if chunks is None else chunks for rows, chunks in found])


_MOST_BETWEEN = 1000  # most rows between two that are hashed together


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DealtSource(Source):
    """A source whose rows are assigned to new splits.

    Attributes:
      inner: source of the rows.
    """

    inner: Source

    @classmethod
    def of(cls, inner: Source, splits: dict[str, int], **more: Any) -> Self:
        """Returns a source like `inner` but with new splits, {name: number of rows}."""
        return cls.like(inner, splits=splits, parts={}, inner=inner, **more)

    @abc.abstractmethod
    def _rows(self, split: str) -> NDArray[np.int64]:
        """Returns the rows of a split, ascending, numbered across all splits of `inner`."""

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the number of rows that a new split has in each chunk of the source; None if it has no chunks."""
        chunks = joined_chunks([(self.inner, name) for name in self.inner.splits])
        if chunks is None:
            return None
        ends = np.cumsum(chunks)
        return np.diff(np.searchsorted(self._rows(split), ends, side="left"), prepend=0)

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        made = np.empty(stop - start, np.uint64)
        for name, chosen, rows in self._by_inner_split(self._rows(split)[start:stop]):
            # By ranges: each call prepares something for all files, which costs more than hashing a few extra rows.
            cuts = np.flatnonzero(np.diff(rows) > _MOST_BETWEEN) + 1
            for own, places in zip(np.split(rows, cuts), np.split(chosen, cuts), strict=True):
                made[places] = self.inner.hashes(name, int(own[0]), int(own[-1]) + 1)[own - own[0]]
        return made

    def texts(self, column: str, needed: str = "") -> Texts:
        found = self.inner.texts(column, needed)
        rows = np.concatenate([self._rows(split) for split in self.splits])
        return dataclasses.replace(found, codes=found.codes[rows])

    def where(self, split: str, row: int) -> tuple[str, int]:
        return self.inner.where(*self._inner_row(split, row))

    def invalid(self, split: str, row: int, reason: str) -> tuple[str, int, str]:
        return self.inner.invalid(*self._inner_row(split, row), reason)

    def _inner_row(self, split: str, row: int) -> tuple[str, int]:
        name, _, rows = next(self._by_inner_split(self._rows(split)[row : row + 1]))
        return name, int(rows[0])

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        # Without rows, the first split makes a block of the right form.
        parts = list(self._by_inner_split(self._rows(split)[rows])) or [(next(iter(self.inner.splits)), rows, rows)]
        return Block.joined([(chosen, self.inner.read(name, own)) for name, chosen, own in parts])

    def _by_inner_split(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
        """Yields (split of the source, positions in `rows`, rows of that split)."""
        names = list(self.inner.splits)
        for number, chosen, own in by_part(list(self.inner.splits.values()), rows):
            yield names[number], chosen, own
