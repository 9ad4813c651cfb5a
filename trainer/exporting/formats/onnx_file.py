"""ONNX, by tf2onnx."""

from __future__ import annotations

import json
import logging
import pathlib
import warnings

import tensorflow as tf

from pipeline.errors import UsageError
from trainer.exporting.served import Served

FILE = "model.onnx"
ANY_SIZE = False
_OPSET = 17  # of 2022: what most runtimes of today read


def write(served: Served, path: pathlib.Path, batch: int) -> None:
    """Writes the file, with the class names in its metadata, too.

    Raises:
      UsageError: an operation has no counterpart.
    """
    del batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnx  # noqa: PLC0415, which not everybody has installed
        import tf2onnx  # noqa: PLC0415

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    function = tf.function(served.outputs, autograph=False)
    try:
        model, _ = tf2onnx.convert.from_function(function, input_signature=[served.spec(any_size=False)], opset=_OPSET)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"--format=onnx: tf2onnx cannot convert this model: {reason}") from None
    entry = model.metadata_props.add()
    entry.key, entry.value = "class_names", json.dumps(served.class_names)
    onnx.save(model, str(path))
