"""The names of TensorFlow and Keras that are public nowhere, all of them: what a new release may move without notice.

Other modules of the trainer import them from here.
"""

import tensorflow as tf
from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context, remote
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

__all__ = [
    "REGISTERED_OBJS_TO_NAMES",
    "GraphOrParentsInXlaContext",
    "cluster_coordinator",
    "context",
    "function_def_to_graph",
    "is_op_determinism_enabled",
    "multi_worker_util",
    "remote",
]


def keep_order_of_sums() -> None:
    """Has TensorFlow sum three tensors and more in the order of the graph, in each function that is called from now on.

    Otherwise Grappler adds each of them as soon as it is computed, where a function seems to need four fifths of its
    device's memory; a CPU is taken to have 256 MiB. Then the bits of a sum, such as the gradient of a layer that is
    used three times, differ from step to step, even under op determinism.
    """
    eager = context.context()
    settings = tf.compat.v1.ConfigProto()
    if eager._config is not None:
        settings.CopyFrom(eager._config)
    options = settings.graph_options.rewrite_options
    # All that the default does, but for its "scheduling"; tf.config.optimizer has no option for it.
    options.memory_optimization = options.SWAPPING_HEURISTICS
    eager._config = settings
    eager.function_call_options = None  # they are made of the settings once, for each thread
