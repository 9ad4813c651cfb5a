"""The launcher's output about a job: lines, and a table on a terminal."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from pipeline import errors
from pipeline.commands import commandline
from trainer.callbacks.terminal import without_time
from trainer.journal import Event, JobReport, Kind, ProcessReport

if TYPE_CHECKING:
    from rich.table import Table

_COMMAND = "trainer.launch"


class Screen:
    """Prints plain lines. If stdout or stderr is gone, as when a terminal closes, the job continues without it.

    Lines can be held back, so that the cause of a failure is printed before its consequences.

    Args:
      hides_time: whether a date and time at the start of a line are omitted on a terminal.
      events: file to which the launcher's own lines are appended, for `trainer.watch`; None for no file.

    Attributes:
      name_width: width of the names in front of lines.
    """

    def __init__(self, hides_time: bool = False, events: pathlib.Path | None = None) -> None:
        self._events = events
        self._hides_time = hides_time and sys.stdout.isatty()
        self._held: list[tuple[str, str, bool]] | None = None
        self.name_width = 0

    def line(self, name: str, text: str, is_error: bool) -> None:
        """Prints a line of a process."""
        if self._held is not None:
            self._held.append((name, text, is_error))
        else:
            shown = without_time(text) if self._hides_time and not is_error else text
            self._show(f"{name:<{self.name_width}} | ", shown, is_error)

    def say(self, text: str, kind: Kind = "job") -> None:
        """Prints a line of the launcher itself, and adds it to the file of events."""
        self._show(f"{errors.name_of(_COMMAND)}: ", text, is_error=True)
        self.note(text, kind)

    def note(self, text: str, kind: Kind = "job") -> None:
        """Adds an event to the file of events, without printing it."""
        if self._events is not None:
            Event(round(time.time(), 3), kind, text).append(self._events)

    def hold(self) -> None:
        """Holds back the processes' lines from now on."""
        self._held = [] if self._held is None else self._held

    def release(self) -> None:
        """Prints the lines that were held back."""
        held, self._held = self._held or [], None
        for line in held:
            self.line(*line)

    @property
    def is_due(self) -> bool:
        """Whether the job's state should be shown again."""
        return False

    def update(self, report: JobReport) -> None:
        """Shows the job's state."""

    def close(self) -> None:
        """Prints the lines that are still held back."""
        self.release()

    def _show(self, prefix: str, text: str, is_error: bool) -> None:
        _write(sys.stderr if is_error else sys.stdout, f"{prefix}{text}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # the reader is gone; at exit, Python would try again to write the rest
        with contextlib.suppress(OSError, ValueError):
            commandline.discard(stream)


_BETWEEN = 0.25  # seconds between drawings
_COLUMNS = ("process", "pid", "phase", "step", "examples/s", "input wait", "restarts", "last error")
_RIGHT = ("pid", "step", "examples/s", "input wait", "restarts")
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")


class TableScreen(Screen):
    """Prints lines, with the table below them. Draws in this thread: the launcher forks, so it must not have others."""

    def __init__(self, hides_time: bool = False, events: pathlib.Path | None = None) -> None:
        from rich.console import Console  # noqa: PLC0415, rich is slow to load, and only needed on terminals
        from rich.live import Live  # noqa: PLC0415

        super().__init__(hides_time, events)
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._drawn, self._shares, self._is_gone = 0.0, sys.stdout.isatty(), False

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the table was last drawn."""
        return time.monotonic() - self._drawn >= _BETWEEN

    def update(self, report: JobReport) -> None:
        """Draws the table again."""
        self._drawn = time.monotonic()
        self._safely(lambda: self._live.update(table_of(report), refresh=True))

    def close(self) -> None:
        """Stops drawing; the last table stays on the screen."""
        super().close()
        self._safely(self._live.stop)

    def _safely(self, draw: Callable[[], object]) -> None:
        if not self._is_gone:
            try:
                draw()
            except OSError:  # the terminal was closed: the job saves and ends
                self._is_gone = True

    def _show(self, prefix: str, text: str, is_error: bool) -> None:
        if not is_error and not self._shares:  # stdout is redirected
            super()._show(prefix, text, is_error)
            return
        from rich.text import Text  # noqa: PLC0415

        line = Text(prefix, style=_COLOURS[sum(prefix.encode()) % len(_COLOURS)])
        self._safely(lambda: self._console.print(line + Text.from_ansi(text), soft_wrap=True))


def table_of(report: JobReport) -> Table:
    """Returns the table that shows a job."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    of = "" if report.last_step is None else f" of {report.last_step:,}"
    step = "" if report.step is None else f", step {report.step:,}{of}"
    lost = f", slots given up: {', '.join(map(str, report.lost))}" if report.lost else ""
    table = Table(
        title=f"{report.state}{step}, restarts {report.restarts}{lost}", title_justify="left", title_style="bold"
    )
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=name != "last error")
    for process in report.processes:
        table.add_row(*map(Text, _cells(process)))
    return table


def _cells(process: ProcessReport) -> tuple[str, ...]:
    speed, wait = process.examples_per_second, process.input_wait
    return (
        process.name,
        str(process.pid or ""),
        process.phase if process.state == "running" else process.state,
        "" if process.step is None else f"{process.step:,}",
        "" if speed is None else f"{speed:,.0f}",
        "" if wait is None else f"{wait:.0%}",
        str(process.restarts),
        process.last_error or "",
    )
