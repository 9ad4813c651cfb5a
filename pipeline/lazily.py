"""TensorFlow and Keras, loaded on first use: `from pipeline.lazily import tf`.

This is for modules that `pipeline.registry` imports before flags are checked. Type checkers see the real libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla
    from tensorflow.compiler.xla import xla_data_pb2

__all__ = ["keras", "tf", "xla", "xla_data_pb2"]


class Lazy:
    """Stands for a module that is imported when an attribute is first used.

    Args:
      name: full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if not TYPE_CHECKING:
    keras, tf = Lazy("keras"), Lazy("tensorflow")
    xla, xla_data_pb2 = Lazy("tensorflow.compiler.tf2xla.python.xla"), Lazy("tensorflow.compiler.xla.xla_data_pb2")
