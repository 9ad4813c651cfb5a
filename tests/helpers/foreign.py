"""TFRecords of images as other projects write them: names and kinds of features, labels, files, compression."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image

from pipeline.records import framing, tf_example

TF_SLIM = "--feature_map=image:image/encoded,label:image/class/label,key:image/filename"
FLOWERS = "--feature_map=image:image,label:class,key:id"
MELANOMA = "--feature_map=image:image,label:target,key:image_name"


def jpeg(number: int, size: tuple[int, int] = (40, 48), exif: int = 0, form: str = "JPEG", mode: str = "RGB") -> bytes:
    """Returns an image file of (height, width), smooth and pseudo-random by its number; `exif` is its orientation."""
    coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
    image = PIL.Image.fromarray(coarse).resize(size[::-1], PIL.Image.Resampling.BICUBIC).convert(mode)
    made, stream = image.getexif(), io.BytesIO()
    if exif:
        made[0x0112] = exif
    image.save(stream, form, **({"quality": 90} if form == "JPEG" else {}), exif=made)
    return stream.getvalue()


def write(path: pathlib.Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes a file of Examples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(framing.frame(tf_example.encode(record)) for record in records))


def tf_slim(folder: pathlib.Path, counts: Mapping[str, Sequence[int]], classes: int = 5) -> pathlib.Path:
    """Writes ImageNet as TF-Slim does: labels from 1, sizes that vary, 0 to 3 boxes per image.

    `counts` are {split: number of records in each file}.
    """
    number = 0
    for split, files in counts.items():
        for file, count in enumerate(files):
            records = []
            for _ in range(count):
                height, width, boxes = 40 + number % 7, 48 + number % 5, number % 4
                records.append({
                    "image/encoded": jpeg(number, (height, width)),
                    "image/class/label": 1 + number % classes,
                    "image/class/text": b"a class",
                    "image/filename": b"n%06d.JPEG" % number,
                    "image/height": height,
                    "image/width": width,
                    "image/object/bbox/xmin": np.linspace(0, 0.5, boxes, dtype=np.float32),
                })  # fmt: skip
                number += 1
            write(folder / f"{split}-{file:05d}-of-{len(files):05d}", records)
    return folder


def flowers(folder: pathlib.Path, labelled: int = 12, unlabelled: int = 5, in_folders: bool = False) -> pathlib.Path:
    """Writes Kaggle's flowers: splits by name, or a folder for each, and a test split without labels."""
    for split, first, count in (("train", 0, labelled), ("val", 100, labelled), ("test", 200, unlabelled)):
        records = [{"image": jpeg(first + i, (32, 32)), "id": b"%05x" % (first + i)} for i in range(count)]
        if split != "test":
            records = [{**record, "class": i % 3} for i, record in enumerate(records)]
        write(folder / (f"{split}/00-32x32-{count}.tfrec" if in_folders else f"{split}-0-{count}.tfrec"), records)
    return folder


