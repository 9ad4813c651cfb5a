import concurrent.futures
import re
import socket

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.runs import engines, lifeline, runners
from beam_jobs.runs.engines import SupervisedJobServer
from beam_jobs.runs.lifeline import Lifeline
from pipeline.errors import DataError, UsageError
from tests.engines.commands import wait_for


def test_a_missing_job_server_is_an_error_of_the_flag():
    with pytest.raises(UsageError, match="--job_endpoint=localhost:1: "):
        engines.check_endpoint("localhost:1", seconds=0.2)


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
        engines.check_cluster(create_runner("SparkRunner"), options)


@pytest.mark.parametrize(("runner", "flags"), [("FlinkRunner", []), ("SparkRunner", []), ("PrismRunner", [])])
def test_an_embedded_cluster_need_not_answer(runner, flags):
    engines.check_cluster(create_runner(runner), PipelineOptions(flags))


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
    assert engines.flink_cluster(create_runner("FlinkRunner"), PipelineOptions([f"--flink_master={master}"])) == url


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
    assert engines.starts_one(create_runner(name), PipelineOptions(flags)) == starts


def test_without_java_or_the_jar_it_is_said_what_to_get(tmp_path):
    runner = create_runner("FlinkRunner")
    options = PipelineOptions(
        [f"--job_server_java_launcher={tmp_path}/java", f"--flink_job_server_jar={tmp_path}/x.jar"]
    )
    with pytest.raises(UsageError, match=r"^--runner=FlinkRunner: needs Java, .* install Java 11 or 17, or give --job"):
        engines.check_java(runner, options)
    with pytest.raises(UsageError, match=rf"^--flink_job_server_jar={tmp_path}/x\.jar: no such file; docs/clusters"):
        engines.check_jar(runner, options)
    (tmp_path / "x.jar").touch()
    engines.check_jar(runner, options)
    engines.check_jar(runner, PipelineOptions(["--flink_job_server_jar=https://repository.example/x.jar"]))


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
    monkeypatch.setattr(engines, "_START_SECONDS", seconds)
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
    assert engines._last_line(tmp_path) == "it printed nothing"  # nothing has run it yet
    (tmp_path / lifeline.OUTPUT).write_bytes(b"starts\n  dies: \xff \n\n\tat Main.java:7\n")
    assert engines._last_line(tmp_path) == "dies: \\xff"


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
    engines.supervise(runner, None, tmp_path)
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
