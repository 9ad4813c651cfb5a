"""Draws a batch as the model gets it: the step determines its rows and their augmentation.

It runs as a separate process, `python -m trainer.watching.batch RUN STEP`, since it loads TensorFlow; the picture goes
to stdout. It uses no GPU and runs at low priority, so that it does not slow down training.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from pipeline import images, step_rows
from pipeline.commands import commandline, quiet
from pipeline.errors import DataError, UsageError
from pipeline.request import HOST
from trainer.config import TrainConfig
from trainer.watching.reading import Data
from trainer.watching.source import RunSource

_MODULE = "trainer.watching.batch"
_MOST, _COLUMNS = 32, 8  # number of images, in total and per row
_TILE, _GAP, _CAPTION = 64, 6, 14  # pixels
_LETTERS = 10  # number of letters that fit below a tile
_INK = (128, 128, 128, 255)  # legible on both white and black
_SECONDS = 180.0


def drawn(folder: pathlib.Path, step: int) -> bytes:
    """Returns the batch of a run's global step as a PNG, drawn by another process.

    Raises:
      DataError: the batch cannot be drawn.
    """
    command = [sys.executable, "-P", "-m", _MODULE, str(folder), str(step)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, env=environment, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"it took more than {_SECONDS:g} s") from None
    if done.returncode or not done.stdout:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(lines[-1].removeprefix(f"{_MODULE}: ") if lines else f"exit code {done.returncode}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the picture to stdout.

    Raises:
      PipelineError: the run's flags are not known, or its data cannot be read or drawn.
    """
    folder, step = sys.argv[1:] if argv is None else argv
    os.nice(10)
    config = RunSource(pathlib.Path(folder)).config()
    if config is None:
        raise UsageError("the flags of the run are not known")
    sys.stdout.buffer.write(_picture(config, int(step)))


def _picture(config: TrainConfig, step: int) -> bytes:
    data = Data.of(config)
    commandline.require("tensorflow")
    with quiet.loading():
        from pipeline.batch.compose import make_dataset  # noqa: PLC0415, here because it loads TensorFlow
    fed = data.training.in_phase_of(config.optimizer.phases, step)
    request = dataclasses.replace(fed.request, start_step=step, augment_on=HOST)
    features, labels, weights = next(make_dataset(request).as_numpy_iterator())
    if not isinstance(features, np.ndarray) or features.ndim != 4:
        raise UsageError("the rows are not images")
    real = weights > 0
    if not real.any():
        raise UsageError(f"no row of step {step} is trained on: --skip_steps={config.order.skip_steps}")
    names = data.training.first.class_names
    return _sheet(features[real][:_MOST], labels[real][:_MOST], names)


def _sheet(rows: NDArray[np.generic], labels: NDArray[np.generic], names: Sequence[str]) -> bytes:
    """Returns a PNG of images (rows, height, width, channels), with their classes below."""
    lines = -(-len(rows) // _COLUMNS)
    size = (_COLUMNS * (_TILE + _GAP) - _GAP, lines * (_TILE + _CAPTION + _GAP))
    sheet = Image.new("RGBA", size, (0, 0, 0, 0))
    pen = ImageDraw.Draw(sheet)
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        left, top = i % _COLUMNS * (_TILE + _GAP), i // _COLUMNS * (_TILE + _CAPTION + _GAP)
        tile = Image.fromarray(images.as_rgb(row)).resize((_TILE, _TILE), Image.Resampling.NEAREST)
        sheet.paste(tile, (left, top))
        name = step_rows.name_of(label, names).partition(" + ")[0]  # the class with the largest share in a mix
        images.written(pen, (left, top + _TILE), name[:_LETTERS], _INK, 11)
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def entry_point() -> NoReturn:
    """Runs it as a command."""
    commandline.run(_MODULE, main)


if __name__ == "__main__":
    entry_point()
