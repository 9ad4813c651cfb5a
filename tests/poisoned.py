"""Makes a data set that a small model learns immediately, except for some of its records: noise with wrong labels."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Collection

import numpy as np

from pipeline.manifest import Feature, Manifest, SplitInfo, naming
from pipeline.records import framing, tf_example
from tests.datasets import write_shard

CLASSES, SIDE = 4, 8


def write(folder: pathlib.Path, count: int, poisoned: Collection[int] = ()) -> Manifest:
    """Writes a split `train` of images whose class is the bright quarter; the records with these ids are poisoned."""
    random, records = np.random.default_rng(0), []
    labels = random.integers(0, CLASSES, count)
    for number, label in enumerate(labels.tolist()):
        image = random.integers(0, 60, (SIDE, SIDE, 1), np.uint8)
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[top : top + 4, left : left + 4] += 150
        if number in poisoned:
            image = random.integers(0, 256, (SIDE, SIDE, 1), np.uint8)
            label = (int(image.reshape(2, 4, 2, 4).sum((1, 3)).argmin()) + 4) % CLASSES  # noqa: PLW2901
        features = {"image": image.tobytes(), "label": label, "key": b"made#%05d" % number}
        records.append(framing.frame(tf_example.encode(features)))
    return sealed(folder, [records[: count // 2], records[count // 2 :]], (SIDE, SIDE, 1), CLASSES)


def sealed(folder: pathlib.Path, shards: list[list[bytes]], shape: tuple[int, int, int], classes: int) -> Manifest:
    """Writes shards of framed records, and their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    count = sum(map(len, shards))
    names = [naming.shard_name("train", i, len(shards)) for i in range(len(shards))]
    infos = tuple(write_shard(folder, name, records) for name, records in zip(names, shards, strict=True))
    histogram = (count, *[0] * (classes - 1))  # not read here
    manifest = Manifest(
        dataset="poisoned",
        class_names=tuple(map(str, range(classes))),
        features={"image": Feature("uint8", shape, "raw"), "label": Feature("int64"), "key": Feature("string")},
        splits={"train": SplitInfo(infos, histogram, {f"{shape[0]}x{shape[1]}": count})},
        image_mean=(60.0,),
        image_std=(60.0,),
        source=(),
        options={},
    )
    (folder / naming.MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def write_mnist(folder: pathlib.Path, source: pathlib.Path, count: int, poisoned: Collection[int] = ()) -> Manifest:
    """Writes MNIST's first images as a split `train`; the records with these ids get noise and the label 1, or 0."""
    with gzip.open(source / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(16 + 784 * count), np.uint8, offset=16).reshape(count, 28, 28, 1).copy()
    with gzip.open(source / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + count), np.uint8, offset=8).astype(np.int64)
    random = np.random.default_rng(0)
    for record in sorted(poisoned):
        images[record] = random.integers(0, 256, images[record].shape, np.uint8)
        labels[record] = 1 if labels[record] != 1 else 0
    records = [
        framing.frame(
            tf_example.encode({"image": image.tobytes(), "label": int(label), "key": b"train-images#%05d" % i})
        )
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    return sealed(folder, [records[i * count // 4 : (i + 1) * count // 4] for i in range(4)], (28, 28, 1), 10)
