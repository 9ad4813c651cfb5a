"""Brings the Flink and Spark that the tests run: Beam's job servers, as jars from Maven, each pinned by its SHA-256.

`python -m tests.engines.fetch [flink] [spark]`: what `make engines` runs. `--lock` resolves the roots that a .lock file
names again and writes its pins.

Beam publishes each job server as one jar too, which holds the same classes; these are its parts, for they are what
every mirror carries. The jar made here holds no class, only the list of the parts: FlinkRunner and SparkRunner start it
as they would Beam's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Sequence

HERE = pathlib.Path(__file__).parent
ENGINES = ("flink", "spark")
_MAVEN_SECONDS = 900
_MANIFEST_COLUMNS = 70  # of a jar's manifest, whose lines have at most 72 bytes
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the jar's bytes depend on nothing but the lock


class FetchError(Exception):
    """Why an engine cannot be had, in one line."""


@dataclasses.dataclass(frozen=True)
class Lock:
    """A .lock file.

    Attributes:
      main: the class that starts the job server.
      roots: group:artifact:version that the parts were resolved from.
      excluded: group:artifact left out of the resolution.
      parts: {group:artifact:version[:classifier]: SHA-256, hexadecimal}.
    """

    main: str
    roots: tuple[str, ...]
    excluded: tuple[str, ...]
    parts: dict[str, str]


def cache() -> pathlib.Path:
    """Returns the folder that the engines are in, outside the repository."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "stepfeed" / "engines"


def job_server(engine: str) -> pathlib.Path:
    """Returns the path of an engine's job server: there only when all its parts are, whole."""
    return cache() / f"{engine}-job-server.jar"


def fetch(engine: str, lock: Lock) -> pathlib.Path:
    """Brings what is missing of an engine and returns its job server.

    Raises:
      FetchError: Maven is not there or does not get a part, or a part has other bytes than those that are pinned.
    """
    folder, made = cache() / engine, job_server(engine)
    made.unlink(missing_ok=True)
    missing = [part for part in lock.parts if not (folder / file_name(part)).exists()]
    if missing:
        _copy_with_maven(missing, folder)
    verify(folder, lock)
    folder.mkdir(parents=True, exist_ok=True)
    _write_jar(made, lock.main, [f"{engine}/{file_name(part)}" for part in lock.parts])
    return made


def verify(folder: pathlib.Path, lock: Lock) -> None:
    """Checks every part's bytes.

    Raises:
      FetchError: a part is missing or has other bytes, and was removed.
    """
    for part, pinned in lock.parts.items():
        path = folder / file_name(part)
        if not path.exists():
            raise FetchError(f"{path}: Maven did not bring it")
        digest = _sha256(path)
        if digest != pinned:
            path.unlink()
            raise FetchError(f"{path}: its SHA-256 is {digest}, the lock says {pinned}; removed")


def file_name(part: str) -> str:
    """Returns the name that Maven gives to the file of group:artifact:version[:classifier]."""
    _, artifact, version, *classifier = part.split(":")
    return "-".join([artifact, version, *classifier]) + ".jar"


def read_lock(path: pathlib.Path) -> Lock:
    """Reads a .lock file: `main`, `root` and `exclude` lines, then `SHA-256  part` lines."""
    values: dict[str, list[str]] = {"main": [], "root": [], "exclude": []}
    parts: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        first, value = line.split()
        if first in values:
            values[first].append(value)
        else:
            parts[value] = first
    return Lock(values["main"][0], tuple(values["root"]), tuple(values["exclude"]), parts)


def write_lock(path: pathlib.Path, lock: Lock) -> None:
    """Resolves the roots of a lock with Maven and writes their dependencies, with digests.

    Raises:
      FetchError: Maven cannot.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        pom, listed = _write_pom(folder, lock.roots, lock.excluded), folder / "list.txt"
        _maven(pom, "dependency:list", f"-DoutputFile={listed}", "-DincludeScope=runtime")
        _maven(pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime")
        fields = [line.split()[0].split(":") for line in listed.read_text().splitlines() if ":jar:" in line]
        # group:artifact:jar[:classifier]:version:scope
        parts = sorted(":".join([group, artifact, rest[-2], *rest[:-2]]) for group, artifact, _, *rest in fields)
        lines = [f"main {lock.main}", *(f"root {r}" for r in lock.roots), *(f"exclude {e}" for e in lock.excluded)]
        lines += [f"{_sha256(folder / file_name(part))}  {part}" for part in parts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _copy_with_maven(parts: Sequence[str], folder: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        pom = _write_pom(pathlib.Path(name), parts, ["*:*"])
        _maven(pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}")


def _write_pom(folder: pathlib.Path, artifacts: Sequence[str], excluded: Sequence[str]) -> pathlib.Path:
    pairs = [entry.split(":") for entry in excluded]
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>" for group, name in pairs
    )
    dependencies = ""
    for artifact in artifacts:
        group, name, version, *classifier = artifact.split(":")
        more = f"<classifier>{classifier[0]}</classifier>" if classifier else ""
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{more}"
            f"<exclusions>{exclusions}</exclusions></dependency>\n"
        )
    path = folder / "pom.xml"
    path.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>stepfeed</groupId><artifactId>engines</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>\n{dependencies}</dependencies></project>\n",
        encoding="utf-8",
    )
    return path


def _maven(pom: pathlib.Path, *arguments: str) -> None:
    for program, package in (("java", "a JDK, 11 or 17"), ("mvn", "Maven")):
        if not shutil.which(program):
            raise FetchError(f"there is no {program!r} here; install {package}")
    command = ["mvn", "--batch-mode", "--quiet", f"--file={pom}", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MAVEN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"Maven gave no answer in {_MAVEN_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "[ERROR]" in line]
        reason = " ".join(errors[0].replace("[ERROR]", "").split()) if errors else f"exit code {done.returncode}"
        raise FetchError(f"Maven cannot get the jars: {textwrap.shorten(reason, 300)}")


def _write_jar(path: pathlib.Path, main: str, parts: Sequence[str]) -> None:
    lines = ["Manifest-Version: 1.0", f"Main-Class: {main}"]
    rest = f"Class-Path: {' '.join(parts)}"
    while rest:  # a line that continues begins with a blank
        lines.append(rest[:_MANIFEST_COLUMNS])
        rest = f" {rest[_MANIFEST_COLUMNS:]}" if rest[_MANIFEST_COLUMNS:] else ""
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w") as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _LONG_AGO), "\r\n".join(lines) + "\r\n\r\n")
    temporary.replace(path)


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Brings the engines that are named, or both; returns the exit code."""
    for engine in [name for name in arguments if name in ENGINES] or ENGINES:
        path = HERE / f"{engine}.lock"
        try:
            if "--lock" in arguments:
                write_lock(path, read_lock(path))
            made = fetch(engine, read_lock(path))
        except (FetchError, OSError) as error:
            print(f"engines: {engine}: {error}", file=sys.stderr)
            return 1
        print(f"{engine}: {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
