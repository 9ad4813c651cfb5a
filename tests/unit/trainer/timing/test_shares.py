import pytest

from trainer.timing.shares import Times


@pytest.mark.parametrize(
    ("waited", "exchange", "constant", "bound", "shares"),
    [
        (6.2, None, None, "input-bound", (0.62, 0.0, 0.38)),
        (1.0, 0.001, None, "compute-bound", (0.1, 0.1, 0.8)),
        (1.0, 0.006, None, "communication-bound", (0.1, 0.6, 0.3)),
        (1.0, 0.02, None, "communication-bound", (0.1, 0.9, 0.0)),  # never more than there is
        (1.0, 0.0, 0.002, "input-bound", (0.1, 0.0, 0.9)),  # the input takes the cores of the steps
        (1.0, 0.0, 0.009, "compute-bound", (0.1, 0.0, 0.9)),
    ],
)
def test_the_largest_share_bounds_the_speed(waited, exchange, constant, bound, shares):
    times = Times(100, 1000, 10.0, waited, exchange, constant)
    assert times.bound == bound
    assert (times.waiting, times.communicating, times.computing) == pytest.approx(shares)


def test_in_words():
    assert str(Times(100, 1000, 10.0, 6.2)) == (
        "input-bound: 62% of 10.0 s waiting for input, 38% computing and communicating"
    )
    assert str(Times(100, 1000, 10.0, 6.2, 0.001, 0.004)) == (
        "input-bound: 62% of 10.0 s waiting for input, 28% computing, 10% communicating; with one constant batch 2.50 "
        "times as fast (25,000 against 10,000 examples/sec)"
    )
    assert str(Times(100, 1000, 10.0, 0.1, 0.0)) == "compute-bound: 1% of 10.0 s waiting for input, 99% computing"
