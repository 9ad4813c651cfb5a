"""Which trained model is meant, and the data that it is judged by."""

from __future__ import annotations

import dataclasses

from pipeline.commands.flags import check, flag
from trainer.config.meaning import check_apart, check_local

WEIGHTS = ("raw", "ema")


@dataclasses.dataclass(frozen=True)
class CheckpointFlags:
    """A trained model. Flags that are not given are those of its run."""

    model_dir: str = flag(text="folder of a run of trainer.run; it may be training")
    checkpoint: str | None = flag(None, "ckpt-400, 400, best or best/ckpt-400 (None: the newest)")
    weights: str | None = flag(
        None,
        "raw, or ema: the average over the steps (None: the average if the run kept one)",
        known=WEIGHTS,
    )
    data_dir: str | None = flag(None, "folder of a data set of the same classes (None: the run's)")
    statistics: str | None = flag(None, "folder of the data set whose statistics normalise images (None: the run's)")
    split: str | None = flag(None, "such as test, or a slice: train[:1000] (None: the run's --eval_split)")
    cache_dir: str | None = flag(
        None, "folder on a local disk for copies of a remote data set's shards (None: the run's)"
    )
    cache_bytes: int | None = flag(None, "that the copies may take (None: the run's)", least=1)

    def __post_init__(self) -> None:
        """Checks the values."""
        check(self)
        check_local(self, "model_dir")
        check_apart("model_dir", self.model_dir, self.data_dir)
