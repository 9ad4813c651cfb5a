"""Images with the boxes or captions of COCO's annotation files: https://cocodataset.org/#format-data.

Boxes of crowds (`iscrowd`) are left out: they surround many objects, and training on them as one is wrong. In masks
their pixels belong to no class.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from beam_jobs.sources import annotated_files, image_files, listing, placed_columns, segmentations, streams
from beam_jobs.sources.annotated_files import Annotated
from beam_jobs.sources.base import SOURCES, Files, Source, SourceOptions
from beam_jobs.sources.image_files import PathTable, shown
from beam_jobs.sources.segmentations import DrawnMasks, Segmentation
from beam_jobs.sources.streams import KnownFile
from pipeline.commands import commandline
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import Feature
from pipeline.manifest.manifest import POINT_LABELS
from pipeline.records import labels, splits
from pipeline.records.annotation import BACKGROUND, IGNORED

_PREFIX, _ROBOFLOW = "instances_", "_annotations.coco.json"
_OF_PERSONS = "person_keypoints_"  # begins the names of files with keypoints
_OF_CAPTIONS = "captions_"  # begins the names of files with captions
_SUFFIX = ".json"
_FOLDER = "annotations"  # COCO's files are in it, next to the folders of images
_KINDS = (
    f"--source of coco is a file like {_PREFIX}train2017{_SUFFIX} or {_OF_CAPTIONS}train2017{_SUFFIX}, a folder of "
    "them, or a glob"
)
_KEPT = {"image_id": Feature("int64")}  # COCO's tools match results to images by it
_NEEDED = {"images": ("id", "file_name"), "categories": ("id", "name"), "annotations": ("id", "image_id")}
_NEEDED_OF_CAPTIONS = {"images": ("id", "file_name"), "annotations": ("id", "image_id")}
_READ = frozenset([
    *("images", "annotations", "categories", "id", "file_name", "height", "width", "image_id", "category_id", "bbox"),
    *("iscrowd", "name", "caption"),
])  # fmt: skip
_SEGMENTATION = "segmentation"  # field of annotations that masks are drawn from
_OF_MASKS = frozenset([_SEGMENTATION, "size", "counts"])
_KEYPOINTS = "keypoints"  # field of annotations and of categories
_CAPTION = "caption"  # field of annotations
_OF_CAPTION = {_CAPTION: Feature("string", (None,))}
# For each point: its number in its category's list, the number of its box, and 1 if it is hidden or 2 if it is visible.
_OF_POINTS = {name: Feature("int64", (None,)) for name in (POINT_LABELS, "keypoint_box", "keypoint_visibility")}
_COLUMNS = {"mask_column": _SEGMENTATION, "points_column": _KEYPOINTS, "keep_columns": _CAPTION}
_SHOWN = 60  # characters of a value in errors
_MOST_TRIED = 1000  # images tried to find their folder
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character, as JSON's escapes may have it and UTF-8 may not


@SOURCES.named("coco", needs=_KINDS)
def open_source(options: SourceOptions) -> Source:
    """Reads the files of annotations, looks up the images and computes their digests.

    Raises:
      UsageError: --image_dir is not a folder, or --mask_column, --points_column or --keep_columns names another field.
      DataError: a file cannot be read or is not in COCO's format; an annotation has an unknown image or category; files
        have different categories; none of the images exist.
    """
    placed_columns.check_needs(options)
    for flag, field in _COLUMNS.items():
        given = getattr(options, flag)
        for name in given if isinstance(given, tuple) else [given]:
            if name not in ("", field):
                raise unknown(f"--{flag}", name, [field])
    if options.mask_column:
        commandline.require("pycocotools")
    wanted = f"{_PREFIX}*{_SUFFIX}, {_OF_CAPTIONS}*{_SUFFIX} or {_ROBOFLOW}; name the files with a glob"
    found, names = listing.find(options.source, _is_coco, True, wanted, _KINDS)
    folder = LocalPath(str(found))
    names = [name for name in names if not _has_captions(name)] or names  # caption files may lie next to the others
    by_split = splits.by_files(folder, names, options.splits)
    names = sorted(name for files in by_split.values() for name in files)
    if options.image_dir:
        options = dataclasses.replace(options, image_dir=os.path.abspath(options.image_dir))  # for workers elsewhere
        if not os.path.isdir(options.image_dir):
            raise UsageError(f"--image_dir={options.image_dir}: is not a folder")
    known = tuple(KnownFile.of(folder / name) for name in names)
    beside = names if _has_captions(names[0]) else [_beside(folder, name) for name in names if options.keep_columns]
    captions = tuple(KnownFile.of(folder / name) for name in beside)
    table, notes = _load(folder, known, captions, options)
    unique = not table.again.any()
    again = functools.partial(_scan, folder, known, captions, options)
    source = image_files.source_of(options.dataset, table, by_split, again, unique)
    for line in (*annotated_files.lines(table), *notes):
        print(line, file=sys.stderr, flush=True)
    names = list(dict.fromkeys([*names, *beside]))
    with streams.progress_bar(int(table.images.sizes.clip(0).sum())) as bar:
        described = table.images.described("images", bar.update)
    return dataclasses.replace(source, files=(*streams.describe([(n, folder / n) for n in names]), described))


def _is_coco(name: str) -> bool:
    base = os.path.basename(name)
    return (base.startswith((_PREFIX, _OF_CAPTIONS)) and base.endswith(_SUFFIX)) or base == _ROBOFLOW


def _has_captions(name: str) -> bool:
    return os.path.basename(name).startswith(_OF_CAPTIONS)


def _stem(name: str) -> str:
    """Returns the part of a file's name that is common to the files about the same images."""
    stem = os.path.basename(name).removesuffix(_SUFFIX).removeprefix(_PREFIX)
    return stem.removeprefix(_OF_PERSONS).removeprefix(_OF_CAPTIONS)


