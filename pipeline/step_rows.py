"""The batch of any step of a run: its rows as stored and as trained on, as a table, JSON and a picture.

The order is a function of the step, so the step is simply made again; no log is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipeline import images
from pipeline.commands.text import count_of, shape_of, some_of
from pipeline.errors import DataError, UsageError
from pipeline.order.key_log import key_text
from pipeline.random_access import RandomAccess
from pipeline.request import HOST, Request
from pipeline.resolved import ResolvedInput, ResolvedRequest

_CAPTION, _GAP, _LETTERS = 16, 6, 12  # in pixels
_INK, _MARK = (40, 40, 40), (200, 30, 30)
_MOST_DRAWN = 512  # most rows to draw
_MOST_VALUES = 4  # most values shown of a label
_SEEN = 0.005  # classes with at least this share of a mixed label are named


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One row of a step's global batch.

    Attributes:
      row: row number in the global batch.
      replica: replica that gets the row.
      source: number of its data set in a mixture, otherwise 0.
      record: record id in the split of that data set.
      place: shard, and number of the record in it.
      key: key of the record; empty if it has none, or cannot be read.
      label: label of the record, as fed: a number, or an array of numbers; None if unknown.
      weight: sample weight; 0 for padding, and for a skipped corrupt record.
      stored: image as stored, decoded, uint8 (height, width, channels); None if it is not an image, or unreadable.
      trained: model's input for the row, if that is an array.
      trained_label: label for training; a number, or shares of all classes, float32 (classes,).
      problem: reason why the record cannot be shown as stored; empty if it can.
    """

    row: int
    replica: int
    source: int
    record: int
    place: tuple[str, int]
    key: str
    label: Any
    weight: float
    stored: NDArray[np.uint8] | None
    trained: NDArray[Any] | None
    trained_label: Any
    problem: str = ""


class Tile(NamedTuple):
    """A row in a picture: the upper and lower image, the lines below them, and whether it is framed."""

    above: NDArray[Any] | None
    below: NDArray[Any] | None
    lines: tuple[str, ...]
    is_marked: bool = False


def rows_of_step(resolved: ResolvedInput, step: int, replicas: int) -> list[Row]:
    """Returns the rows of a global step, in the order of the global batch.

    Args:
      resolved: training input of a run. Without images, or with a `parse` function, only the records can be shown.
      step: number of the step, from 0: the number of updates before it.
      replicas: R.

    Raises:
      DataError: a shard is missing, changed or corrupt.
      UsageError: an argument cannot work.
    """
    from pipeline.step_iterator import StepIterator  # noqa: PLC0415, here because it loads TensorFlow

    request, parts = resolved.request, resolved.parts
    has_keys = request.parse is None and all("key" in part.manifest.features for part in parts)
    changes: dict[str, Any] = {"augment_on": HOST, "weights": "mask", "record_ids": True, "start_step": step}
    wanted = dataclasses.replace(request, **changes, shard=None, features=("key",) if has_keys else ())
    options = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(Request)}
    x, *labels, weights, ids = next(StepIterator(**options))
    keys = x.pop("key") if has_keys else [b""] * len(ids)
    trained = x["image"] if has_keys else x
    is_array = isinstance(trained, np.ndarray) and trained.ndim > 2
    first = np.cumsum([0, *(part.selection.num_examples for part in parts)])
    stored = [_Stored(part) for part in parts]
    rows = []
    for row, number in enumerate(ids.tolist()):
        source = int(np.searchsorted(first, number, "right")) - 1
        record = number - int(first[source])
        example, problem = stored[source].example(record)
        rows.append(
            Row(
                row=row,
                replica=row * replicas // len(ids),
                source=source,
                record=record,
                place=parts[source].selection.locate(record),
                # The row of a skipped corrupt record has another record's values.
                key="" if problem and not weights[row] else key_text(keys[row] or example.get("key", b"")),
                label=parts[source].label_of(example["label"]) if "label" in example else None,
                weight=float(weights[row].item()),
                stored=example.get("image"),
                trained=trained[row] if is_array else None,
                trained_label=labels[0][row] if labels and isinstance(labels[0], np.ndarray) else None,
                problem=problem,
            )
        )
    return rows


