"""Data sets and layouts that can be converted, by name: each module registers its own in `base.SOURCES`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from beam_jobs.sources import base
from pipeline.errors import DataError, UsageError, reason_of, unknown
from pipeline.files.paths import path_of
from pipeline.files.remote import is_url
from pipeline.records import labels, splits

if TYPE_CHECKING:
    from beam_jobs.sources.base import Source, SourceKind, SourceOptions


def packages_needed(dataset: str) -> tuple[str, ...]:
    """Returns the packages that a data set needs in addition to Beam.

    Raises:
      UsageError: the name is unknown; the message suggests the nearest.
    """
    return _kind(dataset).packages


def check(options: SourceOptions) -> None:
    """Checks that the flags fit the data set, without touching a file.

    Raises:
      UsageError: the name is unknown, a flag does not apply to it, or its source must be local.
    """
    name, kind = _registered_name(options.dataset), _kind(options.dataset)
    for field in sorted(dataclasses.fields(options), key=lambda field: field.name):
        takers = field.metadata.get("takers", (name,))
        if getattr(options, field.name) and name not in takers:
            has_none = "column" in field.name and name == "image_folder"
            raise UsageError(
                f"--{field.name}: does not apply to --dataset={options.dataset}, only to {', '.join(takers)}",
                advice="a folder of images has no columns; name its images in a table (docs/tables.md)" * has_none,
            )
    if is_url(options.source) and not kind.remote:
        others = " and ".join(name for name, other in base.SOURCES.items() if other.remote)
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
    kind = _kind(options.dataset)
    if kind.needs and not options.source:
        raise UsageError(f"--source is missing: {kind.needs}")
    try:
        opened = kind.open(options)
    except DataError:
        raise
    except OSError as error:  # a parent folder cannot be searched, a name is too long
        raise DataError(f"cannot be read: {reason_of(error)}", path=error.filename or options.source) from None
    chosen = splits.among(opened.splits, options.splits)  # some sources have not even opened the others
    if len(chosen) < len(opened.splits):
        opened = dataclasses.replace(opened, splits={split: opened.splits[split] for split in chosen})
    labels.check_lines(opened.class_names, path_of(options.source) if options.source else options.dataset)
    return opened


def _kind(dataset: str) -> SourceKind:
    name = _registered_name(dataset)
    if name not in base.SOURCES:
        raise unknown("--dataset", dataset, base.SOURCES)
    return base.SOURCES[name]


def _registered_name(dataset: str) -> str:
    prefix, colon, _ = dataset.partition(":")
    return f"{prefix}:NAME" if colon else dataset
