import math

import numpy as np
import tensorflow as tf

from trainer.parameter_server.ledger import Averages, EpochSums, Ledger, Row, Rows, Tally
from trainer.step.measures import WEIGHT, RowMeasure
from trainer.task import LOSS, Task


@tf.function(autograph=False)
def mark(ledger, begun, applied):
    for step in begun:
        ledger.begin(tf.constant(step, tf.int64))
    for step in applied:
        ledger.applied(tf.constant(step, tf.int64))
    return ledger.missing(tf.constant(6, tf.int64), tf.constant(5, tf.int64))


def test_steps_are_told_apart_and_places_used_again():
    ledger = Ledger(span=8)
    missing = mark(ledger, begun=(6, 7, 7, 8, 8, 9), applied=(6, 7, 8, 8))
    assert missing.numpy().tolist() == [9, 10]
    tally = ledger.read(6, 11)
    assert tally == Tally(once=2, twice=1, never=2, again=1)
    assert ledger.read(6, 11) == Tally(never=5)


def test_the_line():
    tally = Tally(once=10, dropped=3)
    tally.add(Tally(once=1, twice=2, never=3, again=4))
    restored = Tally()
    restored.load_state_dict(tally.state_dict())
    assert str(restored) == (
        "ledger: of 16 steps, 11 applied once, 2 twice, 3 not at all; 4 of them begun by a worker that was lost, "
        "and again by another; 3 late gradients dropped, their rows computed again"
    )


ROW = Row(0.5, 0.0, np.array([1.0, 2.0]))


def test_the_sums_of_an_epoch_begin_with_its_first_step_and_go_on_after_a_resume():
    sums = EpochSums(3)
    sums.add(0, ROW, 4.0)
    sums.add(1, ROW, 2.0)
    assert sums.state_dict()["sums"] == [2.0, 0.5 * 4.0 + 0.5 * 2.0, 2.0, 4.0]  # steps, penalty by weight, sums
    resumed, other = EpochSums(3), EpochSums(4)
    resumed.load_state_dict(sums.state_dict())
    other.load_state_dict(sums.state_dict())  # of epochs of other steps
    resumed.add(2, ROW, 1.0)
    assert (resumed.steps, other.steps) == (3, 0)
    for step in (3, 8):  # the first of an epoch, then one of another epoch
        resumed.add(step, ROW, 1.0)
        assert resumed.state_dict()["sums"] == [1.0, 0.5, 1.0, 2.0]


def test_an_epoch_of_skipped_steps_has_no_means():
    rows, sums = Rows(RowMeasure(Task(None, None))), EpochSums(3)
    rows.packed({WEIGHT: tf.constant(0.0), LOSS: tf.constant(0.0)}, tf.constant(0.0), tf.constant(0.0))
    sums.add(0, Row(0.0, 0.0, np.zeros(2)), 0.0)
    assert len(sums.means(rows)) == 3
    assert all(map(math.isnan, sums.means(rows)))
    sums.add(1, Row(0.5, 0.0, np.array([4.0, 4.0])), 4.0)
    assert sums.means(rows) == [1.5, 0.5, 1.0]


def test_a_skipped_step_moves_no_average():
    averages = Averages({1, 2, 7}.__contains__)
    averages.add(1, 9.0, 1.0)
    assert all(map(math.isnan, averages.values))
    averages.add(0, 2.0, 1.0)
    for step in (1, 2, 7):
        averages.add(step, 0.0, 0.0)
    assert sorted(averages.values) == [1.0, 2.0, 3.0]
    averages.add(3, 0.0, 0.0)
    assert max(averages.values) < 3.0
