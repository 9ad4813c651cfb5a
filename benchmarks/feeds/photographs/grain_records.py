"""Grain's `MapDataset` over ArrayRecord files of JPEGs, decoded and resized by Pillow in worker processes."""

from __future__ import annotations

import io
import pathlib

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import SIZE, lacks_randaugment, random_box, touching
from benchmarks.rounds import Take

PACKAGES = ("grain", "array_record", "pillow")
MODULES = ("grain", "array_record", "PIL")
AUGMENTS = "Pillow decodes all, crops and resizes; no RandAugment"
DOCS = "https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html"
_FILES = 10


def prepare(setting: Setting) -> None:
    """Writes ArrayRecord files of class and JPEG."""
    from array_record.python.array_record_module import ArrayRecordWriter  # noqa: PLC0415

    paths = sorted(pathlib.Path(setting.arrays).glob("*/*.jpg"))
    for number in range(_FILES):
        writer = ArrayRecordWriter(f"{setting.own}/train-{number:05d}.arrayrecord", "group_size:1")
        for path in paths[number::_FILES]:
            writer.write(bytes([int(path.parent.name)]) + path.read_bytes())
        writer.close()


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    import grain  # noqa: PLC0415

    if setting.augmented:
        raise lacks_randaugment("Grain")
    files = sorted(map(str, pathlib.Path(setting.own).glob("*.arrayrecord")))
    dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).seed(1).shuffle().repeat()
    workers = grain.multiprocessing.MultiprocessingOptions(num_workers=setting.cores)
    # Batched after the prefetching threads, which hold 500 elements.
    batches = iter(dataset.random_map(_example).to_iter_dataset().batch(setting.rows).mp_prefetch(workers))
    return touching(lambda: next(batches)[0], setting.rows)


def _example(record: bytes, random: np.random.Generator) -> tuple[np.ndarray, np.int64]:
    import PIL.Image  # noqa: PLC0415

    image = PIL.Image.open(io.BytesIO(record[1:])).convert("RGB")
    top, left, tall, wide = random_box(random, image.height, image.width)
    box = (left, top, left + wide, top + tall)
    pixels = np.asarray(image.resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if random.random() < 0.5 else pixels, np.int64(record[0])
