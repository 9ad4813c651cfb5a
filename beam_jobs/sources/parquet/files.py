"""The Parquet files that a --source names, and the split of each."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

from beam_jobs.sources import listing
from beam_jobs.sources.listing import SPLIT_OF_WORD
from beam_jobs.storage.paths import StoragePath
from pipeline.errors import DataError, UsageError
from pipeline.manifest import naming

_SUFFIX = ".parquet"
_SHARD = re.compile(r"(?:.*-)?(?P<word>[^-]+)-\d{5,}-of-\d{5,}(?:-[0-9a-f]+)?")


def find(source: str) -> tuple[StoragePath, list[str]]:
    """Returns a folder and the files in it, as sorted paths relative to it.

    Args:
      source: a file, a folder of *.parquet at any depth, or a glob.

    Raises:
      UsageError: --source is missing.
      DataError: as `listing.find`.
    """
    if not source:
        raise UsageError("--source is missing: a Parquet file, a folder of them, or a glob")
    kinds = f"--source of parquet is a file, a folder of *{_SUFFIX}, or a glob"
    return listing.find(source, _is_data, True, f"*{_SUFFIX}, at any depth", kinds)


def by_split(root: StoragePath, names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the files of each split, train first.

    A file's split is a word (train, validation, test, ...) in its name or the name of a folder, or, if other files have
    such a word, what precedes `-00000-of-00001`. If no file has such a word, all files are of `train`.

    Raises:
      DataError: a file has two such words, or none while others have one; two words mean the same split.
    """
    words = {name: _known_word(root, name) for name in names}
    if not any(words.values()):
        return {"train": list(names)}
    found: dict[str, list[str]] = {}
    meaning: dict[str, str] = {}
    for name in names:
        word = words[name] or _shard_word(root, name, [word for word in words.values() if word])
        split = SPLIT_OF_WORD.get(word, word)
        if meaning.setdefault(split, word) != word:
            raise DataError(
                f"{root}: holds files of {meaning[split]!r} and of {word!r}, which both mean split {split!r}; "
                "rename them, or name the files of one with a glob"
            )
        found.setdefault(split, []).append(name)
    order = listing.SPLITS
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 9, item[0])))


def _is_data(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not any(part.startswith((".", "_")) for part in name.split("/"))


def _known_word(root: StoragePath, name: str) -> str:
    path = pathlib.PurePosixPath(name)
    tokens = listing.words(path.stem)
    words = {token for token in [*tokens, *map(str.lower, path.parts[:-1])] if token in SPLIT_OF_WORD}
    if len({SPLIT_OF_WORD[word] for word in words}) > 1:
        raise DataError(f"{root / name}: is its split {' or '.join(sorted(words))}? rename it")
    return min(words, default="")


def _shard_word(root: StoragePath, name: str, others: Sequence[str]) -> str:
    match = _SHARD.fullmatch(pathlib.PurePosixPath(name).stem)
    if not match or not naming.is_split_name(match["word"]):
        raise DataError(
            f"{root / name}: its name does not tell its split, unlike other names ({min(others)!r}); "
            "rename it <split>-00000-of-00001.parquet, or name the files to take with a glob"
        )
    return match["word"]
