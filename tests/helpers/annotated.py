"""Images with drawn objects, and the files that say where they are: COCO's, PASCAL VOC's, tables'."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import PIL.Image

CLASSES = ("cat", "dog", "bird")
COLOURS = np.array([(230, 20, 20), (20, 230, 20), (20, 20, 230)], np.uint8)  # of the classes
GREY = 60  # around objects
CROWD = 9  # pixels across and down of the crowd in the first image of COCO's files
_EXIF_ORIENTATION = 0x0112


@dataclasses.dataclass
class Scene:
    """An image of rectangles, one in each quarter at most.

    Attributes:
      pixels: uint8 (height, width, 3).
      mask: class of each pixel, from 1 on; 0 around objects: uint8 (height, width).
      boxes: xmin, ymin, xmax, ymax of each, in pixels.
      classes: class of each, by number.
    """

    pixels: np.ndarray
    mask: np.ndarray
    boxes: list[list[int]]
    classes: list[int]


def scene(number: int, height: int = 48, width: int = 64) -> Scene:
    """Returns a scene with as many objects as `number % 4`."""
    draw = np.random.default_rng(number)
    pixels, mask = np.full((height, width, 3), GREY, np.uint8), np.zeros((height, width), np.uint8)
    boxes, classes = [], []
    for quarter in draw.permutation(4)[: number % 4].tolist():
        top, left = quarter // 2 * (height // 2), quarter % 2 * (width // 2)
        down, across = int(draw.integers(8, height // 2 - 4)), int(draw.integers(8, width // 2 - 4))
        top, left = top + int(draw.integers(1, 4)), left + int(draw.integers(1, 4))
        label = int(draw.integers(0, len(CLASSES)))
        pixels[top : top + down, left : left + across] = COLOURS[label]
        mask[top : top + down, left : left + across] = label + 1
        boxes.append([left, top, left + across, top + down])
        classes.append(label)
    return Scene(pixels, mask, boxes, classes)


def file_of(pixels: np.ndarray, form: str = "PNG", exif: int = 0, palette: bool = False) -> bytes:
    """Returns an image file; `exif` is its orientation."""
    image, stream = PIL.Image.fromarray(pixels), io.BytesIO()
    if palette:
        image = PIL.Image.fromarray(pixels, "P")
        image.putpalette([(n * 37) % 256 for n in range(768)])
    tags = image.getexif()
    if exif:
        tags[_EXIF_ORIENTATION] = exif
    image.save(stream, form, exif=tags, **({"quality": 97, "subsampling": 0} if form == "JPEG" else {}))
    return stream.getvalue()


def size_of(number: int) -> tuple[int, int]:
    """Returns the size of a scene, of which there are several."""
    return 48 + 8 * (number % 3), 64 + 8 * (number % 2)


def coco(folder: pathlib.Path, counts: Mapping[str, int], exif: int = 0) -> pathlib.Path:
    """Writes COCO's layout: annotations/instances_NAME.json and a folder NAME of images; ids have gaps."""
    (folder / "annotations").mkdir(parents=True)
    first = 0
    for name, count in counts.items():
        (folder / name).mkdir()
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(first, first + count):
            made = scene(number, *size_of(number))
            (folder / name / f"{number:06d}.png").write_bytes(file_of(made.pixels, exif=exif))
            height, width = made.mask.shape
            images.append({"id": 1000 + number, "file_name": f"{number:06d}.png", "height": height, "width": width})
            for (left, top, right, bottom), label in zip(made.boxes, made.classes, strict=True):
                annotations.append({
                    "id": len(annotations) + 1,
                    "image_id": 1000 + number,
                    "category_id": 3 + 5 * label,
                    "bbox": [float(left), float(top), right - left, bottom - top],
                    "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                    "iscrowd": 0,
                })  # fmt: skip
        categories = [{"id": 3 + 5 * label, "name": text, "supercategory": "x"} for label, text in enumerate(CLASSES)]
        if images:
            height, width = images[0]["height"], images[0]["width"]
            columns = [CROWD, height - CROWD] * CROWD  # by column: pixels of the crowd, then the others
            rest = columns[-1] + height * (width - CROWD)
            annotations.append({
                "id": 99_999,
                "image_id": images[0]["id"],
                "category_id": 3,
                "bbox": [0, 0, CROWD, CROWD],
                "segmentation": {"size": [height, width], "counts": [0, *columns[:-1], rest]},
                "iscrowd": 1,
            })  # fmt: skip
        content = {"images": images, "annotations": annotations, "categories": categories[::-1]}
        (folder / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))
        first += count
    return folder


def voc(folder: pathlib.Path, counts: Mapping[str, int]) -> pathlib.Path:
    """Writes PASCAL VOC's layout; every second image has a mask with a palette, and 255 around its first object."""
    for name in ("Annotations", "JPEGImages", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True)
    first = 0
    for name, count in counts.items():
        stems = []
        for number in range(first, first + count):
            made, stem = scene(number, *size_of(number)), f"2007_{number:06d}"
            stems.append(stem)
            (folder / "JPEGImages" / f"{stem}.jpg").write_bytes(file_of(made.pixels, "JPEG"))
            height, width = made.mask.shape
            objects = "".join(
                f"<object><name>{CLASSES[label]}</name><difficult>{int(at == 1)}</difficult><bndbox>"
                f"<xmin>{box[0] + 1}</xmin><ymin>{box[1] + 1}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax>"
                "</bndbox></object>"
                for at, (box, label) in enumerate(zip(made.boxes, made.classes, strict=True))
            )
            size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
            text = f"<annotation><filename>{stem}.jpg</filename>{size}{objects}</annotation>"
            (folder / "Annotations" / f"{stem}.xml").write_text(text)
            if number % 2:
                mask = np.where(made.mask > 0, VOC_CLASSES[made.mask], 0).astype(np.uint8)
                (folder / "SegmentationClass" / f"{stem}.png").write_bytes(file_of(mask, palette=True))
        (folder / "ImageSets/Main" / f"{name}.txt").write_text("".join(f"{stem}\n" for stem in stems))
        own = [stem for stem in stems if int(stem[-6:]) % 2]
        (folder / "ImageSets/Segmentation" / f"{name}.txt").write_text("".join(f"{stem}\n" for stem in own))
        first += count
    return folder


VOC_CLASSES = np.array([0, 8, 12, 3], np.uint8)  # of cat, dog and bird in VOC's masks, by our mask's values


def captions_of(number: int) -> list[str]:
    """Returns the captions of a scene, `(number + 1) % 3` of them."""
    return [f"Bild {number}, \N{CYRILLIC SMALL LETTER YA}, {n}" for n in range((number + 1) % 3)]


def caption_files(folder: pathlib.Path) -> None:
    """Writes captions_NAME.json beside each instances_NAME.json of `coco`, with the same images in another order."""
    for path in (folder / "annotations").glob("instances_*.json"):
        images = json.loads(path.read_text())["images"][::-1]
        texts = [(each["id"], text) for each in images for text in captions_of(each["id"] - 1000)]
        annotations = [{"id": n, "image_id": of, "caption": text} for n, (of, text) in enumerate(texts)]
        content = {"images": images, "annotations": annotations}
        path.with_name(path.name.replace("instances_", "captions_")).write_text(json.dumps(content))
