"""Keras' own file, of Keras' layers and operations alone where the model is one of ours."""

from __future__ import annotations

import pathlib

import keras
from keras import ops

from trainer.exporting.served import Served

FILE = "model.keras"
ANY_SIZE = False


def write(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes the file."""
    del batch
    probabilities = served.core.output
    numbers = ops.cast(ops.argmax(probabilities, axis=-1), "int64")
    lookup = keras.layers.StringLookup(
        vocabulary=list(served.class_names), invert=True, num_oov_indices=0, mask_token=None, name="class_name"
    )
    outputs = {"probabilities": probabilities, "class": numbers, "class_name": lookup(numbers)}
    keras.Model(served.core.input, outputs).save(path)
