"""Weights to begin with, from a checkpoint of another run or from Keras' files."""

from __future__ import annotations

import pathlib

import keras
import tensorflow as tf

from pipeline.errors import UsageError

_KERAS_FILES = (".weights.h5", ".keras")


def load(model: keras.Model, path: str) -> None:
    """Gives a model the weights of a checkpoint, or of a file that Keras has saved.

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
        found = tf.train.Checkpoint(model=model).read(_checkpoint(pathlib.Path(path)))
        found.assert_existing_objects_matched().expect_partial()
    except UsageError:
        raise
    except (AssertionError, OSError, ValueError, tf.errors.OpError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"--initialize_from={path}: does not fit the model, or cannot be read: {reason}") from None


def _checkpoint(path: pathlib.Path) -> str:
    if not path.is_dir():
        if path.with_name(f"{path.name}.index").exists():
            return str(path)
        raise UsageError(f"--initialize_from={path}: there is no such checkpoint, folder or {_KERAS_FILES[0]} file")
    steps = sorted(path.glob("ckpt-*.index"), key=lambda index: int(index.stem.removeprefix("ckpt-")))
    if not steps:
        raise UsageError(f"--initialize_from={path}: the folder has no checkpoint")
    return str(steps[-1].with_suffix(""))