class _Stored:
    """The stored records of a split."""

    def __init__(self, part: ResolvedRequest) -> None:
        request, self._why, self._examples = part.request, "", None
        try:
            self._examples = RandomAccess(
                request.folder, request.split, cache_dir=request.cache_dir, cache_bytes=request.cache_bytes
            )
        except UsageError as error:  # compressed shards may only allow sequential reads
            self._why = str(error)

    def example(self, record: int) -> tuple[dict[str, Any], str]:
        """Returns the features of a record, or why there are none: it is corrupt, or cannot be read by itself."""
        if self._examples is None:
            return {}, self._why
        try:
            return self._examples[record], ""
        except DataError as error:
            return {}, str(error)


def name_of(label: Any, class_names: Sequence[str]) -> str:
    """Returns a label as text: its class, `cat, dog` if it has both, `cat 0.70 + dog 0.30` for a mix, or numbers."""
    if label is None:
        return ""
    if np.ndim(label):
        shares = np.asarray(label, np.float64).reshape(-1)
        if len(shares) != len(class_names):
            return some_of([f"{value:g}" for value in shares], _MOST_VALUES)
        if np.count_nonzero(shares) > 1 and set(shares.tolist()) <= {0.0, 1.0}:
            return some_of([class_names[i] for i in np.flatnonzero(shares).tolist()], _MOST_VALUES)
        most = np.argsort(-shares, kind="stable")[:2]
        parts = [f"{name_of(i, class_names)} {shares[i]:.2f}" for i in most.tolist() if shares[i] >= _SEEN]
        return " + ".join(parts) if parts[1:] else name_of(most[0], class_names) if parts else "none"
    if not np.issubdtype(np.asarray(label).dtype, np.integer):
        return f"{float(label):g}"
    return class_names[label] if 0 <= label < len(class_names) else str(label)


def cells_of(row: Row, resolved: ResolvedInput) -> list[tuple[str, str]]:
    """Returns a step's row for a table: (column name, cell) pairs."""
    names = resolved.first.class_names
    own, trained = name_of(row.label, names), name_of(row.trained_label, names)
    label = trained if row.label is None or own == trained else f"{own}, trained as {trained}" if trained else own
    file, number = row.place
    return [
        ("row", str(row.row)),
        ("replica", str(row.replica)),
        *([("source", str(row.source))] if resolved.request.is_mixture else []),
        ("key", row.key or "-"),
        ("label", label or "-"),
        ("weight", f"{row.weight:g}"),
        ("record", str(row.record)),
        ("shard", f"{file} #{number}"),
        ("stored", _in_words(row.stored)),
        ("trained on", _in_words(row.trained)),
    ]


def json_of(row: Row, class_names: Sequence[str]) -> dict[str, Any]:
    """Returns a step's row as a JSON-compatible object."""
    label = row.trained_label
    return {
        **{"row": row.row, "replica": row.replica, "source": row.source, "key": row.key},
        "label": None if row.label is None else np.asarray(row.label).tolist(),
        "class": None if row.label is None else name_of(row.label, class_names),
        **{"weight": row.weight, "record": row.record, "shard": row.place[0], "record_of_shard": row.place[1]},
        "stored": _statistics(row.stored),
        "trained": _statistics(row.trained),
        "trained_label": label.tolist() if hasattr(label, "tolist") and np.asarray(label).dtype.kind in "iuf" else None,
        **({"problem": row.problem} if row.problem else {}),
    }


def _statistics(image: NDArray[Any] | None) -> dict[str, Any] | None:
    if image is None:
        return None
    values = {name: float(getattr(np, name)(image, dtype=np.float64)) for name in ("mean", "std")}
    return {"shape": list(image.shape), **values, "least": float(image.min()), "greatest": float(image.max())}


def _in_words(image: NDArray[Any] | None) -> str:
    return "-" if image is None else f"{shape_of(image.shape)}, mean {np.mean(image, dtype=np.float64):.4g}"


