"""Image files with boxes or captions listed in other files, as a table: the common part of COCO and PASCAL VOC.

The label of an image has a 1 for each class among its boxes.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from beam_jobs.sources import streams
from beam_jobs.sources.base import Files
from beam_jobs.sources.columns import Columns
from beam_jobs.sources.image_files import IRREGULAR, MISSING, UNNAMED, FileColumn, PathTable, shown
from beam_jobs.sources.placed_columns import PlacedColumn, label_kind
from beam_jobs.sources.segmentations import DrawnMasks, Segmentation
from pipeline import images
from pipeline.commands.text import count_of, shape_of
from pipeline.errors import DataError
from pipeline.files.paths import LocalPath
from pipeline.images import BadImageError
from pipeline.manifest import Feature
from pipeline.manifest.manifest import BOX_LABELS, BOXES, MASK, POINTS

IMAGE = "file_name"  # column of the images' paths
_NUMBERS = pa.list_(pa.list_(pa.float64()))
_CLASSES = pa.list_(pa.int64())
_TYPES = {"int64": pa.int64(), "string": pa.large_binary()}  # Arrow types of columns by the feature's dtype


@dataclasses.dataclass
class Annotated:
    """One image and its annotations.

    Attributes:
      path: path of its file, below the root of the images.
      size: (height, width) in its annotations; None if they do not give it.
      boxes: four numbers per box.
      classes: class of each box.
      more: values of the other columns.
      segmentations: segmentations that its mask is drawn from.
      points: two numbers per point.
      problem: reason why the row is invalid; empty if it is valid.
    """

    path: bytes
    size: tuple[int, int] | None
    boxes: list[list[float]] = dataclasses.field(default_factory=list)
    classes: list[int] = dataclasses.field(default_factory=list)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    segmentations: list[Segmentation] = dataclasses.field(default_factory=list)
    points: list[list[float]] = dataclasses.field(default_factory=list)
    problem: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class AnnotatedFiles(FileColumn):
    """The image files of `Annotated` rows.

    Attributes:
      said: (height, width) in the annotations, int64 (n, 2); 0 for rows without it.
      problems: {row: reason why it is invalid}.
    """

    said: NDArray[np.int64]
    problems: dict[int, str]

    def content(self, row: int) -> bytes:
        """Returns the bytes of a row's file; raises ValueError with the reason if the row is invalid."""
        if row in self.problems:
            raise ValueError(self.problems[row])
        data = super().content(row)
        if self.said[row].all() and (problem := _size_problem(data, (int(self.said[row][0]), int(self.said[row][1])))):
            raise ValueError(problem)
        return data


def _size_problem(data: bytes, said: tuple[int, int]) -> str:
    try:
        opened = images.open_file(data)
    except BadImageError:
        return ""  # the conversion reports the reason
    upright, turn = images.upright_size(opened), images.orientation(opened)
    own = images.turned_size(upright, turn)
    if said == own:
        return ""
    more = "; EXIF data turn it, but boxes must be those of the image as its file has it" if said == upright else ""
    return f"its annotations are of an image of {shape_of(said)}, and the file has {shape_of(own)}{more}"


