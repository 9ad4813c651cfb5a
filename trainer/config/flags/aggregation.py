"""How the gradients of workers come together on parameter servers."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least


@dataclasses.dataclass(frozen=True)
class AggregationFlags:
    """How the gradients of workers come together, with --strategy=parameter_server."""

    sync: bool = False  # a step is the mean of several workers' gradients; else each gradient is a step by itself
    replicas_to_aggregate: int | None = None
    """M: a step takes the first M of the workers' gradients and drops late ones (None: those of all workers)"""
    max_staleness: int = 0  # how many steps old a gradient may be and still count

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_least(self, 1, "replicas_to_aggregate")
        check_least(self, 0, "max_staleness")
        for name, value in (
            ("replicas_to_aggregate", self.replicas_to_aggregate),
            ("max_staleness", self.max_staleness),
        ):
            if value and not self.sync:
                raise UsageError(f"--{name}={value}: needs --sync; without it, each gradient is a step by itself")
