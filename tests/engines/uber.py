"""Makes the single jar that Beam publishes as a job server, for submission to a Flink cluster, from its parts."""

from __future__ import annotations

import hashlib
import os
import pathlib
import zipfile

from tests.engines import fetch

_SERVICES = "META-INF/services/"
_SIGNATURES = (".SF", ".RSA", ".DSA")


def uber_jar(engine: str) -> pathlib.Path:
    """Returns the path of an engine's jar with all classes of its parts; made if it is not there, in half a minute."""
    path = fetch.HERE / f"{engine}.lock"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    made = fetch.cache() / f"{engine}-uber-{digest[:8]}.jar"
    if not made.exists():
        temporary = made.with_suffix(f".{os.getpid()}")
        _merge(fetch.cache() / engine, fetch.read_lock(path), temporary)
        temporary.replace(made)
    return made


def _merge(folder: pathlib.Path, lock: fetch.Lock, made: pathlib.Path) -> None:
    services: dict[str, bytes] = {}
    seen: set[str] = set()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        out.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\r\nMain-Class: {lock.main}\r\n\r\n")
        for part in lock.parts:
            with zipfile.ZipFile(folder / fetch.file_name(part)) as jar:
                for name in jar.namelist():
                    if name.startswith(_SERVICES) and name != _SERVICES:
                        services[name] = services.get(name, b"") + jar.read(name) + b"\n"
                    elif name not in seen and _belongs(name):
                        seen.add(name)
                        out.writestr(name, jar.read(name))
        for name, content in services.items():
            out.writestr(name, content)


def _belongs(name: str) -> bool:
    described = name.startswith("META-INF/") and (name.endswith(_SIGNATURES) or name == "META-INF/MANIFEST.MF")
    return not (name.endswith(("/", "module-info.class")) or described)
