"""Parses the values of flags that conversions alone have: `train:8,test:2`, paths, a delimiter.

Every function raises UsageError, with the flag and the value, where a text has another form than its docstring says.
"""

from __future__ import annotations

import os
import re

from pipeline.errors import UsageError
from pipeline.files import remote
from pipeline.manifest import naming

MAX_SHARDS = 99_999  # five digits in a shard's name
_SUM_TOLERANCE = 1e-9  # of fractions that are written in decimals


def check_range(flag: str, value: int, least: int, most: int) -> None:
    """Raises UsageError where `value` is not in least..most."""
    if not least <= value <= most:
        raise UsageError(f"--{flag}={value}: must be in {least}..{most}")


def check_path(flag: str, value: str) -> None:
    """Raises UsageError where `value` is neither a local path nor the URL of a store that can be reached."""
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
    """Returns one number, {split: number}, each split once, or None of an empty text; numbers must be in 1..most."""
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


def fractions(flag: str, text: str) -> dict[str, float]:
    """Returns {split: fraction}, each split once; empty of an empty text. Fractions must be above 0 and sum to 1."""
    if not text:
        return {}
    values = {split: float(value) for split, value in _by_split(flag, text, r"[0-9]*\.?[0-9]+", "split:fraction")}
    if not all(values.values()) or abs(sum(values.values()) - 1) > _SUM_TOLERANCE:
        raise UsageError(
            f"--{flag}={text}: the fractions must be above 0 and sum to 1; they sum to {sum(values.values()):g}"
        )
    return values


def delimiter(flag: str, text: str) -> str:
    """Returns the character that stands between the columns of a table; `tab` is one. "" of an empty text."""
    found = "\t" if text in ("tab", "\\t") else text
    if len(found) > 1 or found in ('"', "\n", "\r") or not found.isascii():
        raise UsageError(f"--{flag}={text}: must be one character such as ';', or tab")
    return found


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