def table_of(
    folder: LocalPath,
    files: Files,
    rows: Sequence[Annotated],
    class_names: tuple[str, ...],
    convention: str,
    root: LocalPath,
    kept: Mapping[str, Feature],
    origin: object,
    masks: tuple[Feature, FileColumn | DrawnMasks] | None = None,
    points: Feature | None = None,
) -> PathTable:
    """Looks up the files of images and returns their table.

    Args:
      folder: folder that the files' names are relative to.
      files: files of annotations, with their numbers of images.
      rows: images of all files, in order.
      class_names: names of the boxes' classes.
      convention: meaning of a box's numbers; empty without boxes.
      root: folder of the images.
      kept: features of `Annotated.more`.
      origin: value whose `repr` determines everything but paths, sizes and times of images.
      masks: feature of the masks, and the masks; None without masks.
      points: feature of the points; None without points.

    Raises:
      DataError: a path leads out of the folder of the images, or none of the files exist.
    """
    boxes = Feature("float32", (None, 4), convention=convention)
    of_boxes = Feature("int64", (None,), class_names=class_names, convention="classes")
    placed = [PlacedColumn(BOXES, (BOXES,), boxes), PlacedColumn(BOX_LABELS, (BOX_LABELS,), of_boxes, False)]
    placed = placed if convention else []
    placed += [PlacedColumn(MASK, (IMAGE,), masks[0], is_path=True)] if masks else []
    placed += [PlacedColumn(POINTS, (POINTS,), points)] if points else []
    paths = pa.array([row.path for row in rows], pa.large_binary())
    data = {
        IMAGE: paths,
        BOXES: pa.array([row.boxes for row in rows], _NUMBERS),
        POINTS: pa.array([row.points for row in rows], _NUMBERS),
        BOX_LABELS: pa.array([row.classes for row in rows], _CLASSES),
        **{
            name: pa.array([row.more[name] for row in rows], pa.list_(kind) if feature.shape else kind)
            for name, feature in kept.items()
            for kind in [_TYPES[feature.dtype]]
        },
    }
    sizes, times = _status(root, [row.path for row in rows])
    if not (sizes >= 0).any():
        problem = f"{shown(rows[0].path)}: no such file; none of {count_of(len(rows), 'image')} has a file in {root}"
        raise DataError(problem, path=folder / files.names[0], advice="--image_dir=FOLDER is the folder of the images")
    codes = paths.dictionary_encode().indices.to_numpy()
    return PathTable(
        folder=folder,
        files=files,
        data=pa.table(data),
        columns=Columns(IMAGE, False, "", label_kind(placed), "", tuple(kept.items()), placed=tuple(placed)),
        class_names=class_names,
        images=AnnotatedFiles(
            *(IMAGE, os.fsencode(str(root)), paths, sizes, times),
            said=np.array([row.size or (0, 0) for row in rows], np.int64).reshape(-1, 2),
            problems={number: row.problem for number, row in enumerate(rows) if row.problem},
        ),
        again=np.diff(np.maximum.accumulate(codes), prepend=-1) == 0,
        origin=origin,
        masks=masks[1] if masks else None,
    )


def masks_of(root: LocalPath, paths: Sequence[bytes]) -> FileColumn:
    """Returns the files of masks, whose paths are relative to `root`; raises DataError if one leads out of it."""
    return FileColumn(MASK, os.fsencode(str(root)), pa.array(paths, pa.large_binary()), *_status(root, paths))


def _status(root: LocalPath, paths: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the sizes of files (codes for files without one) and their modification times, int64 (n,) each."""
    sizes, times = np.full(len(paths), MISSING, np.int64), np.zeros(len(paths), np.int64)
    begin = os.fsencode(str(root))
    for row, path in enumerate(paths):
        if not path:
            sizes[row] = UNNAMED
            continue
        inside = os.path.normpath(path)
        if inside.startswith((b"/", b"../")) or inside == b".." or b"\0" in path:
            raise DataError(f"{shown(path)!r} is not in the folder of the images", path=root, advice="move it there")
        place = os.path.join(begin, path)
        with streams.errors_of(shown(place)):
            try:
                found = os.stat(place)
            except (FileNotFoundError, NotADirectoryError):
                continue
        sizes[row] = found.st_size if stat.S_ISREG(found.st_mode) else IRREGULAR
        times[row] = found.st_mtime_ns
    return sizes, times


def lines(table: PathTable) -> Iterator[str]:
    """Yields lines about missing files and impossible boxes, which make rows invalid."""
    assert isinstance(table.images, AnnotatedFiles)
    if missing := np.flatnonzero(table.images.sizes == MISSING).tolist():
        yield table.told(missing, table.images.named(missing[0], table.images.fault(missing[0])))
    if wrong := sorted(table.images.problems):
        yield table.told(wrong, table.images.problems[wrong[0]])
