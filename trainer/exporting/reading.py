"""Runs exported files on some images, in a separate process, and writes their outputs.

    python -P reading.py FOLDER CLASSES MODULES FORMAT PATH [FORMAT PATH ...]

The folder contains the images for each format, FORMAT.images.npz; the outputs are added one after another as
FORMAT.answers.npz. The program imports none of our code, to show that the files need none. The modules, separated by
commas, are the user's: a `.keras` file may contain layers from them.
"""

# ruff: noqa: PLC0415  # each format needs a different library

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

Batches = Iterable[np.ndarray[Any, Any]]
Answers = Iterator[dict[str, Any]]


def saved_model(path: str, batches: Batches, classes: int) -> Answers:
    """Yields the outputs of a SavedModel for each batch."""
    del classes
    answer = program(path)
    for batch in batches:
        yield answer(batch)


def program(path: str) -> Callable[[np.ndarray[Any, Any]], dict[str, Any]]:
    """Returns the function of a SavedModel from a batch of images or records to its outputs."""
    import tensorflow as tf

    model = tf.saved_model.load(path)
    (name,) = model.signatures["serving_default"].structured_input_signature[1]

    def answer(batch: np.ndarray[Any, Any]) -> dict[str, Any]:
        found = model.signatures["serving_default"](**{name: tf.constant(batch)})
        return {output: value.numpy() for output, value in found.items()}

    return answer


def keras(path: str, batches: Batches, classes: int) -> Answers:
    """Yields the outputs of a .keras file."""
    from keras.saving import load_model

    del classes
    model = load_model(path, compile=False)
    for images in batches:
        yield {name: value.numpy() for name, value in model(images, training=False).items()}


def onnx(path: str, batches: Batches, classes: int) -> Answers:
    """Yields the outputs of an ONNX file."""
    import onnxruntime

    del classes
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for images in batches:
        yield dict(zip(names, session.run(names, {"images": images}), strict=True))


def stablehlo(path: str, batches: Batches, classes: int) -> Answers:
    """Yields the outputs of a StableHLO program, which XLA compiles and runs."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla

    with open(path, "rb") as file:
        program = file.read()
    for images in batches:
        shapes, types = [(len(images), classes), (len(images),)], [tf.float32, tf.int64]
        version = xla.call_module_maximum_supported_version()
        found = xla.call_module(
            [tf.constant(images)], version=version, module=program, Sout=shapes, Tout=types, platforms=["CPU"]
        )
        yield {"probabilities": found[0].numpy(), "class": found[1].numpy()}


def answer(kind: str, path: str, folder: str, classes: int) -> None:
    """Reads one file, and writes its outputs once they are complete."""
    with np.load(os.path.join(folder, f"{kind}.images.npz"), allow_pickle=True) as stored:  # records are bytes
        batches = [stored[name] for name in stored.files]
    read = {"saved_model": saved_model, "keras": keras, "onnx": onnx, "stablehlo": stablehlo}[kind]
    found = list(read(path, batches, classes))
    joined = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    names = joined.pop("class_name", None)
    if names is not None:
        joined["class_name"] = np.array([n.decode() if isinstance(n, bytes) else n for n in names.tolist()])
    partial = os.path.join(folder, f"{kind}.partial.npz")
    np.savez(partial, **joined)  # type: ignore[arg-type]  # mypy confuses the names with the argument allow_pickle
    os.replace(partial, os.path.join(folder, f"{kind}.answers.npz"))


def _load_keras() -> None:
    """Loads TensorFlow and Keras without the optional packages that they import, which take a third of the time."""
    unused = [name for name in ("matplotlib", "sklearn", "jax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unused))  # type: ignore[arg-type]  # None: Python raises ImportError
    importlib.import_module("tensorflow")
    importlib.import_module("keras")
    for name in unused:
        del sys.modules[name]


def main(folder: str, classes: str, modules: str, *files: str) -> None:
    """Reads the files in the given order."""
    if set(files[::2]) != {"onnx"}:
        _load_keras()
    if modules:
        sys.path.insert(0, os.getcwd())
        for module in modules.split(","):
            importlib.import_module(module)
    for kind, path in zip(files[::2], files[1::2], strict=True):
        answer(kind, path, folder, int(classes))


if __name__ == "__main__":
    main(*sys.argv[1:])
