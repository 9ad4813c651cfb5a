"""Input for training image models on several replicas; its only state is the global step.

    from pipeline import input_fn

Names are loaded on first use, so that importing the package takes milliseconds and loads no TensorFlow.
"""

# Of stepfeed.
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.augmentation.libraries import augment
    from pipeline.batch.batches import augment_fn
    from pipeline.distribution import distribute
    from pipeline.input import input_fn, order_spec, steps_per_epoch
    from pipeline.input_meter import InputMeter
    from pipeline.keras import ExactResume
    from pipeline.order.graph_hashing import uniform
    from pipeline.order.sharding import Shard
    from pipeline.random_access import RandomAccess
    from pipeline.read.corruption import skipped_records
    from pipeline.step_iterator import StepIterator

_HOME = {
    "ExactResume": "pipeline.keras",
    "InputMeter": "pipeline.input_meter",
    "RandomAccess": "pipeline.random_access",
    "Shard": "pipeline.order.sharding",
    "StepIterator": "pipeline.step_iterator",
    "augment": "pipeline.augmentation.libraries",
    "augment_fn": "pipeline.batch.batches",
    "distribute": "pipeline.distribution",
    "input_fn": "pipeline.input",
    "skipped_records": "pipeline.read.corruption",
    "order_spec": "pipeline.input",
    "steps_per_epoch": "pipeline.input",
    "uniform": "pipeline.order.graph_hashing",
}

__all__ = [
    "ExactResume",
    "InputMeter",
    "RandomAccess",
    "Shard",
    "StepIterator",
    "augment",
    "augment_fn",
    "distribute",
    "input_fn",
    "order_spec",
    "skipped_records",
    "steps_per_epoch",
    "uniform",
]


_EARLIER = {"distort_fn": "augment_fn"}  # earlier names, which keep working


def __getattr__(name: str) -> Any:
    name = _EARLIER.get(name, name)
    if name in _HOME:
        from pipeline.commands import quiet  # noqa: PLC0415, so that the package itself imports nothing

        with quiet.importing():
            return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
