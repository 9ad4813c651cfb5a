from trainer.launching.local.back_off import BackOff


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
