"""Detects files that shadow one of our packages: the user's own, or another package's.

It needs only the standard library, so that our other packages can use it before they import each other.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

_HOME = pathlib.Path(__file__).resolve().parents[1]  # all packages are installed side by side
_MARK = "# Of stepfeed."  # line in each package's __init__.py
_EXIT_USAGE = 2


def check(package: str) -> None:
    """Checks, without importing it, that `import <package>` finds our package.

    Raises:
      ImportError: it finds another file or folder, or files of another package in place of ours; the message names
        them.
    """
    found = _found(package)
    if not found:
        return
    if pathlib.Path(os.path.realpath(found)) != _HOME / package:
        raise ImportError(
            f"stepfeed needs its package {package!r}, but {found} has the same name and comes first; rename it or move "
            "it into a package of yours; or, if this program does not import it, start Python with -P",
            name=package,
            path=found,
        )
    file = pathlib.Path(found, "__init__.py")
    if file.is_file() and _MARK not in file.read_text(encoding="utf-8", errors="replace").splitlines():
        raise ImportError(
            f"stepfeed needs its package {package!r}, but {file} belongs to another package of that name, installed "
            "over ours; uninstall that package, then: pip install --force-reinstall --no-deps stepfeed",
            name=package,
            path=str(file),
        )


def check_for(name: str, *packages: str) -> None:
    """Checks the packages that one of our packages needs, while it is imported.

    Args:
      name: package being imported. If `python -m` runs one of its modules, an error is one line on stderr.
      packages: packages to check.

    Raises:
      ImportError: see `check`.
      SystemExit: the same, under `python -m`.
    """
    try:
        for package in packages:
            check(package)
    except ImportError as error:
        if sys.argv[:1] != ["-m"]:  # Python has this until it has found the module to run
            raise
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(_EXIT_USAGE) from None


def _found(package: str) -> str | None:
    """Returns the module's file or the package's folder that is or would be imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # it is loaded, but not by an import
        return getattr(sys.modules[package], "__file__", None)
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), spec.origin)
