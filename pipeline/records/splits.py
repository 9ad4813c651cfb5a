"""The rules that divide a source's rows into splits, the same for all sources.

A split column decides if there is one; otherwise words in file and folder names (`test.parquet`, `Split-eval/`,
`split=train/`); otherwise all rows are training data. Anything ambiguous is refused, and so is anything that looks like
splits but would not be used: test data in the training split goes unnoticed until it is too late.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.files.paths import StoragePath
from pipeline.manifest import naming
from pipeline.records import tf_example
from pipeline.records.schema import kind

TRAIN = "train"
_OF_WORD = {  # {word: our split}
    "train": ("train", "training", "trainset", "trainingset"),
    "validation": ("validation", "valid", "val", "dev", "valset", "validset", "validationset", "devset"),
    "test": ("test", "testing", "eval", "evaluation", "testset", "testingset", "evalset"),
}
SPLIT_OF_WORD = {word: split for split, words in _OF_WORD.items() for word in words}
SPLITS = tuple(_OF_WORD)
NO_COLUMN = "none"  # value of --split_column if no column has splits
_COLUMN = "split"  # a column or Hive partition of this name always means the split
# Columns and partitions with these names hold splits if some of their values contain split words.
_LIKE = (
    *("splits", "splitname", "datasplit", "set", "subset", "setname", "dataset", "datatype", "partition", "usage"),
    *("phase", "stage", "mode", "fold", "purpose", "traintest", "traintestsplit", "trainvaltest"),
)
# Names of columns for whether a row is in one particular split: is_train, is_training_image.
_IS = re.compile(r"is(a|in)?(train|training|test|testing|val|valid|validation|eval)(image|set|split|sample|row)?")
_TRUTHS = {
    **dict.fromkeys(("true", "yes", "1", "1.0", "t", "y"), True),
    **dict.fromkeys(("false", "no", "0", "0.0", "f", "n"), False),
}
_SHARD = re.compile(r"(?:.*-)?(?P<word>[^-]+)-\d{5,}-of-\d{5,}(?:-[0-9a-f]+)?(?:\..*)?")
_NUMBERED = re.compile(r"(?P<head>.*-)(?P<index>\d{5,})-of-(?P<count>\d{5,})(?:-[0-9a-f]+)?(?P<tail>.*)")
_PARTITION = re.compile(r"(?P<name>[^=]+)=(?P<value>.*)", re.DOTALL)
_SHOWN = 3  # most values in errors
_NULL = "__HIVE_DEFAULT_PARTITION__"


def words(name: str) -> list[str]:
    """Returns the words and numbers in a name, in lower case: test, images and 2 for `TestImages_2`."""
    parts = re.split(r"[-._ ]|(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)", name)
    return [part.lower() for part in parts if part]


def in_order(splits: Iterable[str]) -> list[str]:
    """Returns split names in order: train, validation and test first, then the others, sorted."""
    return sorted(splits, key=lambda split: (SPLITS.index(split) if split in SPLITS else len(SPLITS), split))


def among(splits: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Returns the splits in --splits, in order; all without the flag.

    Raises:
      UsageError: the source lacks one of them.
    """
    there = list(splits)
    found = [each if each in there else SPLIT_OF_WORD.get(each.lower(), each) for each in wanted]
    for split, given in zip(found, wanted, strict=True):
        if split not in there:
            raise unknown("--splits", given, there)
    return [split for split in there if not wanted or split in found]


def of_value(value: str, is_given: bool) -> str:
    """Returns the split that a split column's value stands for; "" if none.

    Args:
      value: value of the column.
      is_given: whether the user named the column, so that any split name counts.
    """
    return SPLIT_OF_WORD.get(value.lower(), value if is_given and naming.is_split_name(value) else "")


def not_a_split(value: str, column: str) -> str:
    """Returns advice about a split column's value that does not mean a split."""
    if naming.is_split_name(value):
        return f"it must be train, validation or test, unless --split_column={column} is given"
    return f"it must be train, validation or test; --split_column={NO_COLUMN} ignores the column"


def column_of(columns: Sequence[str], given: str) -> str:
    """Returns the name of the split column: the given one, or one called `split`; "" if there is none."""
    if given:
        return "" if given == NO_COLUMN else given
    return next((name for name in columns if _plain(name) == _COLUMN), "")


