import concurrent.futures
import contextlib
import importlib.util
import os
import re
import socket
import tempfile

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners import create_runner
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.runs import lifeline, runners
from beam_jobs.runs.lifeline import Lifeline
from beam_jobs.runs.runners import SupervisedJobServer
from pipeline.errors import DataError, UsageError
from tests.engines.commands import wait_for


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a Pipeline that is never run leaves its folder there


@pytest.mark.parametrize(
    ("flags", "seconds", "count", "mode"),
    [
        ([], 12.0, 1, "in_memory"),
        ([], 12.1, 4, "multi_processing"),
        (["--runner=FnApiRunner"], 1e6, 4, "multi_processing"),
        (["--direct_num_workers=1"], 1e6, 1, "in_memory"),
        (["--direct_running_mode=in_memory"], 1e6, 1, "in_memory"),
        (["--direct_num_workers=3", "--direct_running_mode=multi_processing"], 0.1, 3, "multi_processing"),
        (["--runner=BundleBasedDirectRunner"], 1e6, 1, "in_memory"),
    ],
)
def test_long_work_takes_all_cores_where_the_flags_leave_it_open(flags, seconds, count, mode):
    options = PipelineOptions(flags)
    assert runners.use_all_cores(options, seconds, 64) == count
    assert options.view_as(DirectOptions).direct_running_mode == mode


def test_one_core_is_one_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert runners.use_all_cores(PipelineOptions([]), 1e6, 64) == 1


@pytest.mark.parametrize(("shards", "count"), [(1, 1), (3, 3), (4, 4), (5, 4)])
def test_there_are_no_more_processes_than_shards(shards, count):
    assert runners.use_all_cores(PipelineOptions([]), 1e6, shards) == count


@pytest.mark.parametrize(
    ("given", "shards", "used", "text"),
    [
        (10_000, 3, 3, "--direct_num_workers=10000: 3 workers will be used, one per shard"),
        (2, 1, 1, "--direct_num_workers=2: 1 worker will be used, one per shard"),
        (10_000, 99_999, 16, "--direct_num_workers=10000: 16 workers will be used, 4 per core"),
        (17, 16, 16, "--direct_num_workers=17: 16 workers will be used, one per shard"),
        (16, 16, 16, ""),
        (1, 99_999, 1, ""),
    ],
)
def test_workers_are_bounded_by_shards_and_cores(given, shards, used, text, tmp_path):
    options = PipelineOptions([f"--direct_num_workers={given}"])
    assert runners.bound_workers(options, shards) == text
    runner, _ = runners.make_runner(options, tmp_path)
    assert runners.workers(beam.Pipeline(runner, options)) == used


@pytest.mark.parametrize(("flags", "count"), [([], 1), (["--direct_num_workers=3"], 3)])
def test_the_in_process_runner_deals_among_its_workers(flags, count, tmp_path):
    runner, _ = runners.make_runner(PipelineOptions(flags), tmp_path)
    assert runners.workers(beam.Pipeline(runner, PipelineOptions(flags))) == count


def test_another_runner_spreads_as_it_likes():
    assert runners.workers(beam.Pipeline(BundleBasedDirectRunner(), PipelineOptions([]))) == 0


