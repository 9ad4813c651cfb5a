"""The data sets and layouts that can be converted, by name. A source's module is imported only when it is used."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from beam_jobs.storage import paths
from pipeline.errors import DataError, UsageError, unknown

if TYPE_CHECKING:
    from beam_jobs.sources.base import Source, SourceOptions

TFDS_PREFIX = "tfds:"  # precedes the name of a data set prepared by TensorFlow Datasets


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Where a source is implemented and which flags it takes.

    Attributes:
      module: its module in this package.
      flags: the flags it takes besides --source.
      packages: the packages it needs besides Beam.
      remote: whether --source may be in an object store or HDFS.
    """

    module: str
    flags: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    remote: bool = False


_KINDS = {
    **dict.fromkeys(("mnist", "fashion_mnist", "kmnist"), _Kind("mnist")),
    **{f"emnist_{part}": _Kind("mnist") for part in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")},
    "cifar10": _Kind("cifar.cifar"),
    "cifar100": _Kind("cifar.cifar"),
    "digits": _Kind("digits", packages=("sklearn",)),
    "parquet": _Kind("parquet.parquet", ("image_column", "label_column", "key_column", "keep_columns"), remote=True),
    "idx": _Kind("idx_folder"),
    "image_folder": _Kind("folders.image_folder", ("follow_links",)),
    "tfrecord": _Kind("records.tfrecord", ("feature_map", "image_shape", "keep_columns"), remote=True),
}
_TFDS = _Kind("records.tfds", ("keep_columns",), packages=("tensorflow_datasets",))
_OPTIONAL_FLAGS = sorted({flag for kind in _KINDS.values() for flag in kind.flags})


def packages_needed(dataset: str) -> tuple[str, ...]:
    """Returns the packages that a data set needs besides Beam.

    Raises:
      UsageError: the name is unknown; the nearest is suggested.
    """
    return _kind(dataset).packages


def check(options: SourceOptions) -> None:
    """Checks that the flags fit the data set; touches no file.

    Raises:
      UsageError: the name is unknown, a flag does not apply to it, or its source must be local.
    """
    kind = _kind(options.dataset)
    for flag in _OPTIONAL_FLAGS:
        if getattr(options, flag) and flag not in kind.flags:
            takers = [name for name, other in [*_KINDS.items(), (f"{TFDS_PREFIX}NAME", _TFDS)] if flag in other.flags]
            raise UsageError(f"--{flag}: does not apply to --dataset={options.dataset}, only to {', '.join(takers)}")
    if paths.is_url(options.source) and not kind.remote:
        others = " and ".join(name for name, other in _KINDS.items() if other.remote)
        raise UsageError(
            f"--source={paths.path_of(options.source)}: {options.dataset} is read from local or mounted folders; "
            f"{others} from object stores too"
        )


def open_source(options: SourceOptions) -> Source:
    """Opens a data set and checks its files.

    Raises:
      UsageError: the name is unknown, the data set needs a source or takes none, or a flag does not apply to it.
      DataError: a file is missing, cannot be read, or is invalid.
    """
    check(options)
    module = importlib.import_module(f"beam_jobs.sources.{_kind(options.dataset).module}")
    try:
        opened: Source = module.open_source(options)
    except DataError:
        raise
    except OSError as error:  # a parent folder cannot be searched, a name is too long
        raise DataError(f"{error.filename or options.source}: cannot be read: {error.strerror or error}") from None
    _check_class_names(opened, options)
    return opened


def _check_class_names(source: Source, options: SourceOptions) -> None:
    """Raises DataError where a class name has several lines: TFDS has one per line, and would lose all of them."""
    for label, name in enumerate(source.class_names):
        if len(f"{name}.".splitlines()) > 1:
            where = paths.path_of(options.source) if options.source else options.dataset
            raise DataError(f"{where}: the name of class {label}, {name!r}, holds a line break; rename the class")


def _kind(dataset: str) -> _Kind:
    if dataset.startswith(TFDS_PREFIX):
        return _TFDS
    if dataset not in _KINDS:
        raise unknown("--dataset", dataset, [*_KINDS, f"{TFDS_PREFIX}NAME"])
    return _KINDS[dataset]
