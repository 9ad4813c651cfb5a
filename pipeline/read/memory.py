"""How much memory this process may use."""

from __future__ import annotations

import os
import pathlib

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of cgroups v2 and v1


def available() -> int:
    """Returns the bytes of this machine's memory, or of this container's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such cgroup, or `max`
            continue
    return min(limits)
