"""Which workers start again, and when."""

from trainer.launching.local.restarts import BackOff, WorkerPool


def test_a_slot_is_lost_after_its_restarts_and_tried_again():
    slots = WorkerPool([1, 2, 3], max_restarts=1, delay=10.0)
    assert slots.chosen(0.0) == [0, 1, 2]
    slots.stepped([0, 1, 2], 0.0)
    assert not slots.failed(1, at_start=False)
    assert slots.chosen(1.0) == [0, 1, 2]
    assert slots.failed(1, at_start=False)
    assert (slots.chosen(2.0), slots.lost) == ([0, 2], [1])
    assert not slots.can_grow(2, 1000.0)  # the others have made no step yet
    slots.stepped([0, 2], 20.0)
    assert not slots.can_grow(2, 29.0)
    assert slots.can_grow(2, 30.0)
    assert (slots.chosen(30.0), slots.lost) == ([0, 1, 2], [])


def test_one_that_fails_again_at_once_waits_twice_as_long():
    slots = WorkerPool([1, 2], max_restarts=5, delay=10.0)
    assert not slots.failed(1, at_start=True)
    assert slots.failed(1, at_start=True)
    assert slots.chosen(0.0) == [0]
    slots.stepped([0], 0.0)
    assert slots.chosen(10.0) == [0, 1]
    assert slots.failed(1, at_start=True)  # at the first failure, this time
    assert slots.chosen(11.0) == [0]
    slots.stepped([0], 11.0)
    assert not slots.can_grow(1, 30.0)
    assert slots.can_grow(1, 31.0)


def test_one_that_has_made_steps_again_has_all_its_restarts():
    slots = WorkerPool([1, 2], max_restarts=1, delay=10.0)
    for _ in range(2):
        slots.failed(1, at_start=False)
    slots.chosen(0.0)
    slots.stepped([0], 0.0)
    slots.chosen(10.0)
    slots.stepped([0, 1], 11.0)
    assert not slots.failed(1, at_start=True)


def test_failures_after_steps_are_forgiven_but_none_at_the_start():
    slots = WorkerPool([1, 2], max_restarts=1, delay=10.0)
    assert not slots.failed(0, at_start=False)
    assert not slots.failed(1, at_start=True)
    slots.forgive()
    assert not slots.failed(0, at_start=False)
    assert slots.failed(1, at_start=True)


def test_sizes_that_do_not_work_are_left_out():
    slots = WorkerPool([1, 2, 4], max_restarts=0, delay=10.0)
    assert slots.chosen(0.0) == [0, 1, 2, 3]
    assert slots.failed(0, at_start=False)
    assert slots.chosen(1.0) == [1, 2]
    slots.stepped([1, 2], 1.0)
    assert slots.can_grow(2, 11.0)
    assert not slots.can_grow(4, 11.0)


def test_too_few_are_none():
    slots = WorkerPool([2], max_restarts=0, delay=10.0)
    slots.failed(0, at_start=False)
    assert slots.chosen(1.0) == []
    assert not slots.can_grow(0, 1.0)


def test_it_doubles_until_there_is_progress():
    back_off = BackOff(1.0)
    assert [back_off.next(None) for _ in range(3)] == [1.0, 2.0, 4.0]
    assert [back_off.next(10) for _ in range(3)] == [1.0, 2.0, 4.0]
    assert back_off.next(5) == 8.0  # a step that was made before is none
    assert back_off.next(11) == 1.0


def test_it_has_a_bound():
    back_off = BackOff(1.0)
    assert [back_off.next(None) for _ in range(20)][-1] == 60.0
    assert [BackOff(100.0).next(None) for _ in range(2)] == [100.0, 100.0]
