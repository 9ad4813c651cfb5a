"""A user's own function or class by its name, `my_package.my_module:name`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from pipeline.errors import UsageError, of_user


def load(flag: str, text: str) -> Any:
    """Returns what a module has by a name; modules of the working directory are found, too.

    Args:
      flag: what named it, for messages.
      text: `my_package.my_module:name`.

    Raises:
      UsageError: there is no such module or name, or the module fails when it is imported.
    """
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise UsageError(f"{flag}={text}: must be a module and a name in it, as in my_package.my_module:name")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{flag}={text}: importing {module} fails: {of_user(error)}") from error
    if not hasattr(found, name):
        raise UsageError(f"{flag}={text}: {found.__file__} has no {name!r}")
    return getattr(found, name)


def name_of(flag: str, given: Any) -> str:
    """Returns the name by which `load` finds a function or class.

    Raises:
      UsageError: it has none, being local to a function.
    """
    module, name = given.__module__, given.__qualname__
    if module == "__main__":
        file = inspect.getsourcefile(given)
        module = os.path.splitext(os.path.basename(file))[0] if file else module
    if not name.isidentifier():
        raise UsageError(f"{flag} {name}: must be defined at the top of a module, so that a resumed run finds it")
    return f"{module}:{name}"
