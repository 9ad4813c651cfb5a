"""The chart of `benchmarks.input_throughput`: images per second of each contestant, by batch size, on a log scale."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.feeding import Result

_LEAST = 1_000  # images per second, where the bars begin
_COLOURS = ("#9ecae1", "#4292c6", "#084594")


def draw(results: Sequence[Result], path: str) -> None:
    """Writes the chart of the results as .svg or .png."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    names = list(dict.fromkeys(result.name for result in results))[::-1]
    sizes = sorted({result.rows for result in results})
    figure, panels = plt.subplots(1, 2, figsize=(11, 0.6 + 0.5 * len(names)), sharey=True, layout="constrained")
    for panel, augmented in zip(panels, (True, False), strict=True):
        for number, rows in enumerate(sizes):
            rates = {r.name: _rate(r) for r in results if r.rows == rows and r.augmented == augmented}
            height = 0.8 / len(sizes)
            places = [names.index(name) + (len(sizes) / 2 - number - 0.5) * height for name in rates]
            bars = panel.barh(places, list(rates.values()), height, label=f"batch {rows}", color=_COLOURS[number % 3])
            panel.bar_label(bars, [_short(rate) for rate in rates.values()], padding=2, fontsize=7)
        panel.set(title="augmented" if augmented else "unaugmented", xscale="log", xlabel="images per second")
        panel.set_xlim(_LEAST, 3 * max(_rate(result) for result in results))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(names)), names)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(sizes), frameon=False)
    figure.savefig(path, dpi=120)


def _rate(result: Result) -> float:
    return statistics.median(one["rate"] for one in result.rounds)


def _short(rate: float) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k"
