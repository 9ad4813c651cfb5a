"""`python -m pipeline.index DATA_DIR`: makes existing TFRecord files a data set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from pipeline.commands import commandline
from pipeline.commands.flags import check_all, flag
from pipeline.errors import UsageError, unknown
from pipeline.index.images import ImageFlags
from pipeline.manifest import naming
from pipeline.manifest.manifest import ORIENTATIONS, STORED
from pipeline.records import schema

COMMAND = "pipeline.index"


@dataclasses.dataclass(frozen=True)
class IndexConfig:
    """Reads and checks every record once and writes manifest.json beside the files, which stay unchanged."""

    data_dir: str = flag(text="the folder of the files", positional=True, metavar="DATA_DIR")
    split: list[str] = flag(
        text="a split's name and its files: train:'train-*.tfrecord'; default: as the names of the files say",
        metavar="NAME:PATTERN",
        repeated=True,
    )
    compression: str = flag("", "of the files: GZIP; default: as the files themselves say")
    overwrite: bool = flag(False, "replace a manifest that this command made")
    feature_map: str = flag("", f"for images: {schema.FEATURE_MAP.text},key:filename")
    label_offset: int = flag(0, "number to add to stored labels: -1 if the first class has the label 1")
    class_names: str = flag(
        "",
        f"file with the name of a class in every line; default: {schema.LABELS_FILE} beside the records, if it exists",
    )
    keep_columns: str = flag("", schema.KEEP_COLUMNS.text)
    image_shape: str = flag("", f"{schema.IMAGE_SHAPE.text}; default: as their features height, width and depth say")
    orientation: str = flag(
        STORED, "of photographs: upright, turned as their EXIF data say whenever they are decoded", known=ORIENTATIONS
    )
    add_columns: str | None = flag(
        None,
        "of values to choose and weigh records by: FILE.parquet (joined by key), records or records:label,width "
        "(features in the shards), or FILE.py:FUNCTION (of a record's bytes); alone, or with --split or "
        "--feature_map",
        metavar="WHAT",
    )

    def __post_init__(self) -> None:
        check_all(self._check_folder, self._check_compression, self._check_images, lambda: self.image_flags)

    @property
    def image_flags(self) -> ImageFlags | None:
        """The flags about images, parsed; None if records of any kind are indexed."""
        if not self.feature_map:
            return None
        shape = schema.IMAGE_SHAPE.parse("image_shape", self.image_shape)
        feature_map = schema.FEATURE_MAP.parse("feature_map", self.feature_map)
        kept = schema.KEEP_COLUMNS.parse("keep_columns", self.keep_columns)
        return ImageFlags(feature_map, self.label_offset, self.class_names, kept, shape, self.orientation)

    def _check_images(self) -> None:
        if self.feature_map:
            return
        for name in ("label_offset", "class_names", "keep_columns", "image_shape", "orientation"):
            if getattr(self, name) not in (0, "", STORED):
                raise UsageError(f"--{name}={getattr(self, name)}: needs --feature_map, which says where images are")

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
        if self.compression not in naming.COMPRESSIONS:
            raise unknown("--compression", self.compression, [name for name in naming.COMPRESSIONS if name])


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the files and writes the manifest.

    Raises:
      DataError: a file cannot be read, a record is corrupt, or the folder cannot be written to.
      UsageError: a flag cannot work, or the manifest must not be replaced.
    """
    description = "Make TFRecord files of any kind a data set for pipeline.input_fn."
    config = commandline.parse(COMMAND, description, IndexConfig, argv)
    from pipeline.index import command  # noqa: PLC0415, here because --help must be fast

    if config.split or config.feature_map or config.add_columns is None:
        command.make_index(config.data_dir, config.split, config.compression, config.overwrite, config.image_flags)
    if config.add_columns is not None:
        from pipeline.records import columns  # noqa: PLC0415, like the other

        columns.add(config.data_dir, config.add_columns)


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