def sheet_of(
    rows: Sequence[Row],
    title: str,
    class_names: Sequence[str],
    notes: Mapping[int, str] | None = None,
    marked: Collection[int] = (),
) -> Image.Image:
    """Returns a picture of a step's rows by replica: the stored image above the trained one, label and key below.

    Args:
      rows: rows of the step, in any order.
      title: title of the picture.
      class_names: class names, by label.
      notes: {row number: text under the row, in front of its key}; None for none.
      marked: row numbers to frame.

    Raises:
      UsageError: the rows are not images.
    """
    if all(row.stored is None and row.trained is None for row in rows):
        raise UsageError("--png: the rows of this step are not images, so that there is nothing to draw; leave it out")
    drawn = rows[:_MOST_DRAWN]
    more = f"; {_MOST_DRAWN} of {count_of(len(rows), 'row')}" if len(rows) > len(drawn) else ""
    groups: dict[str, list[Tile]] = {}
    several = len({row.replica for row in rows}) > 1
    for row in sorted(drawn, key=lambda row: row.replica):
        label = row.label if row.trained_label is None else row.trained_label
        lines = (
            name_of(label, class_names) if row.weight else "weight 0",
            *([notes[row.row]] if notes and row.row in notes else []),
            row.key or f"record {row.record}",
        )
        tile = Tile(row.stored, row.trained, lines, row.row in marked)
        groups.setdefault(f"replica {row.replica}" if several else "", []).append(tile)
    return sheet(f"{title}{more}", groups)


def sheet(title: str, groups: Mapping[str, Sequence[Tile]]) -> Image.Image:
    """Returns a picture of tiles in groups with possibly empty headings. Floats are stretched to black..white."""
    count = sum(map(len, groups.values()))
    side, columns = (96, 8) if count <= 64 else (64, 16)
    lines = max(len(tile.lines) for tiles in groups.values() for tile in tiles)
    pair = 2 * side + _GAP // 2 + lines * _CAPTION + 2 * _GAP
    width = columns * (side + _GAP) + _GAP
    rows = sum(-(-len(tiles) // columns) for tiles in groups.values())
    headings = sum(bool(heading) for heading in groups)
    picture = Image.new("RGB", (width, rows * pair + (3 + 2 * headings) * _CAPTION), "white")
    pen = ImageDraw.Draw(picture)
    images.written(pen, (_GAP, _CAPTION // 2), title, _INK, _LETTERS)
    top = 2 * _CAPTION
    for heading, tiles in groups.items():
        if heading:
            images.written(pen, (_GAP, top + _CAPTION // 2), heading, _INK, _LETTERS)
            top += 2 * _CAPTION
        for i, tile in enumerate(tiles):
            corner = _GAP + i % columns * (side + _GAP), top + i // columns * pair
            _draw(picture, pen, tile, corner, side)
        top += -(-len(tiles) // columns) * pair
    return picture


def _draw(picture: Image.Image, pen: ImageDraw.ImageDraw, tile: Tile, corner: tuple[int, int], side: int) -> None:
    left, top = corner
    below = top + side + _GAP // 2
    for image, y in ((tile.above, top), (tile.below, below)):
        if image is None:
            images.written(pen, (left + _GAP, y + side // 2), "-", _INK, _LETTERS)
        else:
            is_larger = max(image.shape[:2]) > side  # nearest-neighbour scaling drops single rows, and so outlines
            how = Image.Resampling.BOX if is_larger else Image.Resampling.NEAREST
            picture.paste(Image.fromarray(images.as_rgb(image)).resize((side, side), how), (left, y))
    if tile.is_marked:
        pen.rectangle((left - 2, top - 2, left + side + 1, below + side + 1), outline=_MARK, width=2)
    for number, line in enumerate(tile.lines):
        at = (left, below + side + number * _CAPTION)
        while len(line) > 1 and images.width_of(line, _LETTERS) > side + _GAP - 2:
            line = line[1:] if number == len(tile.lines) - 1 > 0 else line[:-1]  # noqa: PLW2901, keys end differently
        images.written(pen, at, line, _MARK if tile.is_marked else _INK, _LETTERS)