def test_flags_of_beam_pass_through():
    flags = ["--runner=FnApiRunner", "--direct_num_workers", "2", "--direct_running_mode=multi_threading"]
    options = runners.parse(flags, [])
    assert options.view_as(StandardOptions).runner == "FnApiRunner"
    assert options.view_as(DirectOptions).direct_num_workers == 2
    assert options.view_as(DirectOptions).direct_running_mode == "multi_threading"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--direct_num_worker=2"], "unknown '--direct_num_worker'; did you mean '--direct_num_workers'"),
        (["--overwite"], "^flag: unknown '--overwite'; see --help$"),
        (["--sed=3"], "did you mean '--seed'"),
        (["--flink_mastr", "x"], "did you mean '--flink_master'"),
        (["--qqqqqqqqq"], "flag: unknown '--qqqqqqqqq'; see --help"),
        (["extra"], "unexpected argument 'extra'"),
        (["--direct_num_workers=two"], "argument --direct_num_workers: invalid int value: 'two'"),
        (["--direct_running_mode=threads"], "invalid choice: 'threads'"),
        (["--runner=FlinkRuner"], "unknown 'FlinkRuner'; did you mean 'FlinkRunner'"),
        (["--runner=no.such.Runner"], "--runner=no.such.Runner: cannot be loaded"),
        (["--runner=os.NoRunner"], "--runner=os.NoRunner: cannot be loaded"),
        (["--direct_num_workers=-1"], "--direct_num_workers=-1: must be 1 or more"),
        (["--direct_num_workers=0"], "--direct_num_workers=0: must be 1 or more; without the flag, every core"),
        (["--runner=PortableRunner"], "--runner=PortableRunner: --job_endpoint is missing"),
        (
            ["--runner=FlinkRunner", "--job_server_java_launcher=true"],
            "--runner=FlinkRunner: --flink_job_server_jar is missing: .*mvn .*:beam-runners-flink-1.19-job-server:2",
        ),
        (
            ["--runner=FlinkRunner", "--flink_submit_uber_jar", "--flink_master=localhost:1"],
            "--flink_job_server_jar is missing",
        ),
        (
            ["--runner=SparkRunner", "--job_server_java_launcher=true"],
            "--runner=SparkRunner: --spark_job_server_jar is missing: .*mvn .*:beam-runners-spark-3-job-server:2",
        ),
        (
            ["--runner=DataflowRunner"],
            "--runner=DataflowRunner: needs --project, --region, --temp_location; docs/clusters.md",
        ),
        pytest.param(
            ["--runner=DataflowRunner", "--project=own-one", "--region=europe-west1", "--temp_location=gs://own/tmp"],
            r"--runner=DataflowRunner: needs Google's libraries: pip install 'apache-beam\[gcp\]==2",
            marks=pytest.mark.skipif(importlib.util.find_spec("apitools") is not None, reason="they are installed"),
        ),
    ],
)
def test_flags_that_cannot_work_are_an_error_with_the_nearest(flags, message):
    with pytest.raises(UsageError, match=message):
        runners.parse(flags, ["--overwrite", "--seed"])


@pytest.mark.parametrize("flags", [[], ["--project=own-one", "--region=europe-west1", "--temp_location=gs://own/tmp"]])
def test_what_dataflow_misses_is_said_once(flags, caplog):
    with contextlib.suppress(UsageError):
        runners.parse(["--runner=DataflowRunner", *flags], [])
    assert caplog.messages == []


BUNDLES = "apache_beam.runners.direct.direct_runner.BundleBasedDirectRunner"
HERE = ["--job_server_java_launcher=true", "--flink_job_server_jar=https://a/b.jar", "--flink_master=[local]"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dry_run=true"], "^--dry_run: has no effect with --runner=FnApiRunner or any other runner; leave it out$"),
        (["--no_wait_until_finish"], "^--no_wait_until_finish: has no effect with --runner=FnApiRunner or any"),
        (["--project", "own-one"], "^--project: has no effect with --runner=FnApiRunner, only with DataflowRunner;"),
        (
            ["--runner=DirectRunner", "--parallelism=2"],
            "^--parallelism: .* --runner=FnApiRunner, only with FlinkRunner",
        ),
        (["--environment_type=LOOPBACK"], "^--environment_type: .* only with PortableRunner"),
        (["--setup_file=setup.py"], "^--setup_file: .* only with DataflowRunner and PortableRunner"),
        (["--s3_endpoint_url=http://a"], r"^--s3_endpoint_url: .*s3://bucket/folder\?endpoint_override="),
        ([f"--runner={BUNDLES}", "--direct_num_workers=2"], "^--direct_num_workers: .*only with FnApiRunner;"),
        (["--runner=FlinkRunner", "--spark_version=3"], "^--spark_version: .*=FlinkRunner, only with SparkRunner;"),
        (["--runner=FlinkRunner", "--direct_num_workers=3"], "^--direct_num_workers: .*=FlinkRunner, only with FnApi"),
        (["--runner=FlinkRunner", "--max_num_workers=3"], "^--max_num_workers: .* only with DataflowRunner"),
        (["--runner=DataflowRunner", "--dry_run=1"], "^--dry_run: has no effect with --runner=DataflowRunner or any"),
    ],
)
def test_a_flag_that_the_runner_does_not_read_is_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        runners.parse(flags, ["--overwrite", "--seed"])


