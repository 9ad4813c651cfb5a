"""TensorFlow's internals: private names in TensorFlow and Keras, and the meaning of errors from operations.

A new release may move such names without notice, so the trainer's other modules import them from here.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.utils import file_utils
from keras.src.utils.naming import to_snake_case
from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context, remote
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from pipeline.errors import UsageError, root_cause
from pipeline.graph_calls import message_of_input

# Errors caused by this worker itself. All others mean a lost peer: Unavailable, DeadlineExceeded (collective timeout),
# Cancelled, Aborted, Internal, FailedPrecondition, Unknown.
OWN = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)
_OTHER_SHAPE = re.compile(r"expected shape (\[[\d,]*\]) but another member in the group expected shape (\[[\d,]*\])")
_PORT_TAKEN = "Could not start gRPC server"  # tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc
_ABORTED = "Collective ops is aborted by: "  # precedes the reason: common_runtime/base_collective_executor.cc


@contextlib.contextmanager
def saving_without_function() -> Iterator[None]:
    """Context in which variables on several servers are saved by single operations.

    TensorFlow would trace a function for each checkpoint and register it with every server. That call holds Python's
    lock: while a server is silent, no thread of this process could notice, or end the process.
    """
    save = functional_saver.MultiDeviceSaver.save

    def by_operations(saver: Any, *arguments: Any, **options: Any) -> Any:
        saver._num_unique_tasks = 1  # TensorFlow makes a function if there are several
        return save(saver, *arguments, **options)

    functional_saver.MultiDeviceSaver.save = by_operations
    try:
        yield
    finally:
        functional_saver.MultiDeviceSaver.save = save


@contextlib.contextmanager
def registering_within(seconds: float) -> Iterator[None]:
    """Context in which this process is killed by SIGALRM if registering a function on all servers takes too long.

    As above, that call holds Python's lock, so only the kernel can end it. A function is registered when it is traced,
    for example in the first evaluation.

    Args:
      seconds: longest time for a function.
    """
    kind = context.Context
    calls = {name: getattr(kind, name) for name in ("add_c_function", "add_function_def")}

    def bounded(call: Callable[..., None]) -> Callable[..., None]:
        def add(*arguments: Any) -> None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                call(*arguments)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)

        return add

    for name, call in calls.items():
        setattr(kind, name, bounded(call))
    try:
        yield
    finally:
        for name, call in calls.items():
            setattr(kind, name, call)


@contextlib.contextmanager
def without_automatic_order() -> Iterator[None]:
    """Context in which side effects in loop bodies have no order except for explicit control dependencies.

    Otherwise TensorFlow ends each pass only after all its side effects on all devices, so the host waits for a GPU.
    """
    graph = tf.compat.v1.get_default_graph()
    before, graph._add_control_dependencies = graph._add_control_dependencies, False
    try:
        yield
    finally:
        graph._add_control_dependencies = before


def is_of_xla(error: tf.errors.OpError) -> bool:
    """Returns whether the error means that XLA could not compile a function; such errors always mention XLA."""
    return isinstance(error, OWN) and "xla" in error.message.lower()


def said_by_xla(error: tf.errors.OpError) -> str:
    """Returns one line on what XLA could not compile."""
    return first_line(error).partition("The op is created at")[0].strip()


def raise_if_of_others(error: Exception) -> None:
    """Raises an error in the user's function if another worker caused it by being lost or having another model."""
    if isinstance(error, tf.errors.OpError):
        if not is_own(error):
            raise error
        raise_if_other_model(error)


def raise_if_other_model(error: tf.errors.OpError) -> None:
    """Raises UsageError if the error means that another worker has a variable of another shape."""
    if shapes := _OTHER_SHAPE.search(error.message):
        raise UsageError(
            f"the workers build different models: a variable has shape {shapes[1]} on one and {shapes[2]} on another; "
            "start all workers with the same flags, data, code and versions"
        ) from error


def is_port_taken(error: tf.errors.OpError) -> bool:
    """Returns whether TensorFlow's server could not get its port."""
    return _PORT_TAKEN in error.message


def is_own(error: tf.errors.OpError) -> bool:
    """Returns whether an error is caused by this worker; in a job with several workers, all others mean a lost peer."""
    return issubclass(kind(error), OWN)


def kind(error: tf.errors.OpError) -> type[tf.errors.OpError]:
    """Returns an error's class, or that of its root cause if it lists several."""
    code = getattr(tf.errors, root_cause(error.message)[0] or "", None)
    return type(error) if code is None else tf.compat.v1.errors.exception_type_from_error_code(code)


def first_line(error: tf.errors.OpError) -> str:
    """Returns an error's description in one line, without its location in the graph and in Python code."""
    if said := message_of_input(error.message):
        return " ".join(said.split("] ["))  # tf.debugging.assert_* appends values to its message
    said = root_cause(error.message)[1].removeprefix(_ABORTED)
    return said or kind(error).__name__
