"""The chart of `benchmarks.scaling`: the accuracy of the model, and its predictions for up to 256 workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.scaling import step_model
from benchmarks.scaling.step_model import Link

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.scaling.results import Scaling

_WORKERS = [1 << power for power in range(9)]
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
_LATENCY = 50e-6  # seconds, for a network in one building
# Panels: the speed of a device, in cores of this machine, and its link.
_DRAWN = (
    (1, Link(1e9, _LATENCY), "a core and 1 Gbit/s each"),
    (100, Link(10e9, _LATENCY), "100 cores' speed and 10 Gbit/s each"),
)


def draw(found: Sequence[Scaling], path: str) -> None:
    """Writes the chart as .svg or .png."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    has_model = any(one.parts for one in found)
    figure, panels = plt.subplots(
        1, 3 if has_model else 1, figsize=(13 if has_model else 5, 4.4), layout="constrained", squeeze=False
    )
    first, *others = panels[0]
    (_compare if has_model else _measured)(first, found)
    for panel, (times, link, title) in zip(others, _DRAWN, strict=False):
        _extrapolate(panel, found, times, link, title)
    for panel in panels[0]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=len(found) + 2, frameon=False)
    figure.savefig(path, dpi=120)


def _compare(panel: Axes, found: Sequence[Scaling]) -> None:
    """Draws predictions against measurements."""
    rates = []
    for one, colour in zip(found, _COLOURS, strict=False):
        panel.plot([], [], color=colour, label=one.model)
        for point in one.points:
            if point.predicted is not None:
                filled = colour if point.strategy == "synchronous" else "white"
                panel.plot(point.rate, point.predicted, "o", color=colour, markerfacecolor=filled)
                rates += [point.rate, point.predicted]
    ends = [0.7 * min(rates), 1.4 * max(rates)]
    panel.plot(ends, ends, color="#999999", linewidth=1, zorder=0)
    panel.plot([], [], "-o", color="#444444", label="synchronous")
    panel.plot([], [], "--o", color="#444444", markerfacecolor="white", label="asynchronous, one parameter server")
    panel.set(
        xscale="log",
        yscale="log",
        xlabel="measured, img/s",
        ylabel="the model, img/s",
        title="one and two workers here",
    )


def _measured(panel: Axes, found: Sequence[Scaling]) -> None:
    """Draws the measured speed-up."""
    most = 1
    for one, colour in zip(found, _COLOURS, strict=False):
        counts, alone = [point.workers for point in one.points], one.points[0].rate
        panel.plot(counts, [point.rate / alone for point in one.points], "-o", color=colour, label=one.model)
        most = max(most, *counts)
    panel.plot([1, most], [1, most], color="#999999", linewidth=1, zorder=0)
    panel.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="times one GPU", title="measured")


def _extrapolate(panel: Axes, found: Sequence[Scaling], times: float, link: Link, title: str) -> None:
    """Draws for each number of workers the speed as a share of that number times one worker's."""
    for one, colour in zip(found, _COLOURS, strict=False):
        if parts := one.parts and one.parts.faster(times):
            alone = parts.rows / parts.compute
            for speed, style in ((step_model.synchronous, "-"), (step_model.asynchronous, "--")):
                shares = [speed(parts, workers, link) / (workers * alone) for workers in _WORKERS]
                panel.plot(_WORKERS, shares, style, color=colour)
    panel.set(xscale="log", xlabel="workers", ylabel="share of the linear speed-up", ylim=(0, 1.05), title=title)
    panel.set_xticks(_WORKERS, list(map(str, _WORKERS)))
