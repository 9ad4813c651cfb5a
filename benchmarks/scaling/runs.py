"""Training jobs to measure: each worker on a core of its own, or replicas on GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from benchmarks.scaling import links
from benchmarks.scaling.step_model import Link
from benchmarks.topology import configs_of, free_addresses
from pipeline.errors import DataError

_LINE = re.compile(r"step \d+, loss = (\S+) \(([\d.]+) examples/sec; ")
# Lines of a run, of which the second half counts. Asynchronous workers print theirs together: more lines, so that one #
# more or less matters little.
_LINES, _ASYNCHRONOUS_LINES = 8, 32
_PORTS = 29_500  # first port; a namespace has its own ports
_SMI = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
_SMI_SECONDS = 1.0  # between readings


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of a job.

    Attributes:
      rate: rate in examples per second.
      loss: mean loss over the epoch so far, at the end.
      busy: share of the time in which steps did not wait for input; None if not measured.
      gpu_use: mean GPU utilisation according to nvidia-smi, as a share; None without GPUs.
    """

    rate: float
    loss: float
    busy: float | None = None
    gpu_use: float | None = None


@dataclasses.dataclass(frozen=True)
class _Process:
    """A process to start: flags of the trainer, and where to run."""

    flags: Sequence[str]
    tf_config: str = ""
    core: int | None = None  # None for any
    prefix: Sequence[str] = ()

    def start(self, module: str) -> subprocess.Popen[str]:
        cores = sorted(os.sched_getaffinity(0))
        pin = [] if self.core is None else ["taskset", "-c", str(cores[self.core])]
        return subprocess.Popen(
            [*self.prefix, *pin, sys.executable, "-m", module, *self.flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TF_CONFIG": self.tf_config},
        )


def alone(flags: Sequence[str], steps: int) -> Run:
    """Runs the trainer on the first core."""
    return _trained([_Process([*flags, "--strategy=one_device"], core=0)], steps)


def side_by_side(flags: Sequence[str], steps: int, count: int) -> Run:
    """Runs `count` independent trainers, each on a core; returns the results of the first.

    Cores share memory and clock: the same computation takes longer while others compute, too.
    """
    return _trained([_Process([*flags, "--strategy=one_device"], core=core) for core in range(count)], steps)


def on_gpus(flags: Sequence[str], steps: int, gpus: int) -> Run:
    """Runs the trainer in one process on `gpus` GPUs."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        mirrored = ["--strategy=mirrored", f"--num_replicas={gpus}", f"--metrics_jsonl={metrics}"]
        with _watched_gpus(gpus) as use:
            run = _trained([_Process([*flags, *mirrored])], steps, summaries=True)
        waits = [one["train/input_wait"] for one in map(json.loads, metrics.open()) if "train/input_wait" in one]
    return dataclasses.replace(run, busy=1 - statistics.median(waits), gpu_use=statistics.mean(use) if use else None)


def synchronous(flags: Sequence[str], steps: int, workers: int, link: Link) -> Run:
    """Runs workers that sum their gradients, each on its own core."""
    with _machines(workers, link) as (addresses, prefixes):
        configs = configs_of({"worker": addresses})
        job = [*flags, "--strategy=multiworker"]
        return _trained([_Process(job, configs[i], i, prefixes[i]) for i in range(workers)], steps)


def asynchronous(flags: Sequence[str], steps: int, workers: int, link: Link) -> Run:
    """Runs workers, each on its own core, and a machine for the chief and the parameter server, which use any core."""
    with _machines(workers + 1, link) as (addresses, prefixes):
        host, port = addresses[0].split(":")
        cluster = {"chief": [addresses[0]], "ps": [f"{host}:{int(port) + 1}"], "worker": addresses[1:]}
        if link == Link():
            cluster["ps"] = free_addresses(1)
        cores = [None, None, *range(workers)]
        job = [*flags, "--strategy=parameter_server"]
        processes = [
            _Process(job, *place) for place in zip(configs_of(cluster), cores, [prefixes[0], *prefixes], strict=True)
        ]
        return _trained(processes, steps, lines=_ASYNCHRONOUS_LINES)


def exchange(flags: Sequence[str]) -> dict[str, float]:
    """Returns the seconds in which two workers on this machine sum gradients; see `benchmarks.scaling.exchange`."""
    configs = configs_of({"worker": free_addresses(2)})
    processes = [_Process(flags, config, core) for core, config in enumerate(configs)]
    found: dict[str, float] = json.loads(_outputs(processes, "benchmarks.scaling.exchange")[0].splitlines()[-1])
    return found


@contextlib.contextmanager
def _machines(count: int, link: Link) -> Iterator[tuple[list[str], list[Sequence[str]]]]:
    """Context of each machine's address, and of its command prefix; with `Link()`, all are this machine."""
    if link == Link():
        yield free_addresses(count), [()] * count
        return
    with links.slowed(count, link) as machines:
        yield [f"{host}:{_PORTS}" for host, _ in machines], [prefix for _, prefix in machines]


def _trained(processes: Sequence[_Process], steps: int, summaries: bool = False, lines: int = _LINES) -> Run:
    """Trains, and returns the results in the first process's lines."""
    every = max(1, steps // lines)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        common = [f"--train_steps={steps}", f"--log_every={every}", "--eval_split=none"]
        common += [f"--steps_per_loop={every}", "--checkpoint_every=0", f"--summary_every={every if summaries else 0}"]
        # Processes of one job share a run; independent ones have one each.
        own = [f"--model_dir={folder}/run" + ("" if one.tf_config else f"-{n}") for n, one in enumerate(processes)]
        jobs = [
            dataclasses.replace(one, flags=[*one.flags, *common, run]) for one, run in zip(processes, own, strict=True)
        ]
        found = _LINE.findall(_outputs(jobs, "trainer.run")[0])
    later = [float(rate) for _, rate in found[len(found) // 2 :]]
    if not later:
        raise DataError("a job has printed no line with a rate; give more --steps")
    return Run(statistics.harmonic_mean(later), float(found[-1][0]))


def _outputs(jobs: Sequence[_Process], module: str) -> list[str]:
    """Returns the outputs of processes that run concurrently.

    Raises:
      DataError: a process failed; the message has its last line.
    """
    processes = [job.start(module) for job in jobs]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            raise DataError(f"{module} failed: {(output.strip().splitlines() or ['no output'])[-1]}")
    return outputs


@contextlib.contextmanager
def _watched_gpus(gpus: int) -> Iterator[list[float]]:
    """Context in which the utilisation of the first `gpus` GPUs is recorded; yields the list that it is added to."""
    use: list[float] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_SMI_SECONDS):
            with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
                said = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True).stdout.split()
                use.append(statistics.mean(map(float, said[:gpus])) / 100)

    thread = threading.Thread(target=look, name="nvidia-smi", daemon=True)
    thread.start()
    try:
        yield use
    finally:
        ended.set()
        thread.join()
