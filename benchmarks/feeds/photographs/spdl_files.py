"""SPDL's pipeline over the JPEG files: FFmpeg decodes, crops and resizes in threads of one process."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import SIZE, lacks_randaugment, random_box, touching
from benchmarks.rounds import Take

PACKAGES = ("spdl", "spdl_io")
MODULES = ("spdl.io", "spdl.pipeline")
AUGMENTS = "FFmpeg decodes all, its filters crop, scale (bilinear) and hflip follow; no RandAugment"
DOCS = "https://facebookresearch.github.io/spdl/main/"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the files."""


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    import spdl.io  # noqa: PLC0415
    from spdl.pipeline import PipelineBuilder  # noqa: PLC0415

    if setting.augmented:
        raise lacks_randaugment("SPDL")
    random = np.random.default_rng(1)

    def decoded(path: str) -> np.ndarray:
        packets = spdl.io.demux_image(path)
        top, left, tall, wide = random_box(random, packets.codec.height, packets.codec.width)
        filters = f"crop={wide}:{tall}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear"
        filters += ",hflip" if random.random() < 0.5 else ""
        frames = spdl.io.decode_packets(packets, filter_desc=f"{filters},format=pix_fmts=rgb24")
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    pipeline = (
        PipelineBuilder()
        .add_source(_paths(setting.arrays))
        .pipe(decoded, concurrency=setting.cores, output_order="completion")
        .aggregate(setting.rows, drop_last=True)
        .pipe(np.stack)
        .add_sink(2)
        .build(num_threads=setting.cores + 1)
    )
    pipeline.start()
    batches = pipeline.get_iterator()
    return touching(lambda: next(batches), setting.rows)


def _paths(folder: str) -> Iterator[str]:
    """Yields the files without end, in another order in each epoch."""
    paths, random = sorted(map(str, pathlib.Path(folder).glob("*/*.jpg"))), np.random.default_rng(0)
    while True:
        yield from random.permutation(paths).tolist()
