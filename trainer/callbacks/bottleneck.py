"""Finds out where a run's time goes (waiting for input, computing, communicating), and which flags may help."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.errors import to_run
from pipeline.files.paths import folder
from pipeline.files.remote import in_command
from pipeline.request import DEVICE
from trainer.callbacks.base import Callback
from trainer.config import TrainConfig, meaning
from trainer.loop import Progress, Spent
from trainer.models.layers import has_unfused
from trainer.plan import Plan
from trainer.step.gradients import all_sum
from trainer.step.train_step import TrainStep, is_compiled

INPUT, COMPUTE, COMMUNICATION = "input-bound", "compute-bound", "communication-bound"
_LEAST_SECONDS = 5.0  # seconds of training needed before a verdict is printed unasked
_SHORT_STEP = 2e-3  # seconds; in shorter steps, launching operations takes much of the time
_REPEATS, _ROUNDS = 3, 3  # all-reduces per loop; loops: the fastest one counts


@dataclasses.dataclass(frozen=True)
class Times:
    """Times of a run's steps, excluding updates that included compilation.

    Attributes:
      spent: time spent in these updates.
      rows: number of rows per step.
      exchange: seconds of the all-reduce of one step's gradients, measured separately; 0 with one replica; None if not
        measured.
      constant: seconds of a step on one constant batch; None if not measured.
    """

    spent: Spent
    rows: int
    exchange: float | None = None
    constant: float | None = None

    @property
    def communicating(self) -> float:
        """Share of the time spent in all-reduces."""
        return min((self.exchange or 0.0) * self.spent.steps / self.spent.seconds, 1 - self.spent.waiting)

    @property
    def computing(self) -> float:
        """Share of the time spent neither in all-reduces nor waiting for batches."""
        return 1 - self.spent.waiting - self.communicating

    @property
    def headspace(self) -> float | None:
        """Speed-up with a constant batch, when the input takes no cores from the steps; None if not measured."""
        return None if self.constant is None else self.spent.seconds / self.spent.steps / self.constant

    @property
    def bound(self) -> str:
        """The bottleneck: whatever takes the largest share of the time. For the input, the headspace may show more."""
        costs = 0.0 if self.headspace is None else 1 - 1 / self.headspace
        shares = {
            INPUT: max(self.spent.waiting, costs),
            COMPUTE: min(self.computing, 1 - costs),
            COMMUNICATION: self.communicating,
        }
        return max(shares, key=lambda name: shares[name])

    def __str__(self) -> str:
        """The verdict without the advice."""
        rest = "computing" if self.exchange is not None else "computing and communicating"
        parts = [
            f"{self.spent.waiting:.0%} of {self.spent.seconds:.1f} s waiting for input",
            f"{self.computing:.0%} {rest}",
        ]
        if self.exchange:
            parts.append(f"{self.communicating:.0%} communicating")
        text = f"{self.bound}: {', '.join(parts)}"
        if self.constant is None or self.headspace is None:
            return text
        return (
            f"{text}; with one constant batch {self.headspace:.2f} times as fast "
            f"({self.rows / self.constant:,.0f} against {self.spent.rate(self.rows):,.0f} examples/sec)"
        )


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts about the machine and the data that the advice depends on.

    Attributes:
      replicas: number of replicas that compute.
      gpus: number of GPUs in this machine.
      encoding: encoding of the stored images: raw, png, jpeg or any; None if the data are not images.
      parses: whether the task has its own parse function.
      augments: whether the task has its own augment function.
      unfused: whether `fuse_layers` would speed up training of the model.
    """

    replicas: int
    gpus: int
    encoding: str | None
    parses: bool
    augments: bool = False
    unfused: bool = False

    @classmethod
    def of(cls, plan: Plan, strategy: tf.distribute.Strategy, model: keras.Model) -> Facts:
        """Returns the facts of a run on this machine."""
        image, request = plan.training.first.manifest.features.get("image"), plan.training.request
        gpus = len(tf.config.list_physical_devices("GPU"))
        encoding = image.encoding if image else None
        parses, augments = request.parse is not None, callable(request.augment)
        return cls(strategy.num_replicas_in_sync, gpus, encoding, parses, augments, has_unfused(model))


def advice(times: Times, config: TrainConfig, facts: Facts) -> list[str]:
    """Returns advice that may make the run faster, most effective first."""
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
    if facts.augments:
        yield "a faster augment function"
    if facts.gpus and config.data.augment != "none" and config.data.augment_on != DEVICE:
        yield "--augment_on=device"
    if config.data.augment != "none":
        yield f"a simpler --augment than {config.data.augment}"
    yield "more CPU cores"
    if not facts.parses:
        yield f"{to_run('pipeline.bench')} {in_command(config.data.data_dir)} shows which stage is slow"


def _for_communication(config: TrainConfig) -> Iterator[str]:
    if config.order.virtual_replicas:
        yield "no --virtual_replicas, which sends twice the bytes"
    yield f"a larger --global_batch_size than {config.order.global_batch_size}, so that there are fewer all-reduces"
    yield "fewer replicas"