def _beside(folder: LocalPath, name: str) -> str:
    found = os.path.join(os.path.dirname(name), f"{_OF_CAPTIONS}{_stem(name)}{_SUFFIX}")
    if not os.path.isfile(str(folder / found)):
        advice = f"--keep_columns={_CAPTION} takes the captions of the images in {name} from it"
        raise DataError("no such file", path=folder / found, advice=advice)
    return found


def _scan(
    folder: LocalPath, files: Sequence[KnownFile], captions: Sequence[KnownFile], options: SourceOptions
) -> PathTable:
    return _load(folder, files, captions, options)[0]


def _load(
    folder: LocalPath, files: Sequence[KnownFile], captions: Sequence[KnownFile], options: SourceOptions
) -> tuple[PathTable, list[str]]:
    """Returns the images of all files, and notes on what is left out.

    `captions` has the caption file for each of `files`; it equals `files` if they have only captions, and may be empty.
    """
    has_boxes = captions != files
    root = LocalPath(options.image_dir) if options.image_dir else folder
    if not options.image_dir and folder.name == _FOLDER:
        root = folder.parent
    names = tuple(file.path.name_in(folder) for file in files)
    lists = (_OF_POINTS if options.points_column else {}) | (_OF_CAPTION if captions else {})
    fields = _READ | (_OF_MASKS if options.mask_column else set())
    fields |= {_KEYPOINTS} if options.points_column else set()
    needed = _NEEDED if has_boxes or options.mask_column or options.points_column else _NEEDED_OF_CAPTIONS
    rows: list[Annotated] = []
    points_of: set[tuple[str, ...]] = set()
    counts, crowds, others, first = [], 0, 0, None
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        content = _content(file, fields, needed)
        categories = _categories(file.path, content) if has_boxes else []
        first = categories if first is None else first
        if categories != first:
            raise DataError(
                f"its categories differ from those of {files[0].path}",
                path=file.path,
                advice="convert each, then both together by --dataset=tfrecord, which joins classes by their names",
            )
        own = _images(file.path, content["images"], _below(root, name, content), lists)
        if has_boxes:
            crowds += _add_objects(file.path, content, own, categories, options)
            points_of |= _names_of_points(content)
        if captions:
            read = _content(captions[number], _READ, _NEEDED_OF_CAPTIONS) if has_boxes else content
            others += _add_captions(captions[number].path, read, own)
        rows += own.values()
        counts.append(len(own))
    assert first is not None
    of_files, classes = Files(names, tuple(counts)), tuple(name for _, name in first)
    origin = (files, captions, options)
    masks = None
    if options.mask_column:
        drawn = DrawnMasks([row.size for row in rows], [row.segmentations for row in rows])
        masks = _mask(files[0].path, classes, options), drawn
    points = Feature("float32", (None, 2), convention="xy") if options.points_column else None
    notes = [f"{count_of(crowds, 'box', 'boxes')} of crowds left out (iscrowd)"] if crowds else []
    notes += [f"{count_of(others, 'caption')} of images that are not among those with boxes left out"] if others else []
    if options.points_column and len(points_of) == 1:  # otherwise a number means another point in each category
        lists[POINT_LABELS] = dataclasses.replace(lists[POINT_LABELS], class_names=points_of.pop())
    convention, kept = "xywh" if has_boxes else "", _KEPT | lists
    return annotated_files.table_of(
        folder, of_files, rows, classes, convention, root, kept, origin, masks, points
    ), notes


