"""Makes small data sets without a converter, so that the tests of `pipeline` do not depend on `beam_jobs`."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import crc32c
import numpy as np
import PIL.Image

from pipeline.files.paths import LocalPath
from pipeline.manifest import FORMAT_VERSION, MEMBERS_VERSION, Feature, Manifest, ShardInfo, SplitInfo, manifest, naming
from pipeline.records import framing, tf_example
from pipeline.records.stream import records_of

MEMBERS_1 = 0x01737265626D656D  # the bytes "members" and 1, as a little-endian number
GREY_STEP = 4
EXTRA = {
    "box": Feature("float32", (4,)),
    "id": Feature("int64"),
    "scores": Feature("float32", (None,)),
    "tags": Feature("string", (2,)),
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """The way the records of a data set are made.

    Attributes:
      encoding: encoding of the images.
      unequal_keys: whether keys, and so records, have several lengths, so that the shards have files of offsets.
      extra: whether records also have the features of `EXTRA`.
      varied: whether image i is i % 3 rows higher and i % 2 columns wider.
      grey: whether image i has a single grey value, i * GREY_STEP, which JPEG and augmentations keep.
      compression: compression of the shards.
      members: number of records in each GZIP member of a compressed shard that has a table of members; 0 for a single
        member without a table.
    """

    encoding: str = "raw"
    unequal_keys: bool = False
    extra: bool = False
    varied: bool = False
    grey: bool = False
    compression: str = ""
    members: int = 0


def images_of(start: int, count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns images whose first two bytes are the record's number; the rest is pseudo-random, seeded by it."""
    images = np.stack([np.random.default_rng(start + i).integers(0, 256, shape, np.uint8) for i in range(count)])
    images = images.reshape(count, int(np.prod(shape)))
    numbers = np.arange(start, start + count)
    images[:, 0], images[:, 1] = numbers % 256, numbers // 256
    return images.reshape(count, *shape)


def extra_of(number: int) -> dict[str, np.ndarray]:
    """Returns the values of the features in `EXTRA` of record `number`."""
    return {
        "box": np.arange(4, dtype=np.float32) + number,
        "id": np.array([1000 + number]),
        "scores": np.full(number % 3, number, np.float32),
        "tags": np.array([b"a%d" % number, b"b"], object),
    }


def key_of(split: str, number: int, kind: Kind = Kind()) -> bytes:
    """Returns the key of record `number`."""
    return f"{split}#{number}".encode() if kind.unequal_keys else f"{split}#{number:05d}".encode()


def image_of(number: int, shape: tuple[int, int, int], kind: Kind = Kind()) -> np.ndarray:
    """Returns the image of record `number`, before it is encoded."""
    height, width, channels = shape
    more = (number % 3, number % 2) if kind.varied else (0, 0)
    if kind.grey:
        return np.full((height + more[0], width + more[1], channels), number * GREY_STEP, np.uint8)
    return images_of(number, 1, (height + more[0], width + more[1], channels))[0]


def encoded(image: np.ndarray, encoding: str) -> bytes:
    """Returns the bytes of an image in a record."""
    if encoding == "raw":
        return image.tobytes()
    stream = io.BytesIO()
    PIL.Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(stream, encoding)
    return stream.getvalue()


def write_dataset(
    folder: pathlib.Path,
    counts: Sequence[int] = (5, 0, 4, 3),
    shape: tuple[int, int, int] = (8, 6, 3),
    test_counts: Sequence[int] = (4,),
    classes: int = 3,
    kind: Kind = Kind(),
) -> Manifest:
    """Writes splits `train` and `test` with the given number of records per shard; record i has label i % classes."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {
        name: _write_split(folder, name, split_counts, shape, classes, kind)
        for name, split_counts in (("train", counts), ("test", test_counts))
    }
    pixels = images_of(0, sum(counts), shape).reshape(-1, shape[2]).astype(np.float64)
    image = Feature("uint8", (None, None, shape[2]) if kind.varied else shape, kind.encoding)
    extra = EXTRA if kind.extra else {}
    manifest = Manifest(
        dataset="made",
        class_names=tuple(f"class {i}" for i in range(classes)),
        features={"image": image, "label": Feature("int64"), "key": Feature("string")} | extra,
        splits=splits,
        image_mean=tuple(pixels.mean(0)),
        image_std=tuple(pixels.std(0)),
        source=(),
        options={"seed": 0},
        compression=kind.compression,
        format_version=MEMBERS_VERSION if kind.members else FORMAT_VERSION,
    )
    (folder / naming.MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def edit_manifest(folder: pathlib.Path, change: Callable[[dict], object]) -> None:
    """Changes a manifest's JSON object, and updates its digest."""
    path = folder / naming.MANIFEST
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(manifest.sealed(content)))


