"""A live table below the lines, on a terminal."""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainer.launching.local.report import JobReport, ProcessReport
from trainer.launching.local.screen import Screen

_BETWEEN = 0.25  # seconds from one drawing to the next
_COLUMNS = ("process", "pid", "phase", "step", "examples/s", "input wait", "restarts", "last error")
_RIGHT = ("pid", "step", "examples/s", "input wait", "restarts")
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")


class TableScreen(Screen):
    """Lines, and below them the table. It draws in this thread: the launcher forks, and must have no other."""

    def __init__(self, hides_time: bool = False, events: pathlib.Path | None = None) -> None:
        super().__init__(hides_time, events)
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._drawn, self._shares, self._is_gone = 0.0, sys.stdout.isatty(), False

    @property
    def is_due(self) -> bool:
        """Whether the last table was drawn long enough ago."""
        return time.monotonic() - self._drawn >= _BETWEEN

    def update(self, report: JobReport) -> None:
        """Draws the table again."""
        self._drawn = time.monotonic()
        self._safely(lambda: self._live.update(table_of(report), refresh=True))

    def close(self) -> None:
        """Leaves the last table."""
        super().close()
        self._safely(self._live.stop)

    def _safely(self, draw: Callable[[], object]) -> None:
        if not self._is_gone:
            try:
                draw()
            except OSError:  # the terminal was closed; the job saves and ends
                self._is_gone = True

    def _show(self, prefix: str, text: str, is_error: bool) -> None:
        if not is_error and not self._shares:  # stdout goes elsewhere
            super()._show(prefix, text, is_error)
            return
        line = Text(prefix, style=_COLOURS[sum(prefix.encode()) % len(_COLOURS)])
        self._safely(lambda: self._console.print(line + Text.from_ansi(text), soft_wrap=True))


def table_of(report: JobReport) -> Table:
    """Returns the table of a job."""
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
