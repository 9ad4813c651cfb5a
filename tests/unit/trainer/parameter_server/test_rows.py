import math

import numpy as np

from trainer.parameter_server.rows import Averages, EpochSums, Row

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


def test_a_skipped_step_moves_no_average():
    averages = Averages(((1, 3), (7, 8)))
    averages.add(1, 9.0, 1.0)
    assert all(map(math.isnan, averages.values))
    averages.add(0, 2.0, 1.0)
    for step in (1, 2, 7):
        averages.add(step, 0.0, 0.0)
    assert sorted(averages.values) == [1.0, 2.0, 3.0]
    averages.add(3, 0.0, 0.0)
    assert max(averages.values) < 3.0
