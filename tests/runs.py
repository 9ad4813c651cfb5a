"""Looking at a training run from outside: its log lines and its checkpoints."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import tensorflow as tf


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    """Reads the run's lines until a log line of that step or a later one; fails with its stderr where none comes."""
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        match = re.match(r"step (\d+), loss", line)
        if match and int(match[1]) >= step:
            return
    raise AssertionError(process.stderr.read())


def checkpoint_bytes(model_dir: str | os.PathLike[str], step: int) -> dict[str, bytes]:
    """Returns every tensor of a checkpoint as bytes, but for the count of saves."""
    reader = tf.train.load_checkpoint(str(pathlib.Path(model_dir) / f"ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    values = {name: reader.get_tensor(name) for name in names if not name.startswith(("save_counter", "_"))}
    return {name: value if isinstance(value, bytes) else value.tobytes() for name, value in values.items()}


def scalars(folder: pathlib.Path) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of TensorBoard's files in a folder."""
    found = {}
    for path in folder.glob("events.*"):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found
