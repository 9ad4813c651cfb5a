"""Weights to begin with, from a checkpoint of another run or from Keras' files."""

from __future__ import annotations

import keras

from pipeline.errors import DataError, UsageError
from trainer.checkpoint import files, reader

_KERAS_FILES = (".weights.h5", ".keras")


def load(model: keras.Model, path: str) -> None:
    """Gives a model the weights of a checkpoint, their average where it has one, or of a file that Keras has saved.

    Args:
      model: built.
      path: a --model_dir, whose newest checkpoint is taken; a checkpoint in it, such as run/ckpt-400; or a file.

    Raises:
      UsageError: there is none, or it has other variables than the model.
    """
    try:
        if path.endswith(_KERAS_FILES):
            model.load_weights(path)
            return
        stored = reader.read(files.candidates(path, None)[0])
        stored.load_weights(model, stored.averaged)
    except (DataError, UsageError, OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"--initialize_from={path}: {reason}") from None
