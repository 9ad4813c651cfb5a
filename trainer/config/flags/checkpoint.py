"""Which trained model is meant, and the data that it is judged by."""

from __future__ import annotations

import dataclasses

from trainer.config.flags.checks import check_apart, check_least, check_local, check_name

WEIGHTS = ("raw", "ema")


@dataclasses.dataclass(frozen=True)
class CheckpointFlags:
    """A trained model. Flags that are not given are those of its run."""

    model_dir: str  # folder of a run of trainer.run; it may be training
    checkpoint: str | None = None  # ckpt-400, 400, best or best/ckpt-400 (None: the newest)
    weights: str | None = None  # raw, or ema: the average over the steps (None: the average if the run kept one)
    data_dir: str | None = None  # folder of a data set of the same classes (None: the run's)
    statistics: str | None = None  # folder of the data set whose statistics normalise images (None: the run's)
    split: str | None = None  # such as test, or a slice: train[:1000] (None: the run's --eval_split)
    cache_dir: str | None = None  # folder on a local disk for copies of a remote data set's shards (None: the run's)
    cache_bytes: int | None = None  # that the copies may take (None: the run's)

    def __post_init__(self) -> None:
        """Checks the values."""
        check_local(self, "model_dir")
        check_apart("model_dir", self.model_dir, self.data_dir)
        if self.weights is not None:
            check_name("weights", self.weights, WEIGHTS)
        check_least(self, 1, "cache_bytes")
