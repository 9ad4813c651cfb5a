"""Parses the values of flags that only conversions have: `train:8,test:2`, paths, a delimiter.

Every function raises UsageError, naming the flag and the value, if the text does not have the form that its docstring
describes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pipeline.errors import UsageError
from pipeline.files import remote
from pipeline.manifest import naming

MAX_SHARDS = 99_999  # five digits in a shard's name
_SUM_TOLERANCE = 1e-9  # decimal fractions need not sum to exactly 1


def check_range(flag: str, value: int, least: int, most: int) -> None:
    """Raises UsageError if `value` is not in least..most."""
    if not least <= value <= most:
        raise UsageError(f"--{flag}={value}: must be in {least}..{most}")


def check_path(flag: str, value: str) -> None:
    """Raises UsageError if `value` is neither a local path nor the URL of a supported store."""
    if remote.is_url(value) and remote.scheme_of(value) not in remote.SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in remote.SCHEMES)
        raise UsageError(f"--{flag}={value}: must be a local path, or one of {schemes}")
    if "\0" in value:
        raise UsageError(f"--{flag}: holds a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise UsageError(f"--{flag}: holds characters that a path cannot have") from None


def numbers_by_split(flag: str, text: str, most: int) -> int | dict[str, int] | None:
    """Returns one number in 1..most, or {split: number} with each split named once; None for an empty text."""
    if not text:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text):
        check_range(flag, int(text), 1, most)
        return int(text)
    numbers: dict[str, int] = {}
    for split, value in _by_split(flag, text, r"[0-9]{1,9}", "a number or split:number"):
        check_range(flag, int(value), 1, most)
        numbers[split] = int(value)
    return numbers


_FRACTION = "split:fraction, as in train:0.8,test:0.2"


def fractions(flag: str, text: str) -> dict[str, float]:
    """Returns {split: fraction}, empty for an empty text: positive, summing to 1, each split named once."""
    if not text:
        return {}
    values = {split: float(value) for split, value in _by_split(flag, text, r"[0-9]*\.?[0-9]+", _FRACTION)}
    if not all(values.values()) or abs(sum(values.values()) - 1) > _SUM_TOLERANCE:
        raise UsageError(
            f"--{flag}={text}: the fractions must be above 0 and sum to 1; they sum to {sum(values.values()):g}"
        )
    return values


def delimiter(flag: str, text: str) -> str:
    """Returns the character that separates the columns of a table; the text may be the word `tab`, or empty."""
    found = "\t" if text in ("tab", "\\t") else text
    if len(found) > 1 or found in ('"', "\n", "\r") or not found.isascii():
        raise UsageError(f"--{flag}={text}: must be one character such as ';', or tab")
    return found


_PATH = "file:"  # prefix of a regular expression that finds a part of the image's path


def column_or_path(flag: str, text: str) -> str:
    """Returns the name of a column, or `file:REGEX` with a valid regular expression that has at most one group."""
    if text.startswith(_PATH):
        try:
            pattern = re.compile(text.removeprefix(_PATH))
        except re.error as error:
            raise UsageError(f"--{flag}={text}: not a regular expression: {error}") from None
        if pattern.groups > 1:
            raise UsageError(
                f"--{flag}={text}: has {pattern.groups} groups (...); at most one; write others as (?:...)"
            )
    return text


def path_pattern(text: str) -> re.Pattern[str] | None:
    """Returns the regular expression of `file:REGEX`; None if the text is the name of a column."""
    return re.compile(text.removeprefix(_PATH)) if text.startswith(_PATH) else None


def defaults(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the texts, each of the form NAME:VALUE; VALUE may be empty."""
    for text in texts:
        if text.find(":") < 1:
            raise UsageError(f"--{flag}={text}: must be NAME:VALUE, the name of a column and the value of its nulls")
    return tuple(texts)


def _by_split(flag: str, text: str, value: str, form: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for part in text.split(","):
        match = re.fullmatch(rf"(\w+):({value})", part.strip())
        if not match or not naming.is_split_name(match[1]):
            raise UsageError(f"--{flag}={text}: {part!r} is not {form}")
        if match[1] in found:
            raise UsageError(f"--{flag}={text}: names split {match[1]!r} twice")
        found[match[1]] = match[2]
    return list(found.items())
