"""Runs a command in its own process and measures it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import watcher
from pipeline.errors import DataError

_SUMMARY = re.compile(r"([\d,]+) examples/s \(")
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sse4_2": "SSE4.2"}  # by the flag in /proc/cpuinfo
_EXAMPLES = re.compile(r": ([\d,]+) examples? to [\d,]+ shards?")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a command.

    Attributes:
      output: output that it printed.
      wall: seconds from start to end.
      cpu: CPU seconds of the process and its children.
      peak: largest resident memory of the process or one of its children, bytes.
    """

    output: str
    wall: float
    cpu: float
    peak: int

    @property
    def writing(self) -> float:
        """The seconds that a conversion prints: from the start of the Beam pipeline to the published manifest."""
        rate, count = _SUMMARY.search(self.output), _EXAMPLES.search(self.output)
        if not rate or not count:
            raise DataError(f"a conversion printed no rate: {self.output[-200:]!r}")
        return int(count[1].replace(",", "")) / int(rate[1].replace(",", ""))


def processor() -> str:
    """Returns the processor's name and its widest vector extension, which determine the kernels and so the results."""
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set(" ".join(re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)).split())
    widest = next((name for flag, name in _VECTORS.items() if flag in flags), "vector extension unknown")
    return f"{model[1].strip() if model else platform.processor() or platform.machine()}, {widest}"


def say_processor() -> None:
    """Prints the processor, which every result depends on."""
    print(f"processor: {processor()}", flush=True)


def convert(dataset: str, source: pathlib.Path, data_dir: pathlib.Path, *flags: str) -> Run:
    """Converts a data set into a new folder."""
    shutil.rmtree(data_dir, ignore_errors=True)
    arguments = [f"--dataset={dataset}", f"--source={source}", f"--data_dir={data_dir}", *flags]
    return run("beam_jobs.convert", arguments)


def run(module: str, arguments: Sequence[str]) -> Run:
    """Runs `python -m module`, after earlier writes have reached the disk.

    Raises:
      DataError: the command failed; the message has its last line.
    """
    os.sync()
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", watcher.__file__, str(writing), sys.executable, "-m", module, *arguments]
    with (
        open(reading) as taken,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=[writing]
        ) as process,
    ):
        os.close(writing)
        try:
            output = process.stdout.read() if process.stdout else ""
            found = json.loads(taken.read() or '{"code": -1}')
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if found.pop("code"):
        raise DataError(f"{module} failed: {(output.strip().splitlines() or ['no output'])[-1]}")
    return Run(output, **found)
