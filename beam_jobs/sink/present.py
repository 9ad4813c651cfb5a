"""The data set that a folder already holds: whether a plan would write the same one, and what other files are there."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

from beam_jobs import drafts
from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from pipeline import manifest
from pipeline.commands.text import count_of, some_of
from pipeline.errors import DataError, UsageError, name_of
from pipeline.files.paths import StoragePath
from pipeline.manifest import Manifest, naming, versions

_MOST_NAMED = 3  # files in a note
_MOST_CLASSES = 8  # in a note


def existing_manifest(data_dir: StoragePath) -> Manifest | None:
    """Returns the manifest of the data set in a folder, or None if there is none.

    Raises:
      DataError: the manifest cannot be read.
      UsageError: it is an index of another program's files, which a conversion must not replace.
    """
    if naming.MANIFEST not in data_dir.names():
        return None
    try:
        found = manifest.load(data_dir)
    except DataError as error:
        raise error.advised(
            "as it does not say which files are its own, nothing was removed: "
            f"remove {data_dir} yourself or choose another --data_dir"
        ) from None
    if found.is_in_place:
        raise UsageError(
            f"holds records of another writer, listed in the {naming.MANIFEST} that {name_of('pipeline.index')} wrote; "
            "a conversion never replaces them",
            path=data_dir,
            advice="choose another --data_dir",
        )
    return found


def check_same(plan: Plan, present: Manifest, data_dir: StoragePath) -> None:
    """Checks that a folder holds the data set that `plan` would write, and that it is intact.

    Raises:
      UsageError: see `check_options`.
      DataError: a file is missing or does not match the manifest.
    """
    check_options(plan, present, data_dir)
    for name, expected in shard_files(present).items():
        crc = receipts.file_crc32c(data_dir / name)
        if crc != expected:
            problem = f"its CRC32C is {crc}, but the manifest says {expected}" if crc else "cannot be read"
            raise DataError(problem, path=data_dir / name, advice="--overwrite converts it again")


def check_options(plan: Plan, present: Manifest, data_dir: StoragePath) -> None:
    """Checks that a folder's manifest is the one that `plan` would write, without reading shards.

    Raises:
      UsageError: it was made with other options or from another source; the message gives both values of each
        difference.
    """
    differences = [f"{name} is {there} there and {here} here" for name, there, here in _differences(plan, present)]
    if differences:
        raise UsageError(
            f"holds another data set: {'; '.join(differences)}",
            path=data_dir,
            advice="choose another --data_dir, or --overwrite to replace it",
        )


@dataclasses.dataclass(frozen=True)
class Unlisted:
    """The files in a data set's folder that its manifest does not list, sorted by name.

    Attributes:
      as_shards: files that a program reading by a pattern (`train-*`, `*.tfrecord*`) would take for shards, and files
        with a name that only a conversion gives.
      temporary: files left by a killed conversion.
      others: all other files.
    """

    as_shards: tuple[str, ...]
    temporary: tuple[str, ...]
    others: tuple[str, ...]


def unlisted(data_dir: StoragePath, present: Manifest, recursive: bool = False) -> Unlisted:
    """Returns the files in a data set's folder that its manifest does not list.

    `recursive` adds files in subfolders that look like shards, except in hidden folders and in other data sets, which
    have their own manifest. In an index of another program's files no file is taken for a shard: the index may leave
    some out on purpose.

    Raises:
      DataError: the folder cannot be listed.
    """
    listed = {*drafts.BESIDE_SHARDS}
    for made in (present, *_others(data_dir, present)):
        listed |= shard_files(made).keys()
    sidecars = data_dir / naming.SIDECARS
    inside = sidecars.files() if sidecars.is_dir() else ()
    found = [*data_dir.files(), *(f"{naming.SIDECARS}/{name}" for name in inside)]
    below = _shards_below(data_dir, present) if recursive else []
    names = sorted(name for name in {*found, *below} if name not in listed)
    temporary = [name for name in names if drafts.is_temporary(name.rpartition("/")[2])]
    is_ours = present.has_images and not present.is_in_place
    as_shards = [name for name in names if is_ours and _looks_like_shard(name, present)]
    return Unlisted(
        tuple(as_shards), tuple(temporary), tuple(name for name in names if name not in {*as_shards, *temporary})
    )


def _others(data_dir: StoragePath, present: Manifest) -> list[Manifest]:
    """Returns the manifests of a data set's other versions; empty if it has only one version."""
    if not present.parent and not manifest.version_names(data_dir):
        return []
    return [made for made in versions.all_of(data_dir) if made.digest != present.digest]


def _shards_below(data_dir: StoragePath, present: Manifest) -> list[str]:
    """Returns the files in subfolders of a data set's folder, at any depth, that look like its shards."""
    found = [pathlib.PurePosixPath(name) for name in data_dir.files(recursive=True) if "/" in name]
    others = {path.parent for path in found if path.name == naming.MANIFEST}  # separate data sets
    return [
        str(path)
        for path in found
        if others.isdisjoint(path.parents)
        and not any(part.startswith(".") for part in path.parts)
        and path.parts[0] not in (naming.SIDECARS, naming.COLUMNS, naming.VERSIONS)
        and _looks_like_shard(path.name, present)
    ]


