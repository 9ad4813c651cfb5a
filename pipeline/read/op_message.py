"""What the input says through TensorFlow, whose `Assert` escapes it as in C and puts its own words around."""

from __future__ import annotations

import re

_ASSERTED = re.compile(r"assertion failed: \[([^\n]*)\]")
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def of_input(message: str) -> str | None:
    """Returns the input's own words in the message of an op's error; None: the error is another one."""
    asserted = _ASSERTED.search(message)
    return _unescaped(asserted[1]) if asserted else None


def _unescaped(text: str) -> str:
    """Returns a text with its quotes, and its bytes that are not ASCII, which stand there as octal numbers."""

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPES.get(code, code)

    return _ESCAPED.sub(character, text.encode()).decode(errors="replace")
