import dataclasses

import pytest

from pipeline.batch import AUGMENT, GATHER, NUMBERS, WEIGHTS
from pipeline.bench.result import (
    BATCHES,
    BYTES,
    ORDER,
    READER,
    Sample,
    Spread,
    Stage,
    heading,
    of_prefixes,
    reason,
    result_of,
    stage_lines,
    verdict_lines,
)
from pipeline.request import Request
from pipeline.resolved import resolve
from tests.helpers.datasets import Kind, write_dataset

MADE = of_prefixes([NUMBERS, GATHER, AUGMENT])
STAGES = [
    Stage("read", {BYTES: 1}),
    Stage("check", {READER: 1, BYTES: -1}),
    Stage("decode", note="raw images are copied as they are"),
    Stage("order", {ORDER: 1}),
    Stage("gather", MADE[GATHER]),
    Stage("augment", MADE[AUGMENT]),
    Stage("batch", MADE["batch"]),
]
# Microseconds per row of each part, on two cores: by the clock, and of processor time.
PARTS = {BYTES: (1, 1), READER: (3, 4), ORDER: (0.5, 0.5), NUMBERS: (0.1, 0.2), WEIGHTS: (0.5, 0.5)}
PARTS |= {GATHER: (0.6, 1.2), AUGMENT: (4.1, 8.2), BATCHES: (4.4, 8.5)}


def sample(clock, processor, rows=1000):
    return Sample(rows, clock * rows / 1e6, processor * rows / 1e6)


def result(whole, stages=STAGES, **changed):
    samples = {name: [sample(*costs)] for name, costs in (PARTS | changed).items()}
    return result_of(stages, samples, [sample(*whole)], 2)


def test_a_stage_costs_what_the_part_with_it_takes_more_than_the_part_without_it():
    found = result((7, 13))
    took = {name: cost.processor.median for name, cost in found.costs.items()}
    expected = {"read": 1, "check": 3, "order": 0.5, "gather": 1, "augment": 7, "batch": 0.5}
    assert took == pytest.approx(expected)
    assert {name: cost.share for name, cost in found.costs.items()} == pytest.approx(
        {name: value / 13 for name, value in expected.items()}
    )
    assert found.costs["augment"].clock.median == pytest.approx(3.5)
    assert found.rate.median == pytest.approx(1e6 / 7)
    assert found.processor.median == pytest.approx(13)


def test_what_is_done_once_has_no_share():
    once = [Stage(s.name, s.terms, once=s.name in ("read", "check")) for s in STAGES]
    found = result((5, 9), once)
    assert found.costs["read"].share == found.costs["check"].share == 0
    assert found.costs["augment"].share == pytest.approx(7 / 9)
    assert READER not in found.sections


def test_busy_cores_bound_an_input_by_the_stage_with_the_largest_share():
    found = result((7, 13))
    assert found.busy == pytest.approx(13 / 14)
    assert (found.bound, found.is_processor_bound) == ("augment", True)
    assert reason(found) == "the processor: augment takes 54% of its time"


def test_idle_cores_tell_that_the_slowest_section_bounds_it():
    found = result((100, 13), **{BYTES: (98, 1), READER: (99, 4)})  # a disk
    assert (found.bound, found.is_processor_bound) == ("read", False)
    assert reason(found) == "read: reading alone gives 10,101 img/s, with the cores 6% busy"


def test_within_a_section_the_stage_that_takes_longest_bounds_it():
    found = result((54, 13), **{AUGMENT: (50.6, 2), BATCHES: (51, 3)})  # a function that waits
    assert (found.bound, found.is_processor_bound) == ("augment", False)


def test_an_input_that_is_slower_than_each_of_its_sections_shares_the_cores():
    found = result((20, 13))
    assert (found.bound, found.is_processor_bound) == ("augment", True)
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


def test_the_heading_says_what_is_timed(tmp_path):
    write_dataset(tmp_path / "raw", (20, 33))
    write_dataset(tmp_path / "png", (20,), kind=Kind("png", varied=True))
    plain = resolve(Request(tmp_path / "raw", "train", global_batch_size=8, training=False))
    assert heading(plain, ["CPU:0"]) == [
        "made, split train: 53 images of 8x6x3 raw",
        "evaluation, kept in memory; batches of 8, unaugmented; 1 replica on CPU:0",
    ]
    arguments = {"resize": "9x7", "augment": "shift", "augment_on": "device", "shuffle_bytes": 1512, "streams": 2}
    resized = resolve(Request(tmp_path / "png", "train", global_batch_size=1000, training=True, **arguments))
    assert heading(resized, ["GPU:0", "GPU:1"]) == [
        "made, split train: 20 images of ?x?x3 png, resized to 9x7",
        "training, 3 windows of 2 streams; batches of 1,000, augmented by shift in the steps; "
        "2 replicas on GPU:0, GPU:1",
    ]


def test_the_table_has_a_row_per_stage_and_the_longest_bar_for_the_largest_share():
    sized = [dataclasses.replace(stage, row_bytes=144.0) for stage in STAGES]
    sized[0] = Stage("read", {BYTES: 1}, row_bytes=144.0, once=True)
    head, read, check, decode, *rows = stage_lines(result((7, 13), sized), 2_000_000)
    assert head.split() == [
        "stage",
        "us/img",
        "lowest",
        "to",
        "highest",
        "img/s",
        "MB/s",
        "share",
        "of",
        "the",
        "processor",
        "time",
    ]
    # 1 us per image: a million images per second, of 144 bytes each; 2,000,000 of them by the clock in 2 s.
    assert read.split() == ["read", "1.000", "1.000", "to", "1.000", "1,000,000", "144.0", "once:", "2", "s"]
    assert check.split()[:-1] == ["check", "3.000", "3.000", "to", "3.000", "333,333", "48.0", "25%"]
    assert decode.split() == [
        "decode",
        "-",
        "-",
        "-",
        "-",
        "absent:",
        "raw",
        "images",
        "are",
        "copied",
        "as",
        "they",
        "are",
    ]
    bars = {row.split()[0]: row.count("#") for row in [check, *rows]}
    shares = {"check": 3, "order": 0.5, "gather": 1, "augment": 7, "batch": 0.5}
    assert max(bars.values()) == bars["augment"] > 10
    assert bars == {name: round(bars["augment"] * share / 7) for name, share in shares.items()}


def test_a_stage_without_cost_has_no_rate_and_notes_stand_below_the_table():
    noted = [*STAGES[:5], Stage("augment", MADE[AUGMENT], note="compiled by XLA"), STAGES[6]]
    lines = stage_lines(result((7, 13), noted, **{GATHER: (0.1, 0.1)}), 100)
    assert lines[5].split() == ["gather", "0.000", "0.000", "to", "0.000", "-", "-", "0%"]
    assert lines[-1] == "augment: compiled by XLA"
    assert len(lines) == 1 + 7 + 1


def test_the_verdict_has_the_rates_of_the_whole_and_of_each_section():
    batch = dataclasses.replace(STAGES[6], row_bytes=576.0)
    found = result((8, 13), [*STAGES[:6], batch])
    assert verdict_lines(found, 2, "the page cache") == [
        "us/img is processor time over all cores, img/s and MB/s are those of one core; bytes come from the page cache",
        "all stages of an epoch: 13.000 us/img; from end to end 13.000 (13.000 to 13.000)",
        "by the clock, each alone: reading 333,333, planning 2,000,000, making batches 227,273 img/s",
        "from end to end: 125,000 (125,000 to 125,000) img/s, 72.0 MB/s; 1.6 of 2 cores busy",
        "bound by the processor: augment takes 54% of its time",
    ]
