"""Notices a file or folder of the user that has the name of one of our packages and is found first."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

_HOME = pathlib.Path(__file__).resolve().parents[1]  # all packages are installed side by side


def check(package: str) -> None:
    """Checks, without importing it, that `import <package>` finds our package.

    Raises:
      ImportError: it finds another file or folder, which the error names.
    """
    found = _found(package)
    if found and pathlib.Path(os.path.realpath(found)) != _HOME / package:
        raise ImportError(
            f"stepfeed needs its package {package!r}, but {found} has the same name and comes first; rename it or move "
            "it into a package of yours; or, if this program does not import it, start Python with -P",
            name=package,
            path=found,
        )


def _found(package: str) -> str | None:
    """Returns the file of the module, or the folder of the package, that is or would be imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # it is loaded, but not by an import
        return getattr(sys.modules[package], "__file__", None)
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), spec.origin)
