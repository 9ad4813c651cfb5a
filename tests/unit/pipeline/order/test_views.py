"""The laws of docs/views.md, and random views against a plain model that lists an epoch."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.proof import replay
from pipeline.errors import UsageError
from pipeline.order.feed import make_feed
from pipeline.order.hashing import Domain, derive_key, permutation
from pipeline.order.order import Order, OrderSpec
from pipeline.order.sharding import Shard
from pipeline.order.views import View, checked_skips


@dataclasses.dataclass
class Made:
    """Columns in memory."""

    values: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    texts: tuple[str, ...] = ()
    used: dict[str, str] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.values:
            raise UsageError(f"unknown {name!r}; known: {', '.join(self.values)}", argument="column")
        self.used[name] = "0"
        return self.values[name]

    def names_of(self, name: str) -> tuple[str, ...]:
        return self.names.get(name, ())

    def is_text(self, name: str) -> bool:
        return name in self.texts

    def name_of(self, record: int) -> str:
        return f"record {record} of a file"


def columns_of(labels, **others) -> Made:
    labels = np.asarray(labels, np.int8)
    return Made({"label": labels, **{name: np.asarray(values) for name, values in others.items()}})


def times_of(view: View, columns: Made, epoch: int, seed: int = 7) -> np.ndarray:
    """How often each record is in an epoch, (records,)."""
    count = len(columns.values["label"])
    times, _ = view.resolve(columns, count, seed, "train")
    found = np.zeros(count, np.int64)
    found[times.ids(np.arange(times.num_chosen))] = times.of(epoch)
    assert found.sum() == times.total
    return found


# The laws.

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=120)


@given(LABELS, st.integers(0, 1000), st.integers(-5, 5))
@settings(max_examples=60, deadline=None)
def test_balance_fills_equal_rows_and_every_record_has_its_floor_or_ceiling(labels, epoch, seed):
    found = times_of(View(balance="label"), columns_of(labels), epoch, seed)
    sizes = np.bincount(labels)
    for label in set(labels):
        own, n, rows = found[np.array(labels) == label], sizes[label], sizes.max()
        assert own.sum() == rows
        assert set(own) <= {rows // n, -(-rows // n)}


def test_balance_gives_the_extra_turn_to_others_in_another_epoch():
    labels = [0] * 50 + [1] * 30  # 20 of the 30 have two turns
    first, second = (times_of(View(balance="label"), columns_of(labels), epoch)[50:] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == [1] * 10 + [2] * 20
    assert (first != second).any()


def test_the_root_of_balance_is_half_way_to_equal_rows():
    labels = [0] * 400 + [1] * 100 + [2] * 4
    found = times_of(View(balance="sqrt(label)"), columns_of(labels), 3)
    assert [int(found[np.array(labels) == label].sum()) for label in range(3)] == [400, 200, 40]


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.75, 3.1]), min_size=1, max_size=100), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_weigh_gives_the_floor_or_the_ceiling_in_epochs_of_one_length(weights, epoch):
    if sum(weights) < 1.1:
        weights = [*weights, 2.0]
    columns = columns_of([0] * len(weights), w=np.float32(weights))
    found = times_of(View(weigh="w"), columns, epoch)
    fixed = np.floor(np.float64(np.float32(weights)) * 2**20 + 0.5) / 2**20
    assert set(np.abs(found - fixed) < 1) == {True}
    assert found.sum() == int(fixed.sum())


def test_weigh_gives_the_weight_in_the_mean():
    weights = np.float32(np.random.default_rng(0).random(200) * 3)
    columns = columns_of([0] * 200, w=weights)
    times, _ = View(weigh="w").resolve(columns, 200, 7, "train")
    mean = np.mean([times.of(epoch) for epoch in range(900)], axis=0)
    # The standard deviation of a record is at most 1/2, so that of the mean of 900 epochs 1/60.
    assert np.abs(mean - weights).max() < 4.5 / 60
    # The epoch's length cuts off less than one row of all together.
    assert 0 <= (weights - mean).sum() < 1


def test_weigh_of_whole_numbers_has_no_chance_in_it():
    columns = columns_of([0, 1, 2, 3, 1])
    assert times_of(View(weigh="label"), columns, 5).tolist() == [0, 1, 2, 3, 1]


@given(LABELS, st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_a_smaller_limit_is_a_subset_of_a_larger_one(labels, one, other):
    small, large = sorted((one, other))
    for form in ("{}", "{} per label"):
        few, more = (times_of(View(limit=form.format(n)), columns_of(labels), 0, seed=n) for n in (small, large))
        assert (few <= more).all()
        if form == "{}":
            assert few.sum() == min(small, len(labels))
        else:
            counts = np.bincount(labels, minlength=7)
            assert np.bincount(labels, few, minlength=7).tolist() == np.minimum(counts, small).tolist()


def test_a_limit_of_fewer_records_keeps_those_of_all_that_remain():
    labels = np.arange(100) % 10
    every = times_of(View(limit=40), columns_of(labels), 0).astype(bool) & (labels < 5)
    some = times_of(View(where="label < 5", limit=int(every.sum())), columns_of(labels), 0)
    assert np.flatnonzero(some).tolist() == np.flatnonzero(every).tolist()  # the first of the same permutation


@pytest.mark.parametrize(
    ("view", "epochs"),  # 0, 1 and 40
    [
        (View(balance="label"), ["111111123243", "111111132234", "111111132243"]),
        (View(balance="sqrt(label)"), ["111111112121", "111111121112", "111111121121"]),
        (View(weigh="w"), ["112011311102", "112011301103", "012012301103"]),
        (View(limit=5), ["110100000011"] * 3),
        (View(limit="2 per label"), ["010100001111"] * 3),
    ],
)
def test_the_times_of_a_few_views_are_pinned(view, epochs):
    weights = np.float32([0.5, 1.25, 2, 0, 0.75, 1.5, 3.1, 0.2, 0.9, 1, 0.4, 2.6])
    columns = columns_of([0] * 7 + [1] * 3 + [2] * 2, w=weights)
    assert ["".join(map(str, times_of(view, columns, epoch))) for epoch in (0, 1, 40)] == epochs


# Expressions.


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("label == 2", [2]),
        ("label in (0, 3)", [0, 3]),
        ("label not in [0, 3]", [1, 2]),
        ("label == 'cat'", [0]),
        ("label != 'cat' and width >= 28", [2, 3]),
        ("not label in ('cat', 'owl') or width < 20", [0, 1, 2]),
        ("20 < width <= 30", [1, 2, 3]),
        ("width * 1000000 * 1000 > 29e9", [2, 3]),
        ("width % 3 == 0", [1, 2, 3]),
        ("-label < -1", [2, 3]),
        ("score > 0.5", [1]),
        ("score != score", [3]),
        ("source == 'web'", [1, 3]),
        ("label + 1 - 1 == width / 10", [3]),
    ],
)
def test_an_expression_keeps(text, kept):
    columns = columns_of(
        [0, 1, 2, 3], width=np.int16([10, 21, 30, 30]), score=np.float32([0.1, 0.9, 0.5, np.nan]), source=[0, 1, 0, 1]
    )
    columns.names = {"label": ("cat", "dog", "emu", "owl"), "source": ("book", "web")}
    columns.texts = ("source",)
    assert np.flatnonzero(View(where=text).mask(columns, 4)).tolist() == sorted(kept)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label ==", "is not an expression"),
        ("__import__('os').remove('x') == 1", "is not understood"),
        ("label.real == 1", "is not understood"),
        ("(lambda: 1)() == 1", "is not understood"),
        ("label[0] == 1", "is not understood"),
        ("True == (label == label)", "is not understood"),
        ("label ** 9 > 1", "is not understood"),
        ("not " * 1200 + "label == 1", "is nested too deeply"),
        ("label % 0 == 0", "'label % 0' divides by 0"),
        ("label * 9223372036854775807 > 0", "leaves the range of signed 64-bit integers"),
        ("9223372036854775807 + 1 > 0", "leaves the range of signed 64-bit integers"),
        ("label is 1", "Is is not understood"),
        ("label", "is not a condition; compare it, such as 'label > 0'"),
        ("label in 3", "after 'in' comes a list"),
        ("lable == 1", "unknown 'lable'; known: label, source"),
        ("label == 'cow'", "has no value 'cow'; known: cat, dog"),
        ("source == 'wob'", "has no value 'wob'; did you mean 'web'? known: book, web"),
        ("many == 'class 77'", "did you mean 'class 7'? known: class 0, class 1, class 2,"),
        ("many == 'x'", "class 19 and 5 more"),
        ("width == 'x'", "its values are numbers"),
        ("source < 3", "has strings; compare it with one by ==, != or in"),
        ("'cat' == 'cat'", "can only be compared with a column"),
        ("label > 99999999999999999999", "not in the range of a signed 64-bit integer"),
    ],
)
def test_a_wrong_expression_is_named(text, said):
    columns = columns_of([0, 1], source=[0, 1], many=[0, 9], width=[3, 4])
    columns.names = {"label": ("cat", "dog"), "source": ("book", "web"), "many": tuple(f"class {i}" for i in range(25))}
    columns.texts = ("source",)
    with pytest.raises(UsageError) as caught:
        View(where=text).mask(columns, 2)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ({"where": "label > 5"}, "keeps none of the 4 records of 'train'"),
        (
            {"where": lambda columns: columns["label"]},
            "must return bool (4,), a truth value per record; it returned int8",
        ),
        ({"limit": 0}, "must be a number of records from 1 on"),
        ({"limit": "5 by label"}, "must be a number of records from 1 on"),
        ({"limit": True}, "must be a number of records from 1 on"),
        ({"limit": "5 per score"}, "the column 'score' has float32, not whole numbers"),
        ({"balance": "labels"}, "balance='labels': column: unknown 'labels'"),
        ({"balance": "log(label)"}, "must be the name of a column, or such as 'sqrt(label)'"),
        ({"balance": "label"}, "the class 'owl' has no record to fill its rows"),
        ({"balance": "label", "where": "score >= 0"}, "the class 'owl' has no record"),
        ({"balance": "label", "weigh": "score"}, "both say how often a record is there"),
        ({"weigh": "score"}, "the weight of record 2 of a file is nan"),
        ({"weigh": "negative"}, "the weight of record 1 of a file is -1.0, must be 0 or more"),
        ({"weigh": "tiny"}, "the weights of 'train' add up to 0.4, less than 1"),
        ({"weigh": "huge"}, "make too long an epoch"),
        ({"weigh": "source"}, "has strings, not weights"),
    ],
)
def test_a_view_that_cannot_work_is_named(view, said):
    columns = columns_of(
        [0, 1, 1, 0],
        score=np.float32([1, 2, np.nan, 1]),
        negative=np.float32([1, -1, 1, -2]),
        tiny=np.full(4, 0.1),
        huge=np.full(4, 1e15),
        source=[0, 0, 1, 1],
    )
    columns.names, columns.texts = {"label": ("cat", "dog", "owl"), "source": ("book", "web")}, ("source",)
    with pytest.raises(UsageError) as caught:
        View(**view).resolve(columns, 4, 0, "train")
    assert said in str(caught.value)


def test_classes_that_where_leaves_out_are_not_missed():
    columns = columns_of([0, 1, 1, 0, 2])
    columns.names = {"label": ("cat", "dog", "owl")}
    assert times_of(View(where="label != 'owl'", balance="label"), columns, 0).tolist() == [1, 1, 1, 1, 0]


# A plain model of the order under a view, as docs/order.md and docs/views.md define it.


class Model:
    """Lists what each step of an order feeds."""

    def __init__(self, order: Order, times) -> None:
        self.order, self.times = order, times

    def epoch(self, number: int) -> list[int]:
        """Ids at the positions of an epoch: of copy j of record r, r + j * records."""
        order, times = self.order, self.times(number)
        shards = permutation(derive_key(Domain.SHARDS, order.seed, number), len(order.counts)).tolist()
        firsts = np.cumsum([0, *order.counts]).tolist()
        return [
            record + copy * firsts[-1]
            for shard in shards
            for record in range(firsts[shard], firsts[shard + 1])
            for copy in range(times[record])
        ]

    def batch(self, step: int) -> list[int]:
        """Ids of the rows of a global step; -1: padding, or of a skipped step."""
        order, positions = self.order, self.epoch(step // self.order.steps_per_epoch)
        epoch, at = divmod(step, order.steps_per_epoch)
        n, streams, windows = len(positions), order.streams, order.windows
        assert n == order.num_records
        rows = []
        for k in range(streams):
            low, high = k * n // streams, (k + 1) * n // streams
            own = []
            for w in range(windows):
                first, stop = (low + i * (high - low) // windows for i in (w, w + 1))
                turn = permutation(derive_key(Domain.WINDOW, order.seed, epoch, k, w), stop - first).tolist()
                own += [positions[first + i] for i in turn]
            q = order.rows_per_stream
            mine = own[at * q : (at + 1) * q]
            rows += mine + [-1] * (q - len(mine))
        skipped = any(first <= step < stop for first, stop in order.skip_steps)
        return [-1] * len(rows) if skipped else rows


def fed(order: Order, workers: int, first: int, last: int) -> list[list[int]]:
    """Ids of the rows of each step from `first` to before `last`, as the workers feed them; -1: weight 0."""
    parts = []
    for worker in range(workers):
        feed = make_feed(order, Shard(worker, workers))
        found = [(each.records, each.real) for each in replay(feed, first, last)]
        records, real = (np.concatenate(each) for each in zip(*found, strict=True))
        parts.append(np.where(real, records, -1)[: last - first])
    return np.concatenate(parts, axis=1).tolist()


@st.composite
def programs(draw):
    """A view over random columns, and an order that it fits."""
    counts = tuple(draw(st.lists(st.integers(0, 25), min_size=1, max_size=6).filter(sum)))
    n = sum(counts)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    columns = columns_of(rng.integers(0, 4, n), score=np.float32(rng.random(n) * 3))
    columns.values["score"][0] = 2
    view = draw(
        st.sampled_from(
            [
                View(where="label != 1 or score > 1.9"),
                View(balance="label"),
                View(balance="sqrt(label)", limit=30),
                View(where="score > 0.7", weigh="score"),
                View(weigh="score"),
                View(limit="5 per label"),
                View(where=lambda columns: columns["score"] > 1),
            ]
        )
    )
    size, workers = draw(st.sampled_from([(30, (1, 2, 3, 5)), (8, (1, 2, 8)), (16, (1, 8, 2))]))
    streams = draw(st.sampled_from([1, 2] + ([3, 5] if size == 30 else [4, 8])))
    skips = checked_skips(draw(st.sampled_from([(), [(1, 2)], "0:1,3:5"])))
    arguments = size, streams, draw(st.integers(1, 4)), draw(st.sampled_from(["pad", "drop"])), draw(st.integers(-9, 9))
    times, _ = view.resolve(columns, n, arguments[4], "train")
    order = Order(counts, *arguments, True, times, skips)
    order = order if order.steps_per_epoch else dataclasses.replace(order, remainder="pad")
    return order, view, columns, workers


@given(programs(), st.data())
@settings(max_examples=60, deadline=None)
def test_random_views_feed_what_a_plain_listing_says_on_any_workers_from_any_step(program, data):
    order, view, columns, workers = program
    model = Model(order, lambda epoch: times_of(view, columns, epoch, order.seed))
    last = 2 * order.steps_per_epoch
    wanted = [model.batch(step) for step in range(last)]
    assert fed(order, 1, 0, last) == wanted
    for count in workers[1:]:
        first = data.draw(st.integers(0, last - 1))
        assert fed(order, count, first, last) == wanted[first:]
    if order.remainder == "pad" and not order.skip_steps:
        for epoch in range(2):
            of_epoch = wanted[epoch * order.steps_per_epoch : (epoch + 1) * order.steps_per_epoch]
            seen = [record for row in of_epoch for record in row if record >= 0]
            assert len(set(seen)) == len(seen)  # no copy twice
            counts = np.bincount(np.array(seen) % order.num_stored, minlength=order.num_stored)
            assert counts.tolist() == times_of(view, columns, epoch, order.seed).tolist()


@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(where="label != 1"),
        View(limit=300),
        View(limit="150 per label"),
        View(balance="label"),
        View(balance="sqrt(label)", where="score > 0.2"),
        View(weigh="score"),
    ],
    ids=lambda view: view._text(columns_of([0]), None) or "plain",
)
@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.quick(4)
def test_a_run_goes_on_at_each_step_of_two_epochs_on_any_other_number_of_workers(view, windows):
    rng = np.random.default_rng(0)
    columns = columns_of(rng.choice(4, 420, p=[0.5, 0.3, 0.15, 0.05]), score=np.float32(rng.random(420) * 2))
    times, _ = view.resolve(columns, 420, 3, "train")
    order = Order((100, 0, 37, 283), 120, 4, windows, "pad", 3, True, times if view else None, ((2, 3),))
    model = Model(order, lambda epoch: times_of(view, columns, epoch, 3))
    last = 2 * order.steps_per_epoch
    wanted = [model.batch(step) for step in range(last)]
    assert last >= 6
    for count in (1, 2, 3, 5, 8):
        for first in range(last):  # whoever made the steps before it
            assert fed(order, count, first, last) == wanted[first:], (count, first)


def test_a_window_reads_no_record_that_its_epoch_lacks():
    columns = columns_of([0, 1, 0, 2, 0, 3] * 20, w=[0.4, 1, 0.2, 2, 0.7, 3] * 20)
    times, _ = View(weigh="w").resolve(columns, 120, 5, "train")
    order = Order((50, 0, 70), 8, 2, 3, "pad", 5, True, times)
    feed = make_feed(order, None)
    for window in range(3):
        plan = feed.plan(1, window)
        assert plan.times.min() >= 1
        assert len(plan.times) == (plan.pieces[:, 2] - plan.pieces[:, 1]).sum() < 40
        assert plan.times.sum() == len(plan.slots)


# The spec.

SPEC = OrderSpec("ab", "train", 0, 8, 1, 1000, "pad", True, 10)


def test_the_spec_of_a_plain_split_is_stored_as_before():
    assert "view" not in SPEC.to_json()
    assert "skip_steps" not in SPEC.to_json()
    assert list(json.loads(SPEC.to_json())) == [
        "global_batch_size",
        "manifest_digest",
        "record_bytes",
        "remainder",
        "seed",
        "shuffle_bytes",
        "split",
        "streams",
        "training",
        "version",
    ]


def test_another_view_is_a_difference_by_name():
    other = dataclasses.replace(SPEC, view="where: label == 3; column label: 0")
    assert other.differences(json.loads(SPEC.to_json())) == {"view": (other.view, None)}
    assert SPEC.differences(json.loads(other.to_json())) == {"view": (None, other.view)}
    assert other.digest != SPEC.digest


def test_steps_to_skip_may_change_from_the_step_on_at_which_a_run_resumes():
    was, now = (dataclasses.replace(SPEC, skip_steps=skips) for skips in (((3, 6),), ((3, 6), (9, 12))))
    stored = json.loads(was.to_json())
    assert now.differences(stored) == {"skip_steps": ("3:6,9:12", "3:6")}
    assert now.differences(stored, 9) == {}
    assert now.later_changes(stored, 9) == "skip_steps was 3:6, is 3:6,9:12, which differ only from step 9 on"
    assert now.differences(stored, 10) == {"skip_steps": ("3:6,9:10", "3:6")}
    assert now.later_changes(stored, 10) is None
    assert SPEC.differences(stored, 3) == {}
    assert SPEC.differences(stored, 4) == {"skip_steps": ("none", "3:4")}
    assert now.digest == was.digest == SPEC.digest


@pytest.mark.parametrize(
    ("given_steps", "found"),
    [
        ("12:20,3:5", ((3, 5), (12, 20))),
        ([(3, 5), (5, 8), (6, 7)], ((3, 8),)),
        ("", ()),
        ([[1, 2]], ((1, 2),)),
    ],
)
def test_steps_to_skip_are_sorted_and_joined(given_steps, found):
    assert checked_skips(given_steps) == found


@pytest.mark.parametrize(
    ("given_steps", "said"),
    [("5:5", "5:5 has no step"), ("-1:5", "has no step"), ("x", "must be pairs"), (7, "must be")],
)
def test_steps_that_cannot_be_skipped_are_named(given_steps, said):
    with pytest.raises(UsageError, match=said):
        checked_skips(given_steps)


def test_one_large_weight_among_many_is_no_long_epoch():
    columns = columns_of([0] * 2000, score=np.array([1e9] + [1.0] * 1999))
    times, _ = View(weigh="score").resolve(columns, 2000, 0, "train")
    assert times.total == 10**9 + 1999


@pytest.mark.parametrize("skips", [[(1.5, 2.7)], [(1, float("inf"))], [("1", "2")]])
def test_steps_to_skip_are_whole_numbers(skips):
    with pytest.raises(UsageError, match="must be pairs of a first step and the one after the last"):
        checked_skips(skips)
