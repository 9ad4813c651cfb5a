"""The lines of docs/clusters.md on a Flink session cluster and a Spark standalone master: `make test-engines`."""

import os
import pathlib
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engines import commands, fetch
from tests.engines.flink_cluster import Flink
from tests.engines.spark_cluster import Spark
from tests.helpers.foreign import png
from tests.helpers.forked import ROOT

MNIST = ROOT.parent / "shared" / "data" / "mnist"
ROWS = 200_000
SECONDS = 400.0  # for one conversion, on a busy machine

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc, to look for processes"),
]


@pytest.fixture(scope="module", params=[Flink, Spark], ids=lambda kind: kind.engine)
def session(request, tmp_path_factory):
    """A cluster, one at a time."""
    jar = fetch.job_server(request.param.engine)
    if not jar.exists():
        pytest.skip(f"{request.param.engine} is not there: no {jar}; make engines brings it")
    with request.param(tmp_path_factory.mktemp(request.param.engine) / "cluster") as made:
        yield made


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Returns the digests of a local conversion."""
    found = {}

    def digests(*what):
        if what not in found:
            out = tmp_path_factory.mktemp("reference") / "out"
            commands.convert(out, what=what, timeout=SECONDS)
            found[what] = commands.digests(out)
        return found[what]

    return digests


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """200,000 rows of small PNGs."""
    path = tmp_path_factory.mktemp("parquet") / "train.parquet"
    images = [png(np.random.default_rng(number).integers(0, 256, (8, 8), np.uint8)) for number in range(256)]
    rows = np.arange(ROWS)
    columns = {"image": pa.array([images[n] for n in (rows * rows + rows // 256) % 256]), "label": pa.array(rows % 10)}
    pq.write_table(pa.table(columns), path, row_group_size=ROWS // 20)
    return path


def the_same(session, reference, out, *what):
    """Converts on the cluster and compares with a local conversion."""
    commands.convert(out, *session.flags, what=what, timeout=SECONDS)
    assert commands.digests(out) == reference(*what)
    assert commands.temporaries(out) == []
    assert commands.wait_for(lambda: session.running() == 0, 30)


@pytest.mark.skipif(not MNIST.exists(), reason=f"there is no {MNIST}")
def test_mnist_has_the_bytes_of_a_local_conversion(session, reference, tmp_path):
    the_same(
        session, reference, tmp_path / "out", "--dataset=mnist", f"--source={MNIST}", "--num_shards=train:4,test:1"
    )


def test_parquet_has_the_bytes_of_a_local_conversion(session, reference, parquet, tmp_path):
    the_same(session, reference, tmp_path / "out", "--dataset=parquet", f"--source={parquet}", "--num_shards=train:8")


def begin(session, out, how):
    """Starts a conversion, and returns it when its workers are at work."""
    process = commands.start(out, *session.flags, how=how)
    assert commands.wait_for(lambda: len(commands.readings(out)) >= 2 or process.poll() is not None, 240)
    assert process.poll() is None, process.stderr.read()
    return process


def test_the_job_recovers_from_a_machine_that_dies(session, reference, tmp_path):
    out = tmp_path / "out"
    process = begin(session, out, "slow")
    session.kill("worker-1")
    session.add_worker("worker-1")
    _, stderr = process.communicate(SECONDS)
    assert process.returncode == 0, stderr
    assert stderr == ""
    assert commands.digests(out) == reference(*commands.DIGITS)
    assert commands.wait_for(lambda: session.workers() == 2, 60)


def test_a_worker_pool_that_dies_costs_at_most_a_second_run(session, reference, tmp_path):
    out = tmp_path / "out"
    process = begin(session, out, "slow")
    session.kill("pool")
    if session.engine == "flink":  # it waits for the pool
        session.start_pool()
    _, stderr = process.communicate(SECONDS)
    if session.engine == "spark":  # it tries four times, immediately
        assert process.returncode == 1
        (line,) = commands.said(stderr)
        assert line.startswith("beam_jobs.convert: the cluster lost a worker (")
        assert not list(out.glob("[!.]*"))
        assert commands.temporaries(out) == []
        session.start_pool()
        assert commands.wait_for(lambda: session.log("pool").count("Started worker pool") == 2, 60)
        commands.convert(out, *session.flags, timeout=SECONDS)
    else:
        assert process.returncode == 0, stderr
    assert commands.digests(out) == reference(*commands.DIGITS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["int", "kill"])
def test_the_job_ends_with_the_command(session, number, tmp_path):
    out = tmp_path / "out"
    process = begin(session, out, "hang")
    assert session.running() == 1
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    process.wait(30)
    assert commands.wait_for(lambda: session.running() == 0, 30)
    assert commands.wait_for(lambda: not commands.left_of(process), 10), commands.left_of(process)
    assert not list(out.glob("[!.]*"))
    if number == signal.SIGINT:
        assert process.returncode == 128 + number
        assert commands.said(process.stderr.read()) == ["beam_jobs.convert: interrupted"]
        assert commands.temporaries(out) == []


def test_a_master_that_dies_ends_the_command_in_one_line(session, tmp_path):
    if session.engine == "spark":
        pytest.skip("an application of Spark continues without the master")
    out = tmp_path / "out"
    process = begin(session, out, "hang")
    session.kill("master")
    _, stderr = process.communicate(SECONDS)
    assert process.returncode == 1
    (line,) = commands.said(stderr)
    assert line.startswith("beam_jobs.convert: Flink does not answer any more at localhost:")
    assert not list(out.glob("[!.]*"))
    assert commands.temporaries(out) == []