def _mask(path: StoragePath, classes: tuple[str, ...], options: SourceOptions) -> Feature:
    """Returns the feature of the masks, in which the pixels of a class have its number + 1."""
    if len(classes) >= IGNORED:
        raise DataError(f"has {len(classes)} categories; masks can have {IGNORED - 1} at most", path=path)
    names = (BACKGROUND, *classes)
    if BACKGROUND in classes or labels.alike(names):
        raise DataError(
            f"a category is named {BACKGROUND!r}, as pixels around objects are called", advice="rename it", path=path
        )
    return Feature("uint8", (None, None, 1), "png", names, convention="classes", fill=options.mask_fill or 0)


def _content(file: KnownFile, fields: Set[str], needed: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Returns the lists of a file with the given fields; `needed` has the fields that each item of a list must have."""
    path = file.path

    def chosen(item: dict[str, Any]) -> dict[str, Any]:
        found = {name: item[name] for name in item.keys() & fields}  # polygons are most of a file
        if _SEGMENTATION in found:
            found[_SEGMENTATION] = segmentations.compact(found[_SEGMENTATION])
        return found

    try:
        with streams.errors_of(path), path.open("rb") as stream:
            found = json.load(stream, object_hook=chosen)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON in UTF-8 ({' '.join(str(error).split())})", path=path) from None
    file.check_unchanged()
    for name, of_items in needed.items():
        items = found.get(name, [] if name == "annotations" else None) if isinstance(found, dict) else None
        if not isinstance(items, list) or not (items or name == "annotations"):
            raise DataError(f"has no list {name!r}, as COCO's files have", path=path, advice=_KINDS)
        for number, item in enumerate(items):
            if missing := [field for field in of_items if not isinstance(item, dict) or field not in item]:
                raise DataError(f"{name}, number {number}: has no {missing[0]!r}: {str(item)[:_SHOWN]}", path=path)
        found[name] = items
    return dict(found)


def _categories(path: StoragePath, content: dict[str, list[dict[str, Any]]]) -> list[tuple[Any, str]]:
    found = [(item["id"], str(item["name"])) for item in content["categories"]]
    for what, values in (("id", [number for number, _ in found]), ("name", [name for _, name in found])):
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise DataError(f"two categories have the {what} {twice!r}", path=path, advice="join them")
    if pair := next(iter(labels.alike([name for _, name in found])), None):
        raise DataError(f"categories {' and '.join(map(ascii, pair))} look alike", path=path, advice="rename one")
    if not all(isinstance(number, int) for number, _ in found):
        raise DataError("the ids of its categories are not whole numbers", path=path)
    return sorted(found)


def _below(root: LocalPath, name: str, content: dict[str, list[dict[str, Any]]]) -> str:
    """Returns the folder below the root in which a file's images are: the first that holds one of its images."""
    stem = _stem(name)
    places = dict.fromkeys([stem, f"images/{stem}", os.path.dirname(name), "", "images"])
    for item in content["images"][:_MOST_TRIED]:  # the first ones may be missing
        for place in places:
            if os.path.isfile(os.path.join(str(root), place, str(item["file_name"]))):
                return place
    return ""


def _images(
    path: StoragePath, items: Sequence[dict[str, Any]], below: str, lists: Iterable[str]
) -> dict[Any, Annotated]:
    """Returns {id: image} without annotations, with an empty list for each of `lists`."""
    rows: dict[Any, Annotated] = {}
    for item in items:
        if item["id"] in rows:
            raise DataError(f"two images have the id {item['id']!r}", path=path)
        if not isinstance(item["id"], int):
            raise DataError(f"an image has the id {item['id']!r}, which is not a whole number", path=path)
        height, width = item.get("height"), item.get("width")
        is_sized = isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0
        place = os.fsencode(os.path.join(below, str(item["file_name"])))
        size = (int(height or 0), int(width or 0)) if is_sized else None
        rows[item["id"]] = Annotated(place, size, more={"image_id": item["id"]} | {name: [] for name in lists})
    return rows


def _add_captions(path: StoragePath, content: dict[str, list[dict[str, Any]]], rows: dict[Any, Annotated]) -> int:
    """Adds the captions of a file to {id: image}; returns the number of captions of unknown images."""
    names, others = {item["id"]: str(item["file_name"]) for item in content["images"]}, 0
    if not any(_CAPTION in item for item in content["annotations"]):
        raise DataError(f"none of its annotations has a {_CAPTION}", path=path)
    for number in names.keys() & rows.keys():
        if os.path.basename(rows[number].path) != os.fsencode(os.path.basename(names[number])):
            problem = f"image {number} is {names[number]!r} here, and {shown(rows[number].path)!r} in the other file"
            raise DataError(problem, path=path, advice="its captions describe other images")
    for item in content["annotations"]:
        said, text = f"annotation {item['id']!r}", item.get(_CAPTION)
        _check_image(item, names, path)
        if (row := rows.get(item["image_id"])) is None:
            others += 1
        elif isinstance(text, str) and not _SURROGATE.search(text):
            row.more[_CAPTION].append(text.encode())
        else:
            row.problem = row.problem or f"{said}: its {_CAPTION} is {ascii(text)[:_SHOWN]}, not a text"
    return others


def _check_image(item: dict[str, Any], known: Collection[Any], path: StoragePath) -> None:
    if not isinstance(item["image_id"], int) or item["image_id"] not in known:
        raise DataError(f"annotation {item['id']!r}: there is no image {item['image_id']!r}", path=path)


def _add_objects(
    path: StoragePath,
    content: dict[str, list[dict[str, Any]]],
    rows: dict[Any, Annotated],
    categories: Sequence[tuple[Any, str]],
    options: SourceOptions,
) -> int:
    """Adds the objects of a file to {id: image}, and returns the number of crowds' boxes, which are left out."""
    numbers = {number: label for label, (number, _) in enumerate(categories)}
    counts = {
        each["id"]: len(each[_KEYPOINTS]) for each in content["categories"] if isinstance(each.get(_KEYPOINTS), list)
    }
    if options.points_column and not any(_KEYPOINTS in item for item in content["annotations"]):
        advice = f"they are in files like {_OF_PERSONS}train2017{_SUFFIX}"
        raise DataError(f"none of its annotations has {_KEYPOINTS}", path=path, advice=advice)
    crowds = 0
    for item in content["annotations"]:
        said = f"annotation {item['id']!r}"
        _check_image(item, rows, path)
        if item.get("category_id") not in numbers:
            raise DataError(f"{said}: there is no category {item.get('category_id')!r}", path=path)
        row, is_crowd = rows[item["image_id"]], item.get("iscrowd") or 0
        if is_crowd not in (0, 1):
            row.problem = row.problem or f"{said}: its iscrowd is {is_crowd!r}, not 0 or 1"
        if options.mask_column:
            if not isinstance(item["id"], int):
                raise DataError(
                    f"{said}: the id is not a whole number, but decides what lies on top in masks", path=path
                )
            value = IGNORED if is_crowd else numbers[item["category_id"]] + 1
            row.segmentations.append(Segmentation(item["id"], value, item.get(_SEGMENTATION)))
        if is_crowd:
            crowds += 1
            continue
        box = item.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(_is_number(number) for number in box):
            row.problem = row.problem or f"{said}: its bbox is {str(box)[:_SHOWN]}, not four numbers"
        elif box[2] < 0 or box[3] < 0:
            row.problem = row.problem or f"{said}: its bbox is {box}, of a negative size"
        else:
            row.boxes.append(box)
            row.classes.append(numbers[item["category_id"]])
            if options.points_column and not row.problem:
                problem = _add_points(row, item.get(_KEYPOINTS, []), counts.get(item["category_id"]))
                row.problem = f"{said}: {problem}" if problem else ""
    return crowds


def _names_of_points(content: dict[str, list[dict[str, Any]]]) -> set[tuple[str, ...]]:
    """Returns the keypoint names of each category whose objects have keypoints; () if it does not name them."""
    used = {item["category_id"] for item in content["annotations"] if item.get(_KEYPOINTS)}
    lists = [each.get(_KEYPOINTS) for each in content["categories"] if each["id"] in used]
    found = {tuple(map(str, names)) if isinstance(names, list) else () for names in lists}
    return {names if len({*names}) == len(names) else () for names in found}


def _add_points(row: Annotated, stored: Any, count: int | None) -> str:
    """Adds the labelled keypoints of a row's last box; returns the reason if they are invalid.

    `stored` has x, y and visibility of each of `count` keypoints; `count` is None if the category does not give it.
    """
    if not isinstance(stored, list) or not all(_is_number(number) for number in stored):
        return f"its {_KEYPOINTS} are {str(stored)[:_SHOWN]}, not a list of numbers"
    if stored and len(stored) != 3 * (len(stored) // 3 if count is None else count):
        expected = "three of each" if count is None else f"three of each of {count_of(count, 'keypoint')}"
        return f"its {_KEYPOINTS} are {len(stored)} numbers, not {expected}"
    for number, (x, y, visibility) in enumerate(zip(*[iter(stored)] * 3, strict=True)):
        if visibility not in (0, 1, 2):
            return f"keypoint {number} has the visibility {visibility}, not 0, 1 or 2"
        if visibility:
            row.points.append([x, y])
            for name, value in zip(_OF_POINTS, (number, len(row.boxes) - 1, int(visibility)), strict=True):
                row.more[name].append(value)
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)
