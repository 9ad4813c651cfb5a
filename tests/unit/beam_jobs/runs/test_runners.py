import contextlib
import importlib.util
import os

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from beam_jobs.runs import runners
from pipeline.errors import UsageError


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("flags", "seconds", "count", "mode"),
    [
        ([], 12.0, 1, "in_memory"),
        ([], 12.1, 4, "multi_processing"),
        (["--runner=FnApiRunner"], 1e6, 4, "multi_processing"),
        (["--direct_num_workers=1"], 1e6, 1, "in_memory"),
        (["--direct_running_mode=in_memory"], 1e6, 1, "in_memory"),
        (["--direct_num_workers=3", "--direct_running_mode=multi_processing"], 0.1, 3, "multi_processing"),
        (["--direct_num_workers=0", "--direct_running_mode=multi_processing"], 0.1, 4, "multi_processing"),
        (["--runner=BundleBasedDirectRunner"], 1e6, 1, "in_memory"),
    ],
)
def test_long_work_takes_all_cores_where_the_flags_leave_it_open(flags, seconds, count, mode):
    options = PipelineOptions(flags)
    assert runners.use_all_cores(options, seconds) == count
    assert options.view_as(DirectOptions).direct_running_mode == mode


def test_one_core_is_one_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert runners.use_all_cores(PipelineOptions([]), 1e6) == 1


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
        (["--overwite"], "did you mean '--overwrite'"),
        (["--flink_mastr", "x"], "did you mean '--flink_master'"),
        (["--qqqqqqqqq"], "flag: unknown '--qqqqqqqqq'; see --help"),
        (["extra"], "unexpected argument 'extra'"),
        (["--direct_num_workers=two"], "argument --direct_num_workers: invalid int value: 'two'"),
        (["--direct_running_mode=threads"], "invalid choice: 'threads'"),
        (["--runner=FlinkRuner"], "unknown 'FlinkRuner'; did you mean 'FlinkRunner'"),
        (["--runner=no.such.Runner"], "--runner=no.such.Runner: cannot be loaded"),
        (["--runner=os.NoRunner"], "--runner=os.NoRunner: cannot be loaded"),
        (["--direct_num_workers=-1"], "--direct_num_workers=-1: must be 0"),
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
