"""How much memory this process may use, and uses."""

from __future__ import annotations

import os
import pathlib
import resource
import sys
from typing import NamedTuple

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of cgroups v2 and v1

_STATUS = "/proc/self/status"  # Linux


class Used(NamedTuple):
    """Bytes of memory that this process has, now and at most since it began; 0: the system does not say."""

    resident: int
    peak: int


def available() -> int:
    """Returns the bytes of this machine's memory, or of this container's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such cgroup, or `max`
            continue
    return min(limits)


def used() -> Used:
    """Returns the resident memory of this process, mapped files included."""
    try:
        lines = pathlib.Path(_STATUS).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Used(0, peak if sys.platform == "darwin" else peak << 10)
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    resident, peak = (int(sizes[name].split()[0]) << 10 if name in sizes else 0 for name in ("VmRSS", "VmHWM"))
    return Used(resident, peak)
