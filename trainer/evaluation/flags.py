"""The flags of `trainer.evaluate`."""

from __future__ import annotations

import dataclasses

from pipeline.commands.flags import check_all, flag
from pipeline.errors import UsageError
from pipeline.order.views import View
from trainer.config.run import CheckpointFlags


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(CheckpointFlags):
    """What is evaluated, and where the results go. Data flags default to those of the run."""

    batch_size: int | None = flag(None, "examples at a time (None: the run's --global_batch_size)", least=1)
    mistakes: int = flag(24, "the worst that are kept and drawn", least=0)
    output: str | None = flag(None, "folder for report.json, confusion.png and mistakes.png")
    json: bool = flag(False, "print one line of JSON per checkpoint, instead of tables")
    where: str | None = flag(None, "records of the split, by columns: 'width >= 28' (None: the run's --eval_where)")
    limit: str | None = flag(None, "number of records, or '50 per label' (None: the run's --eval_limit)")
    continuous: bool = flag(False, "evaluate each checkpoint of a run that is training, until its last step")
    interval: float = flag(10.0, "of --continuous: seconds between two looks for new checkpoints", above=0)

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_all(
            super().__post_init__,
            lambda: self._check_folder("output"),
            self._check_one,
            lambda: View(where=self.where, limit=self.limit),
        )

    def _check_one(self) -> None:
        if self.continuous and self.checkpoint is not None:
            raise UsageError(
                f"--checkpoint={self.checkpoint} with --continuous: each checkpoint is evaluated; leave one of them out"
            )
