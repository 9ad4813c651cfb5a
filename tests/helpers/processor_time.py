"""Prints the tests and files that cost the most processor time, of this process and its children.

A test's time includes that of the fixtures which were made for it. Of workers of xdist, the reports are merged.
"""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Iterator

import pytest

SLOWEST = 20
FIRST_OF_CHILDREN = 11  # utime, stime, cutime, cstime in /proc/PID/stat, counted behind the name


def processor_seconds() -> float:
    """Returns the processor time used so far by this process and its children, running or ended."""
    ticks = 0
    # With the hundred threads of TensorFlow, to look for the children of each takes 1 ms.
    for thread in os.listdir("/proc/self/task") if _has_children() else ():
        for pid in _text(f"/proc/self/task/{thread}/children").split():
            stat = _text(f"/proc/{pid}/stat")
            ticks += sum(map(int, stat.rpartition(")")[2].split()[FIRST_OF_CHILDREN : FIRST_OF_CHILDREN + 4]))
    return sum(os.times()[:4]) + ticks / os.sysconf("SC_CLK_TCK")


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _text(path: str) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:  # the thread or the process has ended
        return ""


class _Meter:
    """Splits the time since it was made into laps."""

    def __init__(self) -> None:
        self._last = processor_seconds()

    def lap(self) -> float:
        last, self._last = self._last, processor_seconds()
        return self._last - last


_meter = _Meter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Notes in a test's last report the seconds since that of the test before it."""
    report = yield
    if report.when == "teardown":
        report.processor_seconds = _meter.lap()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the most expensive tests, then all files that cost a second or more."""
    tests: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += getattr(report, "processor_seconds", 0.0)
    files: collections.Counter[str] = collections.Counter()
    for name, seconds in tests.items():
        files[name.partition("::")[0]] += seconds
    terminalreporter.section(f"{SLOWEST} slowest of {sum(files.values()):.0f} s of processor time")
    for counts in (files, tests):
        for name, seconds in counts.most_common(SLOWEST):
            terminalreporter.write_line(f"{seconds:7.1f} s {name}")
