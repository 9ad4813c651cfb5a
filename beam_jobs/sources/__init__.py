"""The data sets and layouts that can be converted, by name. A source's module is imported only when it is used."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from beam_jobs.sources import splits
from pipeline.errors import DataError, UsageError, reason_of, unknown
from pipeline.files.paths import path_of
from pipeline.files.remote import is_url

if TYPE_CHECKING:
    from beam_jobs.sources.base import Source, SourceOptions

TFDS_PREFIX = "tfds:"  # precedes the name of a data set prepared by TensorFlow Datasets
_ANY_TFDS = f"{TFDS_PREFIX}NAME"


@dataclasses.dataclass(frozen=True)
class _Kind:
    """How to open a source. `SourceOptions` says which flags it takes in addition to --source.

    Attributes:
      module: its module in this package.
      packages: the packages that it needs in addition to Beam.
      remote: whether --source may be in an object store or HDFS.
    """

    module: str
    packages: tuple[str, ...] = ()
    remote: bool = False


_KINDS = {
    **dict.fromkeys(("mnist", "fashion_mnist", "kmnist"), _Kind("mnist")),
    **{f"emnist_{part}": _Kind("mnist") for part in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")},
    "cifar10": _Kind("cifar"),
    "cifar100": _Kind("cifar"),
    "digits": _Kind("digits", packages=("sklearn",)),
    "parquet": _Kind("parquet", remote=True),
    "idx": _Kind("idx"),
    "image_folder": _Kind("image_folder"),
    "image_table": _Kind("image_table"),
    "tfrecord": _Kind("tfrecord", remote=True),
}
_TFDS = _Kind("tfds", packages=("tensorflow_datasets",))


def packages_needed(dataset: str) -> tuple[str, ...]:
    """Returns the packages that a data set needs in addition to Beam.

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
    name = _ANY_TFDS if kind is _TFDS else options.dataset
    for field in sorted(dataclasses.fields(options), key=lambda field: field.name):
        takers = field.metadata.get("takers", (name,))
        if getattr(options, field.name) and name not in takers:
            raise UsageError(
                f"--{field.name}: does not apply to --dataset={options.dataset}, only to {', '.join(takers)}"
            )
    if is_url(options.source) and not kind.remote:
        others = " and ".join(name for name, other in _KINDS.items() if other.remote)
        raise UsageError(
            f"--source={path_of(options.source)}: {options.dataset} is read from local or mounted folders; "
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
        raise DataError(f"cannot be read: {reason_of(error)}", path=error.filename or options.source) from None
    chosen = splits.among(opened.splits, options.splits)  # a source that can has not even opened the others
    if len(chosen) < len(opened.splits):
        opened = dataclasses.replace(opened, splits={split: opened.splits[split] for split in chosen})
    for label, name in enumerate(opened.class_names):
        # TFDS reads the names line by line, and would lose all of them.
        if len(f"{name}.".splitlines()) > 1:
            where = path_of(options.source) if options.source else options.dataset
            raise DataError(
                f"the name of class {label}, {name!r}, holds a line break", path=where, advice="rename the class"
            )
    return opened


def _kind(dataset: str) -> _Kind:
    if dataset.startswith(TFDS_PREFIX):
        return _TFDS
    if dataset not in _KINDS:
        raise unknown("--dataset", dataset, [*_KINDS, _ANY_TFDS])
    return _KINDS[dataset]
