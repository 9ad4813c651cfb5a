import re
import socket

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.runs import engines, runners
from pipeline.errors import UsageError


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
