"""Reloads an exported file in a process of its own, and compares it with the trained model."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.errors import DataError
from trainer.exporting import reading
from trainer.exporting.served import Served

_TIMEOUT = 600.0  # seconds


def batches_of(served: Served, images: Sequence[NDArray[np.uint8]], any_size: bool, rows: int | None) -> list[NDArray]:
    """Returns stored images as batches that a file takes.

    Args:
      served: the model.
      images: of the split, (height, width, channels) each.
      any_size: whether the file takes images of any size; else they are fitted.
      rows: of each batch, where the file takes no other number: the last one ends with copies.
    """
    if served.fitting and any_size:
        return [image[None] for image in images]
    if served.fitting:
        images = [served.fitting.fit(tf.constant(image[None])).numpy()[0] for image in images]
    if rows is None:
        return [np.stack(images)]
    filled = [*images, *[images[-1]] * (-len(images) % rows)]
    return [np.stack(filled[start : start + rows]) for start in range(0, len(filled), rows)]


def largest_difference(
    kind: str, path: pathlib.Path, batches: Sequence[NDArray], expected: NDArray, served: Served, modules: Sequence[str]
) -> float:
    """Returns the largest difference between a file's probabilities and those that are expected.

    Args:
      kind: the format.
      path: of the file.
      batches: what it is given; rows beyond those of `expected` are copies.
      expected: float32 (n, classes).
      served: whose class names it gives.
      modules: of the user, whose layers it may have.

    Raises:
      DataError: it cannot be read, or gives a class or a name other than its own probabilities say.
    """
    found = _answers(kind, path, batches, len(served.class_names), modules)
    probabilities = found["probabilities"][: len(expected)]
    classes = probabilities.argmax(axis=1)
    names = np.array(served.class_names)[classes]
    if not np.array_equal(found["class"][: len(expected)], classes) or not np.array_equal(
        found.get("class_name", names)[: len(expected)], names
    ):
        raise DataError(f"--format={kind}: the reloaded file gives other classes than its probabilities say")
    return float(np.abs(probabilities - expected).max())


def _answers(
    kind: str, path: pathlib.Path, batches: Sequence[NDArray], classes: int, modules: Sequence[str]
) -> dict[str, NDArray]:
    with tempfile.TemporaryDirectory(prefix="trainer-export-") as scratch:
        images, answers = os.path.join(scratch, "images.npz"), os.path.join(scratch, "answers.npz")
        np.savez(images, *batches)
        command = [sys.executable, "-P", str(reading.__file__), kind, str(path), images, answers, str(classes)]
        done = subprocess.run(
            [*command, *modules], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            own = "; a layer of your own needs @keras.saving.register_keras_serializable()" if modules else ""
            raise DataError(f"--format={kind}: the file cannot be reloaded: {last}{own if kind == 'keras' else ''}")
        with np.load(answers) as stored:
            return dict(stored)
