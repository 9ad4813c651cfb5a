"""The trainer's step compared with common alternatives: the same model, batch and precision, in turns, as a table."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import commands, inputs, sources
from benchmarks.contestant import command, in_turns
from benchmarks.interpreters import Interpreters
from benchmarks.rounds import Round, ratio_text
from pipeline.errors import DataError

OURS = "ours"
_CONSTANT, _REAL = "one constant batch", "real input"
# By kind of input: {title of the line: loop of `benchmarks.loops` or `benchmarks.torch_loops`}.
CONTESTANTS = {
    _CONSTANT: {
        OURS: "constant",
        "Keras fit": "fit constant",
        "tf.function": "plain",
        "tf.function XLA": "plain, XLA",
        "PyTorch eager": "torch eager",
        "PyTorch compile": "torch compile",
        "tf.function fused": "plain, fused",
        "limit TensorFlow": "limit",
        "limit PyTorch": "torch limit",
    },
    _REAL: {
        OURS: "ours",
        "Keras fit": "fit",
        "tf.function": "plain input",
        "PyTorch eager": "torch eager input",
        "PyTorch compile": "torch compile input",
    },
}
NAMES = set(CONTESTANTS[_CONSTANT])
NO_PEERS = (OURS, "tf.function fused", "limit TensorFlow", "limit PyTorch")  # loops that a user does not have or use
_PHOTOGRAPHS = 1_200  # images of 96x96 to make


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and its training settings here.

    Attributes:
      rows: number of rows in a step; small enough for the memory and the time of a desktop.
      steps: number of updates in an inner loop, about half a second.
      side: height and width of the stored images in pixels.
      recipe: augmentation that all contestants support.
    """

    rows: int
    steps: int
    side: int = 32
    recipe: str = "pad_crop_flip"


SUBJECTS = {
    "resnet20": Subject(128, 2),
    "resnet18": Subject(32, 2),
    "cifar10_cnn": Subject(128, 5, recipe="cifar10_tutorial"),
    "fast_cifar": Subject(128, 2),
    "resnet50": Subject(8, 2, side=96),
}
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of the measurement.

    Attributes:
      data_dir: folder of the converted CIFAR-10.
      rows: number of rows in a step; None for the subject's.
      names: contestants to measure, by name in the table.
      python: interpreters of the contestants.
      rounds, seconds: number and length of the rounds.
    """

    data_dir: str
    rows: int | None
    names: Sequence[str]
    python: Interpreters
    rounds: int
    seconds: float


def measure(models: Sequence[str], precisions: Sequence[str], kinds: Sequence[str], setting: Setting) -> None:
    """Prints a block of lines for each model, precision and kind of input."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as made:
        folders: dict[int, tuple[str, str]] = {}
        for model in models:
            subject = SUBJECTS[model]
            if subject.side not in folders:
                folders[subject.side] = _data(setting.data_dir, subject.side, pathlib.Path(made), _REAL in kinds)
            for precision in precisions:
                for kind in kinds:
                    _block(model, precision, kind, folders[subject.side], setting)


def _data(cifar: str, side: int, folder: pathlib.Path, has_arrays: bool) -> tuple[str, str]:
    """Returns a data set of images of a size, and the folder with the same images as arrays, empty if not needed."""
    data_dir = cifar
    if side != SUBJECTS["resnet20"].side:
        source, data_dir = folder / "source.tfrecord", str(folder / f"data-{side}")
        sources.raw_records(source, _PHOTOGRAPHS, (side, side, 3), 10)
        commands.convert("tfrecord", source, pathlib.Path(data_dir), f"--image_shape={side}x{side}x3")
    return data_dir, str(inputs.dump_arrays(data_dir, folder / f"arrays-{side}")) if has_arrays else ""


