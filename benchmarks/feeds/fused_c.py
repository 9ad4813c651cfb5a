"""The practical limit: the frozen C loop, a thread per core, 128 images a call, eight output buffers each."""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import pathlib
import subprocess

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take

PACKAGES: tuple[str, ...] = ()
MODULES = ("numpy",)
AUGMENTS = "the same, fused in C; unaugmented: the gather alone"
_ROWS, _RING, _CALLS = 128, 8, 40  # rows per call; buffers per thread; calls per thread and Take


def prepare(setting: Setting) -> None:
    """Compiles the loop as described in its first lines."""
    source = pathlib.Path(__file__).with_name("fused_augment.c")
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(source), "-o", f"{setting.own}/fused.so"], check=True)


def take(setting: Setting) -> Take:
    """Returns a Take of many calls on all cores."""
    library = ctypes.CDLL(f"{setting.own}/fused.so")
    images = np.load(f"{setting.arrays}/images.npy")
    pool = concurrent.futures.ThreadPoolExecutor(setting.cores)
    work = [_worker(library, images, setting.augmented, seed) for seed in range(setting.cores)]

    def take_many() -> tuple[int, float]:
        return sum(pool.map(lambda one: one(), work)), 0.0

    return take_many


def _worker(library: ctypes.CDLL, images: np.ndarray, augmented: bool, seed: int):
    """Returns a function that makes some batches of a permutation drawn beforehand; it returns their images."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(images))[: len(images) // _ROWS * _ROWS].reshape(-1, _ROWS)
    draws = random.random((len(order), _ROWS, 5), np.float32)
    shape = (_RING, _ROWS, 24 * 24 * 3) if augmented else (_RING, _ROWS, 32 * 32 * 3)
    ring = np.empty(shape, np.float32 if augmented else np.uint8)
    places = itertools.cycle(range(len(order)))

    def work() -> int:
        for call, place in zip(range(_CALLS), places, strict=False):
            pointers = [images.ctypes, order[place].ctypes, *([draws[place].ctypes] if augmented else [])]
            made = ring[call % _RING].ctypes
            function = library.fused if augmented else library.gather
            function(*(ctypes.c_void_p(one.data) for one in (*pointers, made)), ctypes.c_int(_ROWS))
        return _CALLS * _ROWS

    return work
