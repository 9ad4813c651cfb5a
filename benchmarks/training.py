"""The trainer's overhead over its model, and its gains, as ratios of loops that run in turns.

    python -m benchmarks.training [--only=input,loop,fit,distribution,parameter_server] [--models=mlp] [--data_dir=DIR]
    python -m benchmarks.training --only=peers --python=PATH

input: this trainer's loop with its real input against the same loop with one constant batch.
loop: this trainer's loop against a bare `tf.function` step in a Python `for`, both with one constant batch; ours has
the check for finite weights at every step, the sums of the metrics, and log lines.
fit: this trainer with its input against Keras' `fit` with the tutorials' one-by-one `tf.data`, on one device and on two
replicas.
distribution: mirrored on 1, 2 and 4 replicas and two workers against one device, with the same global batch: the
devices share the cores, so this is what distribution itself costs.
parameter_server: asynchronous with one and two workers against one device; synchronous by the gradients of all three
workers and by the first two of them, without and with a worker that is slow on purpose.
peers: this trainer's step next to Keras' `fit`, a plain `tf.function` without and with XLA, PyTorch eager and compiled,
with one constant batch and with real input, in float32 and bfloat16. Next to them, a `tf.function` with this
project's fused layers, and the limit: the model's convolutions and products alone. A contestant that is not installed,
here or under the interpreter of --python, is skipped with the reason. It takes an hour, and runs only when asked for.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import commands, inputs, interpreters, parameter_servers, side_by_side, topology
from benchmarks.contestant import alternate
from benchmarks.rounds import Round, ratio_text
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.errors import unknown

COMMAND = "benchmarks.training"
PEERS = "peers"
PARTS = ("input", "loop", "fit", "distribution", "parameter_server")
MODELS = ("mlp", "lenet", "cifar10_cnn", "fast_cifar")
_IMAGES = 6_000
_ROWS = 128
_RATE = re.compile(r"^step \d+, .*\(([\d.]+) examples/sec", re.MULTILINE)
_TOPOLOGIES = {
    "mirrored 1": ["--strategy=mirrored", "--num_replicas=1"],
    "mirrored 2": ["--strategy=mirrored", "--num_replicas=2"],
    "mirrored 4": ["--strategy=mirrored", "--num_replicas=4"],
}


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    only: str = flag("", "parts to measure, separated by commas; all of them but peers by default")
    models: str = flag("", "models of trainer.run; default: mlp,lenet,cifar10_cnn,fast_cifar; for peers, all it knows")
    data_dir: str = flag("", "CIFAR-10 as converted; default: random images of its shape, made for the run")
    global_batch_size: int | None = flag(None, "batch rows; default: 128, with peers less for large models", least=4)
    precision: str = flag("float32,bfloat16", "peers: the precisions")
    inputs: str = flag("one constant batch,real input", "peers: the kinds of input")
    contestants: str = flag("", "peers: contestants to run, separated by commas; default: all")
    python: str = flag("", "peers: the interpreter with PyTorch, if it is not installed here")
    rounds: int = flag(5, "rounds of each loop", least=1)
    seconds: float = flag(4.0, "length of a round", least=0.01)

    def __post_init__(self) -> None:
        """Checks the values."""
        inputs.parts_of(self.only, (*PARTS, PEERS))
        for flag_name, text, known in (
            ("--precision", self.precision, side_by_side.PRECISIONS),
            ("--inputs", self.inputs, side_by_side.CONTESTANTS),
            ("--contestants", self.contestants, side_by_side.NAMES),
        ):
            for part in filter(None, text.split(",")):
                if part not in known:
                    raise unknown(flag_name, part, known)
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the ratios."""
    config = commandline.parse(COMMAND, "Measure the trainer against other loops.", BenchmarkConfig, argv)
    python = interpreters.parse(config.python, side_by_side.NAMES)
    commands.say_processor()
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        rows = config.global_batch_size or _ROWS
        # Without the averaged weights that some models have by default, since the other loops have none.
        flags = [f"--data_dir={data_dir}", f"--global_batch_size={rows}", "--ema=0"]
        for part in config.only.split(",") if config.only else PARTS:
            if part == PEERS:
                peers(config, data_dir, python)
                continue
            for model in config.models.split(",") if config.models else MODELS:
                measure(part, config, model, [*flags, f"--model={model}"])


