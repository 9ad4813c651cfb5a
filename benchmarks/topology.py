"""The cost of identical weights on any topology: steps with --virtual_replicas relative to the classic step.

    python -m benchmarks.topology [--model=cifar10_cnn] [--global_batch_size=128] [--only=steps,bytes,threads]

steps: one process, the same batch at every step, so that no input is measured. On 1, 2 and 4 devices (logical CPUs
where there are no GPUs) each round measures the classic step, the step with V equal to the number of devices, and with
V = 8. Next to them is the limit of V = 8: the model's convolutions and products alone, on an eighth of the rows,
against those on all rows. The same bits on any topology need passes of an eighth of the rows each, which use a
processor less well.
bytes: two worker processes; the bytes that they send per step, counted by the loopback device, so the machine must send
nothing else. They are the difference between runs of more and of fewer steps.
threads: two worker processes, the most threads of the first one, and steps per second; with TensorFlow's own timeout of
each collective operation, and with the trainer's, one thread that watches them all. Short steps show the difference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from benchmarks import commands, inputs, loops
from benchmarks.rounds import Round, Take, alternate, ratio_text
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.errors import DataError

COMMAND = "benchmarks.topology"
DEVICES = (1, 2, 4)
MOST = 8  # V, a multiple of each number of devices
PARTS = ("steps", "bytes", "threads")
_IMAGES = 600
_STEPS = 2  # steps of an inner loop
_FEWER, _MORE = 20, 60  # steps of the two runs whose bytes are compared
_LOOKS = 0.2  # seconds between counts of threads
_RATE = re.compile(r"step \d+, loss = .* \(([\d.]+) examples/sec; ")
_TIMED = """
import functools
import tensorflow as tf
options = tf.distribute.experimental
options.CommunicationOptions = functools.partial(options.CommunicationOptions, timeout_seconds=120.0)
from trainer import run
run.entry_point()
"""  # the trainer, with a timeout for each collective operation
_LOOPBACK = pathlib.Path("/proc/net/dev")
_SENT_BYTES = 8  # column after the interface's name


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    only: str = flag("", "parts to measure, separated by commas: steps, bytes, threads; all of them by default")
    data_dir: str = flag("", "a data set of images; default: random images of CIFAR-10's shape, made for the run")
    model: str = flag("cifar10_cnn", "model of trainer.run")
    global_batch_size: int = flag(128, "batch rows over all devices", least=MOST)
    train_steps: int = flag(500, "steps of a run whose threads are counted", least=10)
    rounds: int = flag(7, "rounds of each step", least=1)
    seconds: float = flag(2.0, "length of a round", least=0.01)

    def __post_init__(self) -> None:
        """Checks the values."""
        inputs.parts_of(self.only, PARTS)
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the ratios."""
    config = commandline.parse(COMMAND, "Measure what the same bits on any topology cost.", BenchmarkConfig, argv)
    commands.say_processor()
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        flags = [f"--data_dir={data_dir}", f"--model={config.model}", f"--global_batch_size={config.global_batch_size}"]
        flags += ["--ema=0"]  # only the sums of gradients matter here
        parts = inputs.parts_of(config.only, PARTS)
        if "bytes" in parts:
            report_bytes(flags)
        if "threads" in parts:
            report_threads(flags, config.train_steps)
        if "steps" in parts:
            gpus = inputs.load_tensorflow().config.list_physical_devices("GPU")
            report_steps(config, flags, [count for count in DEVICES if not gpus or count <= len(gpus)])


