"""The same bytes, the same errors and nothing left over on every runner that needs nothing but Python."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from pipeline import manifest
from tests.engines import commands
from tests.engines.failing import MESSAGE
from tests.engines.sources import SOURCES
from tests.helpers import forked
from tests.helpers.converting import convert_in_process, write_data_set
from tests.helpers.forked import free_ports
from tests.helpers.lanes import some_slow

WORKER_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
IN_MEMORY = ["--direct_running_mode=in_memory", "--direct_num_workers=2"]
BUNDLES = ["--runner=BundleBasedDirectRunner"]
WORKER = """
import pickle, sys
from beam_jobs.shards import writer
with open(sys.argv[1], "rb") as file:
    plan = pickle.load(file)
    print(len([*writer.write_shards(plan, plan.elements[int(sys.argv[2]) :: 2][::-1])]))
"""  # one of two, which knows nothing but the plan


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


@pytest.fixture(scope="module")
def by_one(tmp_path_factory):
    """Returns a function that writes a source, once; it returns its folder, the flags, and the data set of one worker.

    The data set is given as digests.
    """
    known = {}

    def of(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("source")
            what = SOURCES[name](folder)
            commands.convert(folder / "one", "--direct_num_workers=1", what=what, folder=folder)
            known[name] = folder, what, commands.digests(folder / "one")
        return known[name]

    return of


@pytest.mark.parametrize(
    ("flags", "source"),
    some_slow(
        [(flags, source) for source in SOURCES for flags in (WORKER_PROCESSES, IN_MEMORY, BUNDLES)],
        [(WORKER_PROCESSES, "transform")],
    ),
    ids=lambda value: value if isinstance(value, str) else value[0].rpartition("=")[2],
)
def test_a_source_of_any_kind_has_the_same_bytes_on_any_runner(flags, source, by_one, tmp_path):
    folder, what, expected = by_one(source)
    assert commands.convert(tmp_path / "out", *flags, what=what, folder=folder).count("Traceback") == 0
    assert commands.digests(tmp_path / "out") == expected


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "transform"])
def test_workers_that_know_nothing_but_the_plan_write_the_bytes_of_one(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = SOURCES[source](tmp_path)

    def by_two(plan):
        (tmp_path / "plan").write_bytes(pickle.dumps(plan))
        workers = [forked.Process(["-c", WORKER, "plan", number], cwd=tmp_path) for number in range(2)]
        written = [worker.communicate() for worker in workers]
        assert sum(int(out) for out, _ in written) == len(plan.elements) >= 3, written
        return write_data_set(plan)

    one = convert_in_process(*flags, f"--data_dir={tmp_path}/one")
    two = convert_in_process(*flags, f"--data_dir={tmp_path}/two", write=by_two)
    assert commands.digests(one) == commands.digests(two)


def test_a_transform_in_the_folder_of_the_command_is_found_by_every_worker(by_one):
    folder, _, _ = by_one("transform")
    made = manifest.load(folder / "one")
    assert [split.num_examples for split in made.splits.values()] == [2 * (368 - 38), 2 * (1429 - 145)]
    assert made.class_names == tuple("012456789")


@pytest.mark.slow
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
        ("--runner=PortableRunner", "--job_endpoint is missing"),
        ("--runner=FlinkRunner --job_server_java_launcher=no-java", "needs Java, but there is no 'no-java'"),
        ("--runner=FlinkRunner --job_server_java_launcher=true", "--flink_job_server_jar is missing"),
        ("--runner=DataflowRunner", "needs --project, --region, --temp_location"),
        (
            "--runner=SparkRunner --spark_job_server_jar=no.jar --job_server_java_launcher=true",
            "--spark_job_server_jar=no.jar: no such file",
        ),
    ],
    ids=["no endpoint", "no Java", "no jar named", "no Dataflow", "no jar"],
)
def test_what_a_runner_misses_is_said_before_anything_is_made(flags, text, tmp_path):
    stderr = commands.convert(tmp_path / "out", *flags.split(), code=2)
    assert text in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
