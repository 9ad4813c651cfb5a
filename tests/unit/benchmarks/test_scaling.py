"""The model of a step that `benchmarks.scaling` draws: its limits, and a ring counted message by message."""

import pytest

from benchmarks.scaling import step_model
from benchmarks.scaling.results import Point
from benchmarks.scaling.step_model import Link, Parts

PARTS = Parts(rows=100, compute=0.02, gradients=6_000_000, hop=0.001, copy=1e-9, server=0.005)
FREE = Parts(rows=100, compute=0.02, gradients=6_000_000, hop=0.0, copy=0.0, server=0.0)


def counted(workers, link):
    """A ring, message by message: each worker sends N - 1 pieces to add and N - 1 to copy, all in parallel."""
    return sum(
        PARTS.hop + link.latency + (8 / link.bits + PARTS.copy) * PARTS.gradients / workers
        for _ in ("add", "copy")
        for _ in range(workers - 1)
    )


@pytest.mark.parametrize("link", [Link(), Link(1e9), Link(1e8, 0.002)])
@pytest.mark.parametrize("workers", [1, 2, 3, 64])
def test_the_exchange_is_that_of_a_ring(workers, link):
    assert step_model.exchange(PARTS, workers, link) == pytest.approx(counted(workers, link))


def test_what_costs_nothing_scales_linearly():
    for speed in (step_model.synchronous, step_model.asynchronous):
        assert [speed(FREE, workers, Link()) for workers in (1, 8)] == pytest.approx([5_000, 40_000])


def test_the_servers_link_bounds_an_asynchronous_job():
    slow = Link(bits=48e6)  # it sends the weights once a second
    assert step_model.asynchronous(FREE, 1, slow) == pytest.approx(100 / 2.02)
    assert [step_model.asynchronous(FREE, workers, slow) for workers in (3, 256)] == pytest.approx([100, 100])
    assert step_model.synchronous(FREE, 256, slow) == pytest.approx(256 * 100 / (0.02 + 2 * 255 / 256), rel=1e-6)


def test_a_faster_device_computes_faster_and_sends_as_before():
    fast = PARTS.faster(10)
    assert (fast.compute, fast.gradients, fast.hop) == (0.002, PARTS.gradients, PARTS.hop)


def test_a_job_is_a_line_with_the_models_error():
    point = Point("synchronous", 2, 1000, 2_000.0, 2_500.0, 0.5)
    assert str(point) == ("synchronous, 2 on 1,000 Mbit/s: 2,000 img/s, loss 0.50; the model says 2,500 (+25%)")
    on_gpus = Point("mirrored", 4, None, 9_000.0, None, 0.5, busy=0.97, gpu_use=0.5)
    assert str(on_gpus) == "mirrored, 4 on one machine: 9,000 img/s, loss 0.50; busy 97%; GPU use 50%"
