"""The graph that TensorBoard shows is by replica and layer."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from trainer.callbacks import graph


def nodes_of(found):
    return {node.name: node for node in found.node}


def check_inputs(found):
    """Every input is a node of the graph."""
    names = {node.name for node in found.node}
    assert len(names) == len(found.node)
    for node in found.node:
        assert {one.lstrip("^").partition(":")[0] for one in node.input} <= names, node.name


def test_a_function_stands_in_place_of_its_calls():
    @tf.function(autograph=False)
    def inner(x, y):
        return tf.add(x, y, name="sum"), tf.multiply(x, y, name="product")

    @tf.function(autograph=False)
    def outer(x):
        with tf.name_scope("twice"), tf.device("CPU:1"):
            total, product = inner(x, tf.constant(2.0))
        return tf.while_loop(lambda i: i < total, lambda i: tf.add(i, product, name="more"), [tf.constant(0.0)])

    found = graph.readable(outer.get_concrete_function(tf.TensorSpec([])).graph)
    nodes = nodes_of(found)
    check_inputs(found)
    assert not [node for node in found.node if node.op.endswith("PartitionedCall") or node.op.endswith("While")]
    (total,) = [node for name, node in nodes.items() if name.endswith("/sum")]
    assert total.name.startswith("twice/")
    assert total.device.endswith("CPU:1")
    assert total.input[0] == "x"
    assert nodes["more"].input[1].startswith("twice/")


def test_what_gets_a_function_otherwise_stays():
    @tf.function(autograph=False)
    def outer(x):
        total = tf.data.Dataset.range(3).map(lambda i: tf.cast(i, tf.float32) * x).reduce(0.0, tf.add)
        return tf.cond(x > 0, lambda: total, lambda: tf.negative(total, name="other"))

    found = graph.readable(outer.get_concrete_function(tf.TensorSpec([])).graph)
    check_inputs(found)
    kinds = {node.op for node in found.node}
    assert {"MapDataset", "ReduceDataset"} <= kinds
    assert not any("If" in kind for kind in kinds)


@pytest.mark.parametrize(("replicas", "virtual"), [(1, None), (2, None), (2, 4)])
def test_replicas_and_layers_are_scopes(replicas, virtual, make_stepper, batch):
    flags = {"virtual_replicas": virtual, "global_batch_size": 8} if virtual else {}
    rows = [np.reshape(part, (virtual, -1, *part.shape[1:])) for part in batch] if virtual else batch
    stepper = make_stepper(replicas, **flags)
    data = stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(tuple(rows)).repeat())
    stepper.run(iter(data), 2)
    model = stepper.state.model
    found = graph.readable(stepper.graph, {layer.name for layer in model._flatten_layers()})
    check_inputs(found)
    scopes, devices = collections.defaultdict(set), collections.defaultdict(set)
    weighted = {layer.name for layer in model.layers if layer.weights}
    assert len(weighted) > 1
    for name, node in nodes_of(found).items():
        replica, *parts = name.split("/")
        scopes[replica] |= {(layer, "gradients" in parts) for layer in weighted.intersection(parts[:-1])}
        if node.op == "MatMul":
            devices[replica].add(node.device[-5:])
    replicas_shown = {f"replica_{index}" for index in range(replicas)}
    assert {scope for scope, layers in scopes.items() if layers} == replicas_shown
    for scope in replicas_shown:
        assert scopes[scope] == {(layer, is_gradient) for layer in weighted for is_gradient in (False, True)}
    assert devices == {f"replica_{index}": {f"CPU:{index}"} for index in range(replicas)}
    assert not [name for name in nodes_of(found) if name.startswith("while/") or "gradient_tape" in name]
    # What computes lies in one of these boxes. Beside them is only what is counted, and handed on to the next step.
    boxes = {"input", *replicas_shown, "optimizer", "global_step", "is_finite", "metrics"}
    assert boxes <= {name.partition("/")[0] for name in nodes_of(found) if "/" in name}
    beside = {node.op for name, node in nodes_of(found).items() if name.partition("/")[0] not in boxes}
    handed_on = {"Placeholder", "Identity", "ReadVariableOp", "AssignVariableOp"}
    assert beside <= {*handed_on, "Const", "AddV2", "NoOp"}
