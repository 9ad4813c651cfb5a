"""The user's code: functions by name, and digests of the source files that take part in a computation.

These are our packages, the user's modules, and modules of the user's that those import. Workers compare the digests at
the start; checkpoints and manifests store them, so that a resume, or an append, can report what has changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.resources
import importlib.util
import itertools
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, TypeAlias

from pipeline.errors import UsageError, of_user

Digests: TypeAlias = dict[str, list[str]]  # {path of a source file: [its digest]}

_PACKAGE = "stepfeed"
_COMPUTING = ("pipeline", "trainer")  # packages whose sources are compared
_SITE = ("site-packages", "dist-packages")  # pip installs here; the versions of installed packages are enough
_LIBRARIES = {"tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
_MOST_NAMED = 5  # most files named in one message
_MAIN = "__main__"


def parted(flag: str, text: str) -> tuple[str, str]:
    """Splits a flag's value, `my_package.my_module:name`, into the module and the name in it.

    Raises:
      UsageError: the value has another form.
    """
    module, _, name = text.partition(":")
    if not module or not name.isidentifier():
        raise UsageError(f"{flag}={text}: must be a module and a name in it, as in my_package.my_module:name")
    return module, name


def load_code(flag: str, text: str) -> Any:
    """Returns the object that a flag names; also finds modules in the working directory.

    Args:
      flag: name of the flag, for messages.
      text: value of the flag, `my_package.my_module:name`.

    Raises:
      UsageError: there is no such module or name, or importing the module fails.
    """
    module, name = parted(flag, text)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except UsageError:
        raise
    except Exception as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        advice = f"; run it in the folder that has it, or install it: it is not in {os.getcwd()}" if is_absent else ""
        raise UsageError(f"{flag}={text}: importing {module} fails: {of_user(error)}{advice}") from error
    if not hasattr(found, name):
        place = found.__file__ or f"the folder {next(iter(found.__path__))}"  # a namespace package
        raise UsageError(f"{flag}={text}: {place} has no {name!r}")
    return getattr(found, name)


def of_program(modules: Sequence[str], packages: Sequence[str] = _COMPUTING) -> dict[str, Any]:
    """Describes the code of this process, JSON-compatible: `versions`, `packages` (our sources) and `modules`.

    Args:
      modules: full names of the user's modules; `__main__` is the script that runs.
      packages: our packages that take part.
    """
    own = {"packages": code_of_packages(packages), "modules": code_of_modules(modules)}
    return {"versions": versions(), **own}


def changes(was: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Returns the differences between two programs: `m.py was edited`, `TensorFlow was 2.20.0, is 2.21.0`.

    Args:
      was: earlier result of `of_program`; None if an earlier version stored nothing, so that nothing is reported.
      now: current result of `of_program`.
    """
    if was is None:
        return []
    before, after = was["versions"], now["versions"]
    said = [
        f"{name} was {before[name].removeprefix(f'{name} ')}, is {after[name].removeprefix(f'{name} ')}"
        for name in before
        if name in after and before[name] != after[name]
    ]
    files = edited(was["modules"], now["modules"])
    if before.get(_PACKAGE) == after.get(_PACKAGE):  # another version has different sources anyway
        files += [f"{_PACKAGE}'s own {one}" for one in edited(was["packages"], now["packages"])]
    more = [f"and {len(files) - _MOST_NAMED} more files"] if len(files) > _MOST_NAMED else []
    return [*said, *files[:_MOST_NAMED], *more]


