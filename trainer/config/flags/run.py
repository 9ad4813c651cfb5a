"""Where a run computes, and how it fails."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least, check_name, check_positive

PARAMETER_SERVER = "parameter_server"
STRATEGIES = ("one_device", "mirrored", "multiworker", "central_storage", PARAMETER_SERVER)


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Where it runs, and what it writes."""

    model_dir: str  # folder of checkpoints and logs; a run resumes from the newest checkpoint in it
    strategy: str = "one_device"
    """one_device, mirrored, central_storage; multiworker, parameter_server: processes of TF_CONFIG or --worker_hosts"""
    num_replicas: int | None = None  # the first N GPUs, else N logical CPUs (None: all GPUs, or one CPU)
    join_timeout: float = 600.0  # seconds that a worker waits at the start until all are there
    collective_timeout: float = 120.0  # seconds at most until a worker that does not answer counts as lost
    deterministic: bool = False  # op determinism of TensorFlow: slower, bit-identical where ops are not already
    log_keys: str | None = None  # folder for the keys of every row trained on, for pipeline.audit --observed; slower

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_name("strategy", self.strategy, STRATEGIES)
        check_least(self, 1, "num_replicas")
        check_positive(self, "join_timeout", "collective_timeout")
        if self.num_replicas is not None and self.strategy in ("multiworker", PARAMETER_SERVER):
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy={self.strategy}: the replicas are the workers of "
                "TF_CONFIG and their GPUs; leave --num_replicas out"
            )
        if (self.num_replicas or 1) > 1 and self.strategy == "one_device":
            raise UsageError(
                f"--num_replicas={self.num_replicas} with --strategy=one_device: more than 1 needs --strategy=mirrored"
            )
