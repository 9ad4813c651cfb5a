"""`python -m benchmarks.augmenting`: what it costs to draw by keys: `pipeline.augment`, and the libraries themselves.

Keras' layers are called as a script calls them, on a batch inside a `tf.function`, the transforms of torchvision and
Albumentations on one image at a time. Libraries that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.rounds import Take, alternate


def main() -> None:
    """Prints for each transform the processor time of an image, and its ratio to the library's own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64, help="images of a batch")
    parser.add_argument("--side", type=int, default=224, help="height and width of the images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    args = parser.parse_args()
    images = np.random.default_rng(0).integers(0, 256, (args.rows, args.side, args.side, 3), np.uint8)
    for name, bare, transform in (*_keras(images), *_torchvision(images), *_albumentations(images)):
        found = alternate({"bare": bare, "keys": _by_keys(transform, images)}, args.rounds, args.seconds)
        costs = [(one.cpu, other.cpu) for one, other in zip(found["keys"], found["bare"], strict=True)]
        ratios = sorted(mine / other for mine, other in costs)
        own = statistics.median(other for _, other in costs)
        print(
            f"{name}: {own:,.0f} us of processor time per image by itself; by keys {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) times that",
            flush=True,
        )


def _by_keys(transform: Any, images: np.ndarray) -> Take:
    import tensorflow as tf  # noqa: PLC0415, here because --help must be fast

    from pipeline import augment  # noqa: PLC0415, likewise

    own = augment(transform)
    call = tf.function(lambda rows, keys: own(rows, keys, training=True), autograph=False)
    rows, keys = tf.constant(images), tf.range(len(images), dtype=tf.int64)
    keys = tf.bitcast(keys, tf.uint64)
    return _taking(lambda: call(rows, keys), len(images))


def _taking(call: Callable[[], Any], rows: int) -> Take:
    def take() -> tuple[int, float]:
        call()
        return rows, 0.0

    return take


def _keras(images: np.ndarray) -> Iterator[tuple[str, Take, Any]]:
    import keras  # noqa: PLC0415, likewise
    import tensorflow as tf  # noqa: PLC0415, likewise

    layers = keras.layers
    made = {
        "RandomFlip": lambda: layers.RandomFlip("horizontal"),
        "RandomContrast": lambda: layers.RandomContrast(0.2),
        "RandomRotation": lambda: layers.RandomRotation(0.1),
        "flip, rotation, zoom and contrast": lambda: keras.Sequential(
            [
                layers.RandomFlip("horizontal"),
                layers.RandomRotation(0.1),
                layers.RandomZoom(0.2),
                layers.RandomContrast(0.2),
            ]
        ),
    }
    rows = tf.constant(images)
    for name, make in made.items():
        call = tf.function(lambda given, layer=make(): layer(given, training=True), autograph=False)  # noqa: B008
        yield f"Keras, {name}", _taking(lambda call=call: call(rows), len(images)), make()


def _torchvision(images: np.ndarray) -> Iterator[tuple[str, Take, Any]]:
    if not importlib.util.find_spec("torchvision"):
        return
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # its LLVM and TensorFlow's clash
    import torch  # noqa: PLC0415, may not be installed
    from torchvision.transforms import v2  # noqa: PLC0415, likewise

    jitter = v2.ColorJitter(0.3, 0.3)
    for name, transform in (
        ("RandomHorizontalFlip", v2.RandomHorizontalFlip()),
        ("crop, flip and jitter", v2.Compose([v2.RandomResizedCrop(160), v2.RandomHorizontalFlip(), jitter])),
    ):

        def bare(transform: Any = transform) -> Any:
            with torch.no_grad():
                made = [transform(v2.functional.to_image(image)).permute(1, 2, 0).numpy() for image in images]
            return np.stack(made)

        yield f"torchvision, {name}", _taking(bare, len(images)), transform


def _albumentations(images: np.ndarray) -> Iterator[tuple[str, Take, Any]]:
    if not importlib.util.find_spec("albumentations"):
        return
    import albumentations as a  # noqa: PLC0415, may not be installed

    crop = a.RandomResizedCrop((160, 160))
    for name, transform in (
        ("HorizontalFlip", a.Compose([a.HorizontalFlip()])),
        ("crop, flip and jitter", a.Compose([crop, a.HorizontalFlip(), a.ColorJitter(p=1)])),
    ):

        def bare(transform: Any = transform) -> Any:
            return np.stack([transform(image=np.array(image))["image"] for image in images])

        yield f"Albumentations, {name}", _taking(bare, len(images)), transform


if __name__ == "__main__":
    main()
