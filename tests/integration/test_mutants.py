"""Faults that a tool inserts into the code, one by one: each makes a unit test of its package fail."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from tests.helpers import forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
cosmic_ray = pytest.importorskip("cosmic_ray", reason="needs cosmic-ray, which makes the faults: pip install '.[dev]'")
from cosmic_ray import ast as trees  # noqa: E402
from cosmic_ray import mutating, plugins  # noqa: E402
from cosmic_ray.ast.ast_query import ASTQuery  # noqa: E402

OF_EACH_PACKAGE = 12
SECONDS = 300.0  # a fault that makes an endless loop is found
PACKAGES = {
    "pipeline/batch": ("tests/unit/pipeline/batch", "tests/unit/pipeline/test_input.py"),
    "pipeline/order": (
        "tests/unit/pipeline/order",
        "tests/unit/pipeline/audit",
        "tests/unit/pipeline/test_schedule.py",
    ),
    "trainer/step": ("tests/unit/trainer/step",),
}
EQUIVALENT: tuple[str, ...] = ()  # changes, as the test prints them, with which the code does the same
# In a fork of a process that has loaded TensorFlow and our packages, which are to be those of this folder.
TESTS = """
import sys
import pytest
packages = ("pipeline", "trainer", "beam_jobs", "stepfeed", "tests")
for name in [name for name in sys.modules if name.split(".")[0] in packages]:
    del sys.modules[name]
sys.path.insert(0, "")
sys.dont_write_bytecode = True
sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *sys.argv[1:]]))
"""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A file with one fault.

    Attributes:
      path: path of the file in the repository.
      code: code with the fault.
      change: description of the change: the file, and the line before and after.
    """

    path: str
    code: str
    change: str


def meaning(code: str) -> str | None:
    """Returns a module's AST as text, without annotations, which are never evaluated; None if it does not compile."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def places(path: str) -> Iterator[tuple[str, str, int, int]]:
    """Yields (digest, operator, occurrence, line) of all faults of a file.

    The digest decides which faults are drawn. It depends only on the enclosing function and the operator, so that a
    change to another function does not change the faults drawn from this one.
    """
    nodes = list(trees.ast_nodes(trees.get_ast((forked.ROOT / path).read_text())))
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        if operator.arguments() or name.endswith(("_Is", "_IsNot")):  # no fault for equal strings and small numbers
            continue
        found = [(node, start[0]) for node in nodes for start, _ in operator().mutation_positions(node)]
        number: dict[str, int] = {}
        for occurrence, (node, line) in enumerate(found):
            where = f"{path} {ASTQuery(node).get_definition_name()} {name}"
            number[where] = number.get(where, 0) + 1
            yield hashlib.sha256(f"{where} {number[where]}".encode()).hexdigest(), name, occurrence, line


def drawn(package: str) -> Iterator[Mutant]:
    """Yields the faults of a package in the order of their digests, one per line."""
    files = sorted(path.relative_to(forked.ROOT).as_posix() for path in (forked.ROOT / package).glob("*.py"))
    seen = set()
    for _, name, occurrence, line, path in sorted((*place, file) for file in files for place in places(file)):
        before = (forked.ROOT / path).read_text()
        if (path, line) not in seen:
            after = mutating.mutate_code(before, plugins.get_operator(name)(), occurrence)
            if after is not None and meaning(after) not in (None, meaning(before)):
                seen.add((path, line))
                lines = zip(before.splitlines(), after.splitlines(), strict=False)
                was, is_now = next(pair for pair in lines if pair[0] != pair[1])
                yield Mutant(path, after, f"{path}: {was.strip()} -> {is_now.strip()}")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutants") / "copy"
    for name in ("pipeline", "trainer", "beam_jobs", "stepfeed", "benchmarks", "tests"):
        shutil.copytree(forked.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(forked.ROOT / "pyproject.toml", folder)
    return folder


def failure(copy: pathlib.Path, package: str) -> str:
    """Returns the failure of a package's unit tests, or that they take too long; empty if all pass."""
    process = forked.Process(["-c", TESTS, f"--basetemp={copy}-tests", *PACKAGES[package]], cwd=copy)
    said = "".join(process.communicate(SECONDS))
    return said if process.returncode else ""


@pytest.mark.parametrize("package", PACKAGES)
def test_a_fault_is_found(package, copy):
    assert failure(copy, package) == ""
    survivors, mutants = [], drawn(package)
    for number in range(OF_EACH_PACKAGE):
        mutant = next(each for each in mutants if each.change not in EQUIVALENT)
        path = copy / mutant.path
        code = path.read_text()
        path.write_text(mutant.code)
        try:
            survived = not failure(copy, package)
        finally:
            path.write_text(code)
        print(f"\n{number}: {'SURVIVED' if survived else 'found'}: {mutant.change}", flush=True)
        survivors += [mutant.change] if survived else []
    assert survivors == [], "test them, or name them in EQUIVALENT"
