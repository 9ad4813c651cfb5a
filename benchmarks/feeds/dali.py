"""NVIDIA DALI on the CPU, over the same TFRecords."""

from __future__ import annotations

import pathlib
import struct
from typing import Any

from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take

PACKAGES = ("nvidia-dali-cuda130",)
MODULES = ("nvidia.dali.tfrecord",)
AUGMENTS = "the same, by fn.crop, fn.flip, fn.brightness_contrast and fn.normalize"
DOCS = (
    "https://docs.nvidia.com/deeplearning/dali/user-guide/docs/examples/general/data_loading/dataloading_tfrecord.html"
)
_SHAPE, _CROP = (32, 32, 3), 24


def prepare(setting: Setting) -> None:
    """Writes the index files that DALI's tfrecord2idx writes: offset and size of each record."""
    for path in _files(setting):
        data, start, lines = path.read_bytes(), 0, []
        while start < len(data):
            size = struct.unpack_from("<Q", data, start)[0] + 16
            lines.append(f"{start} {size}\n")
            start += size
        pathlib.Path(setting.own, path.name + ".idx").write_text("".join(lines))


def take(setting: Setting) -> Take:
    """Returns a Take of batches."""
    pipe = _pipeline(setting)
    pipe.build()

    def take_one() -> tuple[int, float]:
        pipe.run()
        return setting.rows, 0.0

    return take_one


def _files(setting: Setting) -> list[pathlib.Path]:
    return sorted(pathlib.Path(setting.data_dir).glob("train-*.tfrecord"))


def _pipeline(setting: Setting) -> Any:
    from nvidia.dali import fn, pipeline_def, tfrecord, types  # noqa: PLC0415

    @pipeline_def(batch_size=setting.rows, num_threads=setting.cores, device_id=None, seed=1)
    def made() -> tuple[Any, Any]:
        found = fn.readers.tfrecord(
            path=[str(path) for path in _files(setting)],
            index_path=[f"{setting.own}/{path.name}.idx" for path in _files(setting)],
            features={
                "image": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                "label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
            random_shuffle=True,
            initial_fill=10_000,
        )
        images = fn.reshape(found["image"], shape=list(_SHAPE), layout="HWC")
        return (_augmented(fn, types, images) if setting.augmented else images), found["label"]

    return made()


def _augmented(fn: Any, types: Any, images: Any) -> Any:
    places = {name: fn.random.uniform(range=(0.0, 1.0)) for name in ("crop_pos_x", "crop_pos_y")}
    images = fn.crop(images, crop=(_CROP, _CROP), **places)
    images = fn.flip(images, horizontal=fn.random.coin_flip())
    images = fn.brightness_contrast(
        images,
        brightness_shift=fn.random.uniform(range=(-63.0, 63.0)),
        contrast=fn.random.uniform(range=(0.2, 1.8)),
        dtype=types.FLOAT,
    )
    return fn.normalize(images)
