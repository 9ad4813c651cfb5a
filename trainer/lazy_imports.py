"""Loads TensorFlow and Keras quietly, without libraries that the trainer does not use, after the flags are checked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.commands import quiet
from pipeline.errors import UsageError
from trainer.config.model import load_code

if TYPE_CHECKING:
    from trainer.task import Task


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Context for imports that load TensorFlow."""
    with quiet.loading(), _hidden("matplotlib", "sklearn", "jax"):
        yield


def load_task(name: str | None) -> type[Task] | None:
    """Returns a user's class, whose module may load TensorFlow.

    Args:
      name: --task.

    Raises:
      UsageError: there is no such class, or it is not a Task.
    """
    if name is None:
        return None
    with loading():
        from trainer.cluster import strategies  # noqa: PLC0415, here because it loads TensorFlow
        from trainer.task import Task  # noqa: PLC0415, likewise

        with strategies.noting_first_use():
            found = load_code("--task", name)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise UsageError(f"--task={name}: must be a subclass of trainer.Task, it is {found!r}")
    return found


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Context in which packages seem not to be installed, unless they are loaded already.

    Keras loads matplotlib and sklearn if it finds them, for plots and wrappers that training does not use. They take
    2.8 of the 9.4 seconds of processor time in which TensorFlow and Keras load. TensorFlow Lite loads jax: 1 second.
    """
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: Python raises ImportError
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