def peers(config: BenchmarkConfig, data_dir: str, python: interpreters.Interpreters) -> None:
    """Prints the table of the trainer and its peers."""
    names = config.contestants.split(",") if config.contestants else list(side_by_side.NAMES)
    setting = side_by_side.Setting(data_dir, config.global_batch_size, names, python, config.rounds, config.seconds)
    models = inputs.parts_of(config.models, side_by_side.SUBJECTS)
    side_by_side.measure(models, config.precision.split(","), config.inputs.split(","), setting)


def measure(part: str, config: BenchmarkConfig, model: str, flags: list[str]) -> None:
    """Prints the lines of one part for one model."""
    if part == "input":
        against(f"input, {model}", {"one constant batch": ("constant", flags)}, ("ours", flags), config)
    elif part == "loop":
        against(f"loop, {model}", {"a bare loop": ("plain", flags)}, ("constant", flags), config)
    elif part == "fit":
        for replicas in (1, 2):
            strategy = [*flags, "--strategy=mirrored", f"--num_replicas={replicas}"]
            against(f"fit, {model} on {replicas}", {"Keras' fit": ("fit", strategy)}, ("ours", strategy), config)
    elif part == "distribution":
        distribution(config, model, flags)
    else:
        parameter_servers.measure(model, flags, config.rounds)


def against(
    what: str, others: dict[str, tuple[str, list[str]]], mine: tuple[str, list[str]], config: BenchmarkConfig
) -> None:
    """Prints a line for each of `others`: the speed and processor time of `mine` as a share of theirs."""
    found = alternate({"": mine, **others}, config.rounds, config.seconds)
    for name in others:
        line(what, found[""], found[name], name)


def line(what: str, mine: list[Round], other: list[Round], name: str) -> None:
    """Prints the rates and the ratios of the rounds."""
    rates = [statistics.median(one.rate for one in rounds) for rounds in (mine, other)]
    speeds = [a.rate / b.rate for a, b in zip(mine, other, strict=True)]
    loads = [b.cpu / a.cpu for a, b in zip(mine, other, strict=True)]
    text = f"{what}: {rates[0]:,.0f} img/s against {rates[1]:,.0f} of {name}: {ratio_text(speeds)}"
    print(f"{text}; by processor time, {ratio_text(loads)}", flush=True)


def distribution(config: BenchmarkConfig, model: str, flags: list[str]) -> None:
    """Prints the speed of each topology as a share of one device's."""
    kinds = {name: ("constant", [*flags, *more]) for name, more in _TOPOLOGIES.items()}
    found = alternate({"": ("constant", [*flags, "--strategy=one_device"]), **kinds}, config.rounds, config.seconds)
    for name in kinds:
        line(f"distribution, {model}, {name}", found[name], found[""], "one device")
    pairs = [[workers_rate(flags, count) for count in (2, 1)] for _ in range(config.rounds)]
    ratios = ratio_text([two / one for two, one in pairs])
    print(f"distribution, {model}: two workers against one: {ratios}", flush=True)


def workers_rate(flags: list[str], count: int) -> float:
    """Returns the median rate, in img/s, that the chief of `count` workers logs.

    Raises:
      DataError: a worker failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run = [f"--model_dir={folder}", "--train_steps=101", "--log_every=20"]
        command = [sys.executable, "-m", "trainer.run", *flags, *run]
        workers = [topology.start_worker(command, config) for config in topology.cluster_of(count)]
        return statistics.median(map(float, _RATE.findall(topology.outputs_of(workers)[0])))


if __name__ == "__main__":
    commandline.run(COMMAND, main)
