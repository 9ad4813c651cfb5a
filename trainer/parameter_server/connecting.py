"""TensorFlow's cluster as the chief sees it: the strategy, and the coordinator of the workers."""

from __future__ import annotations

import tensorflow as tf

from pipeline.errors import UsageError
from trainer.cluster import ports
from trainer.parameter_server.guest import start_server
from trainer.parameter_server.roles import CHIEF, PS, WORKER, Roles, Task

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"


def connect(roles: Roles) -> tuple[tf.distribute.Strategy, tf.distribute.coordinator.ClusterCoordinator, object]:
    """Returns the strategy, the coordinator, and what has to live as long as they do.

    The chief's own server, and that of worker 0 where this process is both, are on ports that the system chooses: the
    chief's address is where the processes meet. Who connects is told the addresses by the chief.

    Raises:
      UsageError: a worker has several GPUs.
    """
    host = roles.address(Task(CHIEF)).rpartition(":")[0]
    workers, server = list(roles.workers), None
    if roles.chief_works:
        workers[0] = f"{host}:{ports.free()}"
        server = start_server(roles, workers[0])
    cluster = {CHIEF: [f"{host}:{ports.free()}"], WORKER: workers, PS: list(roles.ps)}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type=CHIEF, task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    if strategy.num_replicas_in_sync > 1:
        raise UsageError(
            f"--strategy=parameter_server: each worker has {strategy.num_replicas_in_sync} GPUs; start one for each "
            "GPU, with CUDA_VISIBLE_DEVICES=0, 1, ..."
        )
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), server
