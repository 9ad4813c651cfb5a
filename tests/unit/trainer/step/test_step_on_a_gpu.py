"""What a training step would do on a GPU, read from its graph as TensorFlow optimises it for an H100."""

import functools

import pytest

from benchmarks import gpu_graph

SIDE, ROWS = 28, 8
VARIANTS = {
    "plain": ("--model=lenet", "--nojit_compile"),
    "bfloat16, ema, clip": ("--model=lenet", "--nojit_compile", "--precision=bfloat16", "--ema=0.9", "--clip_norm=1"),
    "virtual": ("--model=lenet", "--virtual_replicas=4", "--ema=0.9", "--clip_norm=1"),
}


@functools.cache
def counted(*flags, how=gpu_graph.repeated):
    return gpu_graph.count(how(*gpu_graph.made(flags, SIDE, ROWS)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_operation_has_a_gpu_kernel(variant):
    counts = counted(*VARIANTS[variant])
    assert counts.total.kernels > 20 or counts.total.programs
    assert not counts.uncompiled
    assert not counts.without_kernel
    assert not counts.host


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_loop_waits_for_the_last_update(variant):
    assert not counted(*VARIANTS[variant]).conditions


@pytest.mark.parametrize("variant", ["plain", "virtual"])
def test_whether_the_weights_are_finite_is_all_that_the_host_gets(variant):
    assert [(one.size, one.times) for one in counted(*VARIANTS[variant]).copied] == [(1, 1)]


def test_batches_and_the_clock_alone_are_the_hosts():
    counts = counted(*VARIANTS["plain"], how=gpu_graph.fed)
    assert counts.host.keys() <= gpu_graph.HOST_OPS
    assert not counts.without_kernel
    assert not counts.conditions


def test_each_virtual_replica_is_a_call_of_one_program():
    """In one program, what XLA makes of a virtual replica could depend on how many the replica has."""
    counts = counted(*VARIANTS["virtual"])
    assert counts.total.programs == 4 + 2  # and the sums, and the update
    assert len(counts.operations) == 3


@pytest.mark.parametrize("more", [(), ("--precision=bfloat16", "--ema=0.9", "--clip_norm=1")])
def test_xla_takes_the_whole_step(more):
    counts = counted("--model=lenet", "--jit_compile", *more)
    assert (counts.total.programs, counts.total.kernels) == (1, 0)
    assert not counts.uncompiled