@pytest.mark.parametrize(
    "flags",
    [
        ["--experiments=a", "--no_pipeline_type_check", "--pickle_library=cloudpickle", "--profile_cpu"],
        ["--direct_runner_bundle_repeat=1"],
        [f"--runner={BUNDLES}", "--no_direct_runner_use_stacked_bundle"],
        ["--runner=FlinkRunner", *HERE, "--parallelism=2", "--environment_type=LOOPBACK", "--job_name=a"],
        ["--runner=FlinkRunner", *HERE, "--setup_file=setup.py", "--streaming", "--max_cache_memory_usage_mb=3"],
        ["--runner=tests.unit.beam_jobs.runs.test_runners.Own", "--project=a", "--direct_num_workers=3"],
    ],
)
def test_a_flag_that_the_runner_reads_passes(flags):
    runners.parse(flags, [])


class Own(beam.runners.PipelineRunner):
    """A runner that is not Beam's: the flags that it reads are unknown."""


def test_every_flag_of_beam_is_known_to_be_read_by_some_runners_or_none():
    classes = {group.__name__ for group in PipelineOptions.__subclasses__() if group.__module__.startswith("apache_")}
    assert classes - runners._READERS.keys() <= {"DaskOptions", "RenderOptions"}  # read by the runners that add them
    known = set(PipelineOptions([]).get_all_options())
    assert runners._READERS_OF_FLAG.keys() <= known
    names = {
        name for readers in [*runners._READERS.values(), *runners._READERS_OF_FLAG.values()] for name in readers or ()
    }
    assert names <= set(StandardOptions.KNOWN_RUNNER_NAMES)


def test_a_missing_job_server_is_an_error_of_the_flag():
    with pytest.raises(UsageError, match="--job_endpoint=localhost:1: "):
        runners.check_endpoint("localhost:1", seconds=0.2)


@pytest.mark.parametrize(
    ("runner", "flag", "address"),
    [
        ("FlinkRunner", "--flink_master", "localhost:1"),
        ("FlinkRunner", "--flink_master", "http://127.0.0.1:1"),
        ("SparkRunner", "--spark_master_url", "spark://localhost:1"),
        ("FlinkRunner", "--flink_master", "localhost:99999"),
        ("SparkRunner", "--spark_master_url", "spark://localhost:1,localhost:2"),
    ],
)
def test_a_cluster_that_does_not_answer_is_an_error_of_the_flag(runner, flag, address, tmp_path):
    jar = tmp_path / "server.jar"
    jar.touch()
    prefix = runner.removesuffix("Runner").lower()
    flags = [
        f"--runner={runner}",
        f"{flag}={address}",
        f"--{prefix}_job_server_jar={jar}",
        "--job_server_java_launcher=true",
    ]
    with pytest.raises(UsageError) as caught:
        runners.parse([*flags, "--job_server_java_launcher=true"], [])
    assert str(caught.value).startswith(f"{flag}={address}: nothing answers: ")
    assert re.search(r":1: Connection refused; |99999: Port out of range", str(caught.value))
    assert "; it must be HOST:PORT of " in str(caught.value)


def test_one_of_several_masters_is_enough():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = PipelineOptions([f"--spark_master_url=spark://localhost:1,127.0.0.1:{port}"])
        runners.check_cluster(create_runner("SparkRunner"), options)


