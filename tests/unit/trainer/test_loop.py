import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.order.key_log import Header, KeyLogWriter
from trainer import loop
from trainer.config.phases import Phases
from trainer.config.steps import Period
from trainer.loop import Action, NotFiniteError

KEYS = [f"k{i}" for i in range(8)]
LOSS = "total_loss"


def with_keys(batch):
    """Returns the batch as the input gives it with features=("key",)."""
    images, labels, weights = batch
    return {"image": images, "key": np.array(KEYS)}, labels, weights


def iterator_of(stepper, *batches):
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    return iter(stepper.strategy.experimental_distribute_dataset(dataset.repeat(), options))


@pytest.fixture
def log(tmp_path, spec):
    with KeyLogWriter(tmp_path / "log.jsonl", Header.of(spec, 1, 2, 4)) as log:
        yield log


def always(batches):
    return lambda step: batches


def lines_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()][1:]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_logged_or_not_the_updates_are_the_same(replicas, make_stepper, batch, log, tmp_path):
    plain, logged = make_stepper(replicas, "momentum"), make_stepper(replicas, "momentum")
    for stepper in (plain, logged):
        stepper.state.global_step.assign(40)
    batches, norm = iterator_of(plain, batch), frozenset({"norm"})
    plain.run(batches, 2)
    expected = plain.run(batches, 1, norm)
    inner_loop = loop.logged(logged, always(iterator_of(logged, with_keys(batch))), first_replica=2, keys=log)
    inner_loop(2, frozenset())
    result = inner_loop(1, norm)
    assert result.values.numpy().tolist() == expected.values.numpy().tolist()
    assert float(result.norm) == float(expected.norm) > 0
    assert (int(result.step), bool(result.finite)) == (43, True)
    for one, other in zip(plain.state.model.variables, logged.state.model.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    rows = 8 // replicas
    weights = [1, 1, 1, 0, 0, 0, 0, 0]
    assert lines_of(tmp_path) == [
        {"step": step, "replica": 2 + r, "keys": KEYS[r * rows :][:rows], "weights": weights[r * rows :][:rows]}
        for step in (40, 41, 42)
        for r in range(replicas)
    ]


def test_a_bad_step_is_the_last(make_stepper, batch, log, tmp_path):
    images, labels, weights = batch
    bad = images.copy()
    bad[1, 0, 0, 0] = np.nan
    stepper = make_stepper(2)
    batches = iterator_of(stepper, with_keys(batch), with_keys((bad, labels, weights)))
    result = loop.logged(stepper, always(batches), 0, log)(5, frozenset())
    assert (int(result.step), bool(result.finite)) == (2, False)
    assert [line["step"] for line in lines_of(tmp_path)] == [0, 0, 1, 1]


def counting(start, bad_at=None):
    """Returns an inner loop that only counts, and the lengths that it is asked for."""
    lengths, times = [], {"waited": 0.25, "exchanged": 0.125}

    def inner(steps, needs):
        del needs
        lengths.append(steps)
        step = start + sum(lengths)
        if bad_at is not None and step >= bad_at:
            return SimpleNamespace(step=bad_at, values=tf.constant([math.nan]), finite=False, names=[LOSS], **times)
        return SimpleNamespace(step=step, values=tf.constant([0.5]), finite=True, names=[LOSS], **times)

    return inner, lengths


def train(inner, start, last, steps_per_loop, actions, agree=lambda due: (False, set())):
    return loop.train(inner, start, last, steps_per_loop, actions, agree)


def recorder(name, every, log):
    return Action(Period(every), lambda progress: log.append((name, progress.step)))


@pytest.mark.parametrize(
    ("start", "lengths", "log"),
    [
        (0, [1, 4, 4, 1, 2], [("log", 5), ("log", 10), ("save", 10)]),
        (3, [1, 1, 4, 1, 2], [("log", 5), ("log", 10), ("save", 10)]),
        (7, [1, 2, 2], [("log", 10), ("save", 10)]),  # resumed, it stops at the same steps
    ],
)
def test_actions_run_in_order_at_their_multiples(start, lengths, log):
    done = []
    inner, asked = counting(start)
    actions = [recorder("log", 5, done), recorder("save", 10, done), recorder("never", 0, done)]
    assert train(inner, start, 12, 4, actions) is False
    assert (asked, done) == (lengths, log)


def test_a_loop_ends_with_its_phase_and_the_first_update_of_the_next_is_timed_apart():
    inner, lengths = counting(0)
    found, phases = [], Phases.of("0: freeze=base; 6: freeze=none; 9: freeze=base", 4, 15)
    loop.train(inner, 0, 15, 4, [], lambda due: (False, set()), found.append, phases)
    assert lengths == [1, 4, 1, 1, 2, 1, 3, 2]
    assert [progress.compiling.steps for progress in found] == [1, 1, 1, 2, 3, 3]


def test_stop_is_asked_after_the_actions():
    log = []
    inner, lengths = counting(0)
    assert train(inner, 0, 100, 10, [recorder("log", 10, log)], lambda due: (len(log) == 2, set())) is True
    assert sum(lengths) == 20


def test_by_the_clock_saves_are_frequent_at_first_and_any_worker_may_ask_for_them(monkeypatch):
    """Steps of 10 seconds: saved after 60 and 120 seconds, then as the clock slows down, and at each 100th step."""
    now, saved = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    inner, _ = counting(0)

    def slow(steps, needs):
        now[0] += 10.0 * steps
        return inner(steps, needs)

    save = Action(Period(100, 300.0, 60.0), lambda progress: saved.append(progress.step))
    train(slow, 0, 130, 1, [save], lambda due: (False, set(due)))
    assert saved == [7, 15, 31, 62, 93, 100]  # a step after it is due, since all workers agree first


def test_the_first_update_which_is_compiled_is_timed_apart(monkeypatch):
    now, found = [0.0], []
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    inner_loop, _ = counting(0)

    def timed(steps, needs):
        now[0] += 0.5 * steps + (0 if found else 100.0)
        found.append(steps)
        return inner_loop(steps, needs)

    seen = []
    train(timed, 0, 20, 4, [Action(Period(10), seen.append)])
    assert [(*p.spent[:2], p.compiling.seconds) for p in seen] == [(10, 105.0, 100.5), (20, 110.0, 100.5)]
    assert [seen[0].since(None)[:2], seen[1].since(seen[0])[:2]] == [(9, 4.5), (10, 5.0)]


def test_the_first_update_with_summaries_is_compiled_too_and_does_not_count_in_the_speed(monkeypatch):
    now, compiled, seen = [0.0], set(), []
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    inner_loop, _ = counting(0)

    def timed(steps, summaries):
        now[0] += 0.5 * steps + (0 if summaries in compiled else 100.0)
        compiled.add(summaries)
        return inner_loop(steps, summaries)

    train(timed, 0, 15, 20, [Action(Period(5), seen.append, needs=frozenset({"norm"}))])
    # Waits 0.25 per call, and exchanges half of that.
    assert [p.since(None) for p in seen] == [(3, 1.5, 0.25, 0.125), (8, 4.0, 0.75, 0.375), (13, 6.5, 1.25, 0.625)]
    assert seen[1].since(seen[0]) == (5, 2.5, 0.5, 0.25)
    assert (seen[2].spent.seconds, seen[2].compiling[:2]) == (207.5, (2, 201.0))


def test_a_bad_loss_ends_with_its_step():
    inner, _ = counting(0, bad_at=13)
    with pytest.raises(NotFiniteError, match=r"^step 13: .*\bnan$"):
        train(inner, 0, 100, 10, [])


def test_the_step_has_to_advance_as_claimed():
    inner, _ = counting(-1)
    with pytest.raises(PipelineError, match="step 0 instead of 1"):
        train(inner, 0, 10, 10, [])


def test_only_the_last_update_before_an_action_computes_what_it_shows_by_itself():
    asked, (count, _) = [], counting(0)

    def inner(steps, needs):
        asked.append((steps, sorted(needs)))
        return count(steps, needs)

    norm = Action(Period(4), lambda progress: None, needs=frozenset({"norm"}))
    more = Action(Period(), lambda progress: None, at=(2, 8), needs=frozenset({"histograms"}))
    train(inner, 0, 9, 20, [norm, more])
    plain = [*asked[:1], *asked[2:3], *asked[4:5], *asked[6:]]
    assert plain == [(1, []), (1, []), (3, []), (1, [])]
    assert asked[1::2] == [(1, ["histograms"]), (1, ["norm"]), (1, ["histograms", "norm"])]


def test_an_action_is_due_by_the_clock_of_any_worker_one_loop_later(monkeypatch):
    now, done = [0.0], []
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    inner_loop, _ = counting(0)

    def timed(steps, needs):
        now[0] += steps  # a second each
        return inner_loop(steps, needs)

    actions = [recorder("never", 0, done), Action(Period(0, 5.0), lambda p: done.append(("save", p.step)))]
    train(timed, 0, 20, 2, actions, lambda due: (False, set(due)))
    assert done == [("save", 7), ("save", 15)]  # 5 s after the start, after step 7
    done.clear()
    train(counting(0)[0], 0, 9, 2, actions, lambda due: (False, {0}))  # another worker's clock
    assert done == [("never", step) for step in (3, 5, 7, 9)]


def test_what_any_worker_was_asked_for_is_done_by_all_one_loop_later_and_once():
    asked, done = [False], []

    def do(progress):
        asked[0] = False
        done.append(progress.step)

    def ask(progress):
        asked[0] = True

    action = Action(Period(), do, asked=lambda: asked[0])
    train(counting(0)[0], 0, 9, 2, [action, Action(Period(), ask, at=(3,))], lambda due: (False, set(due)))
    assert done == [5]
    done.clear()
    answers = iter([set(), {0}, set(), set(), set(), set()])  # another worker was asked
    train(counting(0)[0], 0, 9, 2, [action], lambda due: (False, next(answers)))
    assert done == [5]
