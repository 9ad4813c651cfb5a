"""Data sets prepared by TensorFlow Datasets (TFDS): `tfds:NAME`, in its tfrecord and array_record formats.

Their files hold `tf.train.Example`s whose images are PNG or JPEG files, so they are read like other records, without
TensorFlow or TFDS's decoding; TFDS only says where the files are and what the features are called. The image, the class
label and features that --keep_columns names are read. Nothing is downloaded or prepared.
"""

from __future__ import annotations

import difflib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from beam_jobs.sources import record_files, streams
from beam_jobs.sources.base import SOURCES, SourceOptions
from beam_jobs.sources.record_files import ARRAY_RECORD, RecordFile, RecordSource
from pipeline.commands import commandline
from pipeline.commands.text import count_of, some_of
from pipeline.errors import DataError, UsageError, line_of, unknown
from pipeline.files.paths import LocalPath
from pipeline.manifest import Feature, naming
from pipeline.records import splits
from pipeline.records.schema import OTHER_DATA, OWN_FEATURES, Schema

_DTYPES = {**dict.fromkeys("biu", "int64"), "f": "float32"}  # {kind of NumPy's dtype: dtype of a feature}
_INFO = "dataset_info.json"
_MOST_LISTED = 8
_PREFIX = "tfds:"  # before the name of the data set


@SOURCES.named(f"{_PREFIX}NAME", packages=("tensorflow_datasets",))
def open_source(options: SourceOptions) -> RecordSource:
    """Opens a prepared data set.

    Args:
      options: options; `dataset` is `tfds:NAME` or `tfds:NAME/CONFIG`, optionally with `:VERSION`; `source` is TFDS's
        data_dir (default: TFDS's own), or the folder of the data set itself, with `dataset_info.json`.

    Raises:
      UsageError: the name is missing, TFDS is not installed, or a feature cannot be kept.
      DataError: the data set is not prepared there, has no image or class label, has another format, or a file is
        corrupt.
    """
    commandline.require("tensorflow_datasets")
    builder = _builder(options.dataset.removeprefix(_PREFIX), options.source)
    root = LocalPath(str(builder.data_dir))
    features = builder.info.features
    image, label = _image_and_label(features, root)
    columns = Schema(image, label, extra={name: _kept(features, name, root) for name in options.keep_columns})
    records = _records(builder.info.splits.values(), builder.info.file_format.value, root, options.splits)
    paths = [LocalPath(str(file.path)) for files in records.values() for file in files]
    return record_files.source_of(
        dataset=options.dataset,
        class_names=tuple(features[columns.label].names),
        root=root,
        columns=columns,
        records=records,
        files=streams.describe(sorted((path.name_in(root), path) for path in paths)),
    )


def _builder(name: str, data_dir: str) -> Any:
    if not name:
        raise UsageError(f"--dataset={_PREFIX}: the name is missing, as in {_PREFIX}mnist")
    if data_dir and not os.path.isdir(data_dir):
        raise DataError(
            "no such folder",
            path=os.path.abspath(data_dir),
            advice=f"--source of {_PREFIX}{name} is TFDS's data_dir",
        )
    from tensorflow_datasets.core import constants, read_only_builder, registered  # noqa: PLC0415 (optional, slow)

    where = os.path.abspath(data_dir or os.path.expanduser(constants.DATA_DIR))
    try:
        if data_dir and os.path.exists(os.path.join(data_dir, _INFO)):
            return read_only_builder.builder_from_directory(data_dir)
        return read_only_builder.builder_from_files(name, data_dir=data_dir or None)
    except registered.DatasetNotFoundError:
        raise _not_prepared(name, where, data_dir) from None
    except Exception as error:  # TFDS's parsers of names, JSON and versions raise a dozen types
        raise DataError(f"TFDS cannot open {name!r}: {line_of(error)}", path=where) from None


def _not_prepared(name: str, where: str, data_dir: str) -> DataError:
    import tensorflow_datasets as tfds  # noqa: PLC0415

    # TFDS's data_dir holds NAME/VERSION or NAME/CONFIG/VERSION.
    infos = (path for depth in ("*/*", "*/*/*") for path in pathlib.Path(where).glob(f"{depth}/{_INFO}"))
    present = sorted({path.relative_to(where).parts[0] for path in infos})
    own, known = re.split("[/:]", name)[0], {*present, *tfds.list_builders(with_community_datasets=False)}
    near = [] if own in known else difflib.get_close_matches(own, sorted(known), n=1)
    if near and near[0] in present:
        advice = f"did you mean {_PREFIX}{near[0]}?"
    else:
        build = f"tfds build {near[0] if near else name}" + (f" --data_dir={data_dir}" if data_dir else "")
        advice = (f"did you mean {near[0]!r}? " if near else "") + f"prepare it with: {build}"
    listed = some_of(present, _MOST_LISTED)
    return DataError(
        f"has no {name!r} prepared by TensorFlow Datasets (in format tfrecord or array_record, with features.json); "
        f"what it has: {listed or 'nothing'}",
        path=where,
        advice=advice,
    )


