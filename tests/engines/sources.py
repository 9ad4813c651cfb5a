"""Sources of many kinds, whose data sets must be the same bytes wherever and by however many workers they are made."""

from __future__ import annotations

import io
import json
import pathlib
import tarfile
import zipfile
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tests.engines.commands import DIGITS
from tests.helpers import annotated, foreign
from tests.helpers.round_trips import picture

_SHARDS = "--num_shards=3"
_SPLITS = "--split=train:0.6,validation:0.2,test:0.2"
_RESIZED = ("--resize=32x40", "--image_encoding=png")
_TRANSFORM = """
import numpy as np

def halves(rows):
    kept = {name: values[rows["label"] != "3"] for name, values in rows.items()}
    sides = kept["image"][:, :, :14], kept["image"][:, :, 14:]
    keys = [f"{key}/{side}" for side in ("left", "right") for key in kept["key"]]
    return {"image": np.concatenate(sides), "label": [*kept["label"]] * 2, "key": keys}
"""


def _captions(folder: pathlib.Path) -> list[str]:
    annotated.coco(folder / "coco", {"train2017": 12, "val2017": 6})
    annotated.caption_files(folder / "coco")
    return ["--dataset=coco", "--source=coco/annotations", "--keep_columns=caption", _SHARDS]


def _keypoints(folder: pathlib.Path) -> list[str]:
    """Writes COCO with an object's corner and its middle, of which every third is not labelled."""
    annotated.coco(folder / "coco", {"train2017": 12})
    content = json.loads((folder / "coco/annotations/instances_train2017.json").read_text())
    for category in content["categories"]:
        category["keypoints"] = ["left corner", "middle"]
    for number, each in enumerate(content["annotations"]):
        left, top, width, height = each["bbox"]
        each["keypoints"] = [left, top, number % 3, left + width / 2, top + height / 2, 2]
    (folder / "coco/annotations/person_keypoints_train2017.json").write_text(json.dumps(content))
    file = "coco/annotations/person_keypoints_train2017.json"
    return ["--dataset=coco", f"--source={file}", "--points_column=keypoints", *_RESIZED, _SHARDS]


def _rows(count: int = 90) -> Iterator[dict[str, object]]:
    """Yields rows of 36 patients; the label is not in step with the patient."""
    for row in range(count):
        label = ("cat", "dog", "eel")[row * 7919 % 13 % 3]
        yield {"image": picture(row), "label": label, "patient": f"p{row * 36 // count:02}", "row": row}


def _table(folder: pathlib.Path) -> list[str]:
    lines = ["file,label,patient"]
    for row in _rows():
        (folder / f"{row['row']}.png").write_bytes(row["image"])
        lines.append(f"{row['row']}.png,{row['label']},{row['patient']}")
    (folder / "table.csv").write_text("\n".join(lines))
    return ["--dataset=image_table", "--source=table.csv"]


def _groups_of_a_table(folder: pathlib.Path) -> list[str]:
    return [*_table(folder), "--group_by=patient", "--stratify=label", "--folds=3", _SHARDS]


def _strata_of_a_table(folder: pathlib.Path) -> list[str]:
    return [*_table(folder), "--stratify=label", _SPLITS, _SHARDS]


def _groups_of_rows(folder: pathlib.Path) -> list[str]:
    pq.write_table(pa.Table.from_pylist([*_rows()]), folder / "table.parquet", row_group_size=20)
    return ["--dataset=parquet", "--source=table.parquet", "--group_by=patient", "--stratify=label", _SPLITS, _SHARDS]


def _records(folder: pathlib.Path) -> list[str]:
    """Writes two TFRecord files of records whose lengths differ, so that workers need their offsets."""
    records = [
        {name: value.encode() if isinstance(value, str) else value for name, value in row.items()}
        | {"note": b"x" * (row["row"] % 3)}
        for row in _rows()
    ]
    for file, part in enumerate((records[:50], records[50:])):
        foreign.write(folder / f"records/train-{file:05}-of-00002", part)
    return ["--dataset=tfrecord", "--source=records", "--keep_columns=patient"]


def _groups_of_records(folder: pathlib.Path) -> list[str]:
    return [*_records(folder), "--group_by=patient", "--stratify=label", _SPLITS, _SHARDS]


def _strata_of_records(folder: pathlib.Path) -> list[str]:
    return [*_records(folder), "--stratify=label", "--folds=3", _SHARDS]


def _folders() -> Iterator[tuple[str, bytes]]:
    """Yields names and content of images in folders of splits and classes, not in the order of names."""
    for row in range(40)[::-1]:
        yield f"photos/{'test' if row % 4 == 0 else 'train'}/{'ab'[row % 2 ^ row % 3 % 2]}/{row}.png", picture(row)


def _zip(folder: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(folder / "photos.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in _folders():
            archive.writestr(name, data)
    return ["--dataset=image_folder", "--source=photos.zip/photos", _SHARDS]


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _tar(folder: pathlib.Path) -> list[str]:
    with tarfile.open(folder / "photos.tar", "w") as archive:
        for name, data in _folders():
            _add(archive, name, data)
    return ["--dataset=image_folder", "--source=photos.tar/photos", _SHARDS]


def _webdataset(folder: pathlib.Path) -> list[str]:
    for file in range(2):
        with tarfile.open(folder / f"train-{file:06}.tar", "w") as archive:
            for row in range(20 * file, 20 * file + 20):
                _add(archive, f"{row:04}.png", picture(row))
                _add(archive, f"{row:04}.cls", str(row % 3).encode())
                _add(archive, f"{row:04}.json", json.dumps({"camera": f"c{row % 4}", "row": row}).encode())
    return ["--dataset=webdataset", "--source=train-*.tar", "--keep_columns=camera,row", _SHARDS]


def _transform(folder: pathlib.Path) -> list[str]:
    (folder / "mine.py").write_text(_TRANSFORM)
    return [*DIGITS, "--transform=mine:halves"]


# {name: function that writes a source into a folder and returns the flags of its conversion, run there}
SOURCES: dict[str, Callable[[pathlib.Path], list[str]]] = {
    "transform": _transform,
    "captions": _captions,
    "keypoints": _keypoints,
    "groups of a CSV table": _groups_of_a_table,
    "strata of a CSV table": _strata_of_a_table,
    "groups of a Parquet table": _groups_of_rows,
    "groups of TFRecords": _groups_of_records,
    "strata of TFRecords": _strata_of_records,
    "folders in a zip": _zip,
    "folders in a tar": _tar,
    "WebDataset": _webdataset,
}
