"""Versions of a data set that a run trains on one after another: a mixture where each has all rows in turn.

So a run moves to another version in the way that a mixture's weights change: at a step fixed in advance, with each
version's own epochs, and with no state except the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pipeline.errors import DataError, UsageError
from pipeline.files.paths import PathLike, folder, with_version
from pipeline.files.remote import is_url
from pipeline.manifest import loading
from pipeline.manifest.sources import WITH_SPLIT, Source, flags_for, parse_sources

STARTED_IN = "started_in"  # in a run's order.json: the folder that its relative paths are relative to
Chain = tuple[tuple[int, str], ...]  # (first step, digest) of each version


def of_order(order: Mapping[str, Any]) -> Chain | None:
    """Returns the versions in a stored order's fields, one for a single data set; None for other mixtures."""
    if "sources" not in order:
        return ((0, order["manifest_digest"]),)
    found: list[tuple[int, str]] = []
    for first, rows in order.get("schedule") or ():
        filled = [source for source, count in enumerate(rows) if count]
        if filled != [len(found)]:
            return None
        found.append((int(first), str(order[f"source {len(found)}: manifest_digest"])))
    return tuple(found) if len(found) == order["sources"] else None


def flags_of(place: str, chain: Chain) -> dict[str, str]:
    """Returns the flags `data_dir` and `mixture_schedule` for training on a folder's versions one after another."""
    names = [f"{place}@{digest[:12]}" for _, digest in chain]
    if len(chain) == 1:
        return {"data_dir": names[0], "mixture_schedule": ""}
    turns = [
        f"{first}:{','.join(f'{name}={int(number == turn)}' for number, name in enumerate(names))}"
        for turn, (first, _) in enumerate(chain)
    ]
    return {"data_dir": ",".join(f"{name}=1" for name in names), "mixture_schedule": ";".join(turns)}


def are_versions(folders: Sequence[PathLike]) -> bool:
    """Returns whether several data sets are given as versions of the same one."""
    named = [with_version(folder) for folder in folders]
    return len(named) > 1 and len({place for place, _ in named}) == 1 and all(version for _, version in named)


def pinned(
    flags: Mapping[str, Any], order: Mapping[str, Any], run: PathLike, paths: Collection[str] = ()
) -> dict[str, Any]:
    """Returns a run's flags with the data that it was trained on, regardless of the caller's working directory.

    A data set that now has newer versions gets the run's version in its name. Relative paths start at
    `order[STARTED_IN]` if, seen from there, the run is still where its flags place it. For a run that was moved or
    copied they start here, except for paths that only lead to its data from `order[STARTED_IN]`.

    Args:
      flags: flags of the run, by name.
      order: fields of the spec of its order, and possibly `STARTED_IN`.
      run: folder of the run.
      paths: names of other flags with paths as values.
    """
    text, start = str(flags.get("data_dir")), _Start.of(flags, order, run)
    given = parse_sources(text)
    others = start.others(flags, paths)
    if isinstance(given, str):
        return {**flags, **others, "data_dir": _pinned(given, order.get("manifest_digest"), start)}
    if len(given) != order.get("sources"):
        return {**flags, **others}
    parts = []
    for number, (source, weight) in enumerate(given):
        match = WITH_SPLIT.fullmatch(os.fspath(source))
        place, split = (match["folder"], f":{match['split']}") if match else (os.fspath(source), "")
        parts.append(f"{_pinned(place, order.get(f'source {number}: manifest_digest'), start)}{split}={weight!r}")
    now = ",".join(parts)
    flags = {**flags, **others}
    return {**flags_for(now, flags), "data_dir": now} if parse_sources(now) != given else dict(flags)


