"""Processor time and memory of this process and all processes that it started."""

from __future__ import annotations

import os
import pathlib
import re
import time

_TICKS = os.sysconf("SC_CLK_TCK")


def seconds() -> float:
    """Returns the CPU seconds of this process and its children, running or ended."""
    ended = os.times()
    living = sum(_seconds_of(pid) for pid in _descendants())
    return time.process_time() + ended.children_user + ended.children_system + living


def memory() -> int:
    """Returns the bytes that these processes own, without mapped files; shared memory counts once."""
    return _bytes("smaps_rollup", "Pss_(?:Anon|Shmem)")


def peak() -> int:
    """Returns the sum of these processes' peak resident memory in bytes."""
    return _bytes("status", "VmHWM")


def _bytes(file: str, field: str) -> int:
    """Returns the sum of a field of a file in /proc over all these processes."""
    texts = [_read(pathlib.Path(f"/proc/{pid}/{file}")) for pid in (os.getpid(), *_descendants())]
    found = [kib for text in texts for kib in re.findall(rf"^{field}:\s*(\d+) kB", text, re.MULTILINE)]
    return sum(int(kib) << 10 for kib in found)


def _descendants() -> list[int]:
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, level = [], {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def _seconds_of(pid: int) -> float:
    """Returns the CPU seconds of a process and its ended children."""
    fields = _read(pathlib.Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""
