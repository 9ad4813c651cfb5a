"""TensorFlow's cluster, joined by workers who have met, in bounded time."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.eager import context

from trainer.cluster import ports
from trainer.cluster.rendezvous import SOMEBODY, LostError
from trainer.cluster.tf_config import Cluster

_PORT_TAKEN = "Could not start gRPC server"  # tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc


def join(cluster: Cluster, timeout: float) -> tf.distribute.Strategy:
    """Returns the strategy of all workers, once all have joined.

    Args:
      cluster: of this process; of one worker, it need not be in TF_CONFIG.
      timeout: seconds after which a worker that does not answer is lost, here and in each collective.

    Raises:
      LostError: a worker did not join.
      UsageError: another process took this worker's port.
    """
    if cluster.size > 1:
        _bound_joining(timeout)
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError):
        raise LostError(
            f"lost {SOMEBODY}: it was there, but did not join (--collective_timeout={timeout:g}); rerun the same "
            f"commands on all {cluster.size} to resume from the last checkpoint",
            lost=[SOMEBODY],
        ) from None
    except tf.errors.UnknownError as error:
        if _PORT_TAKEN in error.message:
            raise ports.unusable(
                cluster, "was taken by another process; end that process or use another port"
            ) from None
        raise


def _bound_joining(timeout: float) -> None:
    """Configures TensorFlow's coordination service as the strategy would, and bounds how long it waits for a worker.

    A barrier at the registration is what fails for all if one does not come; without it, each waits for an hour.
    """
    spec = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        coordinated_jobs=[CoordinatedJob(name=job, num_tasks=spec.num_tasks(job)) for job in spec.jobs],
        cluster_register_timeout_in_ms=int(1000 * timeout),
    )
    context.context().coordination_service.cluster_register_with_barrier = True
