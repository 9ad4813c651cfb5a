"""Composes a run: strategy -> state -> steps -> checkpoints -> input -> loop -> evaluation."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.audit.key_log import SUFFIX, Header, KeyLogWriter
from pipeline.commands.text import count_of
from pipeline.distribution.strategies import distribute_request
from pipeline.errors import RerunError, UsageError
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest
from trainer import description, loop
from trainer.actions import compose as composed
from trainer.actions.checkpoints import Checkpoints, Restored
from trainer.actions.evaluation import Evaluation, Evaluator
from trainer.actions.events import LOGS, EventFile
from trainer.actions.output import Output
from trainer.cluster import failures, rendezvous, strategies
from trainer.cluster.agreement import Agreement
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.loop import Action, InnerLoop, NotFiniteError, Progress
from trainer.plan import Plan
from trainer.step import compose, schedules, state
from trainer.step.results import Wanted
from trainer.task import data_spec
from trainer.task.base import Task

_STOP = 0  # what workers agree on; numbers above it are those of actions


def run(
    config: TrainConfig, plan: Plan, cluster: Cluster, interrupt: Interrupt, task: type[Task] | None = None
) -> Evaluation | None:
    """Trains to the end of the plan and evaluates.

    Returns:
      The last evaluation, or None if the config asks for none.

    Raises:
      RerunError: stopped by a signal, with the state saved, or another worker was lost.
      DataError: a loss or weight is not finite, or the data cannot be read.
      UsageError: the config does not fit this machine or the checkpoint in model_dir.
    """
    if config.run.deterministic:
        keras.utils.set_random_seed(config.order.seed)
        tf.config.experimental.enable_op_determinism()
    if config.order.virtual_replicas:
        tf.config.threading.set_intra_op_parallelism_threads(config.order.cpu_threads)
    if cluster.size > 1:
        rendezvous.meet(cluster, description.of(config, plan), config.run.join_timeout)
    with failures.in_one_line(cluster.size):
        return _Run(config, plan, cluster, interrupt, task or Task).run()


class _Run:
    """The parts of a run, made in the order in which they need each other."""

    def __init__(
        self, config: TrainConfig, plan: Plan, cluster: Cluster, interrupt: Interrupt, task: type[Task]
    ) -> None:
        self.config, self.plan, self.cluster, self.interrupt = config, plan, cluster, interrupt
        self.output = Output(cluster.rank)
        joins = config.run.strategy == "multiworker"  # lets no thread run meanwhile
        with interrupt.left_to_the_system() if joins else contextlib.nullcontext():
            self.strategy = strategies.create(config.run, config.order.global_batch_size, cluster)
        self.agreement = Agreement(self.strategy, cluster)
        steps_per_epoch = plan.training.order.steps_per_epoch
        schedule = schedules.create(config.optimizer, steps_per_epoch, plan.last_step)
        self.task = task(config, data_spec.of(plan.training))
        self.state = state.create(self.strategy, config, self.task, schedule)
        self.stepper = compose.stepper(self.strategy, self.state, config)
        self.checkpoints = Checkpoints(self.state, plan.training.spec, steps_per_epoch, config, cluster, self.output)

    def run(self) -> Evaluation | None:
        """Restores or initializes, trains, evaluates."""
        restored = self.checkpoints.restore()
        self.agreement.check_equal("the step to resume from", self.state.step)
        if restored is None:
            self._initialize()
        self._say_start(restored)
        steps = self.config.steps
        writes = self.cluster.is_chief and bool(steps.summary_every or steps.summary_secs)
        events = EventFile(pathlib.Path(self.config.run.model_dir) / LOGS, self.state.step, writes)
        evaluator = self._evaluator(self.plan.evaluation, events) if self.plan.evaluation else None
        if self.state.step < self.plan.last_step:
            self._train(evaluator, events)
        result = self._evaluate_at_end(evaluator) if evaluator else None
        self._say_end(events)
        if self.cluster.is_chief:
            self.task.after_train(self.state.model, result)
        self.agreement.wait()
        return result

    def _initialize(self) -> None:
        with self.strategy.scope():
            self.task.initialize(self.state.model)
        if self.state.averages:
            self.state.averages.reset()

    def _train(self, evaluator: Evaluator | None, events: EventFile) -> None:
        start, last, flags = self.state.step, self.plan.last_step, self.config.steps
        names = lambda: self.stepper.value_names  # noqa: E731
        with self._inner_loop(start) as inner_loop, self.interrupt.deferred():
            actions = self._actions(evaluator, events)
            try:
                stopped = loop.train(inner_loop, start, last, flags.steps_per_loop, actions, self._agree, names)
                self.checkpoints.save()
            except NotFiniteError as error:
                raise NotFiniteError(f"{error}; {self.checkpoints.way_back()}") from None
        if stopped:
            raise self._stopped("training")

    def _actions(self, evaluator: Evaluator | None, events: EventFile) -> list[Action]:
        def evaluate(progress: Progress) -> None:
            if evaluator and progress.step != self.plan.last_step and (result := evaluator.evaluate()):
                self.output.line(f"step {progress.step}, {result}")

        return composed.actions(
            composed.Parts(
                self.config,
                self.stepper,
                self.output,
                events,
                self._write_to(events),
                evaluate if evaluator else None,
                self.checkpoints.save,
            )
        )

    def _write_to(self, events: EventFile) -> Callable[[int, dict[str, float]], None]:
        def write(step: int, values: dict[str, float]) -> None:
            events.scalars(step, values)
            if self.cluster.is_chief:
                self.task.on_metrics(step, values)

        return write

    @contextlib.contextmanager
    def _inner_loop(self, start: int) -> Iterator[InnerLoop]:
        rank, num_replicas = self.cluster.rank, self.strategy.num_replicas_in_sync
        request = dataclasses.replace(self.plan.training.request, start_step=start)
        if not self.config.run.log_keys:
            batches = self._distributed(request, self.config.order.prefetch)
            iterator = iter(batches)

            def inner_loop(steps: int, needs: frozenset[str]) -> Any:
                return self.stepper.train(iterator, tf.constant(steps, tf.int64), Wanted.of(needs))

            yield inner_loop
            return
        if request.parse:
            raise UsageError(f"--log_keys={self.config.run.log_keys}: not for a task with its own parse function")
        path = pathlib.Path(self.config.run.log_keys) / f"worker-{rank:05d}{SUFFIX}"
        with KeyLogWriter(path, Header.of(self.plan.training.spec, rank, self.cluster.size, num_replicas)) as log:
            request = dataclasses.replace(request, features=("key",))
            batches = self._distributed(request, prefetch=0)
            first = rank * (num_replicas // self.cluster.size)
            yield loop.logged(self.stepper, iter(batches), Wanted.of, log, first)

    def _distributed(self, request: Request, prefetch: int) -> Any:
        return distribute_request(self.strategy, request, prefetch, self.config.order.virtual_replicas)

    def _evaluate_at_end(self, evaluator: Evaluator) -> Evaluation:
        result = evaluator.evaluate()
        if result is None:
            raise self._stopped("evaluation")
        self.output.line(str(result))
        return result

    def _evaluator(self, split: ResolvedRequest, events: EventFile) -> Evaluator:
        batches = self._distributed(split.request, self.config.order.prefetch)
        steps_per_loop, write = self.config.steps.steps_per_loop, self._write_to(events)
        return Evaluator(self.stepper, batches, split, self.plan.may_skip, steps_per_loop, self._stop, write)

    def _agree(self, due: Sequence[int]) -> tuple[bool, set[int]]:
        stop = [_STOP] if self.interrupt.requested is not None else []
        agreed = self.agreement.union([*stop, *(number + 1 for number in due)])
        return _STOP in agreed, {number - 1 for number in agreed if number != _STOP}

    def _stop(self) -> bool:
        return self._agree([])[0]

    def _stopped(self, what: str) -> RerunError:
        signal = self.interrupt.requested.name if self.interrupt.requested else "another worker's signal"
        return RerunError(
            f"{what} stopped by {signal}: step {self.state.step} of {self.plan.last_step} is saved; "
            "rerun the same command to resume"
        )

    def _say_start(self, restored: Restored | None) -> None:
        step, last, order = self.state.step, self.plan.last_step, self.plan.training.order
        replicas = count_of(self.strategy.num_replicas_in_sync, "replica")
        here = f"here {', '.join(strategies.device_names(self.strategy))}"
        part = f"step {step} to {last}" if step < last else f"already at step {step} of {last}"
        size = f" of {order.global_batch_size} examples, {order.steps_per_epoch} per epoch" if step < last else ""
        origin = f"resumed from {restored.path}" if restored else "a new run"
        name = self.config.model.task or self.config.model.model
        model = f"{name} with {self.state.model.count_params():,} parameters"
        self.output.line(f"{self.config.run.strategy}: {replicas}, {here}; {model}; {part}{size}; {origin}")
        self.output.other_line(f"{here}; {part}; {origin}")
        if restored and restored.changes:
            self.output.line(f"changed since {restored.name}: {'; '.join(restored.changes)}")
        if self.plan.note:
            self.output.line(f"note: {self.plan.note}")

    def _say_end(self, events: EventFile) -> None:
        logs = f"; logs: tensorboard --logdir={events.folder}" if events.folder.exists() else ""
        self.output.line(f"checkpoint: {self.checkpoints.newest}{logs}")
        self.output.other_line(f"done at step {self.state.step}")
