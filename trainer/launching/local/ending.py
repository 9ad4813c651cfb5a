"""How a process ended, and whether it is worth starting again."""

from __future__ import annotations

import dataclasses
import signal

from pipeline.errors import EXIT_DATA, EXIT_RERUN, EXIT_USAGE

_MEANINGS = {
    EXIT_DATA: "bad data, or an error in the program",
    EXIT_USAGE: "a flag cannot work",
    EXIT_RERUN: "not done, to be resumed",
}
_SIGNALS = 128  # exit codes above it are those of a shell for signals


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a process.

    Attributes:
      code: minus the signal that killed it, or its exit code.
      silence: why the launcher killed it; empty: it did not.
    """

    code: int
    silence: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the process did what it was to do."""
        return self.code == 0

    @property
    def is_restartable(self) -> bool:
        """Whether the same command may succeed when it is run again."""
        return self.code not in (0, EXIT_DATA, EXIT_USAGE)

    @property
    def exit_code(self) -> int:
        """As a shell gives it: 128 + the signal."""
        return _SIGNALS - self.code if self.code < 0 else self.code

    def __str__(self) -> str:
        """What happened to the process."""
        if self.silence:
            return f"{self.silence}, and was killed"
        if self.code < 0 or self.code > _SIGNALS:
            return f"was killed by {_name_of(self.exit_code - _SIGNALS)}"
        meaning = _MEANINGS.get(self.code)
        return f"ended with exit code {self.code}{f' ({meaning})' if meaning else ''}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
