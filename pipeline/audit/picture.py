"""Draws who reads what: workers against the bytes of the split, coloured by stream."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from pipeline.audit.reading import Reading
from pipeline.audit.tables import scale_of
from pipeline.commands.text import count_of

_COLUMNS = 640  # of the picture: a column is a part of the split
_MOST_ROWS = 256  # of the picture: of more workers, several are one row
_MOST_STREAMS = 10  # with a colour and a legend entry of their own
_MOST_NAMED = 12  # shards with a name
_MOST_LINES = 64  # workers with a line between them
_MOST_SHARDS = 300  # drawn one by one
_GREY = ("#c9ced6", "#8d97a5")


def draw(reading: Reading, png: str) -> None:
    """Writes the picture.

    Raises:
      OSError: the file cannot be written.
    """
    figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 2, height_ratios=(1, 12, 2), width_ratios=(8, 2))
    main = figure.add_subplot(grid[1, 0])
    shards = figure.add_subplot(grid[0, 0], sharex=main)
    times = figure.add_subplot(grid[2, 0], sharex=main)
    total = figure.add_subplot(grid[1, 1], sharey=main)
    colours = _colours(reading.source.order.streams)
    _draw_workers(main, reading, colours)
    _draw_shards(shards, reading)
    _draw_times(times, reading)
    _draw_totals(total, reading)
    _add_legend(figure.add_subplot(grid[2, 1]), colours)
    figure.suptitle(_title(reading), x=0.01, ha="left", fontsize=12)
    figure.savefig(png)


def _title(reading: Reading) -> str:
    source, workers = reading.source, reading.topology.workers
    scale, unit = scale_of(reading.split_bytes)
    mean = reading.worker_bytes.mean() / scale
    return (
        f"Who reads what in epoch {reading.epoch}: split {source.spec.split} of {source.manifest.dataset}, "
        f"{source.order.num_records:,} records, {reading.topology}\n"
        f"The epoch lays the shards end to end and cuts them into "
        f"{count_of(source.order.streams, 'stream')}; a worker reads the streams that have rows of its "
        f"replicas:\n{mean:,.1f} {unit} of {reading.split_bytes / scale:,.1f} {unit} on average; "
        f"{workers:,} workers together read the split {reading.amplification:.2f} times"
    )


def _colours(streams: int) -> NDArray[np.float64]:
    """Returns RGBA (K, 4)."""
    if streams <= _MOST_STREAMS:
        return np.asarray(colormaps["tab10"](np.arange(streams)))
    return np.asarray(colormaps["turbo"](np.linspace(0.05, 0.95, streams)))


def _draw_workers(axes: Any, reading: Reading, colours: NDArray[np.float64]) -> None:
    workers = reading.topology.workers
    scale, _ = scale_of(reading.split_bytes)
    extent = (0, reading.split_bytes / scale, workers - 0.5, -0.5)
    axes.imshow(_image(reading, colours), extent=extent, aspect="auto", interpolation="nearest")
    if workers <= _MOST_LINES:
        axes.hlines(np.arange(1, workers) - 0.5, 0, extent[1], color="white", linewidth=min(4, 60 / workers))
    several = f" (a line of the picture is {-(-workers // _MOST_ROWS)} workers)" if workers > _MOST_ROWS else ""
    axes.set_title(f"coloured: the worker reads this part of the split{several}", fontsize=9, loc="left")
    axes.set_ylabel("worker")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelbottom=False)


def _image(reading: Reading, colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns RGBA (rows, _COLUMNS, 4): what a worker reads is at least one column wide, so that it is seen."""
    workers = reading.topology.workers
    rows = min(workers, _MOST_ROWS)
    image = np.ones((rows, _COLUMNS, 4))
    ends = reading.bytes_before(reading.source.order.stream_bounds()) * _COLUMNS / reading.split_bytes
    first = np.minimum(np.floor(ends[:-1] + 0.5).astype(int), _COLUMNS - 1)
    stop = np.maximum(np.floor(ends[1:] + 0.5).astype(int), first + 1)
    for worker, streams in enumerate(reading.streams.tolist()):
        for k in range(*streams):
            image[worker * rows // workers, first[k] : stop[k]] = colours[k]
    return image


def _draw_shards(axes: Any, reading: Reading) -> None:
    scale, _ = scale_of(reading.split_bytes)
    edges = reading.bytes_before(reading.laid) / scale
    count = len(edges) - 1
    axes.set_title(f"{count:,} {'shards' if count > 1 else 'shard'}, as laid in this epoch", fontsize=9, loc="left")
    axes.set_yticks([])
    axes.tick_params(labelbottom=False)
    if count > _MOST_SHARDS:
        axes.set_facecolor(_GREY[0])
        mean = reading.source.order.num_records / count
        text = f"too many to draw: {mean:,.0f} records each on average"
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=8, transform=axes.transAxes)
        return
    axes.bar(edges[:-1], 1, np.diff(edges), align="edge", color=[_GREY[i % 2] for i in range(count)])
    axes.set_ylim(0, 1)
    if count <= _MOST_NAMED:
        for i, segment in enumerate(reading.segments.tolist()):
            name = reading.source.selection.segments[segment].shard.file.split("-of-")[0]
            axes.text(edges[i : i + 2].mean(), 0.5, name, ha="center", va="center", fontsize=8)


def _draw_times(axes: Any, reading: Reading) -> None:
    scale, unit = scale_of(reading.split_bytes)
    streams = reading.source.order.streams
    change = np.bincount(reading.streams[:, 0], minlength=streams + 1) - np.bincount(
        reading.streams[:, 1], minlength=streams + 1
    )
    readers = np.cumsum(change)[:-1]
    axes.stairs(readers, reading.bytes_before(reading.source.order.stream_bounds()) / scale, fill=True, color="#5a7d9a")
    axes.set_ylim(0, readers.max() * 1.2)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("workers\nthat read it")
    axes.set_xlabel(f"{unit} of the split, in the order in which this epoch lays its shards")


def _draw_totals(axes: Any, reading: Reading) -> None:
    scale, unit = scale_of(reading.split_bytes)
    workers = reading.topology.workers
    edges = np.arange(workers + 1) - 0.5
    axes.stairs(reading.worker_bytes / scale, edges, orientation="horizontal", fill=True, color="#5a7d9a")
    axes.set_xlim(0, reading.worker_bytes.max() / scale * 1.1)
    axes.set_xlabel(f"{unit} that a worker reads")
    axes.tick_params(labelleft=False)


def _add_legend(axes: Any, colours: NDArray[np.float64]) -> None:
    axes.set_axis_off()
    streams = len(colours)
    if streams <= _MOST_STREAMS:
        handles = [Patch(color=tuple(colour), label=f"stream {k}") for k, colour in enumerate(colours)]
        axes.legend(handles=handles, loc="center", ncols=2 if streams > 3 else 1, fontsize=8, frameon=False)
        return
    bar = axes.inset_axes((0.05, 0.5, 0.9, 0.18))
    bar.imshow(colours[None], aspect="auto", extent=(-0.5, streams - 0.5, 0, 1))
    bar.set_yticks([])
    bar.set_xticks([0, streams - 1])
    bar.set_title("colour: stream", fontsize=9)
