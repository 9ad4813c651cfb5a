"""The same bytes, the same errors and nothing left over on real Flink and real Spark: `make test-engines`."""

import os
import pathlib
import signal

import pytest

from tests.engines import commands, fetch
from tests.engines.failing import MESSAGE
from tests.engines.sources import SOURCES
from tests.integration.test_engines import reference  # noqa: F401, a fixture

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc, to look for processes"),
]


@pytest.fixture(params=fetch.ENGINES)
def flags(request):
    """The flags that a user gives, of each engine that is there."""
    jar = fetch.job_server(request.param)
    if not jar.exists():
        pytest.skip(f"{request.param} is not there: no {jar}; make engines brings it")
    return commands.FLAGS[request.param]


def java_of(process):
    return [number for number, line in commands.left_of(process).items() if line.startswith("java ")]


def test_a_cluster_writes_the_same_bytes(flags, reference, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    process = commands.start(out, *flags)
    assert commands.wait_for(lambda: java_of(process), 60)  # it really ran in Java
    _, stderr = process.communicate(timeout=240)
    assert stderr == ""
    assert process.returncode == 0
    assert commands.digests(out) == reference
    assert commands.left_of(process) == {}
    assert commands.temporaries(out) == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_cluster_converts_a_source_of_any_kind_as_one_worker_does(source, flags, tmp_path):
    what = SOURCES[source](tmp_path)
    commands.convert(tmp_path / "one", "--direct_num_workers=1", what=what, folder=tmp_path)
    process = commands.start(tmp_path / "cluster", *flags, what=what, folder=tmp_path)
    assert commands.wait_for(lambda: java_of(process), 60)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert commands.digests(tmp_path / "cluster") == commands.digests(tmp_path / "one")


def test_an_error_of_a_worker_is_the_same_line(flags, tmp_path):
    out = tmp_path / "out"
    process = commands.start(out, *flags, how="always")
    _, stderr = process.communicate(timeout=240)
    assert commands.said(stderr) == [f"beam_jobs.convert: {MESSAGE}"]
    assert process.returncode == 1
    assert not list(out.glob("[!.]*"))
    assert commands.left_of(process) == {}
    assert commands.temporaries(out) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["int", "term", "kill"])
def test_an_interrupted_conversion_leaves_no_process(number, flags, tmp_path):
    out = tmp_path / "out"
    process = commands.start(out, *flags, how="hang")
    assert commands.wait_for(lambda: commands.readings(out), 120)
    assert len(java_of(process)) == 1
    # As a terminal sends Ctrl-C: to the whole group.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    process.wait(30)
    assert commands.wait_for(lambda: not commands.left_of(process), 10), commands.left_of(process)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert commands.said(stderr) == ([] if number == signal.SIGKILL else ["beam_jobs.convert: interrupted"])
    assert not list(out.glob("[!.]*"))
    assert commands.temporaries(out) == []


def test_a_job_server_that_dies_is_one_line(flags, tmp_path):
    out = tmp_path / "out"
    process = commands.start(out, *flags, how="hang")
    assert commands.wait_for(lambda: commands.readings(out), 120)
    (java,) = java_of(process)
    os.kill(java, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = commands.said(stderr)
    assert line.startswith("beam_jobs.convert: the runner's job server is gone or failed: ")
    assert commands.left_of(process) == {}
    assert commands.temporaries(out) == []
    assert not list(out.glob("[!.]*"))
