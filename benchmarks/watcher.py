"""Runs a command and writes its cost, as JSON, to a file descriptor: `python watcher.py DESCRIPTOR COMMAND...`.

On Linux, a process's peak memory includes that of the process that started it. A benchmark holds data; this process
has just started and holds nothing, so the command's peak is its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def main(descriptor: int, command: list[str]) -> None:
    """Writes {exit code, seconds, CPU seconds, bytes of the peak} once the command has ended."""
    began = time.perf_counter()
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, lambda number, _: process.send_signal(number))
    _, status, usage = os.wait4(process.pid, 0)
    found = {
        "code": os.waitstatus_to_exitcode(status),
        "wall": time.perf_counter() - began,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss << 10,
    }
    with open(descriptor, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