@pytest.mark.parametrize(("runner", "flags"), [("FlinkRunner", []), ("SparkRunner", []), ("PrismRunner", [])])
def test_an_embedded_cluster_need_not_answer(runner, flags):
    runners.check_cluster(create_runner(runner), PipelineOptions(flags))


@pytest.mark.parametrize(
    ("master", "url"),
    [
        ("[local]", None),
        ("[auto]", None),
        ("host:8081", "http://host:8081"),
        ("http://host:8081/", "http://host:8081"),
        ("https://host", "https://host"),
    ],
)
def test_the_url_of_a_flink_cluster(master, url):
    assert runners.flink_cluster(create_runner("FlinkRunner"), PipelineOptions([f"--flink_master={master}"])) == url


@pytest.mark.parametrize("flags", [[], ["--runner=DirectRunner"], ["--runner=FnApiRunner"]])
def test_the_direct_runner_is_the_in_process_one_without_its_download(flags, tmp_path):
    runner, lifeline = runners.make_runner(PipelineOptions(flags), tmp_path)
    assert type(runner) is FnApiRunner
    assert lifeline is None


@pytest.mark.parametrize(
    ("endpoint", "environment", "expected"),
    [
        ("localhost:8099", "", "LOOPBACK"),
        ("127.0.0.1:8099", "", "LOOPBACK"),
        ("[::1]:8099", "", "LOOPBACK"),
        ("embed", "", "LOOPBACK"),
        ("localhost:8099", "DOCKER", "DOCKER"),
        ("cluster.example:8099", "", None),
        ("localhost.example:8099", "", None),
    ],
)
def test_workers_of_a_job_server_on_this_machine_are_this_process(endpoint, environment, expected, tmp_path):
    flags = ["--runner=PortableRunner", f"--job_endpoint={endpoint}"]
    options = PipelineOptions([*flags, f"--environment_type={environment}"] if environment else flags)
    _, lifeline = runners.make_runner(options, tmp_path)
    assert options.view_as(PortableOptions).environment_type == expected
    assert lifeline is None


@pytest.mark.parametrize("name", ["FlinkRunner", "SparkRunner", "PrismRunner"])
def test_a_job_server_of_our_own_hangs_on_a_lifeline(name, tmp_path):
    _, lifeline = runners.make_runner(PipelineOptions([f"--runner={name}"]), tmp_path)
    assert lifeline is not None
    lifeline.cut()
    _, none = runners.make_runner(PipelineOptions([f"--runner={name}", "--job_endpoint=localhost:8099"]), tmp_path)
    assert none is None


@pytest.mark.parametrize(
    ("name", "flags", "starts"),
    [
        ("FlinkRunner", [], True),
        ("FlinkRunner", ["--flink_submit_uber_jar"], False),
        ("PrismRunner", [], True),
        ("PrismRunner", ["--job_endpoint=localhost:8099"], False),
        ("PortableRunner", [], False),
    ],
)
def test_who_starts_a_job_server(name, flags, starts):
    assert runners.starts_one(create_runner(name), PipelineOptions(flags)) == starts


def test_without_java_or_the_jar_it_is_said_what_to_get(tmp_path):
    runner = create_runner("FlinkRunner")
    options = PipelineOptions(
        [f"--job_server_java_launcher={tmp_path}/java", f"--flink_job_server_jar={tmp_path}/x.jar"]
    )
    with pytest.raises(UsageError, match=r"^--runner=FlinkRunner: needs Java, .* install Java 11 or 17, or give --job"):
        runners.check_java(runner, options)
    with pytest.raises(UsageError, match=rf"^--flink_job_server_jar={tmp_path}/x\.jar: no such file; docs/clusters"):
        runners.check_jar(runner, options)
    (tmp_path / "x.jar").touch()
    runners.check_jar(runner, options)
    runners.check_jar(runner, PipelineOptions(["--flink_job_server_jar=https://repository.example/x.jar"]))


