"""Mixtures whose weights change at steps: the law against plain lists, on any topology, resumed anywhere; bad input."""

import itertools
import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import Shard, StepIterator, input_fn, order_spec, steps_per_epoch
from pipeline.errors import UsageError
from pipeline.order.shares import Shares, unit_of
from pipeline.request import Request
from pipeline.resolved import parts_of
from tests.helpers.datasets import write_dataset

# 24 rows of a step, in units of 6: 18 + 6 rows, then 6 + 18, then 12 + 12. a: 53 records, 9 units; b: 40 records, 7.
SCHEDULE = ((0, (18, 6)), (4, (6, 18)), (9, (12, 12)))
CURRICULUM = ((0, (24, 0)), (3, (18, 6)), (6, (0, 24)), (10, (12, 12)))  # b begins later, a pauses
STEPS, COUNTS = 14, (53, 40)
OPTIONS = {"global_batch_size": 24, "training": True, "seed": 5, "record_ids": True}
WINDOWS = {"shuffle_bytes": 5000, "streams": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path / "a", (20, 0, 18, 15))
    write_dataset(path / "b", (22, 18))
    return [str(path / "a"), str(path / "b")]


def options_of(folders, segments):
    schedule = [(first, dict(zip(folders, rows, strict=True))) for first, rows in segments]
    return {"data_dir": [(folder, 1) for folder in folders], "schedule": schedule, **OPTIONS}


@pytest.fixture(scope="module")
def options(folders):
    return options_of(folders, SCHEDULE)


@pytest.fixture(scope="module")
def curriculum(folders):
    return options_of(folders, CURRICULUM)


def taken(options, steps=STEPS, **more):
    return list(itertools.islice(input_fn(**{**options, **more}).as_numpy_iterator(), steps))


@pytest.fixture(
    scope="module", params=[{}, pytest.param(WINDOWS, marks=pytest.mark.slow)], ids=["in memory", "windows"]
)
def memory(request):
    return request.param


@pytest.fixture(scope="module")
def whole(options, memory):
    return taken(options, **memory)


