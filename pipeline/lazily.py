"""TensorFlow and Keras, loaded where they are first used: `from pipeline.lazily import tf`.

For modules that `pipeline.registry` imports before the flags of a command are checked. Type checkers see the libraries
themselves.
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
    """Stands for a module, which the first use of an attribute imports.

    Args:
      name: its full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if not TYPE_CHECKING:
    keras, tf = Lazy("keras"), Lazy("tensorflow")
    xla, xla_data_pb2 = Lazy("tensorflow.compiler.tf2xla.python.xla"), Lazy("tensorflow.compiler.xla.xla_data_pb2")
