"""Synthetic sources: CIFAR-10's binary files of any length, TFRecords of raw images, Parquet files, photographs."""

from __future__ import annotations

import io
import math
import pathlib
import tarfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.records import framing, tf_example

CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_ROW_GROUP = 500
_DISTINCT = 250  # number of distinct images, which a larger file repeats
_DISTINCT_PIXELS = 200 << 20  # pixels of distinct photographs, so that large ones are made within seconds
_CLASSES = 10
_QUALITY = (85, 95)
_NOISE = 8  # of 255, to either side: enlarged photographs have less detail than a camera's, and decode faster


def cifar(folder: pathlib.Path, images_per_file: int, is_smooth: bool = False) -> pathlib.Path:
    """Writes the six files of CIFAR-10's binary version, of random images; returns their folder.

    Smooth images compress like photographs, and repeat; noise does not compress.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    smooth = (
        np.stack([_smooth(random, (32, 32)) for _ in range(_DISTINCT)]).transpose(0, 3, 1, 2) if is_smooth else None
    )
    for name in CIFAR_FILES:
        with open(folder / name, "wb") as file:
            for start in range(0, images_per_file, 10_000):
                records = random.integers(0, 256, (min(10_000, images_per_file - start), 3073), np.uint8)
                records[:, 0] %= 10
                if smooth is not None:
                    records[:, 1:] = smooth[random.integers(0, _DISTINCT, len(records))].reshape(len(records), -1)
                file.write(records)
    return folder


def raw_records(path: pathlib.Path, count: int, shape: tuple[int, int, int], classes: int) -> None:
    """Writes a TFRecord file of raw noise images; labels cycle through `classes`."""
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        for number in range(count):
            features = {"image": random.bytes(math.prod(shape)), "label": number % classes}
            file.write(framing.frame(tf_example.encode(features)))


def parquet(path: pathlib.Path, count: int, size: tuple[int, int], image_format: str) -> pathlib.Path:
    """Writes a Parquet file of `count` encoded images of (height, width), in row groups of 500; returns its path."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    random = np.random.default_rng(0)
    images = [_encoded(_smooth(random, size), image_format) for _ in range(min(count, _DISTINCT))]
    schema = pa.schema({"image": pa.binary(), "label": pa.int64()})
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, count, _ROW_GROUP):
            rows = range(start, min(start + _ROW_GROUP, count))
            columns = {"image": [images[row % len(images)] for row in rows], "label": [row % 10 for row in rows]}
            writer.write_table(pa.table(columns, schema), row_group_size=_ROW_GROUP)
    return path


def photographs(folder: pathlib.Path, count: int, size: tuple[int, int]) -> pathlib.Path:
    """Writes JPEG files, in a folder per class; returns `folder`.

    They are parts of the two photographs that come with scikit-learn, resized, some mirrored, with fine noise, of
    quality 85 to 95. Their sides are within a tenth of `size`, (width, height). After some hundred they repeat.
    """
    import PIL.Image  # noqa: PLC0415
    from sklearn.datasets import load_sample_images  # noqa: PLC0415

    random, whole = np.random.default_rng(0), [PIL.Image.fromarray(image) for image in load_sample_images().images]
    for name in range(_CLASSES):
        (folder / f"{name}").mkdir(parents=True)
    distinct = min(count, 2 * _DISTINCT, max(1, _DISTINCT_PIXELS // (size[0] * size[1])))
    made = [_photograph(random, whole[number % len(whole)], size) for number in range(distinct)]
    for number in range(count):
        (folder / f"{number % _CLASSES}" / f"{number:06}.jpg").write_bytes(made[number % distinct])
    return folder


def tars(images: pathlib.Path, folder: pathlib.Path, shards: int) -> pathlib.Path:
    """Writes images, in a folder per class named by its number, as tar shards of WebDataset; returns `folder`."""
    folder.mkdir()
    paths = sorted(images.glob("*/*"), key=lambda path: path.name)
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:06}.tar", "w") as tar:
            for path in paths[len(paths) * shard // shards : len(paths) * (shard + 1) // shards]:
                tar.add(path, path.name)
                label = tarfile.TarInfo(f"{path.stem}.cls")
                label.size = len(path.parent.name)
                tar.addfile(label, io.BytesIO(path.parent.name.encode()))
    return folder


def _photograph(random: np.random.Generator, whole: Any, size: tuple[int, int]) -> bytes:
    """Returns a JPEG file of a random part, with at least four fifths of each side, of a Pillow image."""
    import PIL.Image  # noqa: PLC0415

    width, height = (round(side * random.uniform(0.9, 1.1)) for side in size)
    wide, tall = (side * random.uniform(0.8, 1.0) for side in whole.size)
    left, top = random.uniform(0, whole.size[0] - wide), random.uniform(0, whole.size[1] - tall)
    box = (left, top, left + wide, top + tall)
    pixels = np.asarray(whole.resize((width, height), PIL.Image.Resampling.BICUBIC, box=box), np.int16)
    noisy = pixels + random.integers(-_NOISE, _NOISE + 1, pixels.shape, np.int16)
    noisy = noisy[:, :: random.choice((-1, 1))]
    return _encoded(np.clip(noisy, 0, 255).astype(np.uint8), "JPEG", int(random.integers(*_QUALITY, endpoint=True)))


def _smooth(random: np.random.Generator, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns an image that compresses like a photograph: enlarged coarse noise with a little fine noise."""
    import PIL.Image  # noqa: PLC0415

    coarse = PIL.Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
    large = np.asarray(coarse.resize((size[1], size[0]), PIL.Image.Resampling.BICUBIC), np.int16)
    return np.clip(large + random.integers(-8, 9, large.shape), 0, 255).astype(np.uint8)


def _encoded(image: NDArray[np.uint8], image_format: str, quality: int = 90) -> bytes:
    import PIL.Image  # noqa: PLC0415

    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, image_format, **({"quality": quality} if image_format == "JPEG" else {}))
    return stream.getvalue()
