"""How much memory this process may use."""

from __future__ import annotations

import os
import pathlib

from pipeline.errors import UsageError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of cgroups v2 and v1


def check_fits(needed: int, what: str) -> None:
    """Checks that the machine, or the container, has enough memory.

    Args:
      needed: bytes.
      what: the arguments that need it, for the message.

    Raises:
      UsageError: it has less.
    """
    limit = available()
    if needed > limit:
        raise UsageError(
            f"{what}: needs {needed >> 20:,} MiB on this worker, which has {limit >> 20:,} MiB; give a smaller "
            "shuffle_bytes (another order), or more workers"
        )


def available() -> int:
    """Returns the bytes of this machine's memory, or of this container's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such cgroup, or `max`
            continue
    return min(limits)
