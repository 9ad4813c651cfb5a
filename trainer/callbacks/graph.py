"""The graph of a training step in the form that TensorBoard shows best: by replica, and in it by layer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph  # public nowhere

# Operations that call a function on their last inputs, and the attribute that names it. Others, such as those of a
# dataset, pass it something else and stay as they are.
_CALLS = {
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), "f"),
    **dict.fromkeys(("While", "StatelessWhile"), "body"),
    **dict.fromkeys(("If", "StatelessIf"), "then_branch"),
}
_LOOP = re.compile(r"^(while/)+")  # the scope of `TrainStep.train`
_TAPE = re.compile(r"^(?P<call>.*/)?gradient_tape/(?:while/)?(?P<replica>(?:replica_\d+|worker)/)?")


def readable(graph: tf.Graph, layers: Collection[str] = ()) -> Any:
    """Returns a GraphDef of a graph, with its functions in place of their calls.

    What a tape adds stands as `gradients` in the scope of its replica: `gradient_tape/while/replica_1/dense_1/MatMul`,
    of the layer `dense`, is `replica_1/gradients/dense/MatMul`. No scope is named after the loop over the steps.

    Args:
      graph: of a step.
      layers: names of the model's layers.
    """
    found = graph.as_graph_def()
    nodes = _expanded(found, {one.signature.name: one for one in found.library.function})
    names, taken = dict[str, str](), {node.name for node in nodes}
    for node in nodes:
        name = _renamed(node.name, layers)
        names[node.name] = node.name if name in taken else name
        taken.add(names[node.name])
    for node in nodes:
        node.name = names[node.name]
        node.input[:] = [_with_name(one, names) for one in node.input]
        node.attr.pop("_class", None)  # where nodes are placed together, by their old names
    return tf.compat.v1.GraphDef(node=nodes, versions=found.versions)


def _renamed(name: str, layers: Collection[str]) -> str:
    name = _LOOP.sub("", name)
    *scopes, operation = _TAPE.sub(
        lambda match: f"{match['call'] or ''}{match['replica'] or ''}gradients/", name
    ).split("/")
    # Keras opens a layer's scope twice, to build it and to call it, so that TensorFlow puts a number behind its name.
    plain = (scope.rpartition("_")[0] for scope in scopes)
    return "/".join(
        [*(layer if layer in layers else scope for layer, scope in zip(plain, scopes, strict=True)), operation]
    )


def _expanded(graph: Any, functions: Mapping[str, Any]) -> list[Any]:
    """Returns the nodes of a GraphDef; for each call those of the function that it calls, in the call's scope."""
    nodes, results = [], dict[str, str]()
    for node in graph.node:
        key = _CALLS.get(node.op)
        function = functions.get(node.attr[key].func.name) if key else None
        if function is None:
            nodes.append(node)
            continue
        inner, flat = function_def_to_graph.function_def_to_graph_def(function)
        given = [one for one in node.input if not one.startswith("^")]
        arguments = [one.name for one in function.signature.input_arg]
        # The first input of a conditional, which its branches do not get, is left out.
        passed = dict(zip(arguments, given[len(given) - len(arguments) :], strict=True))
        parts = [part for part in _expanded(inner, functions) if part.name not in passed]
        inside = {part.name: f"{node.name}/{part.name}" for part in parts}

        def outer(tensor: str, passed: dict[str, str] = passed, inside: dict[str, str] = inside) -> str:
            return passed.get(tensor.partition(":")[0]) or _with_name(tensor, inside)

        for part in parts:
            part.input[:] = map(outer, part.input)
            part.name, part.device = inside[part.name], part.device or node.device
            nodes.append(part)
        for index, one in enumerate(function.signature.output_arg):
            results[f"{node.name}:{index}"] = outer(flat[function.ret[one.name]])
    for node in nodes:
        node.input[:] = [results.get(one if ":" in one else f"{one}:0", one) for one in node.input]
    kept = {node.name for node in nodes}
    for node in nodes:  # a call itself is not there to wait for
        node.input[:] = [one for one in node.input if one.lstrip("^").partition(":")[0] in kept or one[0] != "^"]
    return nodes


def _with_name(tensor: str, names: Mapping[str, str]) -> str:
    """Returns the name of a tensor, or of a node to wait for, with another name for its node."""
    mark = "^" if tensor.startswith("^") else ""
    node, colon, index = tensor.removeprefix(mark).partition(":")
    return f"{mark}{names.get(node, node)}{colon}{index}"