def suspects(columns: Sequence[str], texts: Sequence[str], given: str) -> list[str]:
    """Returns the names of columns that may hold splits although they are not called `split`.

    `texts` are the names of the columns with strings, `given` is the value of --split_column.
    """
    if given or column_of(columns, ""):
        return []
    return [name for name in columns if _IS.fullmatch(_plain(name)) or (name in texts and _plain(name) in _LIKE)]


def check_suspect(
    path: object, column: str, values: Iterable[object], named: Iterable[str], kind: str = "column", advice: str = ""
) -> None:
    """Raises DataError if a column that is not used as the split column looks like one.

    It does if any value stands for a different split than all rows would get, or only some values stand for that split:
    only the user knows whether the other rows are training data.

    Args:
      path: path of the file, for the error.
      column: column name returned by `suspects`.
      values: values of the column, None for missing ones.
      named: splits in file names.
      kind: description of the column, for the error.
      advice: advice on what to do; empty to name the flags that decide.
    """
    usual = frozenset(named) or {TRAIN}
    if len(usual) > 1:
        return
    found: dict[
        tuple[frozenset[str], bool | None], str
    ] = {}  # {(splits that it means, its truth value): the first such text}
    for value in values:
        text = "" if value is None else str(value).strip()
        means = frozenset(SPLIT_OF_WORD[word] for word in words(text) if word in SPLIT_OF_WORD)
        group = (means, _TRUTHS.get(text.lower()))
        found[group] = min(text, found.get(group, text))
    shown = sorted(found.values(), key=lambda text: (not text, text))
    meanings, truths = [means for means, _ in found], {truth for _, truth in found}
    if _IS.fullmatch(_plain(column)) and True in truths and (False in truths or "" in shown):
        raise DataError(
            f"{kind} {column!r} has {_listed(shown)}, which looks like splits",
            path=path,
            advice=advice
            or f"write a column {_COLUMN!r} of train and test instead, or give --split_column={NO_COLUMN}",
        )
    if any(meanings) and any(means != usual for means in meanings):
        shown = [text for _, text in sorted(found.items(), key=lambda item: (not item[0][0], item[1]))]
        raise DataError(
            f"{kind} {column!r} has {_listed(shown)}, which look like splits",
            path=path,
            advice=advice or f"give --split_column={column}, or --split_column={NO_COLUMN} if they are none",
        )


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts[:_SHOWN]))


@dataclasses.dataclass(frozen=True)
class SuspectFeatures:
    """Record features that may hold splits, in files without splits in their names; only all values together decide.

    Attributes:
      values: {feature: values in the records seen so far, None for none or several}.
      advice: advice if a feature looks like splits.
    """

    values: Mapping[str, set[str | None]] = dataclasses.field(default_factory=dict)
    advice: str = ""

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], file: str, own: Sequence[str], advice: str) -> SuspectFeatures:
        """Returns the suspects among the features of the first records of a file.

        Args:
          records: decoded Examples.
          file: path of the file, for errors.
          own: features whose meaning is known: image, label, key.
          advice: advice if a feature looks like splits.

        Raises:
          DataError: a feature is called `split`.
        """
        kinds = {name: kind(values) for record in records for name, values in record.items() if name not in own}
        if name := column_of([*kinds], ""):
            texts = sorted({text for record in records if (text := _text(record.get(name, []))) is not None})
            shown = ", ".join(map(repr, texts[:_SHOWN])) or f"values of {kinds[name]}"
            problem = f"feature {name!r} has {shown}, which looks like each record's split"
            raise DataError(problem, path=file, advice=advice)
        found = suspects([*kinds], [name for name, of in kinds.items() if of == "bytes"], "")
        return cls({name: set() for name in found}, advice)

    def see(self, record: bytes) -> None:
        """Collects the values of a record; several threads may call it at the same time."""
        if self.values:
            with contextlib.suppress(ValueError):
                features = tf_example.decode(record, [*self.values])
                for name, seen in self.values.items():
                    seen.add(_text(features.get(name, [])))

    def check(self, path: object, named: Iterable[str]) -> None:
        """Raises DataError if the values of a feature look like splits; `named` are the splits in file names."""
        for name, seen in self.values.items():
            check_suspect(path, name, seen, named, "feature", self.advice)


