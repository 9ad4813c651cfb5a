"""What a training step would do on a GPU, read from its graph as TensorFlow optimises it for an H100."""

import functools

import pytest
import tensorflow as tf

from benchmarks import gpu_graph
from pipeline.distribution import as_distributed
from trainer.config import TrainConfig
from trainer.step import train_step

SIDE, ROWS = 28, 8
VARIANTS = {
    "plain": ("--model=lenet", "--nojit_compile"),
    "bfloat16, ema, clip": ("--model=lenet", "--nojit_compile", "--precision=bfloat16", "--ema=0.9", "--clip_norm=1"),
    "virtual": ("--model=lenet", "--jit_compile", "--virtual_replicas=4", "--ema=0.9", "--clip_norm=1"),
}


@functools.cache
def counted(*flags, how=gpu_graph.repeated):
    return gpu_graph.count(how(*gpu_graph.made(flags, SIDE, ROWS)))


def fed_by_numbers(step, batch):
    return gpu_graph.fed(step, *gpu_graph.numbered(batch))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.quick(1)
def test_each_operation_has_a_gpu_kernel(variant):
    counts = counted(*VARIANTS[variant])
    assert counts.total.kernels > 20 or counts.total.programs
    assert not counts.uncompiled
    assert not counts.without_kernel
    assert not counts.host


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", [gpu_graph.repeated, gpu_graph.fed, fed_by_numbers], ids=["repeated", "fed", "kept"])
def test_no_update_waits_until_the_one_before_has_ended(variant, how):
    """Neither for the host, which decides on it, measures the wait for its batch and takes that from a group."""
    assert not counted(*VARIANTS[variant], how=how).waits


@pytest.mark.parametrize("variant", ["plain", "virtual"])
def test_whether_the_weights_are_finite_is_all_that_the_host_gets(variant):
    assert [(one.size, one.times) for one in counted(*VARIANTS[variant]).copied] == [(4, 1)]


@pytest.mark.parametrize("how", [gpu_graph.fed, fed_by_numbers], ids=["fed", "kept"])
def test_batches_and_the_clock_alone_are_the_hosts(how):
    counts = counted(*VARIANTS["plain"], how=how)
    assert counts.host.keys() <= gpu_graph.HOST_OPS
    assert not counts.without_kernel


def test_momentum_takes_one_kernel_for_each_weight():
    step, batch = gpu_graph.made(("--model=softmax_regression", "--nojit_compile", "--optimizer=nesterov"), SIDE, ROWS)
    assert len(step.state.model.trainable_variables) == 2
    counts = gpu_graph.count(gpu_graph.repeated(step, batch))
    assert counts.parts["optimizer"].kernels == 2 + 1  # and the number of updates
    assert not counts.without_kernel


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_several_gpus_are_each_asked_whether_they_have_their_part_of_a_batch(strategy):
    flags = ("--model=softmax_regression", "--nojit_compile", f"--strategy={strategy}", "--num_replicas=2")
    step, batch = gpu_graph.made(flags, SIDE, ROWS, gpus=2)
    halves = tf.nest.map_structure(lambda one: tf.zeros([ROWS // 2, *one.shape[1:]], one.dtype), batch)
    batches = as_distributed(step.strategy, tf.data.Dataset.from_tensors((halves, halves)).repeat())
    with gpu_graph.virtual_gpu(2):
        traced = step.train.get_concrete_function(iter(batches), tf.TensorSpec([], tf.int64))
    asked = [node.device for node in nodes_of(traced) if node.op == "VarIsInitializedOp" and "/input/" in node.name]
    # In central storage the variables are the host's.
    assert [device[-5:] for device in sorted(asked)] == (["GPU:0", "GPU:1"] if strategy == "mirrored" else [])


def nodes_of(traced):
    graph = traced.graph.as_graph_def()
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


@pytest.mark.parametrize(
    ("flags", "compiled"),
    [
        ({}, True),
        ({"jit_compile": "off"}, False),
        ({"deterministic": True}, False),
        ({"virtual_replicas": 4}, False),
        ({"deterministic": True, "jit_compile": "on"}, True),
    ],
)
def test_xla_is_on_by_default_where_it_is_faster(flags, compiled):
    config = TrainConfig.of(data_dir="d", model_dir="m", model="lenet", global_batch_size=8, **flags)
    assert train_step.is_compiled(config) is (flags.get("jit_compile") == "on")
    with gpu_graph.virtual_gpu():
        assert train_step.is_compiled(config) is compiled


def test_each_virtual_replica_is_a_call_of_one_program():
    """In one program, what XLA makes of a virtual replica could depend on how many the replica has."""
    counts = counted(*VARIANTS["virtual"])
    assert counts.total.programs == 4 + 2  # and the sums, and the update
    assert len(counts.operations) == 3


@pytest.mark.parametrize("more", [(), VARIANTS["bfloat16, ema, clip"][2:]], ids=["float32", "bfloat16"])
@pytest.mark.quick(1)
def test_xla_takes_the_whole_step(more):
    """Beside it, a kernel makes a number of whether the step before was finite."""
    counts = counted("--model=lenet", "--jit_compile", *more)
    assert (counts.total.programs, counts.total.kernels) == (1, 1)
    assert not counts.uncompiled
