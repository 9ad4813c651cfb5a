"""Which flags may help a run that is bound by its input, by computing or by communication."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pipeline.manifest.storage import folder, in_command
from pipeline.request import HOST
from trainer.config import TrainConfig
from trainer.timing.shares import COMMUNICATION, INPUT, Times

_SHORT_STEP = 2e-3  # seconds, below which starting the operations takes much of a step


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the advice depends on besides the flags.

    Attributes:
      replicas: that compute.
      gpus: of this machine.
      encoding: of the stored images: raw, png, jpeg, any; None: there are none.
      parses: whether a task has a parse function of its own.
    """

    replicas: int
    gpus: int
    encoding: str | None
    parses: bool


def advice(times: Times, config: TrainConfig, facts: Facts) -> list[str]:
    """Returns what may help, the most effective first."""
    if times.bound == INPUT:
        return list(_for_input(config, facts))
    if times.bound == COMMUNICATION:
        return list(_for_communication(config))
    return list(_for_compute(times, config, facts))


def _for_input(config: TrainConfig, facts: Facts) -> Iterator[str]:
    if config.order.prefetch == 0:
        yield "--prefetch=2"
    if folder(config.data.data_dir).is_remote and config.data.cache_dir is None:
        yield "--cache_dir on a local disk"
    if facts.parses:
        yield "a faster parse function"
    elif facts.encoding in ("png", "jpeg", "any"):
        yield "converting with --image_encoding=raw"
    if facts.gpus and config.data.distort != "none" and config.data.distort_on == HOST:
        yield "--distort_on=device"
    if config.data.distort != "none":
        yield f"a simpler --distort than {config.data.distort}"
    yield "more CPU cores"
    if not facts.parses:
        yield f"python -m pipeline.bench {in_command(config.data.data_dir)} shows which stage is slow"


def _for_communication(config: TrainConfig) -> Iterator[str]:
    if config.order.virtual_replicas:
        yield "no --virtual_replicas, which sends twice the bytes"
    yield f"a larger --global_batch_size than {config.order.global_batch_size}, so that there are fewer exchanges"
    yield "fewer replicas"


def _for_compute(times: Times, config: TrainConfig, facts: Facts) -> Iterator[str]:
    if times.seconds / times.steps < _SHORT_STEP:
        yield f"a larger --global_batch_size than {config.order.global_batch_size}, since a step is short"
    if facts.gpus and not config.model.jit_compile:  # on CPUs, a convolution is slower in XLA
        yield "--jit_compile"
    if facts.gpus and config.model.precision == "float32":
        yield "--precision=bfloat16"
    if facts.gpus > facts.replicas and config.run.strategy != "multiworker":
        yield f"--strategy=mirrored on all {facts.gpus} GPUs"
    else:  # more replicas on logical CPUs would share the same cores
        yield "more GPUs" if facts.gpus else "more CPU cores"
        yield "workers on more machines"
