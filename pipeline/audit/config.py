"""The flags of `python -m pipeline.audit`."""

from __future__ import annotations

import dataclasses

import simple_parsing

from pipeline.errors import UsageError


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """What is audited: the order's arguments, as of a run, and the workers that read."""

    data_dir: str = simple_parsing.field(positional=True, metavar="DATA_DIR")  # the data set's folder
    global_batch_size: int | None = None  # rows of a step over all replicas; --observed brings it
    workers: int | None = None  # processes that read; default: 1
    replicas: int | None = None  # in the job; default: one a worker
    split: str | None = None  # or a slice of one; default: train
    seed: int | None = None  # of the order; default: 0
    remainder: str | None = None  # pad or drop; default: pad
    streams: int | None = None  # default: as of input_fn
    shuffle_bytes: int | None = None  # default: 1 GiB
    resize: str | None = None  # as of the run, such as 224x224: what an example takes in memory
    distort: str | None = None  # as of the run, where that decides what an example takes in memory
    evaluation: bool = False  # the order of evaluation; default: of training
    epoch: int = 0  # the epoch that is proved and shown
    against_workers: int | None = None  # compare with a job of so many workers
    against_replicas: int | None = None  # and so many replicas; default: one a worker
    exhaustive: bool = False  # replay every window of every worker, however long that takes
    observed: str | None = None  # logs of --log_keys: files, folders, globs, joined by commas
    png: str | None = None  # draw who reads what
    list_all: bool = False  # every worker and every shard, however many

    def __post_init__(self) -> None:
        if self.png is not None and not self.png.endswith(".png"):
            raise UsageError(f"--png={self.png}: the file's name must end in .png")
        if not 0 <= self.epoch < 1 << 62:
            raise UsageError(f"--epoch={self.epoch}: must be 0 or more, and less than 2^62")
