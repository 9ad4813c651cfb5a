"""What may import what, and what starting a command loads: real interpreters."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAVY = ["tensorflow", "keras", "apache_beam", "tensorflow_datasets", "sklearn", "matplotlib"]
PURE = [
    "errors",
    "naming",
    "hashing",
    "framing",
    "example",
    "manifest",
    "manifest_checks",
    "example_proto",
    "splits",
    "divisibility",
    "order",
    "key_log",
    "auditing.command",
    "indexing.command",
    "sharding",
    "read",
    "read_rows",
    "read_records",
    "read_gzip",
    "corruption",
    "storage",
    "random_access",
    "example_arrays",
]


def imported(path: pathlib.Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_pipeline_imports_neither_beam_jobs_nor_trainer():
    files = sorted((ROOT / "pipeline").rglob("*.py"))
    assert len(files) > 20
    assert {str(f) for f in files if imported(f) & {"beam_jobs", "trainer", "apache_beam"}} == set()


@pytest.mark.parametrize(("package", "other"), [("beam_jobs", "trainer"), ("trainer", "beam_jobs")])
def test_the_converter_and_the_trainer_do_not_know_each_other(package, other):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert {str(f) for f in files if other in imported(f)} == set()


def loaded(code: str) -> set[str]:
    """Returns which heavy packages an interpreter has loaded after `code`."""
    report = f"print('LOADED', *[m for m in {HEAVY} if m in sys.modules])"
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n{report}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("module", PURE)
def test_the_pure_parts_of_pipeline_load_nothing_heavy(module):
    assert loaded(f"import pipeline.{module}") == set()


def test_input_fn_is_imported_without_loading_tensorflow():
    assert loaded("from pipeline import input_fn, steps_per_epoch, Shard") == set()


@pytest.mark.parametrize(
    "command",
    ["pipeline.inspect", "pipeline.audit", "pipeline.index", "beam_jobs.convert", "beam_jobs.validate", "trainer.run"],
)
def test_help_loads_nothing_heavy(command):
    assert loaded(f"import {command} as c; sys.argv = ['x', '--help']; c.main(['--help'])") == set()
    done = subprocess.run(
        [sys.executable, "-m", command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"usage: {command}")
    assert done.stderr == ""
