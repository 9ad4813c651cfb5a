"""Data sets that TensorFlow Datasets (TFDS) has prepared: `tfds:NAME`, in its formats tfrecord and array_record.

Their files hold `tf.train.Example`s whose images are PNG or JPEG files, so they are read like other records, without
TensorFlow or TFDS's decoding; TFDS only says where the files are and what the features are called. Only an image and a
class label are taken. Nothing is downloaded or prepared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from beam_jobs.sources import TFDS_PREFIX, digest
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.records import files as record_files
from beam_jobs.sources.records import rows as record_rows
from beam_jobs.sources.records.columns import Columns
from beam_jobs.sources.records.files import ARRAY_RECORD, RecordFile
from beam_jobs.sources.records.rows import RecordSource
from beam_jobs.storage.paths import LocalPath
from pipeline.commands import commandline
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.manifest import naming

_INFO = "dataset_info.json"


def open_source(options: SourceOptions) -> RecordSource:
    """Opens a prepared data set.

    Args:
      options: `dataset` is `tfds:NAME` or `tfds:NAME/CONFIG`, optionally with `:VERSION`; `source` is TFDS's data_dir
        (default: TFDS's own), or the folder of the data set itself, with `dataset_info.json`.

    Raises:
      UsageError: the name is missing, or TFDS is not installed.
      DataError: it is not prepared there, has no image or class label, has another format, or a file is corrupt.
    """
    commandline.require("tensorflow_datasets")
    builder = _builder(options.dataset.removeprefix(TFDS_PREFIX), options.source)
    root = LocalPath(str(builder.data_dir))
    image, label = _features(builder.info.features, root)
    records = _records(builder.info.splits.values(), builder.info.file_format.value, root)
    paths = [LocalPath(str(file.path)) for files in records.values() for file in files]
    return record_rows.make(
        dataset=options.dataset,
        class_names=tuple(builder.info.features[label].names),
        root=root,
        columns=Columns(image, label),
        records=records,
        files=digest.describe(sorted((path.name_in(root), path) for path in paths)),
    )


def _builder(name: str, data_dir: str) -> Any:
    if not name:
        raise UsageError(f"--dataset={TFDS_PREFIX}: the name is missing, as in {TFDS_PREFIX}mnist")
    if data_dir and not os.path.isdir(data_dir):
        raise DataError(
            f"{os.path.abspath(data_dir)}: no such folder; --source of {TFDS_PREFIX}{name} is TFDS's data_dir"
        )
    from tensorflow_datasets.core import constants, read_only_builder, registered  # noqa: PLC0415 (optional, slow)

    where = os.path.abspath(data_dir or os.path.expanduser(constants.DATA_DIR))
    try:
        if data_dir and os.path.exists(os.path.join(data_dir, _INFO)):
            return read_only_builder.builder_from_directory(data_dir)
        return read_only_builder.builder_from_files(name, data_dir=data_dir or None)
    except registered.DatasetNotFoundError:
        build = f"tfds build {name}" + (f" --data_dir={data_dir}" if data_dir else "")
        raise DataError(
            f"{where}: TensorFlow Datasets has prepared no {name!r} there (in format tfrecord or array_record, with "
            f"features.json); prepare it with: {build}"
        ) from None
    except Exception as error:  # its parsers of names, JSON and versions raise a dozen types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{where}: TFDS cannot open {name!r}: {reason}") from None


def _features(features: Any, root: LocalPath) -> tuple[str, str]:
    """Returns the names of the image and of the label."""
    import tensorflow_datasets as tfds  # noqa: PLC0415

    found = []
    for usual, kind in (("image", tfds.features.Image), ("label", tfds.features.ClassLabel)):
        names = [name for name, feature in features.items() if isinstance(feature, kind)]
        if usual not in names and len(names) != 1:
            held = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in sorted(features.items()))
            problem = f"{len(names)} features" if names else "no feature"
            raise DataError(
                f"{root}: has {problem} of type {kind.__name__}, and none is named {usual!r}; it has {held}"
            )
        found.append(usual if usual in names else names[0])
    image, label = found
    dtype = np.dtype(features[image].np_dtype)
    if dtype != np.uint8:
        raise DataError(f"{root}: its images are of dtype {dtype}; they must be uint8")
    if features[label].names is None:
        raise DataError(f"{root}: its ClassLabel {label!r} does not say how many classes there are")
    return image, label


def _records(splits: Iterable[Any], file_format: str, root: LocalPath) -> dict[str, tuple[RecordFile, ...]]:
    if file_format not in ("tfrecord", ARRAY_RECORD):
        raise DataError(
            f"{root}: is of TFDS's format {file_format}; tfrecord and array_record can be read: prepare it again with "
            "tfds build --file_format=array_record"
        )
    if file_format == ARRAY_RECORD:
        commandline.require("array_record")
    found = {}
    for split in splits:
        if not naming.is_split_name(split.name):
            raise DataError(f"{root}: has a split {split.name!r}; a name must have letters, digits and _ only")
        if split.num_examples:
            pairs = zip(split.filepaths, split.shard_lengths, strict=True)
            found[split.name] = tuple(_file(LocalPath(str(path)), int(count), file_format) for path, count in pairs)
    if not found:
        raise DataError(f"{root}: its splits hold no example")
    return found


def _file(path: LocalPath, count: int, file_format: str) -> RecordFile:
    file = record_files.index(path) if file_format == "tfrecord" else record_files.index_array_record(path)
    if file.num_records != count:
        raise DataError(
            f"{path}: has {count_of(file.num_records, 'record')}, but {_INFO} says {count:,}; "
            f"prepare the data set again"
        )
    return file
