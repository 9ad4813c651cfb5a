import pytest

from pipeline.batch import DISTORT, GATHER, NUMBERS, WEIGHTS
from pipeline.bench.result import BATCHES, BYTES, ORDER, READER, Sample, Spread, Stage, of_prefixes, reason, result_of

MADE = of_prefixes([NUMBERS, GATHER, DISTORT])
STAGES = [
    Stage("read", {BYTES: 1}),
    Stage("check", {READER: 1, BYTES: -1}),
    Stage("decode", note="raw images are copied as they are"),
    Stage("order", {ORDER: 1}),
    Stage("gather", MADE[GATHER]),
    Stage("distort", MADE[DISTORT]),
    Stage("batch", MADE["batch"]),
]
# Microseconds per row of each part, on two cores: by the clock, and of processor time.
PARTS = {BYTES: (1, 1), READER: (3, 4), ORDER: (0.5, 0.5), NUMBERS: (0.1, 0.2), WEIGHTS: (0.5, 0.5)}
PARTS |= {GATHER: (0.6, 1.2), DISTORT: (4.1, 8.2), BATCHES: (4.4, 8.5)}


def sample(clock, processor, rows=1000):
    return Sample(rows, clock * rows / 1e6, processor * rows / 1e6)


def result(whole, stages=STAGES, **changed):
    samples = {name: [sample(*costs)] for name, costs in (PARTS | changed).items()}
    return result_of(stages, samples, [sample(*whole)], 2)


def test_a_stage_costs_what_the_part_with_it_takes_more_than_the_part_without_it():
    found = result((7, 13))
    took = {name: cost.processor.median for name, cost in found.costs.items()}
    expected = {"read": 1, "check": 3, "order": 0.5, "gather": 1, "distort": 7, "batch": 0.5}
    assert took == pytest.approx(expected)
    assert {name: cost.share for name, cost in found.costs.items()} == pytest.approx(
        {name: value / 13 for name, value in expected.items()}
    )
    assert found.costs["distort"].clock.median == pytest.approx(3.5)
    assert found.rate.median == pytest.approx(1e6 / 7)
    assert found.processor.median == pytest.approx(13)


def test_what_is_done_once_has_no_share():
    once = [Stage(s.name, s.terms, once=s.name in ("read", "check")) for s in STAGES]
    found = result((5, 9), once)
    assert found.costs["read"].share == found.costs["check"].share == 0
    assert found.costs["distort"].share == pytest.approx(7 / 9)
    assert READER not in found.sections


def test_busy_cores_bound_an_input_by_the_stage_with_the_largest_share():
    found = result((7, 13))
    assert found.busy == pytest.approx(13 / 14)
    assert (found.bound, found.is_processor_bound) == ("distort", True)
    assert reason(found) == "the processor: distort takes 54% of its time"


def test_idle_cores_tell_that_the_slowest_section_bounds_it():
    found = result((100, 13), **{BYTES: (98, 1), READER: (99, 4)})  # a disk
    assert (found.bound, found.is_processor_bound) == ("read", False)
    assert reason(found) == "read: reading alone gives 10,101 img/s, with the cores 6% busy"


def test_within_a_section_the_stage_that_takes_longest_bounds_it():
    found = result((54, 13), **{DISTORT: (50.6, 2), BATCHES: (51, 3)})  # a function that waits
    assert (found.bound, found.is_processor_bound) == ("distort", False)


def test_an_input_that_is_slower_than_each_of_its_sections_shares_the_cores():
    found = result((20, 13))
    assert (found.bound, found.is_processor_bound) == ("distort", True)
    assert "the cores are only 32% busy, though each section alone is faster" in reason(found)


def test_a_difference_within_the_noise_is_zero():
    found = result((7, 13), **{GATHER: (0.1, 0.1)})
    assert found.costs["gather"].processor == Spread(0, 0, 0)


def test_medians_and_ranges_are_over_the_rounds():
    samples = {name: [sample(*costs)] * 3 for name, costs in PARTS.items()}
    samples[ORDER] = [sample(1, 2), sample(1, 9), sample(1, 3)]
    whole = [sample(4, 8), sample(10, 8), sample(5, 8)]
    found = result_of(STAGES, samples, whole, 2)
    assert found.costs["order"].processor == Spread(*map(pytest.approx, (3, 2, 9)))
    assert found.rate == Spread(*map(pytest.approx, (2e5, 1e5, 2.5e5)))


def test_batches_that_are_slices_of_a_window_have_one_stage():
    assert of_prefixes([]) == {"batch": {BATCHES: 1}}
