"""Fetching the engines: pinned parts are checked, missing ones reported; without a network."""

import hashlib
import os
import shutil
import zipfile

import pytest

from tests.engines import fetch
from tests.helpers.forked import fresh, refused

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of "abc", as published


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A lock of one part that the cache has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = fetch.cache() / "made"
    folder.mkdir(parents=True)
    (folder / "part-1.2-linux.jar").write_text("abc")
    return fetch.Lock("org.example.Main", (), (), {"org.example:part:1.2:linux": ABC})


def test_the_cache_is_outside_the_repository(tmp_path, lock):
    assert fetch.job_server("made") == tmp_path / "stepfeed" / "engines" / "made-job-server.jar"


def test_whole_parts_give_a_job_server_that_lists_them(lock):
    jar = fetch.fetch("made", lock)
    text = zipfile.ZipFile(jar).read("META-INF/MANIFEST.MF").decode()
    assert text == (
        "Manifest-Version: 1.0\r\nMain-Class: org.example.Main\r\nClass-Path: made/part-1.2-linux.jar\r\n\r\n"
    )
    first = jar.read_bytes()
    assert fetch.fetch("made", lock).read_bytes() == first


def test_a_part_with_other_bytes_is_removed_and_there_is_no_job_server(lock):
    fetch.fetch("made", lock)
    part = fetch.cache() / "made" / "part-1.2-linux.jar"
    part.write_text("abd")
    digest = hashlib.sha256(b"abd").hexdigest()
    with pytest.raises(fetch.FetchError, match=f"its SHA-256 is {digest}, the lock says {ABC}; removed"):
        fetch.fetch("made", lock)
    assert not part.exists()
    assert not fetch.job_server("made").exists()


@pytest.mark.parametrize("engine", fetch.ENGINES)
def test_locks_pin_every_part(engine):
    lock = fetch.read_lock(fetch.HERE / f"{engine}.lock")
    assert len(lock.parts) > 100
    assert all(len(digest) == 64 and int(digest, 16) for digest in lock.parts.values())
    names = [fetch.file_name(part) for part in lock.parts]
    assert len(names) == len(set(names))
    assert f"org.apache.beam:beam-runners-java-job-service:{lock.roots[0].split(':')[-1]}" in lock.parts


@pytest.mark.parametrize(("programs", "missing"), [([], "java"), (["java"], "mvn")])
def test_a_machine_without_java_or_maven_is_one_line(programs, missing, tmp_path):
    for program in programs:
        (tmp_path / program).symlink_to(shutil.which("true"))
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    said = refused(fresh(["-m", "tests.engines.fetch"], environment), 1)
    assert said.startswith(f"engines: flink: there is no '{missing}' here; install ")


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("mvn") and shutil.which("java")), reason="there is no Maven here")
def test_a_machine_without_a_network_is_one_line(tmp_path):
    """Maven through a proxy that does not exist, with an empty repository."""
    nowhere = f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dmaven.repo.local={tmp_path}/repository"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "MAVEN_OPTS": nowhere}
    said = refused(fresh(["-m", "tests.engines.fetch"], environment), 1)
    assert said.startswith("engines: flink: Maven cannot get the jars: ")