@dataclasses.dataclass(frozen=True)
class _Start:
    """The working directory in which a run started.

    Attributes:
      folder: folder in which its command ran; None if it is unknown, or is this process's own.
      is_certain: whether its relative paths surely start there, because the run was not moved.
    """

    folder: str | None
    is_certain: bool = False

    @classmethod
    def of(cls, flags: Mapping[str, Any], order: Mapping[str, Any], run: PathLike) -> _Start:
        """Finds the start of a run; has the arguments of `pinned`."""
        folder, place = order.get(STARTED_IN), flags.get("model_dir")
        if not isinstance(folder, str):
            return cls(None)
        with contextlib.suppress(OSError):  # a folder on another machine, or a removed one
            if os.path.samefile(folder, os.curdir):
                return cls(None)
            return cls(folder, isinstance(place, str) and os.path.samefile(os.path.join(folder, place), run))
        return cls(folder)

    def path(self, path: str) -> str | None:
        """Resolves a relative path from there; None if it is absolute, or the folder is unknown."""
        path = os.path.expanduser(path)
        if self.folder is None or is_url(path) or os.path.isabs(path):
            return None
        return os.path.normpath(os.path.join(self.folder, path))

    def data(self, path: str, digest: str | None) -> str:
        """Returns the path of a data set with a digest (None for any), or `path` itself if there is none."""
        if (there := self.path(path)) is None:
            return path
        return next((each for each in ((path, there)[:: -1 if self.is_certain else 1]) if _holds(each, digest)), path)

    def others(self, flags: Mapping[str, Any], paths: Collection[str]) -> dict[str, str]:
        """Returns the other flags with paths from there: for evaluation data, and those in `paths`."""
        found = {name: self.path(str(flags[name])) for name in paths if flags.get(name) and self.is_certain}
        if evaluated := flags.get("eval_data_dir"):
            found["eval_data_dir"] = self.data(evaluated, None)
        return {name: path for name, path in found.items() if path}


def _holds(data_dir: str, digest: str | None) -> bool:
    """Returns whether a path leads to a data set that has, or had, the version with a digest (None for any)."""
    try:
        if loading.load(data_dir).digest == digest or digest is None:
            return True
        place = with_version(data_dir)[0]
        if digest not in {gone.digest for gone in loading.gone_in(folder(place))}:
            loading.load(f"{place}@{digest[:12]}")
    except (DataError, OSError):
        return False
    return True


def _pinned(data_dir: str, digest: Any, start: _Start) -> str:
    """Returns `DIR@VERSION` if a folder's newest version does not have a digest, but an older one has, or had."""
    if isinstance(digest, str):
        data_dir = start.data(data_dir, digest)
    place, version = with_version(data_dir)
    try:
        if version is not None or not isinstance(digest, str) or loading.load(place).digest == digest:
            return data_dir
        named = f"{place}@{digest[:12]}"
        if digest not in {gone.digest for gone in loading.gone_in(folder(place))}:  # else reading it is an error
            loading.load(named)
    except (DataError, OSError):  # problems with the data are reported when they are needed
        return data_dir
    return named


def check_trained_on(sources: Sequence[Source], order: Mapping[str, Any], by: object) -> None:
    """Checks that the folders of a run's data still have the data that it was trained on.

    Args:
      sources: sources of the run's data, as named by its flags here.
      order: fields of the spec of its order; empty if unknown.
      by: name of the object with that order, for the error.

    Raises:
      UsageError: a folder now has another data set, or its relative path leads to a different folder from here.
    """
    if order.get("sources", 1) != len(sources):
        return
    for number, source in enumerate(sources):
        digest = order.get("manifest_digest", order.get(f"source {number}: manifest_digest"))
        with contextlib.suppress(DataError):  # missing data are reported when they are needed
            now = loading.load(source.data_dir).digest
            if digest not in (None, now):
                place = os.fspath(source.data_dir)
                raise UsageError(
                    f"--data_dir={place}: {place if is_url(place) else os.path.abspath(place)} holds another data set "
                    f"({now[:12]}) than {by} was trained on ({digest[:12]}); call it where the run was started, or "
                    "give --data_dir to take this one all the same"
                )


def in_words(chain: Iterable[tuple[int, str]], numbers: Mapping[str, int]) -> str:
    """Returns the versions as text: `version 1, from step 48 on version 2`."""
    parts = [f"{f'from step {first} on ' if first else ''}version {numbers[digest]}" for first, digest in chain]
    return ", ".join(parts)
