"""Has TensorFlow and Keras load without matplotlib, sklearn, jax and pandas: half of their 9 s of processor time.

They load these packages if installed, for plots and wrappers that neither the trainer nor its tests use. Python imports
this module at the start of each process whose PYTHONPATH has this folder, as `tests.environment` sets it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_HIDDEN = ("matplotlib", "sklearn", "jax", "pandas")


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in ("tensorflow", "keras") else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_hidden(module: ModuleType) -> None:
                with _hidden():
                    load(module)

            spec.loader.exec_module = load_hidden
        return spec


@contextlib.contextmanager
def _hidden() -> Iterator[None]:
    """Context in which the packages seem not to be installed, unless they are already loaded."""
    hidden = [package for package in _HIDDEN if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


sys.meta_path.insert(0, _Finder())
