"""Calls of the user's functions inside a graph: errors in one line, and no random draws that depend on time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline.errors import PipelineError, UsageError, of_user

# The ops of tf.random and tf.random.Generator that keep a state. The names of stateless ones begin with Stateless.
_STATEFUL_DRAW = re.compile(
    "(Random|Rng|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Stateful(Random|Standard|Truncated|Uniform))"
)


def as_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as `tf.data.Dataset.map` would call it: converted by AutoGraph if that is on."""
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(function, autograph.control_status_ctx())


def call(name: str, function: Callable[..., Any], *arguments: tf.Tensor) -> Any:
    """Calls a user's function on tensors; returns its result in whatever structure it has.

    Args:
      name: the argument of `input_fn` that is the function, for messages.
      function: the user's function.
      *arguments: of the call.

    Raises:
      UsageError: it fails, or draws random numbers that do not depend on its arguments alone.
    """
    specs = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]
    try:
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    except PipelineError:
        raise
    except Exception as error:
        given = ", ".join(f"{spec.dtype.name} {spec.shape}" for spec in specs)
        raise UsageError(f"{name}: the function fails on {given}: {of_user(error)}") from error
    graph = traced.graph.as_graph_def()
    for body in (graph.node, *(inner.node_def for inner in graph.library.function)):
        for node in body:
            if _STATEFUL_DRAW.match(node.op):
                raise UsageError(
                    f"{name}: the function draws with the op {node.op}, whose numbers depend on how often it ran, not "
                    "on the record; draw with pipeline.uniform(keys, draw) or tf.random.stateless_uniform"
                )
    return traced(*arguments)
