"""Builds the compiled code with other compilers and flags than the installer, and runs cases through it.

setup.py lists the sources. An extension that includes Python.h is called by `unpack_driver.c`; all others are
TensorFlow operations, which `operations_driver.c` calls. Neither needs Python or TensorFlow, so they run under
sanitizers and for other processors.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np

from tests.kernels import cases
from tests.kernels.calls import Case, Result

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
SANITIZED = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)
_NO_LEAKS = {"ASAN_OPTIONS": "detect_leaks=0"}  # leaks are Python's, or need ptrace to be found


@dataclasses.dataclass(frozen=True)
class Source:
    """The sources of an extension in setup.py.

    Attributes:
      name: name of the module.
      files: paths from the project's root.
      flags: compiler flags in setup.py, valid in the project's root.
    """

    name: str
    files: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def is_of_python(self) -> bool:
        """Whether it is a Python module; otherwise it has TensorFlow operations."""
        return any("#include <Python.h>" in (ROOT / file).read_text() for file in self.files)


def sources() -> list[Source]:
    """Returns the sources of every extension in setup.py."""
    code = (
        "import setuptools, distutils.core\n"
        "for e in distutils.core.run_setup('setup.py', stop_after='init').ext_modules:\n"
        "    print(e.name, ','.join(e.sources), *e.extra_compile_args, *('-I' + each for each in e.include_dirs))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return [Source(name, tuple(files.split(",")), tuple(flags)) for name, files, *flags in map(str.split, lines)]


def sanitizers() -> str:
    """Returns why no program can be built with sanitizers here; empty if it can."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return "no C compiler"
    for name in ("libasan.so", "libubsan.so"):
        if library(name) is None:
            return f"the compiler has no {name}"
    return ""


def library(name: str) -> pathlib.Path | None:
    """Returns the path of one of the compiler's libraries; None if it is missing."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    path = pathlib.Path(found.strip())
    return path.resolve() if path.is_absolute() else None


def build(
    folder: pathlib.Path,
    source: Source,
    flags: Sequence[str],
    compiler: str = "cc",
    change: Callable[[str, str], str] | None = None,
) -> pathlib.Path:
    """Compiles a driver with the sources of an extension, or with changed copies; returns the program's path.

    Args:
      folder: folder to write to.
      source: sources of the extension.
      flags: further compiler flags.
      compiler: command of the compiler.
      change: function from a file's name and text to the text to compile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for file in map(pathlib.Path, source.files):
        for name in (file, *(path.relative_to(ROOT) for path in (ROOT / file.parent).glob("*.h"))):
            text = (ROOT / name).read_text()
            (folder / name.name).write_text(change(name.name, text) if change else text)
        files.append(str(folder / file.name))
    if source.is_of_python:
        driver, own = "unpack_driver.c", [f"-I{HERE / 'fake'}"]
    else:
        driver, own = "operations_driver.c", ["-Ddlopen=fake_dlopen", "-Ddlsym=fake_dlsym"]
    program = folder / "program"
    command = [compiler, "-std=gnu11", *source.flags, *flags, *own, str(HERE / driver), *files, "-lm"]
    done = subprocess.run([*command, "-o", str(program)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def operations(program: pathlib.Path) -> dict[str, list[str]]:
    """Returns the operations in a program: {name: inputs, such as `images: uint8`}."""
    done = subprocess.run([program], capture_output=True, text=True, check=True, env={**os.environ, **_NO_LEAKS})
    assert not done.stderr, done.stderr
    lines = [line.split("; ") for line in done.stdout.splitlines()]
    return {name: inputs for name, *inputs in lines}


def resizes_wide(program: pathlib.Path) -> bool:
    """Returns whether a program of operations resizes with 64-byte vectors on this machine."""
    done = subprocess.run(
        [program, "resize"], capture_output=True, text=True, check=True, env={**os.environ, **_NO_LEAKS}
    )
    return done.stdout == "wide\n"


def drawn(program: pathlib.Path, source: Source, seed: int, count: int) -> list[Case]:
    """Returns `count` cases for each function or operation of a program."""
    rng = np.random.default_rng(seed)
    if source.is_of_python:
        return [cases.call(rng, name) for name in cases.FUNCTIONS for _ in range(count)]
    found = operations(program)
    assert found, f"{source.name} registers no operation: what it looks up is not all in operations_driver.c"
    lacks = sorted(set(found) - set(cases.OPERATIONS))
    assert not lacks, f"no cases of {lacks}: add a line for each to OPERATIONS in tests/kernels/cases.py"
    return [cases.computation(rng, name, specs) for name, specs in found.items() for _ in range(count)]


class FaultError(Exception):
    """A program ended with an error; the text is its output about that."""


def run(program: pathlib.Path, calls: Sequence[Case], through: Sequence[str] = ()) -> list[Result]:
    """Returns a program's results for some cases.

    Args:
      program: path from `build`.
      calls: cases to run.
      through: command that runs programs, such as an emulator.

    Raises:
      FaultError: the program was ended by a sanitizer or the driver.
    """
    given, results = program.parent / "cases", program.parent / "results"
    given.write_bytes(len(calls).to_bytes(8, "little") + b"".join(case.to_bytes() for case in calls))
    command = [*through, str(program), str(given), str(results)]
    environment = {**os.environ, **_NO_LEAKS}
    done = subprocess.run(command, capture_output=True, check=False, text=True, errors="replace", env=environment)
    if done.returncode:
        raise FaultError(f"exit code {done.returncode}: {done.stderr}")
    data = memoryview(results.read_bytes())
    found = []
    for case in calls:
        result, data = case.result_of(data)
        found.append(result)
    assert not len(data)
    return found
