"""What a job with parameter servers cannot do with its data and workers: known before TensorFlow is loaded."""

from __future__ import annotations

from pipeline.commands.text import size_of
from pipeline.errors import UsageError
from pipeline.resolved import ResolvedRequest
from trainer.config import TrainConfig


def check_windows(resolved: ResolvedRequest) -> None:
    """Raises UsageError where a split is shuffled in several windows, of which a step would read one anew."""
    spec, order = resolved.spec, resolved.order
    if order.windows > 1:
        needed = order.num_records * spec.record_bytes
        raise UsageError(
            f"--shuffle_bytes={spec.shuffle_bytes}: with --strategy=parameter_server each worker keeps all of "
            f"{resolved.request.split!r} in memory, {size_of(needed)} decoded; give --shuffle_bytes={needed} or more "
            "(another order), fewer records, as in --train_split=train[:10000], or --strategy=multiworker"
        )


def gradients_of_step(config: TrainConfig, num_workers: int) -> int:
    """Returns how many gradients make a step.

    Raises:
      UsageError: there are fewer workers, or the gradients would be of unequal parts of the batch.
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
