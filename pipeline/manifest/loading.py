"""Reads manifests: a data set's newest, `manifest.json`, or an older version's in `versions/`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import DataError
from pipeline.files.fields import from_json
from pipeline.files.paths import LocalPath, PathLike, StoragePath, folder, with_version
from pipeline.files.reading import unreadable
from pipeline.files.remote import RemotePath
from pipeline.manifest import naming, unconverted
from pipeline.manifest.checks import problems
from pipeline.manifest.manifest import FORMAT_VERSION, NEWEST_VERSION, SEAL, Gone, Manifest, seal_problem

_WEIGHTED = re.compile(r"=\d*\.?\d+$")  # as in `a=0.7`, a source of a mixture with its weight
_LEAST_DIGITS = 8  # fewest digits of a digest that names a version


def load(data_dir: PathLike | RemotePath) -> Manifest:
    """Reads and checks the manifest of a data set: the newest, `manifest.json`, or the version that `data_dir` names.

    Args:
      data_dir: `DIR` or `DIR@VERSION`, where VERSION is a number, or 8 or more digits of a digest.

    Raises:
      DataError: there is no manifest or no such version, or it has another format, is cut, invalid or edited, or had
        records that were deleted.
    """
    found, wanted = folder(data_dir), with_version(data_dir)[1]
    if wanted is None or isinstance(data_dir, LocalPath | RemotePath):
        return load_file(found, found / naming.MANIFEST)
    older = {name: parsed for name in version_names(found) if (parsed := naming.parse_version_name(name))}
    made, newest = _older(found, wanted, older), load_file(found, found / naming.MANIFEST)
    if made is None and _is_version(wanted, newest.version, newest.digest):
        return newest
    if made is not None and not newest.has_deleted(made):  # else a command was killed before removing the last file
        return made
    for gone in gone_in(found) if made is None else [Gone(made.digest, made.version, "", "")]:
        if _is_version(wanted, gone.version, gone.digest):
            day = f" on {gone.time.partition('T')[0]}" if gone.time else ""
            raise DataError(
                f"version {gone.version} held records that were deleted{day}",
                path=found,
                advice=f"use {found}@{newest.version}",
            )
    known = [f"{number} ({digest})" for number, digest in sorted({*older.values(), (newest.version, newest.short)})]
    raise DataError(f"has no version {wanted}; it has {', '.join(known)}", path=found)


def _older(found: StoragePath, wanted: str, older: Mapping[str, tuple[int, str]]) -> Manifest | None:
    """Returns the wanted version if it is an older one, as {name of its manifest: (number, digest)}."""
    for name, (number, digest) in older.items():
        if _is_version(wanted, number, digest):
            made = load_file(found, found / naming.VERSIONS / name)
            if _is_version(wanted, made.version, made.digest):
                return made
    return None


def gone_in(data_dir: StoragePath) -> list[Gone]:
    """Returns the remains of a data set's versions that had deleted records, in no particular order.

    Raises:
      DataError: a file cannot be read.
    """
    found = []
    for name in _names_in_versions(data_dir, ".deleted"):
        path = data_dir / naming.VERSIONS / name
        try:
            found.append(from_json(Gone, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read: {error}", path=path) from None
    return found


def version_names(data_dir: StoragePath) -> list[str]:
    """Returns the base names of older versions' manifests, in no particular order."""
    return _names_in_versions(data_dir, ".json")


def _names_in_versions(data_dir: StoragePath, ending: str) -> list[str]:
    place = data_dir / naming.VERSIONS
    names = place.files() if place.is_dir() else []
    return [name for name in names if name.endswith(ending) and naming.parse_version_name(name)]


def _is_version(wanted: str, number: int, digest: str) -> bool:
    """Returns whether a version is the wanted one, by its number or by the digest's digits that both have."""
    is_number = wanted.isdecimal() and len(wanted) < _LEAST_DIGITS
    return int(wanted) == number if is_number else digest.startswith(wanted) or wanted.startswith(digest)


def load_file(found: StoragePath, path: StoragePath) -> Manifest:
    """Returns the manifest in a file of the folder `found`; raises errors like `load`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        advice = unconverted.advice("" if found.is_remote else str(found))
        if _WEIGHTED.search(str(found)):
            advice = "leave out the weight: it is for several sources, with commas between them"
            if "," in str(found):
                advice = "give the folder of one data set: several, with weights, are for training and audits"
        is_there = found.is_remote or found.exists()
        problem = f"no manifest, so {found} is not a data set (or its conversion did not finish)"
        missing = ("there is no such folder", found)
        problem, place = (problem, path) if is_there else missing
        raise DataError(problem, path=place, advice=advice) from None
    except NotADirectoryError:
        raise DataError(
            "is a file, not a data set", path=found, advice=f"name the folder that holds {naming.MANIFEST}"
        ) from None
    except DataError:  # from a store; already one line
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Manifest:
    """Parses and checks the content of a manifest's file.

    Raises:
      DataError: the manifest has another version, or is cut, invalid or edited.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})", path=file, advice="convert the data again") from None
    _check_version(content, file)
    plain = {name: value for name, value in content.items() if name != SEAL}
    try:
        manifest: Manifest = from_json(Manifest, plain)
    except ValueError as error:
        raise DataError(f"not a valid manifest (convert the data again): {error}", path=file) from None
    if problem := next(problems(manifest), None):
        raise DataError(problem, path=file)
    if problem := seal_problem(content):  # last, because the other problems name the field
        raise DataError(problem, path=file)
    return manifest


def _check_version(content: Any, file: str) -> None:
    version = content.get("format_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"format_version is {version!r}, not a version of a manifest", path=file)
    if version < FORMAT_VERSION:
        raise DataError(
            f"format_version {version} is of an earlier release", path=file, advice="convert the data again"
        )
    if version > NEWEST_VERSION:
        raise DataError(
            f"format_version {version} is newer than {NEWEST_VERSION}, the newest that this release reads",
            path=file,
            advice="upgrade it",
        )