def _for_compute(times: Times, config: TrainConfig, facts: Facts) -> Iterator[str]:
    if facts.unfused and not is_compiled(config):  # XLA fuses it as well
        yield "trainer.fuse_layers(model), since its BatchNormalization is Keras' own"
    if times.spent.seconds / times.spent.steps < _SHORT_STEP:
        yield f"a larger --global_batch_size than {config.order.global_batch_size}, since a step is short"
    if facts.gpus and not is_compiled(config) and not config.repeats_on_gpus:
        yield "--jit_compile"
    if facts.gpus and config.model.precision == "float32":
        yield "--precision=bfloat16"
    if facts.gpus > facts.replicas and config.run.strategy != meaning.MULTIWORKER:
        yield f"--strategy=mirrored on all {facts.gpus} GPUs"
    else:  # more replicas on logical CPUs would only share the same cores
        yield "more GPUs" if facts.gpus else "more CPU cores"
        yield "workers on more machines"


class Bottleneck(Callback):
    """Determines the bottleneck of a run; costs nothing until it is asked.

    Attributes:
      batch: batch from a distributed iterator, for --headspace; None if the headspace is not measured.
      stepper: step of the run.
    """

    def __init__(self, config: TrainConfig, facts: Facts, stepper: TrainStep) -> None:
        self._config, self._facts, self.stepper = config, facts, stepper
        self._progress: Progress | None = None
        self.batch: Any = None

    def on_loop(self, progress: Progress) -> None:
        self._progress = progress

    @property
    def is_worth_telling(self) -> bool:
        """Whether the run was long enough to be measured."""
        return self._why_not() is None and self._times().spent.seconds >= _LEAST_SECONDS

    def text(self, exchange: float | None = None, constant: float | None = None) -> str:
        """Returns the verdict in one line; for the arguments see `Times`."""
        if reason := self._why_not():
            return f"no verdict: {reason}"
        times = dataclasses.replace(self._times(), constant=constant)
        if self._facts.replicas > 1:
            times = dataclasses.replace(times, exchange=exchange)
        return f"{times}; may help: {', '.join(advice(times, self._config, self._facts))}"

    def measured(self) -> str:
        """Measures and returns the verdict. All workers call it when training has finished."""
        exchange = constant = None
        if self._facts.replicas > 1:
            # Virtual replicas send int64, twice the bytes.
            sent = tf.int64 if self._config.order.virtual_replicas else tf.float32
            trainable = self.stepper.state.model.trainable_variables
            variables = [trainable[index] for index in self.stepper.current.gradients.trained.weights]
            exchange = exchange_seconds(self.stepper.strategy, variables, sent)
        if self.batch is not None:
            constant = self._constant_seconds()
        return self.text(exchange, constant)

    def _constant_seconds(self) -> float:
        """Returns the seconds per update on the constant batch. Changes the weights, which are no longer needed."""
        steps, steps_per_loop = self._config.output.headspace, self._config.steps.steps_per_loop
        stepper = self.stepper.current
        int(stepper.repeat(self.batch, tf.constant(1, tf.int64)))  # to trace and compile it
        first, began = stepper.state.step, time.perf_counter()
        for begin in range(0, steps, steps_per_loop):
            int(stepper.repeat(self.batch, tf.constant(min(steps_per_loop, steps - begin), tf.int64)))
        return (time.perf_counter() - began) / max(1, stepper.state.step - first)

    def _why_not(self) -> str | None:
        """Returns why the speed of the run cannot be explained; None if it can."""
        for name in meaning.given(self._config, "logs_rows"):
            return f"with --{name}, waiting for input is not measured"
        if self._progress is None or self._progress.spent.steps <= self._progress.compiling.steps:
            return "each step was the first of its kind, which is compiled"
        return None

    def _times(self) -> Times:
        assert self._progress is not None
        return Times(self._progress.since(None), self._config.order.global_batch_size, exchange=0.0)


def exchange_seconds(strategy: tf.distribute.Strategy, variables: Sequence[Any], dtype: tf.DType) -> float:
    """Returns the seconds of one all-reduce of the gradients over all replicas. All workers call it.

    Args:
      strategy: strategy whose replicas take part.
      variables: model weights, which have the shapes of the gradients.
      dtype: dtype in which gradients are sent: float32, or int64 with virtual replicas.
    """

    def made(number: tf.Tensor) -> list[tf.Tensor]:
        # Different in each repetition: TensorFlow would sum constants only once.
        more = tf.cast(number, tf.float32)
        return [tf.cast(tf.cast(variable.value, tf.float32) + more, dtype) for variable in variables]

    both, alone = _loop_seconds(strategy, lambda number: all_sum(made(number))), _loop_seconds(strategy, made)
    return max(0.0, both - alone)


def _loop_seconds(strategy: tf.distribute.Strategy, compute: Callable[[tf.Tensor], list[tf.Tensor]]) -> float:
    """Returns the seconds of a computation on all replicas, not counting tracing and compiling."""

    def replica(number: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.cast(tf.reduce_max(value), tf.float32) for value in compute(number)])  # uses all values

    @tf.function(autograph=False)
    def loop() -> tf.Tensor:
        def one(done: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return done + 1, before + strategy.experimental_local_results(strategy.run(replica, (done,)))[0]

        start = (tf.constant(0), tf.constant(0.0))
        total: tf.Tensor = tf.while_loop(lambda done, _: done < _REPEATS, one, start, parallel_iterations=1)[1]
        return total

    loop().numpy()
    fastest = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        loop().numpy()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest / _REPEATS