def _text(values: Any) -> str | None:
    """Returns the only value of a feature as text; None if there is not exactly one."""
    if len(values) != 1:
        return None
    return values[0].decode(errors="replace") if isinstance(values[0], bytes) else str(values[0])


def check_name(path: object, row: int, by_name: str, by_column: str, column: str) -> None:
    """Raises DataError if a column makes a row training data but the file's name stands for another split."""
    if by_name and by_name != TRAIN and by_column == TRAIN:
        raise DataError(
            f"its split is {by_column!r} by column {column!r}, but {by_name!r} by the name of its file",
            path=path,
            part=f"row {row}",
            advice=f"--split_column={column} takes the column, --split_column={NO_COLUMN} the name",
        )


def partitions(name: str) -> dict[str, str | None]:
    """Returns {column: value} for folders `column=value` in a path, as written by Hive for partitions."""
    matches = (_PARTITION.fullmatch(part) for part in pathlib.PurePosixPath(name).parts[:-1])
    pairs = [(match["name"], urllib.parse.unquote(match["value"])) for match in matches if match]
    return {column: None if value == _NULL else value for column, value in pairs}


def is_of_split(column: str, value: str | None) -> bool:
    """Returns whether a partition holds splits: called `split`, or similarly with a split word as value."""
    is_word = (value or "").lower() in SPLIT_OF_WORD
    return _plain(column) == _COLUMN or (_plain(column) in _LIKE and is_word)


def of_folder(name: str) -> str:
    """Returns the split that a whole folder name stands for, such as `Val` or `split=test`; "" if none."""
    match = _PARTITION.fullmatch(name)
    if match:
        return of_value(match["value"], True) if is_of_split(match["name"], match["value"]) else ""
    return SPLIT_OF_WORD.get(name.lower(), "")


def in_folder(name: str) -> str:
    """Returns the split that a word in a folder name stands for, as in `test_images`; "" for none or several."""
    found = {SPLIT_OF_WORD[word] for word in words(name) if word in SPLIT_OF_WORD}
    return of_folder(name) or (found.pop() if len(found) == 1 and "=" not in name else "")


def named(root: StoragePath, name: str) -> str:
    """Returns the split word in the name or the folders of a file of the source `root`; "" if there is none.

    Raises:
      DataError: there are words for several splits.
    """
    found = _told(name)
    for column, value in partitions(name).items():
        if _plain(column) == _COLUMN and not of_value(value or "", True):
            problem = f"the folder {column}={value} names no split"
            raise DataError(
                problem, path=root / name, advice="a name has letters, digits and _ only; rename the folder"
            )
    if len(found) > 1:
        advice = "rename it, or name the files of one split with a glob"
        raise DataError(f"is its split {' or '.join(sorted(found.values()))}?", path=root / name, advice=advice)
    return min(found.values(), default="")


def _told(name: str) -> dict[str, str]:
    """Returns {split: word} for the split words in a file's path."""
    path = pathlib.PurePosixPath(name)
    found: dict[str, str] = {}
    for part in (*path.parts[:-1], path.stem):
        match = _PARTITION.fullmatch(part)
        tokens = [match["value"]] if match and is_of_split(match["name"], match["value"]) else []
        for token in tokens if match else words(part):
            if split := of_value(token, is_given=bool(match)):
                found.setdefault(split, token)
    return found


def hint(name: str) -> str:
    """Returns the split that the words in a file's path stand for; "" for none or several."""
    found = _told(name)
    return next(iter(found)) if len(found) == 1 else ""


