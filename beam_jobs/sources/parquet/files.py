"""Which Parquet files a --source names, and which split each of them is of."""

from __future__ import annotations

import glob
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from beam_jobs.sources import file_names, remote_listing
from beam_jobs.sources.file_names import SPLIT_OF_WORD
from beam_jobs.storage import paths
from beam_jobs.storage.paths import AnyPath
from pipeline.errors import DataError, UsageError
from pipeline.manifest import naming

SUFFIX = ".parquet"
_SHARD = re.compile(r"(?:.*-)?(?P<word>[^-]+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?:-[0-9a-f]+)?")
_KINDS = f"--source of parquet is a file, a folder of *{SUFFIX}, or a glob"
_HIDDEN = (".", "_")  # as Arrow, Spark and Hive hide what is no data


def find(source: str) -> tuple[AnyPath, list[str]]:
    """Returns a folder and the files in it, by their paths from there, sorted.

    Links to files are followed (Hugging Face's cache is made of them), links to folders are not.

    Args:
      source: a file, a folder of *.parquet at any depth, or a glob.

    Raises:
      UsageError: no source is named.
      DataError: there is no such file, or none in the folder; a folder cannot be read; a name is not valid UTF-8; a
        file `<name>-00001-of-00002` of a folder is missing.
    """
    if not source:
        raise UsageError("--source is missing: a Parquet file, a folder of them, or a glob")
    if paths.is_url(source):
        return _find_remote(source)
    path = pathlib.Path(source).absolute()
    if path.is_dir():
        root, names = path, sorted(_walk(path))
        if not names:
            raise DataError(f"{path}: holds no *{SUFFIX}, at any depth")
        file_names.check_complete(root, _numbered(names))
    elif path.exists() or not glob.has_magic(str(path)):
        root, names = path.parent, [path.name]
    else:
        root, names = _glob(path)
    for name in names:
        _check_name(root, name)
    return root, names


def by_split(root: AnyPath, names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the files of each split, train first.

    A file's split is a word (train, validation, test, ...) in its name or the name of a folder, or, where other files
    have such a word, what stands before `-00000-of-00001`. Without any such word all files are of `train`.

    Raises:
      DataError: a file has two such words, or none where others have one; two words mean one split.
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
    order = file_names.SPLITS
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 9, item[0])))


def _find_remote(source: str) -> tuple[AnyPath, list[str]]:
    root, names, is_folder = remote_listing.find(source, _is_data, recursive=True, kinds=_KINDS)
    if not names:
        raise DataError(f"{root}: holds no *{SUFFIX}, at any depth")
    if is_folder:
        file_names.check_complete(root, _numbered(names))
    return root, names


def _is_data(name: str) -> bool:
    return name.lower().endswith(SUFFIX) and not any(part.startswith(_HIDDEN) for part in name.split("/"))


def _walk(root: pathlib.Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in files:
            path = pathlib.Path(folder, name)
            if name.lower().endswith(SUFFIX) and not name.startswith(_HIDDEN) and path.is_file():
                yield path.relative_to(root).as_posix()


def _glob(pattern: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    fixed = next(number for number, part in enumerate(pattern.parts) if glob.has_magic(part))
    root = pathlib.Path(*pattern.parts[:fixed])
    matches = {pathlib.Path(match) for match in glob.iglob(str(pattern), recursive=True)}
    names = sorted(match.relative_to(root).as_posix() for match in matches if match.is_file())
    if not names:
        raise DataError(f"{pattern}: matches no file")
    return root, names


def _check_name(root: pathlib.Path, name: str) -> None:
    path = root / name
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else "no such file or folder"
        raise DataError(f"{path}: {problem}; {_KINDS}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{path}: its name is not valid UTF-8, and keys are made of it; rename it") from None


def _numbered(names: Sequence[str]) -> Iterator[tuple[str, int, str, str]]:
    """Yields what `file_names.check_complete` takes of the names that count themselves."""
    for name in names:
        path = pathlib.PurePosixPath(name)
        if match := _SHARD.fullmatch(path.stem):
            yield str(path.parent / path.stem[: match.start("index")]), int(match["index"]), match["count"], SUFFIX


def _known_word(root: AnyPath, name: str) -> str:
    path = pathlib.PurePosixPath(name)
    tokens = file_names.words(path.stem)
    words = {token for token in [*tokens, *map(str.lower, path.parts[:-1])] if token in SPLIT_OF_WORD}
    if len({SPLIT_OF_WORD[word] for word in words}) > 1:
        raise DataError(f"{root / name}: is its split {' or '.join(sorted(words))}? rename it")
    return min(words, default="")


def _shard_word(root: AnyPath, name: str, others: Sequence[str]) -> str:
    match = _SHARD.fullmatch(pathlib.PurePosixPath(name).stem)
    if not match or not naming.is_split_name(match["word"]):
        raise DataError(
            f"{root / name}: no split can be told from its name, as {min(others)!r} can from others'; "
            "rename it <split>-00000-of-00001.parquet, or name the files to take with a glob"
        )
    return match["word"]
