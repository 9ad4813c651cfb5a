"""The effect of stale gradients on training: the mlp on MNIST, with gradients that are 0, 1, 3 and 8 steps old.

    python -m benchmarks.staleness --data_dir=MNIST [--delays=0,1,3,8] [--steps=600] [--chart=FILE.svg]

In each step the gradient is computed from the weights some steps ago, and applied to the current ones by the model's
own optimizer. An asynchronous job does the same: with N equally fast workers, the steps of the N - 1 others come
between a worker's reading of the weights and its gradient, and steps are N times as fast as one worker's gradients.
Losses are computed on the test split.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import commands, inputs, loops
from pipeline import manifest
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.commands.text import count_of

COMMAND = "benchmarks.staleness"
_EVERY = 10  # steps between losses
_TESTED = 2_000  # rows of the test split, or all if there are fewer
_COLOURS = ("#1f77b4", "#2ca02c", "#ff7f0e", "#d62728")


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag(text="MNIST as converted, or any data set of images")
    delays: str = flag("0,1,3,8", "ages of gradients in steps, separated by commas")
    steps: int = flag(600, "steps of each run", least=_EVERY)
    model: str = flag("mlp", "model of trainer.run")
    json: str = flag("", "a file for all figures")
    chart: str = flag("", "a file for the picture: .svg or .png")

    def __post_init__(self) -> None:
        """Checks the values."""
        check(self)
        inputs.whole_numbers("--delays", self.delays, 0)


@dataclasses.dataclass(frozen=True)
class Course:
    """The course of a run.

    Attributes:
      losses: loss on the test split after 0, 10, 20, ... steps.
      gradient: seconds of computing and applying one gradient.
    """

    losses: tuple[float, ...]
    gradient: float


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each delay; writes the figures and the chart."""
    config = commandline.parse(COMMAND, "Train by stale gradients.", BenchmarkConfig, argv)
    commands.say_processor()
    found = {}
    for delay in inputs.whole_numbers("--delays", config.delays, 0):
        found[delay] = course(config.data_dir, config.model, delay, config.steps)
        losses = found[delay].losses[1:]
        print(
            f"gradients {count_of(delay, 'step')} old: test loss {losses[-1]:.4f} after {config.steps} steps, "
            f"{max(losses):.2f} at most on the way",
            flush=True,
        )
    if config.json:
        content = {str(delay): dataclasses.asdict(one) for delay, one in found.items()}
        pathlib.Path(config.json).write_text(f"{json.dumps(content)}\n", encoding="utf-8")
    if config.chart:
        draw(found, config.chart)


def course(data_dir: str, model: str, delay: int, steps: int) -> Course:
    """Trains from the same weights on the same batches, for any delay."""
    made = loops.make([f"--data_dir={data_dir}", f"--model={model}", "--ema=0"])
    tf = inputs.load_tensorflow()
    import keras  # noqa: PLC0415

    from pipeline import input_fn  # noqa: PLC0415

    state = made.stepper.state
    state.initialize(made.strategy)
    network, loss_of = state.model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rows = min(_TESTED, manifest.load(data_dir).split("test").num_examples)
    tested = next(iter(input_fn(data_dir, f"test[:{rows}]", global_batch_size=rows, training=False)))

    @tf.function
    def gradients(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, network(images, training=True)) + tf.add_n([0.0, *network.losses])
        return tape.gradient(loss, network.trainable_variables)

    @tf.function
    def step_by(values: Any) -> None:
        state.optimizer.apply_gradients(zip(values, network.trainable_variables, strict=True))

    def test_loss() -> float:
        return float(loss_of(tested[1], network(tested[0], training=False)))

    def assign(values: Sequence[Any]) -> None:
        for variable, value in zip(network.trainable_variables, values, strict=True):
            variable.assign(value)

    losses, spent, batches = [test_loss()], [], loops.batches(made, constant=False)
    seen: collections.deque[list[Any]] = collections.deque(maxlen=delay + 1)
    for step in range(steps):
        now = [tf.identity(variable.value) for variable in network.trainable_variables]
        seen.append(now)
        images, labels, _ = next(batches)
        assign(seen[0])
        began = time.perf_counter()
        found = [value.numpy() for value in gradients(images, labels)]
        spent.append(time.perf_counter() - began)
        assign(now)
        state.optimizer.learning_rate.assign(state.rate(tf.constant(step, tf.int64)))
        step_by(found)
        if (step + 1) % _EVERY == 0:
            losses.append(test_loss())
    return Course(tuple(losses), sorted(spent)[len(spent) // 2])


def draw(found: Mapping[int, Course], path: str) -> None:
    """Writes the chart: the loss by steps, and by seconds."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = COMMAND
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    gradient = min(one.gradient for one in found.values())  # the same work for all
    for (delay, one), colour in zip(found.items(), _COLOURS, strict=False):
        steps = [_EVERY * i for i in range(len(one.losses))]
        seconds = [gradient * step / (delay + 1) for step in steps]
        label = f"{count_of(delay, 'step')} old" if delay else "not stale"
        for panel, places in zip(panels, (steps, seconds), strict=True):
            panel.plot(places, one.losses, color=colour, label=label)
    panels[0].set(xlabel="steps", ylabel="test loss", yscale="log")
    panels[1].set(xlabel="seconds, with one worker more than steps between")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(found), frameon=False)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.endswith(".svg") else None)


if __name__ == "__main__":
    commandline.run(COMMAND, main)