def melanoma(folder: pathlib.Path, count: int = 12, unlabelled: int = 0) -> pathlib.Path:
    """Writes SIIM's melanoma: names of images as keys, numbers and text beside the target; a test split without it."""
    records = [
        {
            "image": jpeg(i, (36, 36)),
            "image_name": b"ISIC_%07d" % (i * 17),
            "patient_id": i % 4,
            "sex": i % 2,
            "age_approx": 30 + i,
            "anatom_site_general_challenge": i % 3,
            "diagnosis": i % 5,
            "benign_malignant": b"benign" if i % 4 else b"malignant",
            "target": int(i % 4 == 0),
            "width": 36,
            "height": 36,
        }
        for i in range(count + unlabelled)
    ]
    records, tested = records[:count], records[count:]
    write(folder / f"train00-{count // 2}.tfrec", records[: count // 2])
    write(folder / f"train01-{count - count // 2}.tfrec", records[count // 2 :])
    if unlabelled:
        known = {"target", "diagnosis", "benign_malignant"}
        tested = [{name: value for name, value in record.items() if name not in known} for record in tested]
        write(folder / f"test00-{unlabelled}.tfrec", tested)
    return folder


def channels(folder: pathlib.Path, counts: Mapping[str, int]) -> pathlib.Path:
    """Writes SageMaker's channels: a folder for each, raw pixels in the order channel, row, column."""
    for channel, count in counts.items():
        pixels = np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), np.uint8)
        records = [{"image": image.tobytes(), "label": number % 10} for number, image in enumerate(pixels)]
        write(folder / channel / f"{channel}.tfrecords", records)
    return folder


def deeplab(folder: pathlib.Path, counts: Mapping[str, int], classes: int = 4) -> pathlib.Path:
    """Writes segmentation as DeepLab does: a JPEG file, and a PNG file of the class of each pixel."""
    for split, count in counts.items():
        records = []
        for number in range(count):
            size = 40 + number % 3, 48 + number % 2
            mask = np.array(PIL.Image.open(io.BytesIO(jpeg(number, size, mode="L")))) // (256 // classes)
            records.append({
                "image/encoded": jpeg(number, size),
                "image/filename": b"2007_%06d" % number,
                "image/format": b"jpeg",
                "image/height": size[0],
                "image/width": size[1],
                "image/channels": 3,
                "image/segmentation/class/encoded": png(mask),
                "image/segmentation/class/format": b"png",
            })  # fmt: skip
        write(folder / f"{split}-00000-of-00001.tfrecord", records)
    return folder


def scenes(folder: pathlib.Path, counts: Mapping[str, int], classes: int = 6) -> pathlib.Path:
    """Writes images with one to three classes each."""
    for split, count in counts.items():
        records = [
            {
                "image": jpeg(number, (32, 36)),
                "classes": np.unique(np.arange(1 + number % 3) * (number + 1) % classes).astype(np.int64),
                "name": b"scene %d" % number,
            }
            for number in range(count)
        ]
        write(folder / f"{split}-00.tfrecord", records)
    return folder


def png(pixels: np.ndarray) -> bytes:
    """Returns a PNG file of pixels, uint8 (height, width) or (height, width, 3)."""
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


BOXES = "image/object/bbox"
# {convention: (numbers of a box, given ymin, xmin, ymax, xmax in pixels and the image's height and width)}
CONVENTIONS: dict[str, Callable[[float, float, float, float, int, int], tuple[float, ...]]] = {
    "rel_yxyx": lambda a, b, c, d, h, w: (a / h, b / w, c / h, d / w),
    "yxyx": lambda a, b, c, d, h, w: (a, b, c, d),
    "rel_xyxy": lambda a, b, c, d, h, w: (b / w, a / h, d / w, c / h),
    "xyxy": lambda a, b, c, d, h, w: (b, a, d, c),
    "rel_xywh": lambda a, b, c, d, h, w: (b / w, a / h, (d - b) / w, (c - a) / h),
    "xywh": lambda a, b, c, d, h, w: (b, a, d - b, c - a),
}
_CELL, _STEP = 8, 80


def annotated(
    folder: pathlib.Path,
    counts: Mapping[str, int],
    convention: str = "rel_yxyx",
    sizes: int = 1,
    is_labelled: bool = True,
) -> pathlib.Path:
    """Writes images with masks, 1 to 3 boxes and as many points in TF-Slim's four features and in one.

    Images are PNG files of flat cells of four greys, 80 times the classes in their masks; `sizes` that differ. Boxes
    are a convention's numbers under `boxes`, and TF-Slim's under `image/object/bbox/...`. A box's class is its number.
    """
    for split, count in counts.items():
        records = []
        for number in range(count):
            down, across = 5 + number % sizes, 4 + number % max(1, sizes - 1)
            draw = np.random.default_rng(number + 1000 * (split != "train"))
            classes = np.kron(draw.integers(0, 4, (down, across)), np.ones((_CELL, _CELL))).astype(np.uint8)
            height, width = classes.shape
            corners = np.sort(draw.integers(0, (height, width), (1 + number % 3, 2, 2)), axis=1)
            corners[:, 1] += 1
            boxes = corners.reshape(-1, 4).astype(float)
            own = np.array([CONVENTIONS[convention](*box, height, width) for box in boxes], np.float32)
            slim = boxes / [height, width, height, width]
            records.append({
                "image": png(np.repeat(classes[..., None] * _STEP, 3, axis=2)),
                **({"label": number % 3} if is_labelled else {}),
                "mask": png(classes),
                "raw_mask": classes.tobytes(),
                "boxes": own.ravel(),
                "points": (corners.mean(axis=1) / [height, width]).astype(np.float32).ravel(),
                "classes": np.arange(len(boxes)),
                **{
                    f"{BOXES}/{name}": slim[:, at].astype(np.float32)
                    for at, name in enumerate(("ymin", "xmin", "ymax", "xmax"))
                },
            })  # fmt: skip
        write(folder / f"{split}-00000-of-00001", records)
    return folder
