import contextlib
import importlib.util
import os
import tempfile

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from beam_jobs.runs import runners
from pipeline.errors import UsageError


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
    """A runner that is not Beam's: what it reads is not known."""


def test_every_flag_of_beam_is_known_to_be_read_by_some_runners_or_none():
    classes = {group.__name__ for group in PipelineOptions.__subclasses__() if group.__module__.startswith("apache_")}
    assert classes - runners._READERS.keys() <= {"DaskOptions", "RenderOptions"}  # read by the runners that add them
    known = set(PipelineOptions([]).get_all_options())
    assert runners._READERS_OF_FLAG.keys() <= known
    names = {
        name for readers in [*runners._READERS.values(), *runners._READERS_OF_FLAG.values()] for name in readers or ()
    }
    assert names <= set(StandardOptions.KNOWN_RUNNER_NAMES)
