"""The same bytes, the same errors and nothing left over on every runner that needs nothing but Python."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.engines import commands
from tests.engines.failing import MESSAGE
from tests.loopback import free_ports

WORKER_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
IN_MEMORY = ["--direct_running_mode=in_memory", "--direct_num_workers=2"]
BUNDLES = ["--runner=BundleBasedDirectRunner"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The digests of the digits converted by the default runner."""
    out = tmp_path_factory.mktemp("reference") / "out"
    assert commands.convert(out) == ""
    found = commands.digests(out)
    assert sum(name.endswith(".tfrecord") for name in found) == 5
    assert "manifest.json" in found
    return found


@pytest.fixture(scope="module")
def job_service():
    """Flags for Beam's own job server in Python, in another process."""
    (port,) = free_ports(1)
    module = "apache_beam.runners.portability.local_job_service_main"
    server = subprocess.Popen(
        [sys.executable, "-m", module, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(0.1)
    yield ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", "--environment_type=LOOPBACK"]
    server.terminate()
    server.wait(10)


@pytest.mark.parametrize(
    "flags",
    [
        IN_MEMORY,
        *(pytest.param(flags, marks=pytest.mark.slow) for flags in (WORKER_PROCESSES, BUNDLES)),
        ["--runner=DirectRunner"],
    ],
    ids=lambda flags: flags[0],
)
def test_every_runner_writes_the_same_bytes(flags, reference, tmp_path):
    process = commands.start(tmp_path / "out", *flags)
    _, stderr = process.communicate(timeout=240)
    assert stderr == ""
    assert commands.digests(tmp_path / "out") == reference
    assert commands.left_of(process) == {}


def test_a_job_server_of_this_machine_needs_no_word_of_where_its_workers_are(job_service, reference, tmp_path):
    assert commands.convert(tmp_path / "out", *job_service[:2]) == ""
    assert commands.digests(tmp_path / "out") == reference


@pytest.mark.parametrize(
    "flags",
    [[], *(pytest.param(flags, marks=pytest.mark.slow) for flags in (WORKER_PROCESSES, BUNDLES))],
    ids=["default", "processes", "bundles"],
)
def test_an_error_of_a_worker_is_the_same_line_everywhere(flags, tmp_path):
    stderr = commands.convert(tmp_path / "out", *flags, how="always", code=1)
    assert commands.said(stderr) == [f"beam_jobs.convert: {MESSAGE}"]
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_an_error_of_a_worker_is_the_same_line_from_a_job_server(job_service, tmp_path):
    stderr = commands.convert(tmp_path / "out", *job_service, how="always", code=1)
    assert commands.said(stderr) == [f"beam_jobs.convert: {MESSAGE}"]
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_bundles_that_are_retried_leave_each_shard_once(reference, tmp_path):
    out = tmp_path / "out"
    assert commands.convert(out, *BUNDLES, how="twice") == ""
    assert len(commands.readings(out)) >= 7  # five shards, two of which failed at first
    assert len({name.split(".")[0] for name in commands.readings(out)}) == 5
    assert commands.digests(out) == reference
    assert {path.name for path in out.iterdir()} == {name.split("/")[0] for name in reference}


@pytest.mark.slow
def test_a_killed_worker_ends_the_conversion_and_the_next_one_writes_the_same_bytes(reference, tmp_path):
    out = tmp_path / "out"
    process = commands.start(out, *WORKER_PROCESSES, how="slow")
    assert commands.wait_for(lambda: commands.readings(out), 120)
    worker = int(commands.readings(out)[0].split(".")[1])
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert commands.said(stderr) == [
        "beam_jobs.convert: a worker process died (out of memory?); run again with fewer --direct_num_workers"
    ]
    assert commands.left_of(process) == {}
    assert not list(out.glob("[!.]*"))
    assert commands.convert(out, *WORKER_PROCESSES) == ""
    assert {path.name for path in out.iterdir()} == {name.split("/")[0] for name in reference}
    assert commands.digests(out) == reference


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM], ids=["ctrl-c", "sigterm"]
)
def test_an_interrupted_conversion_ends_its_job(number, job_service, tmp_path):
    out = tmp_path / "out"
    process = commands.start(out, *job_service, how="hang")
    assert commands.wait_for(lambda: commands.readings(out), 120)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert commands.said(stderr) == ["beam_jobs.convert: interrupted"]
    assert commands.left_of(process) == {}
    assert not list(out.glob("[!.]*"))


def test_temporary_files_of_a_killed_conversion_go_with_the_next_one(tmp_path):
    out = tmp_path / "out"
    process = commands.start(out, how="hang")
    assert commands.wait_for(lambda: commands.readings(out), 120)
    process.kill()
    process.wait(10)
    assert len(commands.temporaries(out)) == 1
    assert commands.convert(out) == ""
    assert commands.temporaries(out) == []


@pytest.mark.slow
def test_a_job_server_that_is_not_there_is_named_in_time(tmp_path):
    (port,) = free_ports(1)
    began = time.monotonic()
    stderr = commands.convert(tmp_path / "out", "--runner=PortableRunner", f"--job_endpoint=localhost:{port}", code=2)
    assert stderr == (
        f"beam_jobs.convert: --job_endpoint=localhost:{port}: no job server answers (10 s); "
        "it must be HOST:PORT of a running one\n"
    )
    assert time.monotonic() - began < 60
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--runner=PortableRunner"], "--job_endpoint is missing: host:port of the cluster's job server"),
        (["--runner=FlinkRunner", "--job_server_java_launcher=no-java"], "needs Java, but there is no 'no-java'"),
        (
            ["--runner=FlinkRunner", "--job_server_java_launcher=true"],
            "--flink_job_server_jar is missing: the jar of Beam's job server; make engines brings one",
        ),
        (["--runner=DataflowRunner"], "needs --project, --region, --temp_location"),
        (
            ["--runner=SparkRunner", "--spark_job_server_jar=no.jar", "--job_server_java_launcher=true"],
            "--spark_job_server_jar=no.jar: no such file",
        ),
    ],
    ids=["no endpoint", "no Java", "no jar named", "no Dataflow", "no jar"],
)
def test_what_a_runner_misses_is_said_before_anything_is_made(flags, text, tmp_path):
    stderr = commands.convert(tmp_path / "out", *flags, code=2)
    assert text in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