class Server:
    """Of Beam: says what to start, and where that will answer."""

    def __init__(self, program, endpoint="127.0.0.1:1"):
        self.program, self.endpoint = program, endpoint

    def subprocess_cmd_and_endpoint(self):
        if isinstance(self.program, Exception):
            raise self.program
        return self.program, self.endpoint


@pytest.fixture
def line():
    """A lifeline that is cut in the end, with all programs that hang on it."""
    made = Lifeline()
    yield made
    made.cut()


@pytest.mark.parametrize(
    ("program", "seconds", "said"),
    [
        (
            ["sh", "-c", "echo ignored; echo 'no such cluster'; printf '\\tat Main.java:7\\n'; exit 7"],
            60,
            "^the job server did not start: no such cluster$",
        ),
        (["sh", "-c", "exit 7"], 60, "^the job server did not start: it printed nothing$"),
        (
            ["sh", "-c", "echo waits; sleep 60"],
            1.5,
            "^the job server does not answer after 2 s: (waits|it printed)",
        ),
        (
            RuntimeError("no jar at x. More about that"),
            60,
            "^the runner's job server cannot be started: no jar at x; docs/clusters.md says where to get it$",
        ),
    ],
    ids=["ended", "silent", "does not answer", "cannot be started"],
)
def test_a_job_server_that_does_not_start_says_why(line, tmp_path, monkeypatch, program, seconds, said):
    monkeypatch.setattr(runners, "_START_SECONDS", seconds)
    (tmp_path / "folder").mkdir()
    opened = []
    channel = grpc.insecure_channel
    monkeypatch.setattr(grpc, "insecure_channel", lambda *given: opened.append(channel(*given)) or opened[-1])
    with pytest.raises(DataError, match=said):
        SupervisedJobServer(Server(program), line, tmp_path / "folder").start()
    for one in opened:
        with pytest.raises(ValueError, match="closed channel"):
            one.unary_unary("/any")(b"")


def test_the_last_line_is_no_java_frame_and_there_may_be_no_line_yet(tmp_path):
    assert runners._last_line(tmp_path) == "it printed nothing"  # nothing has run it yet
    (tmp_path / lifeline.OUTPUT).write_bytes(b"starts\n  dies: \xff \n\n\tat Main.java:7\n")
    assert runners._last_line(tmp_path) == "dies: \\xff"


def test_a_job_server_that_answers_is_used_and_ends_with_the_line(line, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answering = grpc.server(pool)
        port = answering.add_insecure_port("127.0.0.1:0")
        answering.start()
        folder = tmp_path / "folder"
        folder.mkdir()
        server = Server(["sh", "-c", "echo $TMPDIR; sleep 60"], f"127.0.0.1:{port}")
        service = SupervisedJobServer(server, line, folder).start()
        assert callable(service.Run)
        assert wait_for(lambda: line._workers, 30)
        assert wait_for(lambda: (folder / lifeline.OUTPUT).read_text() == f"{folder}\n", 30)
        line.cut()
        assert not folder.exists()
        del service  # and with it the channel: gRPC's threads would live on
        answering.stop(None).wait(10)


def test_java_keeps_its_temporary_files_in_the_folder(tmp_path):
    runner = create_runner("FlinkRunner")
    runners.supervise(runner, None, tmp_path)
    jar = tmp_path / "server.jar"
    jar.touch()
    flags = [f"--flink_job_server_jar={jar}", "--flink_master=[local]", "--job_server_java_launcher=true"]
    server = runner.default_job_server(PipelineOptions(flags))
    assert isinstance(server, SupervisedJobServer)
    (launcher, *arguments), endpoint = server._program(tmp_path)
    assert (launcher, arguments[0]) == ("true", f"-Djava.io.tmpdir={tmp_path}")
    assert arguments[arguments.index("-jar") + 1] == str(jar)
    assert arguments[arguments.index("--artifacts-dir") + 1] == str(tmp_path)
    assert re.fullmatch(r"localhost:\d+", endpoint)