def by_files(root: StoragePath, names: Sequence[str], wanted: Sequence[str] = ()) -> dict[str, list[str]]:
    """Returns the files of each split, train first.

    A file's split is the word train, validation, test, ... in its name or a folder's name, or the value of the
    partition `split=...`. If only other files have such a word, it is the word before `-00000-of-00001`. If no file has
    one, all files belong to `train`.

    Args:
      root: folder of the source, for errors.
      names: paths of the files in it.
      wanted: splits in --splits. If files belong to any of them, only these files are returned.

    Raises:
      DataError: a file has words for several splits, or none while others do; or two words stand for the same split.
    """
    known = {name: named(root, name) for name in names}
    if not any(known.values()):
        return {TRAIN: list(names)}
    found: dict[str, dict[str, list[str]]] = {}  # {split: {word: files}}
    for name in names:
        word = known[name] or _shard_word(root, name, [word for word in known.values() if word], bool(wanted))
        if word:
            split = SPLIT_OF_WORD.get(word.lower(), word)
            found.setdefault(split, {}).setdefault(word.lower(), []).append(name)
    own = {*wanted, *(SPLIT_OF_WORD.get(each.lower(), each) for each in wanted)}
    chosen = in_order(own.intersection(found) or found)
    for split in chosen:
        if len(found[split]) > 1:
            one, other, *_ = found[split]
            raise DataError(
                f"holds files of {one!r} and of {other!r}, which both mean split {split!r}",
                path=root,
                advice="rename them, or name the files of one with a glob",
            )
    return {split: next(iter(found[split].values())) for split in chosen}


def _shard_word(root: StoragePath, name: str, others: Sequence[str], may_be_left_out: bool) -> str:
    path = pathlib.PurePosixPath(name)
    match = _SHARD.fullmatch(path.name)
    if match and naming.is_split_name(match["word"]):
        return match["word"]
    if may_be_left_out:
        return ""
    raise DataError(
        f"its name does not tell its split, unlike other names ({min(others)!r})",
        path=root / name,
        advice=f"rename it <split>-00000-of-00001{path.suffix}, or name the files to take with a glob; "
        f"--splits={','.join(in_order({SPLIT_OF_WORD.get(word.lower(), word) for word in others}))} leaves it out",
    )


def check_complete(root: StoragePath, names: Iterable[str]) -> None:
    """Raises DataError if a file of a numbered set in a folder is missing, as after an interrupted download."""
    counted: dict[tuple[str, str, str], dict[int, str]] = {}  # {set: {number: compression of its file}}
    for name in names:
        plain = naming.unpacked(name)
        if match := _NUMBERED.fullmatch(plain):
            of_set = counted.setdefault((match["head"], match["count"], match["tail"]), {})
            of_set[int(match["index"])] = name.removeprefix(plain)
    for (head, count, tail), found in counted.items():
        missing = next((index for index in range(min(int(count), len(found) + 1)) if index not in found), None)
        if missing is not None:
            raise DataError(
                f"is missing; the folder has {len(found):,} of {count_of(int(count), 'file')}",
                path=root / f"{head}{missing:0{len(count)}d}-of-{count}{tail}{next(iter(found.values()))}",
                advice="get it, or name the files to take with a glob",
            )


def check_packed_once(root: object, names: Iterable[str]) -> None:
    """Raises DataError if a file exists twice, as `x` and compressed as `x.gz`: its rows would be read twice."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if (other := found.setdefault(naming.unpacked(name), name)) != name:
            raise DataError(
                f"holds both {other} and {name}, which are one file", path=root, advice="remove one of them"
            )


def check_paths(path: object, folders: Iterable[tuple[int, str]]) -> None:
    """Raises DataError if a table names images in folders of several splits but has no column of splits.

    `folders` has (row, path of a file) for some rows.
    """
    first: dict[str, tuple[int, str]] = {}
    for row, name in folders:
        for part in pathlib.PurePosixPath(name).parts[:-1]:
            if split := of_folder(part):
                first.setdefault(split, (row, name))
    if len(first) > 1:
        (row, one), (_, other) = sorted(first.values())[1], sorted(first.values())[0]
        raise DataError(
            f"{one} and {other} lie in folders of different splits, but the table has no column of splits",
            path=path,
            part=f"row {row}",
            advice=f"add a column {_COLUMN!r}; with --split_column={NO_COLUMN} all rows are training data",
        )


def check_flag(column: str, dataset: str) -> None:
    """Raises UsageError if --split_column is given for a source without columns."""
    if column not in ("", NO_COLUMN):
        raise UsageError(
            f"--split_column={column}: {dataset} has splits by the names of files and folders only; "
            f"--split_column={NO_COLUMN} ignores a feature that looks like splits"
        )


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