def report_steps(config: BenchmarkConfig, flags: list[str], counts: Sequence[int]) -> None:
    """Prints, for each number of devices, the speed with V against the classic step."""
    rows = config.global_batch_size
    for devices in sorted(counts, reverse=True):  # the CPU can only be split once
        kinds = {"classic": None, f"V = {devices}": devices, f"V = {MOST}": MOST}
        takes = {name: looper(flags, devices, virtual, rows) for name, virtual in kinds.items()}
        rounds = alternate(takes, config.rounds, config.seconds)
        classic = rounds.pop("classic")
        print(f"{config.model}, {rows} rows on {devices}: classic {milliseconds(classic, rows):.1f} ms per step")
        for name, mine in rounds.items():
            print(
                f"  {name}: {milliseconds(mine, rows):.1f} ms; of the classic speed, {against(mine, classic)}",
                flush=True,
            )
    takes = {
        count: loops.limit(loops.make([*flags, f"--global_batch_size={count}"])).take for count in (rows, rows // MOST)
    }
    whole, eighth = alternate(takes, config.rounds, config.seconds).values()
    print(f"  limit of V = {MOST}: of the products' speed with all rows, {against(eighth, whole)}", flush=True)


def against(mine: list[Round], theirs: list[Round]) -> str:
    """Returns the ratio of two speeds, by the clock and by processor time."""
    pairs = list(zip(mine, theirs, strict=True))
    speeds, loads = [one.rate / two.rate for one, two in pairs], [two.cpu / one.cpu for one, two in pairs]
    return f"{ratio_text(speeds)}; by processor time, {ratio_text(loads)}"


def milliseconds(rounds: list[Round], rows: int) -> float:
    """Returns the median duration of a step."""
    return statistics.median(rows / one.rate * 1e3 for one in rounds)


def looper(flags: list[str], devices: int, virtual: int | None, rows: int) -> Take:
    """Returns a Take of inner loops over one batch on some number of devices."""
    strategy_flags = ["--strategy=mirrored", f"--num_replicas={devices}", f"--global_batch_size={rows}"]
    made = loops.make([*flags, *strategy_flags, *([f"--virtual_replicas={virtual}"] if virtual else [])])
    batches = loops.batches(made, constant=True)
    steps = inputs.load_tensorflow().constant(_STEPS, "int64")

    def take() -> tuple[int, float]:
        int(made.stepper.train(batches, steps).step)
        return _STEPS * rows, 0.0

    take()
    return take


def report_bytes(flags: list[str]) -> None:
    """Prints what two workers send per step, classic and with V = 2."""
    classic, virtual = (bytes_per_step([*flags, *more]) for more in ([], ["--virtual_replicas=2"]))
    print(f"two workers send per step: classic {classic:,.0f} bytes, V = 2 {virtual:,.0f} bytes", end=": ")
    print(f"ratio {virtual / classic:.2f}", flush=True)


def bytes_per_step(flags: list[str]) -> float:
    """Returns the bytes that two workers together send per step."""
    fewer, more = (bytes_of_run([*flags, f"--train_steps={steps}"]) for steps in (_FEWER, _MORE))
    return (more - fewer) / (_MORE - _FEWER)


def bytes_of_run(flags: list[str]) -> int:
    """Returns the bytes that the loopback device carries while two workers train.

    Raises:
      DataError: a worker failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        command = [sys.executable, "-m", "trainer.run", f"--model_dir={folder}", "--log_every=0", *flags]
        began, workers = sent_bytes(), [start_worker(command, config) for config in cluster_of(2)]
        outputs_of(workers)
        return sent_bytes() - began


def report_threads(flags: list[str], steps: int) -> None:
    """Prints the threads of a worker and its speed, by how a silent worker is noticed."""
    for name, program in {"a timeout for each": ["-c", _TIMED], "a thread that watches": ["-m", "trainer.run"]}.items():
        most, rate = threads_of_run([*program, *flags, f"--train_steps={steps}", f"--log_every={steps // 2}"])
        print(f"two workers, {steps:,} steps, {name}: {most:,} threads in a worker, {rate:,.0f} steps/sec", flush=True)


def threads_of_run(program: list[str]) -> tuple[int, float]:
    """Returns the most threads of one of two workers while they train, and the steps per second of the second half.

    Raises:
      DataError: a worker failed; the message has its last line.
    """
    most = 0
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        command = [sys.executable, *program, f"--model_dir={folder}"]
        workers = [start_worker(command, config) for config in cluster_of(2)]
        ended = threading.Event()

        def count() -> None:
            nonlocal most
            while not ended.wait(_LOOKS):
                with contextlib.suppress(FileNotFoundError):
                    most = max(most, len(os.listdir(f"/proc/{workers[0].pid}/task")))

        counter = threading.Thread(target=count, daemon=True)
        counter.start()
        first, *_ = outputs_of(workers)
        ended.set()
        counter.join()
    rows = int(next(one.partition("=")[2] for one in command if one.startswith("--global_batch_size")))
    return most, float(_RATE.findall(first)[-1]) / rows


def outputs_of(workers: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Returns the workers' outputs once they have ended.

    Raises:
      DataError: a worker failed; the message has its last line.
    """
    outputs = [worker.communicate()[0] for worker in workers]
    for worker, output in zip(workers, outputs, strict=True):
        if worker.returncode:
            raise DataError(f"trainer.run failed: {(output.strip().splitlines() or ['no output'])[-1]}")
    return outputs


def start_worker(command: list[str], tf_config: str) -> subprocess.Popen[str]:
    """Starts a worker with its TF_CONFIG."""
    environment = {**os.environ, "TF_CONFIG": tf_config}
    return subprocess.Popen(
        [*command, "--strategy=multiworker", "--eval_split=none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def cluster_of(count: int) -> list[str]:
    """Returns the TF_CONFIG of each of `count` workers on free ports of this machine."""
    return configs_of({"worker": free_addresses(count)})


def configs_of(cluster: dict[str, list[str]]) -> list[str]:
    """Returns the TF_CONFIG of each process of a cluster."""
    tasks = [(role, index) for role, hosts in cluster.items() for index in range(len(hosts))]
    return [json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}) for role, index in tasks]


def free_addresses(count: int) -> list[str]:
    """Returns addresses of this machine whose ports are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("localhost", 0))
        return [f"localhost:{free.getsockname()[1]}" for free in sockets]


def sent_bytes() -> int:
    """Returns the bytes that the loopback device has sent so far."""
    lines = dict(line.split(":", 1) for line in _LOOPBACK.read_text().splitlines() if ":" in line)
    return int(next(numbers for name, numbers in lines.items() if name.strip() == "lo").split()[_SENT_BYTES])


if __name__ == "__main__":
    commandline.run(COMMAND, main)
