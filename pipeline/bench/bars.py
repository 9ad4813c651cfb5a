"""Bars of text: blocks where the output can show them, colours on a terminal that wants them."""

from __future__ import annotations

import os
import shutil
import sys

_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_FULL = "\u2588"
_PLAIN = "#"
_BOUND, _OTHER, _RESET = "\033[33m", "\033[36m", "\033[0m"  # yellow, cyan
_COLUMNS = 80  # where there is no terminal


class Bars:
    """Draws bars for standard output."""

    def __init__(self) -> None:
        """Looks at what standard output can show."""
        self.is_terminal = sys.stdout.isatty()
        self.has_colors = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.columns = shutil.get_terminal_size((_COLUMNS, 24)).columns if self.is_terminal else _COLUMNS
        self._has_blocks = self.is_terminal and _can_encode(_FULL + _EIGHTHS, sys.stdout.encoding)

    def bar(self, share: float, width: int, is_bound: bool) -> str:
        """Returns the bar of a share 0..1, of `width` columns at most; what bounds the input has another colour."""
        eighths = round(min(max(share, 0.0), 1.0) * width * 8)
        if self._has_blocks:
            text = _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        else:
            text = _PLAIN * round(eighths / 8)
        return f"{_BOUND if is_bound else _OTHER}{text}{_RESET}" if self.has_colors and text else text


def _can_encode(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
