"""Flags for training and evaluation data, and for the order of examples."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline import request
from pipeline.augmentation import recipes
from pipeline.commands import values
from pipeline.commands.flags import check, check_all
from pipeline.errors import to_run
from pipeline.manifest.sources import Source, parse_sources, schedule_of, sources_of
from pipeline.order import sharding
from pipeline.order.views import View, checked_skips
from pipeline.request import parse_size
from trainer.config.meaning import flag, order_flag

AUTO = "auto"
_GRAPHS = "workers read with TensorFlow's own operations, which"


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Data to train and evaluate on."""

    # On resume, comparing the orders compares the data. An evaluation trains nothing.
    data_dir: str = flag(
        text="the data set's folder; or several, with weights: 'a=0.7,b:train[:9000]=0.3'",
        shapes_training=False,
        per_machine=True,
        first=True,
    )
    train_split: str = flag("train", "split to train on; slices such as train[1000:] work", shapes_training=False)
    eval_split: str | None = flag(
        None,
        "split to evaluate on; 'none' for no evaluation (None: test, or validation, or the only split left)",
        shapes_training=False,
        replay="none",
    )
    eval_data_dir: str | None = flag(
        None,
        "folder of another data set to evaluate on, with the same classes and image shape (None: --data_dir)",
        shapes_training=False,
        per_machine=True,
        reads=True,
        replay=None,
    )
    eval_where: str | None = order_flag(
        "where", text="records to evaluate on, by columns, like --where", shapes_training=False, used_in="evaluation"
    )
    eval_limit: str | None = order_flag(
        "limit", text="number of records to evaluate on, like --limit", shapes_training=False, used_in="evaluation"
    )
    resize: str | None = order_flag("resize", by_model=True, first=True)
    augment: str = order_flag("augment", "none", by_model=True, first=True)
    augment_on: str = flag(
        AUTO,
        "host: in the input; device: in the replicas' steps; both: the input keeps uint8 pixels, the steps make floats "
        "of them; auto: both if replicas are on GPUs and the recipe makes floats, otherwise host",
        known=(AUTO, *request.PLACES),
        option=True,
        used_in="training",
    )
    eval_copies: int = flag(
        1,
        "evaluations and predictions average over this many copies of an image: itself, and others augmented as in "
        "training",
        least=1,
        most=request.MOST_COPIES,
        shapes_training=False,
        option=True,
        used_in="evaluation",
    )
    on_corrupt: str = flag(
        "raise",
        "a corrupt record: raise an error that names it, or skip it (its row gets weight 0)",
        known=request.POLICIES,
        option=True,
        parameter_server={"skip": f"{_GRAPHS} skip nothing; repair the data ({to_run('beam_jobs.validate')})"},
    )
    max_corrupt: int = flag(request.MAX_CORRUPT, "records that each worker may skip", least=0, option=True)
    cache_dir: str | None = flag(
        None,
        "folder on a local disk for copies of a remote data set's shards (None: no copies)",
        shapes_training=False,
        per_machine=True,
        parameter_server=f"{_GRAPHS} use no cache",
        option=True,
    )
    cache_bytes: int | None = flag(
        None,
        "bytes that the copies may take (None: nine tenths of the free disk space)",
        least=1,
        shapes_training=False,
        per_machine=True,
        option=True,
    )

    def __post_init__(self) -> None:
        """Expands a single number in --resize to HxW, as checkpoints store and compare it; checks the values."""
        if isinstance(self.resize, str):
            object.__setattr__(self, "resize", values.both_sides(self.resize))
        check_all(
            lambda: check(self),
            lambda: self.sources,
            lambda: recipes.check_names(self.augment, "--augment"),
            lambda: parse_size(self.resize, "--resize"),
            lambda: View(where=self.eval_where, limit=self.eval_limit),
        )

    @property
    def sources(self) -> tuple[Source, ...]:
        """Training data: the sources of a mixture, or a single data set."""
        return sources_of(parse_sources(self.data_dir), self.train_split)

    @property
    def evaluated(self) -> str:
        """Evaluation data: a folder, or several in the form of --data_dir."""
        return self.eval_data_dir or self.data_dir

    @property
    def evaluates(self) -> bool:
        """Whether there is a split to evaluate on."""
        return self.eval_split not in ("", "none")


@dataclasses.dataclass(frozen=True)
class OrderFlags:
    """The order of examples: which ones are in each step's batch."""

    shapes_training: ClassVar[bool] = False  # the resulting order is compared with the checkpoint's

    global_batch_size: int = order_flag("global_batch_size", 100, by_model=True, first=True)
    virtual_replicas: int | None = flag(
        None,
        "V: the same weights, to the bit, on any number of replicas that divides V",
        least=1,
        of_topology=True,
        parameter_server="what is summed first depends on which worker is first",
    )
    cpu_threads: int = flag(
        8,
        "threads of an operation on CPUs with --virtual_replicas: kernels split sums by this number, not by the cores",
        least=1,
        most=1024,
    )
    # Keras, like NumPy, accepts seeds below 2^32.
    seed: int = order_flag("seed", 0, text="seed of weights, order and augmentations", least=0, below=1 << 32)
    streams: int | None = order_flag("streams")
    shuffle_bytes: int = order_flag("shuffle_bytes", sharding.SHUFFLE_BYTES)
    remainder: str = order_flag("remainder", "pad", used_in="training")
    prefetch: int = flag(
        2, "batches prefetched for each replica", least=0, most=1024, parameter_server="a batch is made with its step"
    )
    classes: str | None = order_flag("classes")
    where: str | None = order_flag("where", used_in="training")
    limit: str | None = order_flag("limit", used_in="training")
    balance: str | None = order_flag("balance", used_in="training")
    weigh: str | None = order_flag("weigh", used_in="training")
    skip_steps: str = order_flag("skip_steps", "", used_in="training")
    mixture_schedule: str = order_flag("mixture_schedule", "", used_in="training")
    allow_order_change: bool = flag(False, "resume although the order of examples differs from the checkpoint's")

    def __post_init__(self) -> None:
        check_all(
            lambda: check(self),
            self._check_streams,
            lambda: checked_skips(self.skip_steps),
            lambda: schedule_of(self.mixture_schedule),
        )

    def _check_streams(self) -> None:
        if self.streams is not None:
            sharding.check_streams(self.global_batch_size, self.streams)
