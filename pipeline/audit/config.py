"""The flags of `python -m pipeline.audit`."""

from __future__ import annotations

import dataclasses

from pipeline.commands.flags import check_all, check_ending, flag
from pipeline.errors import UsageError, name_of
from pipeline.order_flags import OrderFlags

LAST_EPOCH = 1 << 62  # bound for epochs


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """The order to audit, given by the run's own arguments, and the workers that read it."""

    data_dir: str | None = flag(
        None, "a folder, or a=0.7,b=0.3; not needed with --model_dir", positional=True, metavar="DATA_DIR"
    )
    model_dir: str | None = flag(None, f"a run of {name_of('trainer.run')}: its settings apply where no flag is given")
    order: OrderFlags = dataclasses.field(default_factory=OrderFlags)
    workers: int | None = flag(None, "number of reading processes; default: as in the run's flags, else 1")
    replicas: int | None = flag(None, "number of replicas in the job; default: likewise, else one per worker")
    evaluation: bool = flag(False, "audit the order of evaluation; default: training")
    epoch: int = flag(0, "the epoch to prove and show; the next one is replayed as well")
    against_workers: int | None = flag(None, "number of workers of a job to compare with")
    against_replicas: int | None = flag(None, "number of replicas of that job; default: one per worker")
    exhaustive: bool = flag(False, "replay every window of every worker, however long that takes")
    content: bool = flag(
        False,
        "compare about 1,000 rows that input_fn feeds with a plain walk over the shards, and the augmented "
        "rows of two epochs",
    )
    observed: str | None = flag(None, "logs of --log_keys: files, folders, globs, joined by commas")
    png: str | None = flag(None, "picture to draw of which worker reads what")
    list_all: bool = flag(False, "list every worker and every shard")

    def __post_init__(self) -> None:
        check_all(self._check_data, lambda: check_ending("png", self.png, ".png"), self._check_epoch)

    def _check_data(self) -> None:
        if self.data_dir is None and self.model_dir is None:
            raise UsageError("DATA_DIR is missing (or give --model_dir); see --help")

    def _check_epoch(self) -> None:
        if not 0 <= self.epoch < LAST_EPOCH:
            raise UsageError(f"--epoch={self.epoch}: must be 0 or more, and less than 2^62")
