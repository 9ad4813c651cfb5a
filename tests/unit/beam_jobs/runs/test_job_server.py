import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from beam_jobs.runs import runners


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
