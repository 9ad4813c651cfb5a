"""The GPUs of this machine, divided among the workers."""

from __future__ import annotations

import os
import re
import subprocess

from pipeline.commands.text import count_of
from pipeline.errors import UsageError

VARIABLE = "CUDA_VISIBLE_DEVICES"
NONE = "-1"  # its value for a process that may use none
_GPU = re.compile(r"GPU (\d+):")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_SECONDS = 30  # nvidia-smi needs some where the driver has to wake up


def found() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (visible := os.environ.get(VARIABLE)) is not None:
        names = [name.strip() for name in visible.split(",")]
        end = next((i for i, name in enumerate(names) if name in ("", NONE)), len(names))  # as CUDA reads it
        return names[:end]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parsed(listed.stdout)


def parsed(listing: str) -> list[str]:
    """Returns the GPUs of a listing of `nvidia-smi -L`: the parts of those that are divided (MIG), and the others."""
    gpus: list[str] = []
    whole = None
    for line in listing.splitlines():
        if match := _GPU.match(line):
            whole = match[1]
            gpus.append(whole)
        elif match := _PART.match(line):
            if whole is not None:
                gpus.remove(whole)
                whole = None
            gpus.append(match[1])
    return gpus


def divided(gpus: list[str], num_workers: int, per_worker: int | None) -> list[tuple[str, ...]]:
    """Returns the GPUs of each worker; all have as many.

    Args:
      gpus: of this machine.
      num_workers: who share them.
      per_worker: how many each gets; None: as many as there are for each.

    Raises:
      UsageError: there are not so many.
    """
    if not gpus and not per_worker:
        return [()] * num_workers
    each = len(gpus) // num_workers if per_worker is None else per_worker
    if per_worker is None and each == 0:
        raise UsageError(
            f"--num_workers={num_workers}: this machine has {count_of(len(gpus), 'GPU')}, and each worker needs its "
            "own; start fewer workers, or train on CPUs with --gpus_per_worker=0"
        )
    if num_workers * each > len(gpus):
        raise UsageError(
            f"--gpus_per_worker={each}: {count_of(num_workers, 'worker')} need {num_workers * each} GPUs, and this "
            f"machine has {len(gpus)}"
        )
    return [tuple(gpus[i * each : (i + 1) * each]) for i in range(num_workers)]
