"""Synthetic sources: CIFAR-10's binary files of any length, TFRecords of raw images, Parquet files of PNG or JPEG."""

from __future__ import annotations

import io
import math
import pathlib

import numpy as np
from numpy.typing import NDArray

from pipeline.records import framing, tf_example

CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_ROW_GROUP = 500
_DISTINCT = 250  # images, which a larger file repeats


def cifar(folder: pathlib.Path, images_per_file: int, is_smooth: bool = False) -> pathlib.Path:
    """Writes the six files of CIFAR-10's binary version, of random images; returns their folder.

    Smooth ones compress as photographs do, and repeat; noise does not compress.
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
    """Writes a TFRecord file of raw images of noise; the labels are those of `classes` in turn."""
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


def _smooth(random: np.random.Generator, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns an image that compresses as photographs do: enlarged coarse noise with a little fine noise."""
    import PIL.Image  # noqa: PLC0415

    coarse = PIL.Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
    large = np.asarray(coarse.resize((size[1], size[0]), PIL.Image.Resampling.BICUBIC), np.int16)
    return np.clip(large + random.integers(-8, 9, large.shape), 0, 255).astype(np.uint8)


def _encoded(image: NDArray[np.uint8], image_format: str) -> bytes:
    import PIL.Image  # noqa: PLC0415

    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, image_format, **({"quality": 90} if image_format == "JPEG" else {}))
    return stream.getvalue()