def _block(model: str, precision: str, kind: str, data: tuple[str, str], setting: Setting) -> None:
    """Measures and prints the contestants of one model, precision and kind of input."""
    subject = SUBJECTS[model]
    rows = setting.rows or subject.rows
    flags = flags_of(model, precision, rows, data[0])
    torch = json.dumps(torch_setting(flags, subject, data[1]))
    chosen = {name: loop for name, loop in CONTESTANTS[kind].items() if name in setting.names}
    all_commands = {
        name: command(loop, [torch], setting.python.candidates(name)[-1])
        if loop.startswith("torch")
        else command(loop, flags)
        for name, loop in chosen.items()
    }
    found = in_turns(all_commands, setting.rounds, setting.seconds)
    facts = agreed({name: one.facts for name, one in found.items()})
    print(f"{model}, {precision}, {rows} rows, {kind}: {facts}", flush=True)
    for text in lines({name: one.rounds for name, one in found.items()}, rows):
        print(f"  {text}", flush=True)


def flags_of(model: str, precision: str, rows: int, data_dir: str) -> list[str]:
    """Returns the flags of `trainer.run`, without what the peers lack: label smoothing and averages."""
    subject = SUBJECTS[model]
    return [
        f"--data_dir={data_dir}",
        f"--model={model}",
        f"--precision={precision}",
        f"--global_batch_size={rows}",
        f"--steps_per_loop={subject.steps}",
        f"--augment={subject.recipe}",
        # Small enough that after many steps with the same batch no weight is NaN and the loss is not 0.
        "--learning_rate=0.001",
        "--label_smoothing=0",
        "--ema=0",
    ]


def torch_setting(flags: Sequence[str], subject: Subject, arrays: str) -> dict[str, Any]:
    """Returns a `torch_loops.Setting` for a run with the same flags."""
    from trainer import config as configs  # noqa: PLC0415
    from trainer.config.model import WITH_MOMENTUM  # noqa: PLC0415

    config = configs.parse([*flags, "--model_dir=unused"])
    name = config.optimizer.optimizer
    return {
        "model": config.model.model,
        "rows": config.order.global_batch_size,
        "side": 24 if subject.recipe == "cifar10_tutorial" else subject.side,
        "classes": 10,
        "precision": config.model.precision,
        "steps": 2 * config.steps.steps_per_loop,
        "rate": config.optimizer.learning_rate,
        "momentum": config.optimizer.momentum if name in WITH_MOMENTUM else 0.0,
        "nesterov": name == "nesterov",
        "recipe": subject.recipe,
        "arrays": arrays,
    }


def agreed(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns in words what the contestants train.

    Raises:
      DataError: they train models of different sizes.
    """
    texts = []
    for fact, words in (("weights", "weights"), ("multiplications", "million multiplications per image")):
        values = {name: one[fact] for name, one in facts.items() if fact in one}
        if len(set(values.values())) > 1:
            raise DataError(f"the contestants have different models: {fact} of {values}")
        for value in set(values.values()):
            texts.append(f"{value:,} {words}" if fact == "weights" else f"{value / 1e6:,.1f} {words}")
    return ", ".join([*texts, *sorted({one["version"] for one in facts.values() if "version" in one})])


def lines(found: Mapping[str, Sequence[Round]], rows: int) -> list[str]:
    """Returns a line for each contestant: processor time of a step, speed, ratios to the best peer of each, memory."""
    texts, peers = [], [name for name in found if name not in NO_PEERS]
    best = {
        field: min(peers, key=lambda name: sign * statistics.median(getattr(one, field) for one in found[name]))
        for field, sign in (("cpu", 1), ("rate", -1))
        if peers
    }
    for name, rounds in found.items():
        cpu, rate = (statistics.median(getattr(one, field) for one in rounds) for field in ("cpu", "rate"))
        text = f"{name:18} {1e-6 * cpu * rows:7.3f} s of processor per step {rate:9,.0f} img/s"
        text += f" {max(one.peak for one in rounds) / 1e6:7,.0f} MB"
        if peers:
            loads = [b.cpu / a.cpu for a, b in zip(rounds, found[best["cpu"]], strict=True)]
            speeds = [a.rate / b.rate for a, b in zip(rounds, found[best["rate"]], strict=True)]
            text += f"; of {best['cpu']} by processor time, {ratio_text(loads)}"
            text += f"; of {best['rate']} by the clock, {ratio_text(speeds)}"
        texts.append(text)
    return texts
