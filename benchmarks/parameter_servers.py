"""The speed of jobs with parameter servers on this machine: asynchronous, synchronous, with a straggler."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile

from benchmarks import topology
from benchmarks.rounds import ratio_text
from pipeline.errors import DataError

_STEPS, _ROWS = 400, 120
_SPEED = re.compile(r"^step (\d+), .*\(([\d.]+) examples/sec", re.MULTILINE)
_SLOW_SECONDS = 0.1


def measure(model: str, flags: list[str], rounds: int) -> None:
    """Prints the lines of all comparisons, each with several rounds of jobs in turn."""
    from benchmarks import straggler  # noqa: PLC0415, it loads TensorFlow

    alone = ["--strategy=one_device"]
    found = [[_speed([*flags, *alone], 0)] + [_speed(flags, count) for count in (1, 2)] for _ in range(rounds)]
    for place, words in ((1, "1 worker"), (2, "2 workers")):
        ratios = ratio_text([one[0] / one[place] for one in found])
        print(f"parameter_server, {model}: asynchronous with {words} against one device: {ratios}", flush=True)
    slow = {straggler.WORKER: "2", straggler.SECONDS: str(_SLOW_SECONDS)}
    sync = [f"--task={straggler.__name__}:{straggler.Slowed.__name__}", "--sync", *flags]
    for words, environment in (("no straggler", {}), (f"one of 3 workers slower by {_SLOW_SECONDS} s", slow)):
        pairs = []
        for _ in range(rounds):
            all_three, two = (_speed([*sync, f"--replicas_to_aggregate={m}"], 3, environment) for m in (3, 2))
            pairs.append((all_three, two))
        ratios = ratio_text([two / three for three, two in pairs])
        times = " and ".join(f"{1000 * statistics.median(times):.1f}" for times in zip(*pairs, strict=True))
        print(
            f"parameter_server, {model}: synchronous, {words}: {times} ms per step with M = 3 and 2 of 3 gradients, "
            f"M = 2 against 3: {ratios}",
            flush=True,
        )


def _speed(flags: list[str], workers: int, environment: dict[str, str] | None = None) -> float:
    """Returns the median seconds per step in the chief's log, without its first lines; with 0 workers, on one device.

    Raises:
      DataError: a process failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run = [f"--model_dir={folder}", f"--train_steps={_STEPS}", "--log_every=50", "--eval_split=none"]
        run += ["--steps_per_loop=50", f"--global_batch_size={_ROWS}"]
        command = [sys.executable, "-m", "trainer.run", "--strategy=parameter_server", *flags, *run]
        processes = [_start(command, config, environment or {}) for config in _configs(workers)]
        outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            raise DataError(f"trainer.run failed: {(output.strip().splitlines() or ['no output'])[-1]}")
    rates = [float(rate) for step, rate in _SPEED.findall(outputs[0]) if int(step) > 100]
    return _ROWS / statistics.median(rates)


def _start(command: list[str], tf_config: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    variables = {**os.environ, "TF_CONFIG": tf_config, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)


def _configs(workers: int) -> list[str]:
    """Returns the TF_CONFIG of the chief, the workers and a parameter server; a single empty one for no workers."""
    if not workers:
        return [""]
    chief, ps, *others = topology.free_addresses(workers + 2)
    return topology.configs_of({"chief": [chief], "ps": [ps], "worker": others})
