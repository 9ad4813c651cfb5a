"""The flags of `trainer.evaluate`."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checkpoint import CheckpointFlags
from trainer.config.flags.checks import check_apart, check_least, check_local, check_positive


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(CheckpointFlags):
    """What is evaluated, and where the results go. Flags of the data that are not given are those of the run."""

    batch_size: int | None = None  # examples at a time (None: the run's --global_batch_size)
    mistakes: int = 24  # the worst that are kept and drawn
    output: str | None = None  # folder for report.json, confusion.png and mistakes.png
    json: bool = False  # print one line of JSON per checkpoint, instead of tables
    continuous: bool = False  # evaluate each checkpoint of a run that is training, until its last step
    interval: float = 10.0  # of --continuous: seconds between two looks for new checkpoints

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        super().__post_init__()
        check_local(self, "output")
        check_apart("output", self.output, self.data_dir)
        check_least(self, 1, "batch_size")
        check_least(self, 0, "mistakes")
        check_positive(self, "interval")
        if self.continuous and self.checkpoint is not None:
            raise UsageError(
                f"--checkpoint={self.checkpoint} with --continuous: each checkpoint is evaluated; leave one of them out"
            )
