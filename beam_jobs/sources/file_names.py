"""What the names of files say: which split they are of, and which of how many they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

from beam_jobs.storage.paths import AnyPath
from pipeline.errors import DataError

SPLIT_OF_WORD = {  # the words that Hugging Face knows, and our names
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
SPLITS = tuple(dict.fromkeys(SPLIT_OF_WORD.values()))


def words(name: str) -> list[str]:
    """Returns the words of a file's name, in small letters; a number is one of its own."""
    return re.split(r"[-._ ]|(?<=[a-z])(?=\d)", name.lower())


def check_complete(folder: AnyPath, numbered: Iterable[tuple[str, int, str, str]]) -> None:
    """Checks that of files which count themselves none is missing: a download that was broken off looks like that.

    Args:
      folder: that they are in.
      numbered: (what stands before the number, number, digits of how many there are, what stands behind) of each name.

    Raises:
      DataError: one is missing; it is named.
    """
    counted: dict[tuple[str, str, str], set[int]] = {}
    for head, index, count, tail in numbered:
        counted.setdefault((head, count, tail), set()).add(index)
    for (head, count, tail), found in counted.items():
        missing = next((index for index in range(min(int(count), len(found) + 1)) if index not in found), None)
        if missing is not None:
            raise DataError(
                f"{folder / head}{missing:0{len(count)}d}-of-{count}{tail}: is missing, and {len(found)} of "
                f"{int(count)} files are there; get it, or name the files to take with a glob"
            )