def of_sources(batch, rows):
    """Returns (ids, weights) of each source's units in a step, said plainly: 6 blocks with a row of each unit."""
    ids, weights = (component.reshape(6, -1) for component in (batch[3], batch[2]))
    units = [(ids[:, j], weights[:, j]) for j in range(4)]
    return units[: rows[0] // 6], units[rows[0] // 6 :]


def rows_at(step, segments):
    return [rows for first, rows in segments if first <= step][-1]


def test_a_source_goes_on_in_its_own_units_across_a_change(options, memory, whole):
    check_units(options, memory, whole, SCHEDULE)


@pytest.mark.slow
def test_a_source_begins_later_and_pauses(curriculum, memory):
    batches = taken(curriculum, **memory)
    check_units(curriculum, memory, batches, CURRICULUM)
    workers = [taken(curriculum, STEPS - 5, **memory, start_step=5, shard=Shard(rank, 2)) for rank in range(2)]
    for step, elements in enumerate(zip(*workers, strict=True), 5):
        for component, expected in zip(zip(*elements, strict=True), batches[step], strict=True):
            np.testing.assert_array_equal(np.concatenate(component), expected)
    # Of the pool, b has its half: its rows at first are none, and may change until it begins.
    assert [part.shuffle_bytes for part in parts_of(Request(**curriculum, shuffle_bytes=5001))] == [5001, 2500]


def test_the_place_of_a_row_is_where_it_is_fed(folders):
    segments = (*CURRICULUM, (12, (24, 0)))
    made = options_of(folders, segments)
    shares, number = Request(**made).shares, [0, 0]
    for step, batch in enumerate(taken(made)):
        for source, units in enumerate(of_sources(batch, rows_at(step, segments))):
            for ids, _ in units:
                places = [shares.place(source, number[source], row) for row in range(6)]
                assert [at for at, _ in places] == [step] * 6
                np.testing.assert_array_equal(batch[3][[row for _, row in places]], ids)
                number[source] += 1
    assert shares.place(0, number[0], 0)[0] == STEPS
    assert shares.place(1, number[1] - 1, 0)[0] == 11
    assert shares.place(1, number[1], 0) is None  # b has ended


def test_sources_that_never_meet_are_alike_too(folders):
    segments = ((0, (24, 0)), (3, (0, 24)))
    schedule = options_of(folders, segments)
    assert [len(batch[3]) for batch in taken(schedule, 5)] == [24] * 5

    def parsed(records):
        return records[:, None] if seen.append(1) or len(seen) > 1 else records

    seen: list[int] = []
    with pytest.raises(UsageError, match="the sources '.*a:train' and '.*b:train' give different elements"):
        input_fn(**{**schedule, "parse": parsed})


def check_units(options, memory, whole, segments):
    parts = parts_of(Request(**options, **memory))
    assert [part.global_batch_size for part in parts] == [6, 6]
    for number, part in enumerate(parts):
        units = [
            unit for step, batch in enumerate(whole) for unit in of_sources(batch, rows_at(step, segments))[number]
        ]
        own = {"seed": part.seed, "shuffle_bytes": part.shuffle_bytes, "global_batch_size": 6}
        alone = input_fn(part.folder, **{**OPTIONS, **memory, **own}).take(len(units)).as_numpy_iterator()
        for (ids, weights), element in zip(units, alone, strict=True):
            np.testing.assert_array_equal(ids, element[3] + 53 * number)
            np.testing.assert_array_equal(weights, element[2])
        # Each record once per epoch, although all segments begin and end in the middle of one.
        per_epoch = -(-COUNTS[number] // 6)
        for epoch in range(len(units) // per_epoch):
            of_epoch = units[epoch * per_epoch : (epoch + 1) * per_epoch]
            seen = [i for ids, weights in of_epoch for i, weight in zip(ids, weights, strict=True) if weight]
            assert sorted(seen) == list(range(53 * number, 53 * number + COUNTS[number]))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("workers", "start"), [(2, 3), pytest.param(3, 8, marks=SLOW), pytest.param(1, 4, marks=SLOW), (1, 11)]
)
def test_any_workers_resumed_anywhere_make_the_same_global_batches(options, memory, whole, workers, start):
    parts = [
        taken(options, STEPS - start, **memory, start_step=start, shard=Shard(rank, workers)) for rank in range(workers)
    ]
    for step, elements in enumerate(zip(*parts, strict=True), start):
        for component, expected in zip(zip(*elements, strict=True), whole[step], strict=True):
            np.testing.assert_array_equal(np.concatenate(component), expected)


@pytest.mark.slow
def test_several_replicas_of_a_worker_take_turns(options, whole, memory):
    got = taken(options, 2 * STEPS, **memory, shard=Shard(1, 3, local_replicas=2))
    for number, element in enumerate(got):
        first = 8 + 4 * (number % 2)
        for component, expected in zip(element, whole[number // 2], strict=True):
            np.testing.assert_array_equal(component, expected[first : first + 4])


@pytest.mark.slow
def test_replicas_take_turns_whether_a_step_takes_one_unit_of_a_source_or_two(folders):
    made = options_of(folders, ((0, (12, 12)), (2, (24, 0)), (4, (12, 12))))  # units of 12 rows
    got, expected = taken(made, 12, shard=Shard(1, 2, local_replicas=2)), taken(made, 6)
    for number, element in enumerate(got):
        first = 12 + 6 * (number % 2)
        for component, rows in zip(element, expected[number // 2], strict=True):
            np.testing.assert_array_equal(component, rows[first : first + 6])


@pytest.mark.slow
def test_a_skipped_step_and_the_mean_count_in_units(options):
    [batch] = taken(options, 1, start_step=4, weights="mean", skip_steps=[(5, 6)])
    plain = taken(options, 3, start_step=4)
    for step, got in enumerate(taken(options, 3, start_step=4, skip_steps=[(5, 6)])):
        np.testing.assert_array_equal(got[2], plain[step][2] * (step != 1))
        np.testing.assert_array_equal(got[3], plain[step][3])
    # Step 4 takes unit 12 of a, which is full, and units 4, 5, 6 of b; its unit 6 has 4 real rows of 6.
    assert plain[0][2].sum() == 22
    np.testing.assert_allclose(np.unique(batch[2]), [0, 1, 1.5])
    assert batch[2].sum() == 24


def test_an_epoch_is_counted_by_the_first_segment(folders, options):
    given = {"global_batch_size": 24, "schedule": options["schedule"]}
    assert steps_per_epoch(options["data_dir"], **given) == 3  # 53 records, 18 rows a step
    assert steps_per_epoch(options["data_dir"], **given, remainder="drop") == 2
    assert int(input_fn(**options, epochs=4).cardinality()) == 12
    assert len(taken(options, 99, epochs=4)) == 12


def test_what_lies_ahead_may_change_and_nothing_else(folders, options, caplog):
    a, b = folders

    def made(schedule):
        return StepIterator(**{**options, "schedule": schedule}, start_step=6)

    first = made(options["schedule"])
    next(first)
    state = json.loads(json.dumps(first.get_state()))
    assert state["spec"]["schedule"] == [[0, [18, 6]], [4, [6, 18]], [9, [12, 12]]]
    other = made(f"0:{a}=3,{b}:train=1;4:{a}=1,{b}=3;10:{a}=3,{b}=1")
    with caplog.at_level(logging.WARNING):
        other.set_state(state)
    assert (
        "schedule was 0:18+6,4:6+18,9:12+12, is 0:18+6,4:6+18,10:18+6, which differ only from step 7 on" in caplog.text
    )
    np.testing.assert_array_equal(next(other)[3], next(first)[3])
    for schedule, why in [
        (f"0:{a}=3,{b}=1;5:{a}=1,{b}=3", r"schedule was 0:18\+6,4:6\+18, is 0:18\+6,5:6\+18;"),
        (
            f"0:{a}=3,{b}=1;4:{a}=1,{b}=3;9:{a}=11,{b}=13",
            "unit of the schedule was 6 rows, is 1; the rows of all sources and segments must have 6 as their greatest "
            r"common divisor, such as 0:18\+6,4:6\+18,9:12\+12;",
        ),
        (f"0:{a}=3,{b}=1;4:{a}=1,{b}=3;9:{a}=23,{b}=1", "6 as their greatest common divisor;"),
        ((), "schedule was 0:18.*, is none"),
    ]:
        with pytest.raises(UsageError, match=f"another order of examples: .*{why}"):
            made(schedule).set_state(state)
    # Another schedule is another spec; its digest leaves out what may change.
    specs = [
        order_spec(options["data_dir"], "train", global_batch_size=24, training=True, schedule=text)
        for text in (options["schedule"], f"0:{a}=3,{b}=1;4:{a}=1,{b}=3")
    ]
    assert specs[0].digest == specs[1].digest
    assert specs[0].differences(json.loads(specs[1].to_json())) != {}


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=2, max_size=2).filter(any)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(SEGMENTS, st.integers(1, 3), st.integers(0, 12), st.integers(0, 14))
def test_units_and_steps_as_a_list_has_them(drawn, factor, start, length):
    firsts = [0, *itertools.accumulate(steps for steps, _ in drawn[:-1])]
    segments = tuple((first, tuple(factor * n for n in rows)) for first, (_, rows) in zip(firsts, drawn, strict=True))
    unit, stop = unit_of(segments), start + length
    shares = Shares(segments, (unit, unit))
    assert unit % factor == 0
    per_step = [[rows for first, rows in segments if first <= step][-1] for step in range(30)]
    for source in (0, 1):
        taken_by = [step for step in range(30) for _ in range(per_step[step][source] // unit)]
        assert [shares.units_before(source, step) for step in range(30)] == [
            sum(step < here for step in taken_by) for here in range(30)
        ]
        for number in range(0, len(taken_by), 3):
            step = taken_by[number]
            assert shares.step_of_unit(source, number) == step
            within = [i for of, i in shares.units_at(step) if of == source]
            assert within == [i for i, taken in enumerate(taken_by) if taken == step]
    listed = [(step, units) for a, b, units in shares.between(start, stop) for step in range(a, b)]
    assert listed == [(step, tuple(n // unit for n in per_step[step])) for step in range(start, stop)]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("0:{a}=1,c=1", "schedule, step 0: source: unknown 'c'; known: "),
        ("0:{a}=1", "schedule, step 0: the source '.*b:train' has no weight; give it one, or 0: no rows"),
        ("0:{a}=1,{b}=-1", "source '.*b': its weight, -1.0, must be a number of 0 or more"),
        (
            "0:{a}=1,{b}=0",
            "schedule: the source '.*b:train' has the weight 0 in all segments; leave it out of data_dir",
        ),
        ("0:{a}=1,{b}=1;3:{a}=0,{b}=0", "schedule, step 3: all weights are 0; give one source a weight above 0"),
        (
            "0:{a}=0,{b}=1;3:{a}=1,{b}=0",
            "schedule: '.*a:train', the first source of data_dir, has the weight 0 at step",
        ),
        ("0:{a}=99,{b}=1", "source '.*b:train': its weight, 1 of 100, gives it none of the global_batch_size=24 rows"),
        ("5:{a}=1,{b}=1", r"schedule: its first steps are \[5\]; they must begin with 0, increase"),
        ("0:{a}=1,{b}=1;7:{a}=2,{b}=1;7:{a}=1,{b}=1", r"first steps are \[0, 7, 7\]; they must begin with 0, increase"),
        ("0:{a}=1,{a}:train=1,{b}=1", "'.*a:train' does not name one source that has no weight yet"),
        ("0:{a}=1,{a}=1,{b}=1", "step 0 names a source twice"),
        ("0.9", r"schedule=0.9: the source '' has no weight"),
        ("x:{a}=1,{b}=1", "schedule='x:.*': must be pairs of a first step and the sources' weights"),
        ([(0, 0.5)], "must be pairs of a first step"),
    ],
)
def test_a_wrong_schedule(folders, options, schedule, message):
    a, b = folders
    schedule = schedule.format(a=a, b=b) if isinstance(schedule, str) else schedule
    with pytest.raises(UsageError, match=message):
        order_spec(options["data_dir"], global_batch_size=24, training=True, schedule=schedule)
    with pytest.raises(UsageError, match="schedule: changes the weights of a mixture"):
        order_spec(a, global_batch_size=24, training=True, schedule={0: {a: 1}}.items())


def test_replicas_divide_the_rows_of_every_segment(options, curriculum):
    nearest = r"24, .* 0 rows, of which 5 replicas need equal parts; nearest that work: global_batch_size=20 and 25"
    with pytest.raises(UsageError, match=nearest):
        input_fn(**curriculum, shard=Shard(0, 5))
    with pytest.raises(
        UsageError, match=r"18, .* 6 rows, .* 4 replicas .*; nearest that work: the weights 20 and 4, or"
    ):
        input_fn(**curriculum, shard=Shard(0, 4))
    with pytest.raises(UsageError, match="gives the sources .* 18, .* 6 rows, of which 4 replicas need equal parts"):
        input_fn(**options, shard=Shard(0, 4))
