import os

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from beam_jobs.runs import runners


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
def test_the_in_process_runner_deals_among_its_workers(flags, count):
    runner, _ = runners.make_runner(PipelineOptions(flags))
    assert runners.workers(beam.Pipeline(runner, PipelineOptions(flags))) == count


def test_another_runner_spreads_as_it_likes():
    assert runners.workers(beam.Pipeline(BundleBasedDirectRunner(), PipelineOptions([]))) == 0
