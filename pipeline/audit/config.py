"""The flags of `python -m pipeline.audit`."""

from __future__ import annotations

import dataclasses

from pipeline.commands.flags import check_all, flag
from pipeline.errors import UsageError

LAST_EPOCH = 1 << 62  # an epoch is less than this


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """The order to audit, given by the run's own arguments, and the workers that read."""

    data_dir: str | None = flag(
        None, "a folder, or a=0.7,b=0.3; not needed with --model_dir", positional=True, metavar="DATA_DIR"
    )
    model_dir: str | None = flag(None, "a run of trainer.run: what it is to prove, where flags do not say otherwise")
    global_batch_size: int | None = flag(
        None, "rows per step over all replicas; not needed with --observed or --model_dir"
    )
    workers: int | None = flag(None, "processes that read; default: those that the run's flags tell of, else 1")
    replicas: int | None = flag(None, "in the job; default: likewise, else one per worker")
    split: str | None = flag(None, "or a slice of one; default: train")
    seed: int | None = flag(None, "of the order; default: 0")
    remainder: str | None = flag(None, "pad or drop; default: pad")
    streams: int | None = flag(None, "default: that of input_fn")
    shuffle_bytes: int | None = flag(None, "default: 1 GiB")
    resize: str | None = flag(None, "that of the run, such as 224x224: it decides the memory per example")
    distort: str | None = flag(None, "that of the run, where it decides the memory per example")
    where: str | None = flag(None, "records to take, by columns: \"label in ('cat', 'dog') and width >= 28\"")
    limit: str | None = flag(None, "number of records to take, or '500 per label'")
    balance: str | None = flag(None, "column whose values get equally many rows: label, or 'sqrt(label)'")
    weigh: str | None = flag(None, "column of weights: how often a record is in an epoch, in the mean")
    skip_steps: str | None = flag(None, "steps that are not trained on, first:end, joined by commas")
    mixture_schedule: str | None = flag(
        None, "weights of a mixture from steps on, such as '0:a=0.9,b=0.1;10000:a=0.5,b=0.5'"
    )
    evaluation: bool = flag(False, "the order of evaluation; default: of training")
    epoch: int = flag(0, "the epoch that is proved and shown; the one after it is replayed as well")
    against_workers: int | None = flag(None, "compare with a job of this many workers")
    against_replicas: int | None = flag(None, "and this many replicas; default: one per worker")
    exhaustive: bool = flag(False, "replay every window of every worker, however long that takes")
    content: bool = flag(
        False,
        "compare about 1,000 rows that input_fn feeds with what a plain walk over the shards finds, and the augmented "
        "rows of two epochs",
    )
    observed: str | None = flag(None, "logs of --log_keys: files, folders, globs, joined by commas")
    png: str | None = flag(None, "draw who reads what")
    list_all: bool = flag(False, "list every worker and every shard")

    def __post_init__(self) -> None:
        check_all(self._check_data, self._check_png, self._check_epoch)

    def _check_data(self) -> None:
        if self.data_dir is None and self.model_dir is None:
            raise UsageError("DATA_DIR is missing (or give --model_dir); see --help")

    def _check_png(self) -> None:
        if self.png is not None and not self.png.endswith(".png"):
            raise UsageError(f"--png={self.png}: the file's name must end in .png")

    def _check_epoch(self) -> None:
        if not 0 <= self.epoch < LAST_EPOCH:
            raise UsageError(f"--epoch={self.epoch}: must be 0 or more, and less than 2^62")