def edited(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describes changes in source files, `m.py was edited`, given their digests before and now."""
    words = {
        path: "is new" if path not in was else "is gone" if path not in now else "was edited" for path in {**now, **was}
    }
    return [f"{path} {word}" for path, word in words.items() if was.get(path) != now.get(path)]


def versions() -> dict[str, str]:
    """Returns the versions of Python, this package and the loaded libraries: `{"Keras": "Keras 3.10.0"}`."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    found |= {name: sys.modules[module].__version__ for module, name in _LIBRARIES.items() if module in sys.modules}
    try:
        found[_PACKAGE] = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # the package runs from its sources
        found[_PACKAGE] = "of no version"
    return {name: f"{name} {version}" for name, version in found.items()}


def code_of_packages(names: Sequence[str] = _COMPUTING) -> Digests:
    """Returns the digest of each source file of our packages: `{"trainer/step/train_step.py": [digest]}`.

    Compiled extensions are left out: the Python code that can replace them gives the same bits.
    """
    return {
        f"{name}/{path}": [_digest(source)]
        for name in names
        for path, source in _sources(importlib.resources.files(name))
    }


def _sources(folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield entry.name, entry.read_bytes()
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from ((f"{entry.name}/{path}", source) for path, source in _sources(entry))


def code_of_modules(modules: Sequence[str]) -> Digests:
    """Returns the digest of each source file of the given modules, and of the user's own modules that they import.

    Modules are found and parsed rather than imported: importing one may need TensorFlow's cluster, which is joined
    later. Imports from installed packages are only followed if the package is one of the given modules'.

    Args:
      modules: full names; `__main__` is the script that runs.
    """
    found: Digests = {}
    waiting = [(name, name.partition(".")[0]) for name in modules]
    done = set(waiting)
    while waiting:
        name, package = waiting.pop()
        for full in itertools.accumulate(name.split("."), lambda parent, part: f"{parent}.{part}"):
            spec = _spec(full)
            if spec is None or not _is_local(full.partition(".")[0], spec.origin or "", package):
                break
            if spec.origin is None or not spec.has_location:  # a namespace package
                continue
            path = full.replace(".", "/") + ("/__init__" if spec.submodule_search_locations is not None else "")
            stem, kind = os.path.splitext(spec.origin)
            if full == _MAIN:
                path = os.path.basename(stem)
            if f"{path}{kind}" in found:
                continue
            source = _read(spec)
            if source is None:
                continue
            found[f"{path}{kind}"] = [_digest(source)]
            imported = {(one, package) for one in _imports(source, full, spec)} if kind == ".py" else set()
            waiting += imported - done
            done |= imported
    return found


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec that an import of a module would find, without importing its package."""
    if name == _MAIN:
        return _spec_of_script()
    parent, _, last = name.rpartition(".")
    if not parent:
        here = os.getcwd()  # `load_code` also looks here
        path = sys.path if here in sys.path or "" in sys.path else [here, *sys.path]
        others = [finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder]
        known = (finder.find_spec(name, None) for finder in others)  # the finders of editable installs, for example
        return importlib.machinery.PathFinder.find_spec(name, path) or next(filter(None, known), None)
    package = _spec(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    # By the last part of its name: with the full one, PathFinder needs the import of a namespace package.
    return importlib.machinery.PathFinder.find_spec(last, list(package.submodule_search_locations))


def _spec_of_script() -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of the running script; None if it is an installed command, or typed into an interpreter."""
    file = getattr(sys.modules[_MAIN], "__file__", None)
    if not file or any(part in _SITE for part in file.split(os.sep)):
        return None
    return importlib.util.spec_from_file_location(_MAIN, file)


def _is_local(top: str, origin: str, package: str) -> bool:
    """Returns whether a module is the user's, not Python's, ours or another installed package's."""
    if top in sys.stdlib_module_names or top in _COMPUTING:
        return False
    return top == package or not any(part in _SITE for part in origin.split(os.sep))


def _read(spec: importlib.machinery.ModuleSpec) -> bytes | None:
    """Returns the content of a module's file, in a folder or a zip archive; None if it is unreadable or bytecode."""
    assert spec.origin is not None
    if spec.origin.endswith(".pyc"):  # bytecode contains its path
        return None
    try:
        return spec.loader.get_data(spec.origin)  # type: ignore[union-attr]  # every file loader has it
    except (AttributeError, OSError):
        return None


def _imports(source: bytes, module: str, spec: importlib.machinery.ModuleSpec) -> Iterator[str]:
    """Yields the full names of everything that a source imports anywhere; some may be names inside a module."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # importing it will report that
        return
    is_package = spec.submodule_search_locations is not None
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(name, names, level):
                above = module.split(".")[: None if is_package else -1]
                above = above[: len(above) - (level or 0) + 1] if level else []
                base = ".".join([*above, *([name] if name else [])])
                yield from (f"{base}.{alias.name}" if alias.name != "*" else base for alias in names if base)
            case ast.Call(ast.Attribute(attr="import_module"), [ast.Constant(str(name))]):
                yield name


def _digest(content: bytes) -> str:
    """Returns a digest of a file that does not depend on its line endings."""
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()[:16]
