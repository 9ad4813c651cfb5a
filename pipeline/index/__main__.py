"""`python -m pipeline.index DATA_DIR`: turns existing TFRecord files into a data set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from pipeline.commands import commandline
from pipeline.commands.flags import check_all, check_needs, flag
from pipeline.errors import UsageError, unknown
from pipeline.index.annotation import AnnotationFlags
from pipeline.index.images import ImageFlags
from pipeline.manifest import naming
from pipeline.manifest.manifest import BOXES, CONVENTIONS, MASK, ORIENTATIONS, POINTS, STORED
from pipeline.records import schema
from pipeline.records.labels import LABELS_FILE

COMMAND = "pipeline.index"


@dataclasses.dataclass(frozen=True)
class IndexConfig:
    """Reads and checks every record once and writes manifest.json beside the files, which stay unchanged."""

    data_dir: str = flag(text="the folder of the files", positional=True, metavar="DATA_DIR")
    split: list[str] = flag(
        text="name of a split and its files: train:'train-*.tfrecord', '**/train-*'; default: by the files' names",
        metavar="NAME:PATTERN",
        repeated=True,
    )
    compression: str = flag(
        "",
        "compression that all files must have, GZIP or ZLIB: files with another one, by their first bytes, are refused",
        needs="indexes",
    )
    overwrite: bool = flag(False, "whether to replace a manifest that this command made", needs="indexes")
    feature_map: str = flag(
        "", f"for images: {schema.FEATURE_MAP.text},key:filename; mask:, boxes: and points: name annotations"
    )
    label_offset: int = flag(
        0, "number to add to stored class numbers: -1 if the first class is 1", needs="feature_map"
    )
    class_names: str = flag(
        "",
        f"file with one class name per line; default: {LABELS_FILE} next to the records, if it exists",
        needs="feature_map",
    )
    keep_columns: str = flag("", schema.KEEP_COLUMNS.text, needs="feature_map")
    image_shape: str = flag(
        "", f"{schema.IMAGE_SHAPE.text}; default: from their features height, width and depth", needs="feature_map"
    )
    orientation: str = flag(
        STORED,
        "way to decode photographs: stored, as they are; upright, rotated by their EXIF data",
        known=ORIENTATIONS,
        needs="feature_map",
    )
    box_format: str = flag(
        AnnotationFlags.box_format,
        "convention of the boxes in --feature_map: rel_ for fractions of the image's sides, else pixels",
        known=tuple(CONVENTIONS[BOXES]),
        needs="boxes",
    )
    point_format: str = flag(
        AnnotationFlags.point_format, "the same for points", known=tuple(CONVENTIONS[POINTS]), needs="points"
    )
    mask_fill: int = flag(
        AnnotationFlags.mask_fill,
        "class of mask pixels that augmentation moves in from outside the image, such as 255 for none",
        needs="mask",
    )
    add_columns: str | None = flag(
        None,
        "columns of values to choose and weigh records by: FILE.parquet (joined by key), records or "
        "records:label,width (features in the shards), or FILE.py:FUNCTION (of a record's bytes); without --split and "
        "--feature_map they are added to an existing index",
        metavar="WHAT",
    )

    def __post_init__(self) -> None:
        check_all(self._check_folder, self._check_compression, self._check_needs, lambda: self.image_flags)

    @property
    def image_flags(self) -> ImageFlags | None:
        """Flags about images, parsed; None if records of any kind are indexed."""
        if not self.feature_map:
            return None
        shape = schema.IMAGE_SHAPE.parse("image_shape", self.image_shape)
        feature_map = schema.FEATURE_MAP.parse("feature_map", self.feature_map)
        kept = schema.KEEP_COLUMNS.parse("keep_columns", self.keep_columns)
        placed = AnnotationFlags(self.box_format, self.point_format, self.mask_fill)
        return ImageFlags(feature_map, self.label_offset, self.class_names, kept, shape, self.orientation, placed)

    @property
    def indexes(self) -> bool:
        """Whether the files are read; otherwise columns are added to an existing index."""
        return bool(self.split or self.feature_map) or self.add_columns is None

    @property
    def mask(self) -> bool:
        """Whether --feature_map names a mask."""
        return self._maps(MASK)

    @property
    def boxes(self) -> bool:
        """Whether --feature_map names boxes."""
        return self._maps(BOXES)

    @property
    def points(self) -> bool:
        """Whether --feature_map names points."""
        return self._maps(POINTS)

    def _maps(self, name: str) -> bool:
        return any(part.strip().startswith(f"{name}:") for part in self.feature_map.split(","))

    def _check_needs(self) -> None:
        check_needs(
            self,
            **{name: f"needs --feature_map={name}:FEATURE" for name in CONVENTIONS},
            feature_map="needs --feature_map, which says where images are",
            indexes=f"has no effect, as --add_columns={self.add_columns} alone adds to an index that is there; leave "
            "it out, or give --split or --feature_map to index the files again",
        )

    def _check_folder(self) -> None:
        if not self.data_dir.strip() or ("://" not in self.data_dir and os.path.realpath(self.data_dir) == "/"):
            raise UsageError(
                f"DATA_DIR={self.data_dir!r}: must be the folder of the files; a manifest is written there"
            )
        if "://" in self.data_dir:
            raise UsageError(
                "must be a local or mounted folder", path=self.data_dir, advice="index it there, then copy all of it"
            )

    def _check_compression(self) -> None:
        if self.compression not in naming.PACKINGS:
            raise unknown("--compression", self.compression, [name for name in naming.PACKINGS if name])


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the files and writes the manifest.

    Raises:
      DataError: a file cannot be read, a record is corrupt, or the folder cannot be written to.
      UsageError: a flag cannot work, or the manifest must not be replaced.
    """
    description = "Make TFRecord files of any kind a data set for pipeline.input_fn."
    config = commandline.parse(COMMAND, description, IndexConfig, argv)
    from pipeline.index import command  # noqa: PLC0415, here because --help must be fast

    if config.indexes:
        command.make_index(config.data_dir, config.split, config.compression, config.overwrite, config.image_flags)
    if config.add_columns is not None:
        from pipeline.records import columns  # noqa: PLC0415, like the other

        columns.add(config.data_dir, config.add_columns)


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
