"""Flags for the data that are trained and evaluated on, and for their order."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline import request
from pipeline.commands.flags import check, check_all
from pipeline.distort import recipes
from pipeline.errors import to_run
from pipeline.manifest.sources import Source, parse_sources, schedule_of, sources_of
from pipeline.order import sharding
from pipeline.order.views import View, checked_skips
from pipeline.request import parse_size
from trainer.config.meaning import flag

AUTO = "auto"
_GRAPHS = "workers read with TensorFlow's own operations, which"


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """What is trained and evaluated on."""

    # On a resume the order compares the data themselves. An evaluation trains nothing.
    data_dir: str = flag(
        text="the data set's folder; or several, with weights: 'a=0.7,b:train[:9000]=0.3'",
        shapes_training=False,
        per_machine=True,
    )
    train_split: str = flag("train", "what to train on; slices such as train[1000:] work", shapes_training=False)
    eval_split: str | None = flag(
        None,
        "what to evaluate on; 'none' for no evaluation (None: test, else validation, else the only split left)",
        shapes_training=False,
        replay="none",
    )
    eval_where: str | None = flag(None, "records to evaluate on, by columns, like --where", shapes_training=False)
    eval_limit: str | None = flag(None, "number of records to evaluate on, like --limit", shapes_training=False)
    resize: str | None = flag(None, "stretch every image to HxW, such as 32x32, before it is distorted")
    distort: str = flag(
        "none", "recipes, such as cifar10_tutorial, or 'pad_crop_flip(pad=4) | cutout(size=8) | mixup'", by_model=True
    )
    distort_on: str = flag(
        AUTO,
        "host: in the input; device: in the replicas' steps; both: the input keeps pixels uint8, the steps make floats "
        "of them; auto: both where replicas are on GPUs and the recipe makes floats, else host",
        known=(AUTO, *request.PLACES),
    )
    on_corrupt: str = flag(
        "raise",
        "a corrupt record: raise an error that names it, or skip it (its row gets weight 0)",
        known=request.POLICIES,
        parameter_server={"skip": f"{_GRAPHS} skip nothing; repair the data ({to_run('beam_jobs.validate')})"},
    )
    max_corrupt: int = flag(request.MAX_CORRUPT, "records that each worker may skip", least=0)
    cache_dir: str | None = flag(
        None,
        "folder on a local disk for copies of a remote data set's shards (None: no copies)",
        shapes_training=False,
        per_machine=True,
        parameter_server=f"{_GRAPHS} use no cache",
    )
    cache_bytes: int | None = flag(
        None,
        "that the copies may take (None: nine tenths of what the disk has left)",
        least=1,
        shapes_training=False,
        per_machine=True,
    )

    def __post_init__(self) -> None:
        """Checks the values."""
        check_all(
            lambda: check(self),
            lambda: self.sources,
            lambda: recipes.check_names(self.distort, "--distort"),
            lambda: parse_size(self.resize, "--resize"),
            lambda: View(where=self.eval_where, limit=self.eval_limit),
        )

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of a mixture; empty for a single data set."""
        sources = parse_sources(self.data_dir)
        return () if isinstance(sources, str) else sources_of(sources, self.train_split)

    @property
    def evaluates(self) -> bool:
        """Whether there is a split to evaluate on."""
        return self.eval_split not in ("", "none")


@dataclasses.dataclass(frozen=True)
class OrderFlags:
    """Which examples are in the batch of which step."""

    shapes_training: ClassVar[bool] = False  # a checkpoint compares the order that these result in

    # At most 16.7 million rows per step, more images than any memory holds.
    global_batch_size: int = flag(100, "rows of a step over all replicas", least=1, most=1 << 24, by_model=True)
    virtual_replicas: int | None = flag(
        None,
        "V: the same weights, to the bit, on any number of replicas that divides V",
        least=1,
        of_topology=True,
        parameter_server="what is summed first depends on which worker is first",
    )
    cpu_threads: int = flag(
        8,
        "of an operation on CPUs under --virtual_replicas: kernels split sums by it, not by the cores",
        least=1,
        most=1024,
    )
    # Keras, and so NumPy, take seeds below 2^32.
    seed: int = flag(0, "of the weights, the order and the distortions", least=0, below=1 << 32)
    streams: int | None = flag(None, "K of the order (None: 1 where the decoded split fits --shuffle_bytes)", least=1)
    shuffle_bytes: int = flag(
        sharding.SHUFFLE_BYTES, "decoded bytes that are shuffled together, over all streams", least=1
    )
    remainder: str = flag("pad", "the last batch of an epoch: pad it (weight 0) or drop it", known=sharding.REMAINDERS)
    prefetch: int = flag(
        2, "batches held ready for every replica", least=0, most=1024, parameter_server="a batch is made with its step"
    )
    where: str | None = flag(
        None,
        "records to train on, by columns: \"label in ('cat', 'dog') and width >= 28\"; of one source "
        "of a mixture, 'b: width >= 28' (None: all; docs/views.md)",
    )
    limit: str | None = flag(None, "number of records to train on, or '500 per label'")
    balance: str | None = flag(
        None,
        "column whose values fill equally many rows of an epoch: label, or 'sqrt(label)' for half way to that",
    )
    weigh: str | None = flag(
        None,
        "column of weights: a record of weight w is in an epoch floor(w) or ceil(w) times",
    )
    skip_steps: str = flag("", "steps that are not trained on, such as 12300:12360,20000:20010 (end excluded)")
    mixture_schedule: str = flag(
        "",
        "weights of a mixture from steps on, such as '0:a=0.9,b=0.1;10000:a=0.5,b=0.5' (docs/views.md)",
        parameter_server="workers plan one data set",
    )
    allow_order_change: bool = flag(False, "resume although the order of examples differs from the checkpoint's")

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_all(
            lambda: check(self),
            self._check_streams,
            lambda: checked_skips(self.skip_steps),
            lambda: schedule_of(self.mixture_schedule),
        )

    def _check_streams(self) -> None:
        if self.streams is not None:
            sharding.check_streams(self.global_batch_size, self.streams)
