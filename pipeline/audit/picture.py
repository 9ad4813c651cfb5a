"""Draws what each worker reads: workers against the bytes of the split, coloured by stream."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.collections import PolyCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.commands.text import count_of, scale_of, size_of
from pipeline.order.reading import Reading

_MOST_SHARDS = 300  # most shards drawn in two greys; more would be a pixel wide and show spurious patterns
_MOST_NAMED = 12  # most shards with names; more leave no room for them
_GREYS = ListedColormap(["#c9ced6", "#8d97a5"])
_BLUE = "#5a7d9a"


def draw(reading: Reading, dataset: str, png: str) -> None:
    """Writes the picture, with the data set's name in its title.

    Raises:
      OSError: the file cannot be written.
    """
    figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
    axes = figure.subplots(3, 2, sharex="col", sharey="row", height_ratios=(1, 12, 2), width_ratios=(8, 2))
    (shards, corner), (main, total), (times, legend) = axes
    scale, unit = scale_of(reading.split_bytes)
    _draw_shards(shards, reading, scale)
    streams = _draw_workers(main, reading, scale)
    edges = np.arange(reading.topology.workers + 1) - 0.5
    each, of_each = scale_of(int(reading.worker_bytes.max()))
    total.stairs(reading.worker_bytes / each, edges, orientation="horizontal", fill=True, color=_BLUE)
    total.set_xlabel(f"{of_each} that a worker reads")
    total.tick_params(labelbottom=True)
    _draw_times(times, reading, scale)
    times.set_xlabel(f"{unit} of the split, in the order in which this epoch lays its shards")
    corner.set_axis_off()
    legend.set_axis_off()
    bar = legend.inset_axes((0.05, 0.2, 0.9, 0.25))
    figure.colorbar(streams, cax=bar, orientation="horizontal", label="stream", ticks=MaxNLocator(integer=True))
    figure.suptitle(_title(reading, dataset), x=0.01, ha="left", fontsize=12)
    figure.savefig(png)


def _title(reading: Reading, dataset: str) -> str:
    return (
        f"Who reads what in epoch {reading.epoch}: split {reading.spec.split} of {dataset}, "
        f"{reading.order.num_records:,} records, {reading.topology}\n"
        f"The epoch lays the shards end to end and cuts them into "
        f"{count_of(reading.order.streams, 'stream')}; a worker reads the streams that have rows of its "
        f"replicas:\n{size_of(int(reading.worker_bytes.mean()))} of {size_of(reading.split_bytes)} on average; "
        f"together the workers read the split {reading.amplification:.2f} times"
    )


def _draw_shards(axes: Any, reading: Reading, scale: int) -> None:
    edges = reading.bytes_before(reading.laid) / scale
    count = len(edges) - 1
    axes.set_title(f"{count_of(count, 'shard')}, as laid in this epoch", fontsize=9, loc="left")
    axes.set_yticks([])
    greys = np.arange(count) % 2 * (count <= _MOST_SHARDS)
    axes.pcolormesh(edges, [0, 1], [greys], cmap=_GREYS, vmin=0, vmax=1)
    for i, segment in enumerate(reading.segments.tolist() if count <= _MOST_NAMED else ()):
        name = reading.selection.segments[segment].shard.file.split("-of-")[0]
        axes.text(edges[i : i + 2].mean(), 0.5, name, ha="center", va="center", fontsize=8)


def _draw_workers(axes: Any, reading: Reading, scale: int) -> PolyCollection:
    """Draws the part of each stream that each worker reads; returns the parts, coloured by stream."""
    workers, order = reading.topology.workers, reading.order
    ends = reading.bytes_before(order.stream_bounds()) / scale
    parts = [(worker, k) for worker, streams in enumerate(reading.streams.tolist()) for k in range(*streams)]
    corners = [
        [(ends[k], w - 0.47), (ends[k + 1], w - 0.47), (ends[k + 1], w + 0.47), (ends[k], w + 0.47)] for w, k in parts
    ]
    found = PolyCollection(corners, edgecolors="face", linewidths=0.5)  # edges keep even thin parts visible
    colours = ListedColormap(colormaps["turbo"](np.linspace(0.05, 0.95, order.streams)))
    found.set(array=[k for _, k in parts], cmap=colours, clim=(-0.5, order.streams - 0.5))
    axes.add_collection(found)
    axes.set(xlim=(0, ends[-1]), ylim=(workers - 0.5, -0.5), ylabel="worker")
    axes.set_title("coloured: the worker reads this part of the split", fontsize=9, loc="left")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return found


def _draw_times(axes: Any, reading: Reading, scale: int) -> None:
    order = reading.order
    begun, ended = (np.bincount(side, minlength=order.streams + 1) for side in reading.streams.T)
    ends = reading.bytes_before(order.stream_bounds()) / scale
    axes.stairs(np.cumsum(begun - ended)[:-1], ends, fill=True, color=_BLUE)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("workers\nthat read it")
