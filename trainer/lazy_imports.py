"""Loads TensorFlow and Keras quietly, after the flags are checked, without libraries that the trainer does not use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.commands import quiet
from pipeline.errors import UsageError
from pipeline.files.code import load_code

if TYPE_CHECKING:
    from trainer.task import Task

QUIET_SECONDS = 60.0  # maximum seconds for which loading a library blocks other threads


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Context for imports that load TensorFlow."""
    with quiet.loading(), _hidden("matplotlib", "sklearn", "jax"):
        yield


def load_task(name: str | None) -> type[Task] | None:
    """Returns a user's task class; importing its module may load TensorFlow.

    Args:
      name: value of --task.

    Raises:
      UsageError: the class does not exist or is not a Task.
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
    """Context in which packages seem not to be installed, unless they are already loaded.

    Keras imports matplotlib and sklearn if they are installed, for plots and wrappers that training does not use. They
    account for 2.8 of the 9.4 CPU seconds that loading TensorFlow and Keras takes. TensorFlow Lite imports jax: 1
    second.
    """
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: Python raises ImportError
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
