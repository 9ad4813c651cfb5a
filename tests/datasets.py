"""Makes small data sets without a converter, so that the tests of `pipeline` do not lean on `beam_jobs`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import google_crc32c
import numpy as np

from pipeline import example, framing, naming
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo


def images_of(start: int, count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns images whose first two bytes are the record's number, the rest pseudo-random by it."""
    images = np.stack([np.random.default_rng(start + i).integers(0, 256, shape, np.uint8) for i in range(count)])
    images = images.reshape(count, int(np.prod(shape)))
    numbers = np.arange(start, start + count)
    images[:, 0], images[:, 1] = numbers % 256, numbers // 256
    return images.reshape(count, *shape)


def write_dataset(
    folder: pathlib.Path,
    counts: Sequence[int] = (5, 0, 4, 3),
    shape: tuple[int, int, int] = (8, 6, 3),
    test_counts: Sequence[int] = (4,),
    classes: int = 3,
) -> Manifest:
    """Writes splits `train` and `test` with so many records a shard; record i has label i % classes."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {
        name: _write_split(folder, name, split_counts, shape, classes)
        for name, split_counts in (("train", counts), ("test", test_counts))
    }
    pixels = images_of(0, sum(counts), shape).reshape(-1, shape[2]).astype(np.float64)
    manifest = Manifest(
        dataset="made",
        class_names=tuple(f"class {i}" for i in range(classes)),
        features={"image": Feature("uint8", shape, "raw"), "label": Feature("int64"), "key": Feature("string")},
        splits=splits,
        image_mean=tuple(pixels.mean(0)),
        image_std=tuple(pixels.std(0)),
        source=(),
        options={"seed": 0},
    )
    (folder / naming.MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def _write_split(
    folder: pathlib.Path, name: str, counts: Sequence[int], shape: tuple[int, int, int], classes: int
) -> SplitInfo:
    shards, first = [], 0
    for index, count in enumerate(counts):
        images = images_of(first, count, shape) if count else np.zeros((0, *shape), np.uint8)
        records = [
            framing.frame(example.encode(image.tobytes(), (first + i) % classes, f"{name}#{first + i:05d}".encode()))
            for i, image in enumerate(images)
        ]
        data = b"".join(records)
        file = naming.shard_name(name, index, len(counts))
        (folder / file).write_bytes(data)
        crc = f"{google_crc32c.value(data):08x}"
        shards.append(ShardInfo(file, count, len(data), crc, len(records[0]) if records else 0))
        first += count
    histogram = np.bincount(np.arange(first) % classes, minlength=classes)
    sizes = {f"{shape[0]}x{shape[1]}": first} if first else {}
    return SplitInfo(tuple(shards), tuple(int(n) for n in histogram), sizes)
