"""Compares exported files, reloaded in another process, with the trained model on real examples of the split."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline.batch.compose import make_dataset
from pipeline.decode import ExampleParser
from pipeline.errors import DataError, root_cause
from trainer.exporting import reading
from trainer.exporting.served import Served
from trainer.inference import Trained
from trainer.step.state import Forward
from trainer.task.data_spec import gives_probabilities

_TIMEOUT = 600.0  # seconds for each file


@dataclasses.dataclass(frozen=True)
class File:
    """An exported file or folder.

    Attributes:
      path: of it.
      batches: that it is given; rows beyond the expected ones are copies.
    """

    path: pathlib.Path
    batches: Sequence[NDArray]


def batches_of(served: Served, images: Sequence[NDArray[np.uint8]], any_size: bool, rows: int | None) -> list[NDArray]:
    """Returns stored images as batches that a file takes.

    Args:
      served: the model.
      images: of the split, (height, width, channels) each.
      any_size: whether the file takes images of any size; else they are fitted.
      rows: of each batch if the file takes no other number, so that the last one ends with copies; None: any number.
    """
    if served.fitting and any_size:
        return [image[None] for image in images]
    if served.fitting:
        images = [served.fitting.fit(tf.constant(image[None])).numpy()[0] for image in images]
    if rows is None:
        return [np.stack(images)]
    filled = [*images, *[images[-1]] * (-len(images) % rows)]
    return [np.stack(filled[start : start + rows]) for start in range(0, len(filled), rows)]


def largest_differences(
    files: Mapping[str, File], expected: NDArray, served: Served, modules: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """Yields each format with the largest difference between its file's probabilities and the expected ones.

    Args:
      files: by format; one process reads all of them, in this order.
      expected: float32 (n, classes).
      served: whose class names they give.
      modules: of the user, whose layers they may have.

    Raises:
      DataError: a file cannot be read, or gives a class or a name other than its own probabilities say.
    """
    with tempfile.TemporaryDirectory(prefix="trainer-export-") as scratch:
        said = _read(files, pathlib.Path(scratch), len(served.class_names), modules)
        for kind in files:
            answers = pathlib.Path(scratch, f"{kind}.answers.npz")
            if not answers.exists():
                own = "; a layer of your own needs @keras.saving.register_keras_serializable()" if modules else ""
                raise DataError(f"--format={kind}: the file cannot be reloaded: {said}{own if kind == 'keras' else ''}")
            with np.load(answers) as found:
                yield kind, _largest_difference(kind, dict(found), expected, served)


def _largest_difference(kind: str, found: Mapping[str, NDArray], expected: NDArray, served: Served) -> float:
    probabilities = found["probabilities"][: len(expected)]
    classes = probabilities.argmax(axis=1)
    names = np.array(served.class_names)[classes]
    if not np.array_equal(found["class"][: len(expected)], classes) or not np.array_equal(
        found.get("class_name", names)[: len(expected)], names
    ):
        raise DataError(f"--format={kind}: the reloaded file gives other classes than its probabilities say")
    return float(np.abs(probabilities - expected).max())


def _read(files: Mapping[str, File], scratch: pathlib.Path, classes: int, modules: Sequence[str]) -> str:
    """Has a process write the answers of all files, up to the first that it cannot read; returns its error."""
    for kind, file in files.items():
        np.savez(scratch / f"{kind}.images.npz", *file.batches)
    named = [text for kind, file in files.items() for text in (kind, str(file.path))]
    command = [sys.executable, "-P", str(reading.__file__), str(scratch), str(classes), ",".join(modules), *named]
    seconds = _TIMEOUT * len(files)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        names = ",".join(files)
        raise DataError(f"--format={names}: not reloaded and run within {seconds:g} s; give fewer --examples") from None
    _, is_tensorflows, error = done.stderr.rpartition("tensorflow.python.framework.errors_impl.")
    if is_tensorflows and (cause := root_cause(error.partition(": ")[2])[1]):
        return cause
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def stored_images(trained: Trained, count: int) -> list[NDArray[np.uint8]]:
    """Returns the first images of the split, decoded but not preprocessed: uint8 (height, width, channels) each."""
    feature, parser = trained.split.manifest.features["image"], ExampleParser({})

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label, _ = parser.parse(records)
        return image, label

    request = dataclasses.replace(trained.split.request, parse=parse, distort=None, resize=None)
    rows = _real_rows(make_dataset(request), lambda batch: batch[0], count)
    if feature.encoding == "raw":
        return [np.frombuffer(row, np.uint8).reshape(trained.split.manifest.image_shape) for row in rows]
    channels = feature.shape[2] or 3
    return [tf.io.decode_image(row, channels=channels, expand_animations=False).numpy() for row in rows]


def trained_probabilities(trained: Trained, count: int) -> NDArray[np.float32]:
    """Returns the trained model's probabilities for the first images of the split, fed as the run feeds them."""
    model, is_done = trained.model, gives_probabilities(trained.model)

    @tf.function(autograph=False)
    def probabilities(features: Any) -> tf.Tensor:
        kinds = model.trainable_variables, model.non_trainable_variables
        trainable, fixed = ([tf.convert_to_tensor(v.value) for v in variables] for variables in kinds)
        forward = Forward(model, trainable, fixed, trained.state.eval_flip)
        outputs = forward(features)
        return outputs if is_done else tf.nn.softmax(outputs)

    rows = _real_rows(make_dataset(trained.split.request), lambda batch: probabilities(batch[0]), count)
    return np.stack(list(rows))


def _real_rows(batches: Any, values: Any, count: int) -> Iterator[Any]:
    """Yields the first `count` rows of the batches' `values`, without padding and skipped records."""

    def rows() -> Iterator[Any]:
        for batch in batches:
            yield from values(batch).numpy()[batch[-1].numpy() > 0]

    return itertools.islice(rows(), count)
