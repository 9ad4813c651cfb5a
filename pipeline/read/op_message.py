"""Finds the input's own message in a TensorFlow error: `Assert` escapes it as in C and adds its own words."""

from __future__ import annotations

import re

_ASSERTED = re.compile(r"assertion failed: \[([^\n]*)\]")
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def of_input(message: str) -> str | None:
    """Returns the input's own message inside that of an op's error; None where the error has another cause."""
    asserted = _ASSERTED.search(message)
    return _unescaped(asserted[1]) if asserted else None


def _unescaped(text: str) -> str:
    """Returns a text with its escapes resolved: quotes, and bytes that are not ASCII, written as octal numbers."""

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPES.get(code, code)

    return _ESCAPED.sub(character, text.encode()).decode(errors="replace")
