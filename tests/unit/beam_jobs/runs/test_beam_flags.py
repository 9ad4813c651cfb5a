import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

from beam_jobs.runs import beam_flags, runners
from pipeline.errors import UsageError


def test_flags_of_beam_pass_through():
    flags = ["--runner=FnApiRunner", "--direct_num_workers", "2", "--direct_running_mode=multi_threading"]
    options = beam_flags.parse(flags, [])
    assert options.view_as(StandardOptions).runner == "FnApiRunner"
    assert options.view_as(DirectOptions).direct_num_workers == 2
    assert options.view_as(DirectOptions).direct_running_mode == "multi_threading"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--direct_num_worker=2"], "unknown flag --direct_num_worker, .*did you mean --direct_num_workers"),
        (["--overwite"], "did you mean --overwrite"),
        (["--flink_mastr", "x"], "did you mean --flink_master"),
        (["--qqqqqqqqq"], "unknown flag --qqqqqqqqq, neither ours nor Beam's; see --help"),
        (["extra"], "unexpected argument 'extra'"),
        (["--direct_num_workers=two"], "argument --direct_num_workers: invalid int value: 'two'"),
        (["--direct_running_mode=threads"], "invalid choice: 'threads'"),
    ],
)
def test_a_flag_that_nobody_knows_is_an_error_with_the_nearest(flags, message):
    with pytest.raises(UsageError, match=message):
        beam_flags.parse(flags, ["--overwrite", "--seed"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=FlinkRuner"], "unknown 'FlinkRuner'; did you mean 'FlinkRunner'"),
        (["--runner=no.such.Runner"], "--runner=no.such.Runner: cannot be loaded"),
        (["--runner=os.NoRunner"], "--runner=os.NoRunner: cannot be loaded"),
        (["--direct_num_workers=-1"], "--direct_num_workers=-1: must be 0"),
        (["--runner=PortableRunner"], "--runner=PortableRunner: --job_endpoint is missing"),
    ],
)
def test_a_runner_that_cannot_be_made_is_an_error(flags, message):
    with pytest.raises(UsageError, match=message):
        runners.check(beam_flags.parse(flags, []))