def flip(path: pathlib.Path, position: int | None = None, mask: int = 1) -> None:
    """Flips bits of a byte of a file: of the one in its middle, or at a position."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= mask
    path.write_bytes(data)


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns {name: bytes} of a data set's files: none hidden, and no cards nor log, which have times and commands."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in paths.items()
        if name.suffix != ".html" and name.as_posix() != naming.LOG and not any(part[0] == "." for part in name.parts)
    }


def to_memory(folder: pathlib.Path, name: str) -> str:
    """Copies a data set to TensorFlow's in-memory file system, which stands in for object stores; returns its URL."""
    import tensorflow as tf

    url = f"ram://{name}"
    tf.io.gfile.makedirs(url)
    tf.io.gfile.rmtree(url)  # it would append to existing files
    tf.io.gfile.makedirs(f"{url}/{naming.SIDECARS}")
    for path in filter(pathlib.Path.is_file, folder.rglob("*")):
        with tf.io.gfile.GFile(f"{url}/{path.relative_to(folder)}", "wb") as file:
            file.write(path.read_bytes())
    return url


def _write_split(
    folder: pathlib.Path, name: str, counts: Sequence[int], shape: tuple[int, int, int], classes: int, kind: Kind
) -> SplitInfo:
    shards, first, sizes = [], 0, {}
    for index, count in enumerate(counts):
        records = []
        for number in range(first, first + count):
            image = image_of(number, shape, kind)
            features = {"image": encoded(image, kind.encoding), "label": number % classes}
            features |= {"key": key_of(name, number, kind)} | _lists(extra_of(number) if kind.extra else {})
            records.append(framing.frame(tf_example.encode(features)))
            size = f"{image.shape[0]}x{image.shape[1]}"
            sizes[size] = sizes.get(size, 0) + 1
        file = naming.shard_name(name, index, len(counts), kind.compression)
        shards.append(write_shard(folder, file, records, kind.members))
        first += count
    histogram = np.bincount(np.arange(first) % classes, minlength=classes)
    return SplitInfo(tuple(shards), tuple(int(n) for n in histogram), sizes)


def _lists(features: dict[str, np.ndarray]) -> dict:
    return {name: v.tolist() if v.dtype == object else v for name, v in features.items()}


def examples_in(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the decoded records of a shard, which is compressed if its name says so."""
    found = records_of(LocalPath(path), "GZIP" if path.suffix == ".gz" else "")
    return [tf_example.decode(record) for _, record in found]


def write_shard(folder: pathlib.Path, file: str, records: Sequence[bytes], of_member: int = 0) -> ShardInfo:
    """Writes framed records to a file, compressed if its name says so, and its sidecars.

    `of_member` is the same as `Kind.members`.
    """
    data, offsets = b"".join(records), b""
    begins = np.cumsum([0, *map(len, records)])
    stride = (len(records[0]) if records else 0) if len({len(record) for record in records}) <= 1 else None
    if file.endswith(".gz") and of_member and records:
        firsts = [*range(0, len(records), of_member), len(records)]
        written = [gzip.compress(b"".join(records[a:b]), mtime=0) for a, b in itertools.pairwise(firsts)]
        data, ends = b"".join(written), np.cumsum([0, *map(len, written)])
        table = [MEMBERS_1, len(written), *ends, *firsts, *(begins if stride is None else [])]
        offsets = np.array(table, "<u8").tobytes()
    elif file.endswith(".gz"):
        data, stride = gzip.compress(data, mtime=0), None
    elif stride is None:
        offsets = begins.astype("<u8").tobytes()
    (folder / naming.SIDECARS).mkdir(exist_ok=True)
    if offsets:
        (folder / naming.offsets_name(file)).write_bytes(offsets)
    crc = f"{crc32c.crc32c(offsets):08x}" if offsets else None
    (folder / file).write_bytes(data)
    crcs, crc_of_crcs = b"".join(record[-framing.FOOTER :] for record in records), None
    if crcs:
        (folder / naming.crcs_name(file)).write_bytes(crcs)
        crc_of_crcs = f"{crc32c.crc32c(crcs):08x}"
    whole = f"{crc32c.crc32c(data):08x}"
    return ShardInfo(file, len(records), len(data), whole, stride, crc, crcs_crc32c=crc_of_crcs)