def _looks_like_shard(path: str, present: Manifest) -> bool:
    if path.startswith((".", f"{naming.SIDECARS}/")):  # patterns do not match it
        return False
    name = path.rpartition("/")[2]
    return (
        drafts.is_ours(name) or ".tfrecord" in name.lower() or name.startswith(tuple(f"{s}-" for s in present.splits))
    )


def notes(data_dir: StoragePath, present: Manifest, are_checked: bool = False) -> list[str]:
    """Returns a line for each kind of unlisted files in a data set's folder: their number, kind, and some names.

    Args:
      data_dir: folder of the data set.
      present: its manifest.
      are_checked: whether files that look like shards are reported already, so that all others are listed instead.
    """
    try:
        found = unlisted(data_dir, present)
    except DataError as error:
        return [str(error)]
    kinds = {
        "that the manifest does not list": () if are_checked else found.as_shards,
        "left by a killed conversion": found.temporary,
        "that the data set does not have": found.others if are_checked and present.has_images else (),
    }
    return [
        f"{count_of(len(found), 'file')} {what} ({some_of(found, _MOST_NAMED)})"
        for what, found in kinds.items()
        if found
    ]


def shard_files(present: Manifest) -> dict[str, str]:
    """Returns {name: CRC32C} of a data set's shards and sidecars; names are relative to its folder."""
    return {name: crc for shard in present.shards for name, crc in shard.files.items()}


def renumbered(plan: Plan, present: Manifest) -> list[str]:
    """Returns a line about classes whose label changes when a data set is replaced; empty if all keep theirs."""
    new = {name: label for label, name in enumerate(plan.source.class_names)}
    old = [(name, label) for label, name in enumerate(present.class_names) if new.get(name) != label]
    if not old or not present.class_names:
        return []
    moved = [f"{name!r} {label} -> {new[name]}" for name, label in old if name in new]
    gone = [f"{name!r} {label} -> none" for name, label in old if name not in new]
    added = [repr(name) for name in plan.source.class_names if name not in present.class_names]
    shown = some_of([*moved, *gone], _MOST_CLASSES)
    because = f" (new: {some_of(added, _MOST_CLASSES)})" if added else ""
    return [
        f"note: {count_of(len(old), 'class has another label', 'classes have other labels')} than in the data set that "
        f"is replaced: {shown}{because}; models that were trained on it number classes as it did"
    ]


def other_pixels(plan: Plan, present: Manifest) -> list[str]:
    """Returns a line about the decoding rule of a data set; empty if a conversion would use the same.

    The rule is not an option, so a data set of an earlier release counts as the same; `--overwrite` updates the rule.
    """
    if plan.pixel_rule in (None, present.pixels):
        return []
    rule = plan.pixel_rule.words
    return [f"note: its images are {present.pixels.words}; --overwrite converts them {rule}"]


def files_of(present: Manifest | None) -> set[str]:
    """Returns the names that a data set's files can have.

    Names that no conversion gives are left out, as a manifest may list other programs' files.
    """
    if not present:
        return set()
    shards = [shard.file for shard in present.shards if drafts.is_ours(shard.file)]
    sidecars = {name for shard in shards for name in naming.sidecar_names(shard)}
    return {*shards, *sidecars, *columns_of(present), *drafts.BESIDE_SHARDS}


def files_listed(present: Manifest, data_dir: StoragePath) -> set[str]:
    """Returns the names, relative to the folder, of the files that belong to its data set, in any version."""
    beside = {*drafts.BESIDE_SHARDS}
    if not any(split.num_rejects for split in present.splits.values()):
        beside.remove(naming.REJECTS)
    older = {name for made in _others(data_dir, present) for name in (*shard_files(made), *columns_of(made))}
    return {*shard_files(present), *columns_of(present), *beside, *older}


def appended_before(plan: Plan, present: Manifest, parent: Manifest) -> bool:
    """Returns whether a manifest is the version that this append makes from the parent."""
    source = (*parent.source, *plan.source.files)
    return present.parent == parent.digest and present.options == plan.options and present.source == source


def columns_of(present: Manifest) -> list[str]:
    """Returns the file names of a data set's columns."""
    return [
        naming.column_name(split, name, crc)
        for name, column in present.columns.items()
        for split, crc in column.files.items()
    ]


def _differences(plan: Plan, present: Manifest) -> Iterator[tuple[str, object, object]]:
    if present.dataset != plan.source.dataset:
        yield "--dataset", present.dataset, plan.source.dataset
        return
    if present.edit:
        yield "what was edited", present.edit, "nothing"
    for name in sorted(plan.options.keys() | present.options.keys()):
        there, here = present.options.get(name), plan.options.get(name)
        if there != here:
            yield f"--{name}", _text(there), _text(here)
    before = {file.file: file.sha256 for file in present.source}
    now = {file.file: file.sha256 for file in plan.source.files}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"the SHA-256 of --source's {name}", _digest(before.get(name)), _digest(now.get(name))


def _text(value: object) -> str:
    if value is None:
        return "not given"
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _digest(value: str | None) -> str:
    return f"{value[:12]}..." if value else "none"
