"""Training on one device or many: `python -m trainer.run`, or from Python.

    from trainer import Predictor, Task, TrainConfig, train

The flow: config -> plan -> cluster -> task, models -> step -> loop -> callbacks; `training` composes them. Names are
loaded on first use, so that importing the package is free.
"""

# Of stepfeed.
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepfeed import shadowed

shadowed.check_for("trainer", "pipeline")

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.exporting.predictions import Predictor
    from trainer.models.layers import fuse_layers
    from trainer.run import train
    from trainer.task import Task

_HOME = {
    "Predictor": "trainer.exporting.predictions",
    "Task": "trainer.task",
    "TrainConfig": "trainer.config",
    "fuse_layers": "trainer.models.layers",
    "train": "trainer.run",
}

__all__ = ["Predictor", "Task", "TrainConfig", "fuse_layers", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from pipeline.commands import quiet  # noqa: PLC0415, so that the package itself imports nothing

        with quiet.importing():
            return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
