"""One prepared measurement of the trainer on a GPU machine, in a few minutes: what bounds a step, as ratios.

    python -m benchmarks.gpu_report --cifar=DIR --photos=DIR [--only=resnet50,torch] [--minutes=8]
    python -m benchmarks.gpu_report --cifar=DIR --photos=DIR --cpu_smoke    # the same code with a tiny model, on a CPU

DIR: converted data sets, CIFAR-10 (`--image_encoding=jpeg` keeps it small) and some hundred JPEGs of 500x375.
Items run one after the other, most important first, each in a process of its own with a time limit; within an item the
contestants take turns. The table and the JSON file are written after every result.

Contestants have one constant batch on the device, unless their name has `input`:
  ours                   the trainer's step with its defaults, 20 steps per inner loop
  ours loop=1, loop=100  other numbers of steps per loop: what the end of a loop costs
  ours jit, nojit        with XLA, without it
  ours V=4               four virtual replicas; in items of that name with op determinism, like `ours` there
  ours input             with the real input; `host`: augmented on the host; `prefetch=0`: without batches ahead
  keras, keras jit       the same model with Keras' own layers in the plainest `tf.function`, without and with XLA
  keras fit              model.fit with its defaults
  torch, torch compile   torchvision's resnet50, channels_last, bfloat16
Ratios are to `ours` of the same round. To measure an older version of the code, copy benchmarks/ there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import inputs
from benchmarks.gpu_items import ITEMS, RESULT, Settings
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.files import write

COMMAND = "benchmarks.gpu_report"
_LEAST = 15.0  # minimum number of seconds for an item
_GRACE = 20.0  # seconds after its limit at which an item is killed
_MOST_OF_A_SMOKE = 900.0  # seconds
_SAMPLED = "utilization.gpu,utilization.memory,clocks.sm,power.draw,memory.used"  # by nvidia-smi
_LAG = 0.3  # seconds that nvidia-smi averages over


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    cifar: str = flag(text="CIFAR-10 as converted")
    photos: str = flag(text="photographs as converted")
    out: str = flag("gpu_report.json", "file for all results")
    minutes: float = flag(8.0, "most minutes for all items", above=0)
    only: str = flag("", "items, separated by commas; all of them by default")
    cpu_smoke: bool = flag(False, "check that everything runs, with a tiny model, on a CPU")

    def __post_init__(self) -> None:
        """Checks the values."""
        inputs.parts_of(self.only, ITEMS)
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the items, and prints the table."""
    config = commandline.parse(COMMAND, "Measure the trainer on a GPU.", BenchmarkConfig, argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Monitor() as monitor:
        report = Report(config, monitor)
        for name in inputs.parts_of(config.only, ITEMS):
            report.run(name)
    print("\n".join(["", *table(report.items), f"{report.elapsed:.0f} s; {config.out}"]), flush=True)


class Monitor:
    """Reads nvidia-smi five times a second, if there is one: utilisation, clock, power, memory."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, list[float]]] = []
        command = ["nvidia-smi", f"--query-gpu={_SAMPLED}", "--format=csv,noheader,nounits", "-i", "0", "-lms", "200"]
        self._process: subprocess.Popen[str] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self) -> Monitor:
        if self._process:
            threading.Thread(target=self._read, args=[self._process.stdout], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.terminate()

    def _read(self, lines: Any) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):  # a field that this GPU lacks
                self._samples.append((time.time(), [float(part) for part in line.split(",")]))

    def between(self, began: float, ended: float) -> list[float] | None:
        """Returns the means of the readings between two times, in the order of the fields; None without readings."""
        found = [values for at, values in list(self._samples) if began + _LAG <= at <= ended]
        return [round(statistics.mean(column), 1) for column in zip(*found, strict=True)] if found else None


class Report:
    """The results, written to a file after each of them.

    Attributes:
      items: results, seconds and exit code of each item.
    """

    def __init__(self, config: BenchmarkConfig, monitor: Monitor) -> None:
        self._config, self._monitor, self._began = config, monitor, time.monotonic()
        self.items: dict[str, dict[str, Any]] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self, name: str) -> None:
        """Runs an item in the remaining time, and prints its table."""
        config, found = self._config, self.items.setdefault(name, {"results": []})
        left = 60 * config.minutes - self.elapsed - 5
        limit = _MOST_OF_A_SMOKE if config.cpu_smoke else min(ITEMS[name].seconds, left)
        if limit < _LEAST:
            found["results"].append({"kind": "skipped", "name": name, "why": "the minutes are over"})
        else:
            print(f"--- {name} (at most {limit:.0f} s, {self.elapsed:.0f} s so far)", flush=True)
            traces = f"{config.out}.{name.replace(' ', '_')}"
            self._run(name, Settings(limit, config.cpu_smoke, config.cifar, config.photos, traces), found)
        self._write()
        print("\n".join(table({name: found})), flush=True)

    def _run(self, name: str, settings: Settings, found: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu_items", name, json.dumps(settings._asdict())]
        errors = pathlib.Path(f"{self._config.out}.{name.replace(' ', '_')}.log")
        began = time.monotonic()
        with (
            errors.open("w") as log,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=_environment(ITEMS[name].kind == "torch"),
            ) as process,
        ):
            killer = threading.Timer(settings.limit + _GRACE, lambda: os.killpg(process.pid, signal.SIGKILL))
            killer.daemon = True
            killer.start()
            try:
                self._read(process.stdout, found)
                process.wait()
            finally:  # also if this process is told to end
                killer.cancel()
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        found |= {"seconds": round(time.monotonic() - began, 1), "exit": process.returncode}
        if process.returncode:
            found["last_lines"] = errors.read_text(errors="replace").splitlines()[-5:]

    def _read(self, lines: Any, found: dict[str, Any]) -> None:
        for line in lines:
            if line.startswith(RESULT):
                result = json.loads(line.removeprefix(RESULT))
                if "began" in result:
                    result["gpu"] = self._monitor.between(result["began"], result["ended"])
                found["results"].append(result)
                self._write()

    def _write(self) -> None:
        config = self._config
        given = {"minutes": config.minutes, "only": config.only, "cpu_smoke": config.cpu_smoke}
        report = {"arguments": given, "items": self.items, "table": table(self.items), "elapsed": self.elapsed}
        write.replace(pathlib.Path(config.out), json.dumps(report, indent=1))


def _environment(bare: bool) -> dict[str, str]:
    """Returns the environment of an item; `bare` leaves out packages and libraries meant for TensorFlow."""
    root, own = str(pathlib.Path(__file__).parents[1]), dict(os.environ)
    if bare:
        own.pop("LD_LIBRARY_PATH", None)
        return {**own, "PYTHONPATH": root}
    return {**own, "PYTHONPATH": os.pathsep.join([root, *filter(None, [own.get("PYTHONPATH")])])}


def table(items: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines about all items."""
    lines: list[str] = []
    for item, found in items.items():
        lines += _rounds(item, found["results"])
        lines += [text for one in found["results"] if (text := _line(item, one))]
        if found.get("exit"):
            lines.append(f"{item}: ended with {found['exit']}: {(found.get('last_lines') or ['?'])[-1][:160]}")
    return [*lines, *_bits(items)]


def _rounds(item: str, results: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each contestant measured in turns."""
    rounds: dict[str, dict[int, dict[str, Any]]] = collections.defaultdict(dict)
    for one in results:
        if one["kind"] == "round":
            rounds[one["name"]][one["round"]] = one
    if not rounds:
        return []
    first = "ours" if "ours" in rounds else next(iter(rounds))
    compiled = {one["name"]: one["seconds"] for one in results if one["kind"] == "made"}
    lines = [
        f"{item}: images/s, ratio to {first} (least to greatest), ms per step, GPU busy %, seconds of the first step"
    ]
    for name, of in rounds.items():
        ratios = sorted(of[n]["rate"] / rounds[first][n]["rate"] for n in of if n in rounds[first])
        busy = [one["gpu"][0] for one in of.values() if one.get("gpu")]
        share = f"{statistics.mean(busy):.0f}" if busy else "-"
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "-"
        rate, ms = (statistics.median(one[field] for one in of.values()) for field in ("rate", "ms"))
        lines.append(f"  {name:24s} {rate:12,.0f}  {ratio:22s} {ms:9.2f}  {share:>4s}  {compiled.get(name, 0):6.1f}")
    return lines


def _line(item: str, one: dict[str, Any]) -> str:
    """Returns the line of a result that is not a round."""
    if one["kind"] == "machine":
        software = ", ".join(f"{name} {one[name]}" for name in ("tensorflow", "torch") if name in one)
        return f"  {software}, {', '.join(one['gpus']) or 'no GPU'}"
    if one["kind"] == "profile":
        longest = ", ".join(f"{name} {ms:.3f}" for name, ms in one["top_ms_per_step"][:6])
        return (
            f"  profile of {one['name']}: {one['kernels_per_step']:.0f} kernels per step, "
            f"{one['kernel_ms_per_step']:.1f} ms of {one['wall_ms_per_step']:.1f} ms busy; most: {longest}"
        )
    if one["kind"] == "input":
        busy = one["gpu"][0] if one.get("gpu") else "-"
        return f"{item}: {one['name']:24s} {one['rate']:12,.0f} rows/s, {one['cores']:.1f} cores busy, GPU busy {busy}"
    if one["kind"] in ("failed", "skipped"):
        return f"  {one['name']}: {one['kind']}: {one['why'][:160]}"
    return ""


def _bits(items: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines that compare the weights of processes and of topologies."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    for item, results in items.items():
        how = "op determinism" if ITEMS[item].is_deterministic else "no determinism"
        for one in results["results"]:
            if one["kind"] == "bits":
                found[how, one["name"]].append(one)
    lines = []
    for (how, name), ones in found.items():
        same = "-" if len(ones) == 1 else "SAME BITS" if len({one["sha256"] for one in ones}) == 1 else "OTHER BITS"
        rates = ", ".join(f"{one['rate']:,.0f}" for one in ones)
        lines.append(
            f"bits, {how}, {name}: {same} in {len(ones)} processes; {rates} images/s; {ones[0]['sha256'][:12]}"
        )
    one, mirrored = (found.get(("op determinism", name)) for name in ("V=4", "V=4 mirrored"))
    if one and mirrored:
        agree = "agree" if one[0]["sha256"] == mirrored[0]["sha256"] else "DIFFER"
        lines.append(f"bits, V=4: one device and mirrored {agree}")
    return lines


if __name__ == "__main__":
    commandline.run(COMMAND, main)