def _records(
    infos: Iterable[Any], file_format: str, root: LocalPath, wanted: Sequence[str]
) -> dict[str, tuple[RecordFile, ...]]:
    if file_format not in ("tfrecord", ARRAY_RECORD):
        raise DataError(
            f"is in TFDS's format {file_format}; tfrecord and array_record can be read: prepare it again with "
            "tfds build --file_format=array_record",
            path=root,
        )
    if file_format == ARRAY_RECORD:
        commandline.require("array_record")
    found = {}
    filled = {split.name: split for split in infos if split.num_examples}
    for split in (filled[name] for name in splits.among(filled, wanted)):
        if not naming.is_split_name(split.name):
            raise DataError(f"has a split {split.name!r}; a name must have letters, digits and _ only", path=root)
        pairs = zip(split.filepaths, split.shard_lengths, strict=True)
        found[split.name] = tuple(_file(LocalPath(str(path)), int(count), file_format) for path, count in pairs)
    if not found:
        raise DataError("its splits hold no example", path=root)
    return found


def _file(path: LocalPath, count: int, file_format: str) -> RecordFile:
    file = record_files.index(path) if file_format == "tfrecord" else record_files.index_array_record(path)
    if file.num_records != count:
        raise DataError(
            f"has {count_of(file.num_records, 'record')}, but {_INFO} says {count:,}",
            path=path,
            advice="prepare the data set again",
        )
    return file


def _image_and_label(features: Any, root: LocalPath) -> tuple[str, str]:
    import tensorflow_datasets as tfds  # noqa: PLC0415

    found = []
    for usual, kind in (("image", tfds.features.Image), ("label", tfds.features.ClassLabel)):
        names = [name for name, feature in features.items() if isinstance(feature, kind)]
        if usual not in names and len(names) != 1:
            held = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in sorted(features.items()))
            problem = f"{len(names)} features" if names else "no feature"
            raise DataError(
                f"has {problem} of type {kind.__name__}, and none is named {usual!r}; it has {held}",
                path=root,
                advice=OTHER_DATA,
            )
        found.append(usual if usual in names else names[0])
    image, label = found
    dtype = np.dtype(features[image].np_dtype)
    if dtype != np.uint8:
        raise DataError(f"its images are of dtype {dtype}; they must be uint8", path=root)
    if features[label].num_classes is None:
        raise DataError(f"its ClassLabel {label!r} does not say how many classes there are", path=root)
    return image, label


def _kept(features: Any, name: str, root: LocalPath) -> Feature:
    """Returns a feature to keep; as in the records, `a/b` names the feature b inside the feature a."""
    import tensorflow_datasets as tfds  # noqa: PLC0415

    if name in OWN_FEATURES:
        raise UsageError(f"--keep_columns={name}: every converted record has a feature of this name")
    stored = dict(_flat(features.get_serialized_info()))
    if name not in stored:
        raise unknown(f"--keep_columns: {root}: feature", name, set(stored).difference(OWN_FEATURES))
    info = stored[name]
    dtype = "string" if info.np_dtype in (np.str_, np.bytes_, np.object_) else _DTYPES.get(np.dtype(info.np_dtype).kind)
    is_list = tuple(info.shape) == (None,)
    if dtype is None or (None in info.shape and not is_list) or (dtype == "string" and info.shape):
        raise UsageError(
            f"--keep_columns={name}: {root}: is {np.dtype(info.np_dtype)} of shape {tuple(info.shape)}; numbers of a "
            "fixed shape, lists of numbers, and single texts or byte strings can be kept"
        )
    kind = dict(features.items()).get(name)
    class_names = ()
    # TFDS raises a TypeError when asked for the names of a label made with neither names nor a number.
    if isinstance(kind, tfds.features.ClassLabel) and kind.num_classes is not None:
        class_names = tuple(kind.names)
    return Feature(dtype, tuple(info.shape), class_names=class_names)


def _flat(infos: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, info in infos.items():
        if isinstance(info, dict):
            yield from _flat(info, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", info
