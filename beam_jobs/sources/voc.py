"""Images with the boxes and masks of PASCAL VOC: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/index.html.

XML is read by the standard library, which is safe without a document type: files that have one are refused, so
that there are no entities.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from beam_jobs.sources import annotated_files, image_files, streams
from beam_jobs.sources.annotated_files import Annotated
from beam_jobs.sources.base import SOURCES, Files, Source, SourceOptions
from beam_jobs.sources.image_files import FileColumn, PathTable
from pipeline.errors import DataError, unknown
from pipeline.files.paths import LocalPath, path_of
from pipeline.manifest import Feature, SourceFile
from pipeline.records import labels, splits
from pipeline.records.annotation import BACKGROUND

_SETS, _XML, _IMAGES, _MASKS = "ImageSets", "Annotations", "JPEGImages", "SegmentationClass"
DETECTION, SEGMENTATION = "Main", "Segmentation"
_LISTS = {"train": "train", "val": "validation", "test": "test"}  # {list of images: split}
_BOTH = "trainval"  # list that is read if both others are missing
# In the order of the masks' classes, which begin at 1.
_NAMES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
_KEPT = {"difficult": Feature("int64", (None,))}  # one value per box
_LARGEST = 16 << 20  # 16 MiB of XML
_KINDS = f"--source of voc is a folder like VOCdevkit/VOC2012, with {_XML}, {_IMAGES} and {_SETS}"


@SOURCES.named("voc", needs=_KINDS)
def open_source(options: SourceOptions) -> Source:
    """Reads the lists of images and their annotations, looks up images and masks and computes their digests.

    Raises:
      UsageError: --image_set names no folder of lists.
      DataError: a file cannot be read, a list is missing or empty, or an annotation is not in VOC's format.
    """
    folder = LocalPath(os.path.abspath(str(path_of(options.source))))
    for name in (_SETS, _XML, _IMAGES):
        if not (folder / name).is_dir():
            raise DataError(f"has no folder {name}", path=folder, advice=_KINDS)
    kind = options.image_set or DETECTION
    if not (folder / _SETS / kind).is_dir():
        known = sorted(os.listdir(str(folder / _SETS)))
        raise unknown("--image_set", kind, known)
    lists = _lists(folder / _SETS / kind, options.splits)
    table = _load(folder, lists, options)
    by_split = {split: [f"{_SETS}/{kind}/{name}.txt"] for split, name in lists.items()}
    unique = not table.again.any()
    again = functools.partial(_load, folder, lists, options)
    source = image_files.source_of(options.dataset, table, by_split, again, unique)
    for line in annotated_files.lines(table):
        print(line, file=sys.stderr, flush=True)
    names = [files[0] for files in by_split.values()]
    described = streams.describe([(name, folder / name) for name in names])
    return dataclasses.replace(source, files=(*described, *_described(folder, table)))


def _described(folder: LocalPath, table: PathTable) -> Iterator[SourceFile]:
    images = table.images
    stems = sorted({os.path.splitext(os.path.basename(os.fsdecode(path)))[0] for path in images.paths.to_pylist()})
    xml = [(os.fsencode(f"{stem}.xml"), os.path.getsize(str(folder / _XML / f"{stem}.xml"))) for stem in stems]
    sizes = int(images.sizes.clip(0).sum()) + sum(size for _, size in xml)
    with streams.progress_bar(sizes) as bar:
        yield image_files.describe(os.fsencode(str(folder / _XML)), _XML, xml, bar.update)
        yield images.described(_IMAGES, bar.update)
        if isinstance(table.masks, FileColumn):
            yield table.masks.described(_MASKS, bar.update)


def _lists(folder: LocalPath, wanted: Sequence[str]) -> dict[str, str]:
    """Returns {split: name of its list}."""
    found = {split: name for name, split in _LISTS.items() if (folder / f"{name}.txt").exists()}
    if not {"train", "validation"} & found.keys() and (folder / f"{_BOTH}.txt").exists():
        found = {"train": _BOTH, **found}
    if not found:
        raise DataError(f"has none of {', '.join(f'{name}.txt' for name in (*_LISTS, _BOTH))}", path=folder)
    return {split: found[split] for split in splits.among(splits.in_order(found), wanted)}


def _load(folder: LocalPath, lists: dict[str, str], options: SourceOptions) -> PathTable:
    kind = options.image_set or DETECTION
    stems: list[str] = []
    counts = []
    for name in lists.values():
        path = folder / _SETS / kind / f"{name}.txt"
        with streams.errors_of(path):
            own = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not own:
            raise DataError("names no image", path=path)
        stems += own
        counts.append(len(own))
    found, digest = [], hashlib.sha256()
    for stem in stems:
        path = folder / _XML / f"{stem}.xml"
        with streams.errors_of(path), path.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
        digest.update(data)
        found.append(_annotated(path, data))
    every = {name for _, names in found for name in names}
    classes = _NAMES if every <= {*_NAMES} else tuple(labels.in_order(every))
    numbers = {name: number for number, name in enumerate(classes)}
    rows = [dataclasses.replace(row, classes=[numbers[name] for name in names]) for row, names in found]
    masks = None
    if kind == SEGMENTATION:
        of_masks = (BACKGROUND, *_NAMES) if classes == _NAMES else ()
        feature = Feature("uint8", (None, None, 1), "png", of_masks, convention="classes", fill=options.mask_fill or 0)
        masks = feature, annotated_files.masks_of(folder, [os.fsencode(f"{_MASKS}/{stem}.png") for stem in stems])
    names = tuple(f"{_SETS}/{kind}/{name}.txt" for name in lists.values())
    origin = (options, lists, digest.hexdigest())
    return annotated_files.table_of(
        folder, Files(names, tuple(counts)), rows, classes, "xyxy", folder, _KEPT, origin, masks
    )


def _annotated(path: LocalPath, data: bytes) -> tuple[Annotated, list[str]]:
    """Returns an image with its boxes, and the names of their classes."""
    root = _parsed(path, data)
    name = (root.findtext("filename") or "").strip() or f"{path.name.removesuffix('.xml')}.jpg"
    size = [root.findtext(f"size/{side}", "").strip() for side in ("height", "width")]
    is_sized = all(side.isdecimal() and int(side) for side in size)
    row = Annotated(os.fsencode(f"{_IMAGES}/{name}"), (int(size[0]), int(size[1])) if is_sized else None)
    names: list[str] = []
    row.more["difficult"] = []
    for number, item in enumerate(root.findall("object")):
        texts = [item.findtext(f"bndbox/{side}", "").strip() for side in ("xmin", "ymin", "xmax", "ymax")]
        try:
            left, top, right, bottom = map(float, texts)
        except ValueError:
            raise DataError(f"object {number}: its bndbox is {texts}, not four numbers", path=path) from None
        class_name = item.findtext("name", "").strip()
        if not class_name:
            raise DataError(f"object {number}: has no name", path=path)
        if right < left or bottom < top:
            row.problem = row.problem or f"{path.name}, object {number}: its bndbox {texts} has a negative size"
        # Pixels are counted from 1, and the last one is inside; ours from 0, and the end is outside.
        row.boxes.append([left - 1, top - 1, right, bottom])
        row.more["difficult"].append(int(item.findtext("difficult", "0").strip() == "1"))
        names.append(class_name)
    return row, names


def _parsed(path: LocalPath, data: bytes) -> ElementTree.Element:
    try:
        if len(data) > _LARGEST:
            raise ValueError(f"more than {_LARGEST:,} bytes")
        text = data.decode("utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise ValueError("it has a document type, which VOC's files do not need")
        return ElementTree.fromstring(text)
    except (ValueError, ElementTree.ParseError) as error:
        raise DataError(f"is not a VOC annotation in UTF-8: {' '.join(str(error).split())}", path=path) from None
