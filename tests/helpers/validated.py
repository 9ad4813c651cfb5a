"""Small data sets of every kind, and damage with a manifest that fits it again: for the tests of the validator."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
from collections.abc import Callable

import crc32c
import numpy as np

from beam_jobs.shards import manifest_writer
from pipeline import manifest as manifests
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo, naming
from pipeline.manifest.manifest import size_histogram
from pipeline.read.statistics import PixelSums, entropy, moments
from pipeline.records import framing, tf_example
from tests.helpers.datasets import edit_manifest, examples_in
from tests.helpers.foreign import png

CLASSES = 4
KINDS = ("raw", "png", "gzip")  # raw with a stride; PNG with offsets, of many sizes; the same, compressed


def pixels_of(number: int, kind: str) -> np.ndarray:
    """Returns the image of an example, uint8 (height, width, 3)."""
    shape = (4, 5, 3) if kind == "raw" else (4 + number % 3, 5, 3)
    return np.random.default_rng(number).integers(0, 256, shape, np.uint8)


def example(number: int, split: str, kind: str) -> dict:
    """Returns the features of an example."""
    pixels = pixels_of(number, kind)
    return {
        "image": pixels.tobytes() if kind == "raw" else png(pixels),
        "label": number * 7 % CLASSES,
        "key": f"{split}.bin#{number:03d}".encode(),
        "coarse": number % 2,
        "box": np.arange(2 if kind == "raw" else number % 4, dtype=np.float32),
    }


def write(folder: pathlib.Path, kind: str = "raw", counts: tuple[int, ...] = (6, 5, 7)) -> Manifest:
    """Writes a data set with split `train`, with the given records per shard, and `test`, with one shard of 4."""
    folder.mkdir(parents=True, exist_ok=True)
    compression = "GZIP" if kind == "gzip" else ""
    splits = {}
    for split, split_counts in (("test", (4,)), ("train", counts)):
        infos, first = [], 0
        for index, count in enumerate(split_counts):
            name = naming.shard_name(split, index, len(split_counts), compression)
            infos.append(write_shard(folder, name, [example(first + i, split, kind) for i in range(count)]))
            first += count
        labels = np.bincount([number * 7 % CLASSES for number in range(first)], minlength=CLASSES)
        sizes = [pixels_of(number, kind).shape[:2] for number in range(first)]
        splits[split] = SplitInfo(tuple(infos), tuple(labels.tolist()), size_histogram(_counted(sizes)))
    sums = PixelSums(3)
    for number in range(sum(counts)):
        sums.add(pixels_of(number, kind))
    mean, std = moments([sums])
    shape = (4, 5, 3) if kind == "raw" else (None, 5, 3)
    features = {
        "image": Feature("uint8", shape, "raw" if kind == "raw" else "png"),
        "label": Feature("int64"),
        "key": Feature("string"),
        "coarse": Feature("int64", (), None, ("a", "b")),
        "box": Feature("float32", (2,) if kind == "raw" else (None,)),
    }
    names = tuple(f"class {i}" for i in range(CLASSES))
    made = Manifest("made", names, features, splits, mean, std, (), {"seed": 0}, compression)
    (folder / naming.MANIFEST).write_bytes(made.to_bytes())
    write_tfds_files(folder)
    return made


def write_shard(folder: pathlib.Path, name: str, examples: list[dict | bytes]) -> ShardInfo:
    """Writes a shard of features or serialized examples, with its offsets; returns its entry in the manifest."""
    serialized = [one if isinstance(one, bytes) else tf_example.encode(one) for one in examples]
    framed = [framing.frame(record) for record in serialized]
    data, offsets = b"".join(framed), None
    lengths = {len(record) for record in framed}
    stride = lengths.pop() if len(lengths) == 1 and not name.endswith(".gz") else None
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    elif stride is None:
        table = np.cumsum([0, *map(len, framed)]).astype("<u8").tobytes()
        (folder / naming.SIDECARS).mkdir(exist_ok=True)
        (folder / naming.offsets_name(name)).write_bytes(table)
        offsets = f"{crc32c.crc32c(table):08x}"
    (folder / name).write_bytes(data)
    labels = [one["label"] for one in examples if isinstance(one, dict) and isinstance(one.get("label"), int)]
    mixed = entropy(np.bincount(labels).tolist()) if labels and min(labels) >= 0 else None
    return ShardInfo(name, len(framed), len(data), f"{crc32c.crc32c(data):08x}", stride, offsets, mixed)


def examples_of(folder: pathlib.Path, name: str) -> list[dict]:
    """Returns the features of a shard's examples, as `write_shard` takes them."""
    scalars = ("image", "key", "label", "coarse")
    return [
        {key: (v[0] if isinstance(v, list) else int(v[0])) if key in scalars else v for key, v in one.items()}
        for one in examples_in(folder / name)
    ]


def rewrite_shard(folder: pathlib.Path, name: str, examples: list[dict | bytes]) -> None:
    """Writes other examples into a shard and describes the file anew, but no totals of its split."""
    info = dataclasses.asdict(write_shard(folder, name, examples))

    def change(content: dict) -> None:
        for split in content["splits"].values():
            split["shards"] = [info if shard["file"] == name else shard for shard in split["shards"]]

    edit(folder, change)


def edit(folder: pathlib.Path, change: Callable[[dict], object]) -> None:
    """Changes the manifest, and what follows from it."""
    edit_manifest(folder, change)
    write_tfds_files(folder)


def write_tfds_files(folder: pathlib.Path) -> None:
    """Writes the files by which TensorFlow Datasets reads a data set."""
    for name, data in manifest_writer.tfds_files(manifests.load(folder)).items():
        (folder / name).write_bytes(data)


def _counted(values):
    return {value: values.count(value) for value in values}
