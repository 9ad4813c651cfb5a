"""Class names that lie beside records of other writers: which file has them, whether converted or left in place."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import DataError
from pipeline.files.paths import StoragePath
from pipeline.records.schema import LABELS_FILE, read_labels


def beside(
    root: StoragePath, files: Sequence[StoragePath], label: str, offset: int = 0, has_text_labels: bool = False
) -> tuple[str, ...]:
    """Returns the class names that lie in the folder of all files, or else in the files' own folders; none if none do.

    They are in `labels.txt`, or, as TensorFlow Datasets names it, in `<label>.labels.txt`, which is read first.

    Args:
      root: folder that contains all files.
      files: files of records.
      label: feature of the labels.
      offset: number to add to stored labels, as for `read_labels`.
      has_text_labels: whether labels are the names of classes, so that numbers mean nothing.

    Raises:
      DataError: a file is no list of names; or labels are numbers, and files in different folders would count different
        classes by them.
    """

    def named_in(place: StoragePath) -> tuple[str, ...]:
        found = (place / f"{label}.{LABELS_FILE}", place / LABELS_FILE)
        return next(filter(None, (read_labels(file, offset) for file in found)), ())

    if (names := named_in(root)) or has_text_labels:
        return names
    by_place = {place: named_in(place) for place in dict.fromkeys(file.parent for file in files)}
    if len(set(by_place.values())) > 1:
        one, other = sorted(by_place, key=lambda place: (not by_place[place], str(place)))[:2]
        if by_place[one] == by_place[other]:
            other = next(place for place in by_place if by_place[place] != by_place[one])
        raise DataError(
            f"the class names of {one.name_in(root)} and of {other.name_in(root)} differ, but the labels of both are "
            "numbers",
            path=root,
            advice=f"write {LABELS_FILE} of all there, or convert each, then both together: converted data sets "
            "are joined by the names of classes",
        )
    return next(iter(by_place.values()))
