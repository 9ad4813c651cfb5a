"""The public names of `pipeline` and `trainer`, for programs that may have a `pipeline.py` next to them.

    from stepfeed import input_fn

This is the same as `from pipeline import input_fn`, but with a clear error if another file or folder has the name of
our package. Names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepfeed import shadowed

if TYPE_CHECKING:
    from pipeline import (
        ExactResume,
        InputMeter,
        RandomAccess,
        Shard,
        StepIterator,
        augment,
        augment_fn,
        distribute,
        input_fn,
        order_spec,
        skipped_records,
        steps_per_epoch,
        uniform,
    )
    from trainer import Predictor, Task, TrainConfig, fuse_layers, train

_EARLIER = ("distort_fn",)  # old names that `pipeline` still supports; it cannot be asked before `shadowed.check`
_TRAINER = ("Predictor", "Task", "TrainConfig", "fuse_layers", "train")

__all__ = [
    "ExactResume",
    "InputMeter",
    "Predictor",
    "RandomAccess",
    "Shard",
    "StepIterator",
    "Task",
    "TrainConfig",
    "augment",
    "augment_fn",
    "distribute",
    "fuse_layers",
    "input_fn",
    "order_spec",
    "skipped_records",
    "steps_per_epoch",
    "train",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *_EARLIER):
        raise AttributeError(f"module 'stepfeed' has no attribute {name!r}")
    shadowed.check("pipeline")
    if name not in _TRAINER:
        return getattr(importlib.import_module("pipeline"), name)
    shadowed.check("trainer")  # trainer imports pipeline, too
    return getattr(importlib.import_module("trainer"), name)
