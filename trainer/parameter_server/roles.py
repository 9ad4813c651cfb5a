"""The processes of a job with parameter servers. Without TensorFlow."""

from __future__ import annotations

from pipeline.errors import UsageError
from trainer.cluster import tf_config
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.config.meaning import PARAMETER_SERVER
from trainer.config.run import ClusterFlags


def of(flags: ClusterFlags) -> Cluster:
    """Returns the processes given by the flags, or by TF_CONFIG if no flag gives any.

    Raises:
      UsageError: neither gives a cluster, both do, or the cluster is invalid.
    """
    if (found := tf_config.of(flags, PARAMETER_SERVER)) is None:
        raise UsageError(
            f"--strategy={PARAMETER_SERVER}: needs {tf_config.VARIABLE} with jobs chief, worker and ps, or "
            "--worker_hosts=..., --ps_hosts=..., --job_name=... and --task_index=..."
        )
    return found


def gradients_of_step(config: TrainConfig, num_workers: int) -> int:
    """Returns the number of gradients in a step.

    Raises:
      UsageError: there are fewer workers than that, or they cannot share the batch equally.
    """
    flags, rows = config.aggregation, config.order.global_batch_size
    if not flags.sync:
        return 1
    needed = flags.replicas_to_aggregate or num_workers
    if needed > num_workers:
        raise UsageError(f"--replicas_to_aggregate={needed}: there are {num_workers} workers; give as many at most")
    if rows % needed:
        raise UsageError(
            f"--global_batch_size={rows} with --sync and {num_workers} workers: each gradient is of an equal part of "
            f"the batch; give a multiple of {needed}, or another --replicas_to_aggregate"
        )
    return needed
