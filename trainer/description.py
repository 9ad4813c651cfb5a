"""What must be equal on all workers of a job: versions, code, flags, data, the order of examples, the model."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.resources
import itertools
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable

import keras
import numpy as np
import tensorflow as tf

from pipeline.commands.text import count_of
from pipeline.resolved import ResolvedInput
from trainer.checkpoint import structure
from trainer.checkpoint.resume import data_in_words
from trainer.checkpoint.structure import Structure
from trainer.cluster.messages import Description, Part
from trainer.config import TrainConfig
from trainer.config.meaning import fields
from trainer.plan import Plan

_PACKAGE = "stepfeed"
_COMPUTING = ("pipeline", "trainer")  # packages whose sources are compared
_SITE = ("site-packages", "dist-packages")  # folders of what pip installs, whose versions are its own affair


def of(config: TrainConfig, plan: Plan) -> Description:
    """Returns the description of a run. Parts that may differ because of another part come after it."""
    gpus = count_of(len(tf.config.list_physical_devices("GPU")), "GPU")
    order = f"an order of digest {plan.training.spec.digest[:12]}"
    named = [config.model.model, config.model.task or ""]
    modules = [name.partition(":")[0] for name in named if ":" in name]
    flags = {**_flags(config), "data": _data(plan.training), "GPUs": gpus}
    return [_versions(), code_of_packages(), flags, code_of_modules(modules), {"order": order}]


def of_server(config: TrainConfig) -> Description:
    """Returns the description of a parameter server, which reads no data."""
    return [_versions(), _flags(config)]


def of_graph_reader(config: TrainConfig, plan: Plan) -> Description:
    """Returns the description of a worker that runs the chief's graphs, which contain the chief's path of the data."""
    versions, packages, flags, *rest = of(config, plan)
    return [versions, packages, {"--data_dir": f"--data_dir={config.data.data_dir}"}, {**flags, "GPUs": ""}, *rest]


def model_difference(chief: Structure, other: Structure) -> str | None:
    """Returns how a worker's built model differs from the chief's; None: it is the same.

    Such as `another model: layer dense: activation gelu, the chief has relu`.
    """
    changes = structure.changes(chief, other)
    if not changes:
        return None
    first = changes[0]
    if first.now is None:
        return f"another model: no {first.what}"
    more = "" if first.was is None else f" {first.now}"
    of_chief = ", which the chief does not have" if first.was is None else f", the chief has {first.was}"
    return f"another model: {first.what}{more}{of_chief}"


def code_of_packages(names: Sequence[str] = _COMPUTING) -> Part:
    """Returns the digest of each source file of our packages: `{"trainer/step/train_step.py": [digest]}`.

    Compiled extensions are left out: the Python code that replaces them gives the same bits.
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


def code_of_modules(modules: Sequence[str]) -> Part:
    """Returns the digest of each source file of a user's modules, and of the user's own modules that they import.

    Modules are found and parsed, not imported: importing one may need TensorFlow's cluster, which is joined later.
    Among installed packages, only those of the given modules are followed.

    Args:
      modules: their full names.
    """
    found: dict[str, list[str]] = {}
    waiting = [(name, name.partition(".")[0]) for name in modules]
    done = set(waiting)
    while waiting:
        name, package = waiting.pop()
        for full in itertools.accumulate(name.split("."), lambda parent, part: f"{parent}.{part}"):
            spec = _spec(full)
            if spec is None or not _is_local(full.partition(".")[0], spec.origin or "", package):
                break
            if spec.origin is None or not spec.has_location:  # a namespace
                continue
            path = full.replace(".", "/") + ("/__init__" if spec.submodule_search_locations is not None else "")
            kind = os.path.splitext(spec.origin)[1]
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
    """Returns where an import would find a module, without importing its package."""
    parent, _, last = name.rpartition(".")
    if not parent:
        here = os.getcwd()  # where `trainer.config.model.load_code` looks, too
        path = sys.path if here in sys.path or "" in sys.path else [here, *sys.path]
        others = [finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder]
        known = (finder.find_spec(name, None) for finder in others)  # such as those of editable installs
        return importlib.machinery.PathFinder.find_spec(name, path) or next(filter(None, known), None)
    package = _spec(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    # By its last name: given the full one, PathFinder looks for the imported package if that is a namespace.
    return importlib.machinery.PathFinder.find_spec(last, list(package.submodule_search_locations))


def _is_local(top: str, origin: str, package: str) -> bool:
    """Returns whether a module is the user's: not Python's, not ours, and not of another installed package."""
    if top in sys.stdlib_module_names or top in _COMPUTING:
        return False
    return top == package or not any(part in _SITE for part in origin.split(os.sep))


def _read(spec: importlib.machinery.ModuleSpec) -> bytes | None:
    """Returns the content of a module's file, in a folder or a zip archive; None: it is unreadable, or bytecode."""
    assert spec.origin is not None
    if spec.origin.endswith(".pyc"):  # which contains its path
        return None
    try:
        return spec.loader.get_data(spec.origin)  # type: ignore[union-attr]  # every loader of files has it
    except (AttributeError, OSError):
        return None


def _imports(source: bytes, module: str, spec: importlib.machinery.ModuleSpec) -> Iterator[str]:
    """Yields the full names of all that a source imports, at any place; some may be names inside a module."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # importing it says so
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
    """Returns the digest of a file, which does not depend on its line endings."""
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()[:16]


def _data(training: ResolvedInput) -> str:
    """Returns the data in words; for a mixture, with the splits and rows, which only --data_dir would tell."""
    digests = [part.manifest.digest[:12] for part in training.parts]
    if not training.request.sources:
        return f"{data_in_words(training.first)}, a data set of digest {digests[0]}"
    sources = [
        f"{part.spec.global_batch_size} rows of {part.spec.split} of digest {digest}"
        for part, digest in zip(training.parts, digests, strict=True)
    ]
    return f"a mixture of {' and '.join(sources)}"


def _versions() -> dict[str, str]:
    versions = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
        _PACKAGE: _installed(_PACKAGE),
    }
    return {name: f"{name} {version}" for name, version in versions.items()}


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of no version"  # run from its sources


def _flags(config: TrainConfig) -> dict[str, str]:
    """Returns all flags but those that may differ between machines or processes."""
    flags = {
        field.name: getattr(group, field.name)
        for group, field in fields(config)
        if not (field.metadata["per_machine"] or field.metadata["per_process"])  # the cluster itself is compared
    }
    words = {f"--{name}": f"no --{name}" if value is None else f"--{name}={value}" for name, value in flags.items()}
    logs = {"--log_keys": config.run.log_keys, "--log_losses": config.run.log_losses}
    return {**words, **{name: name if folder else f"no {name}" for name, folder in logs.items()}}
