"""Composes a run: strategy -> state -> steps -> checkpoints -> input -> loop -> evaluation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from pipeline.audit.key_log import SUFFIX, Header, KeyLogWriter
from pipeline.distribution.strategies import distribute_request
from pipeline.errors import RerunError
from trainer import failures, loop, state, strategies
from trainer.actions import Evaluate, Evaluation, Report, Save
from trainer.agreement import Agreement
from trainer.checkpoints import Checkpoints
from trainer.cluster import Cluster
from trainer.config import TrainConfig
from trainer.inner import InnerLoop, LoggedInnerLoop
from trainer.interrupt import Interrupt
from trainer.optimizers import StaircaseDecay
from trainer.plan import Plan
from trainer.step import Stepper
from trainer.summaries import Scalars

LOGS = "logs"  # folder of TensorBoard's files in model_dir


def run(config: TrainConfig, plan: Plan, cluster: Cluster, interrupt: Interrupt) -> Evaluation | None:
    """Trains to the end of the plan and evaluates.

    Returns:
      The last evaluation, or None where the config asks for none.

    Raises:
      RerunError: stopped by a signal, with the state saved, or another worker was lost.
      DataError: a loss or weight is not finite, or the data cannot be read.
      UsageError: the config does not fit this machine or the checkpoint in model_dir.
    """
    if config.deterministic:
        keras.utils.set_random_seed(config.seed)
        tf.config.experimental.enable_op_determinism()
    with failures.in_one_line(cluster.size):
        return _Run(config, plan, cluster, interrupt).run()


class _Run:
    """The parts of a run, made in the order in which they need each other."""

    def __init__(self, config: TrainConfig, plan: Plan, cluster: Cluster, interrupt: Interrupt) -> None:
        self.config, self.plan, self.cluster, self.interrupt = config, plan, cluster, interrupt
        self.say: Callable[[str], None] = functools.partial(print, flush=True) if cluster.is_chief else _say_nothing
        if cluster.size > 1:
            self.say(f"waiting for {cluster.size} workers: {', '.join(cluster.addresses)}")
        joins = config.strategy == "multiworker"  # which waits for the others and lets no thread run meanwhile
        with interrupt.left_to_the_system() if joins else contextlib.nullcontext():
            self.strategy = strategies.create(config, cluster)
        self.agreement = Agreement(self.strategy, cluster)
        self.state = state.create(self.strategy, config, plan)
        self.schedule = StaircaseDecay(config.learning_rate, config.decay_factor, plan.decay_steps(config.decay_epochs))
        self.stepper = Stepper(self.strategy, self.state, self.schedule)
        self.checkpoints = Checkpoints(self.state, plan.spec, config, cluster, self.say)
        self.logs = pathlib.Path(config.model_dir) / LOGS
        self.scalars = Scalars(self.logs if cluster.is_chief else None)

    def run(self) -> Evaluation | None:
        """Restores, trains, evaluates."""
        resumed_from = self.checkpoints.restore()
        self.agreement.check_equal("the step to go on from", self.state.step)
        self.say(self._start_line(resumed_from))
        evaluate = self._evaluation() if self.config.evaluates else None
        if self.state.step < self.plan.last_step:
            self._train(evaluate)
        else:
            self.say(f"nothing left to train: step {self.state.step} of {self.plan.last_step} is reached")
        result = self._evaluate_at_end(evaluate) if evaluate else None
        self.say(f"checkpoint: {self.checkpoints.newest}; logs: tensorboard --logdir={self.logs}")
        self.agreement.wait()
        return result

    def _train(self, evaluate: Evaluate | None) -> None:
        config, start = self.config, self.state.step
        report = Report(config.log_every, config.global_batch_size, self.schedule, self.scalars, self.say)
        actions: list[loop.Action] = [report, Save(config.checkpoint_every, self.checkpoints)]
        actions += [evaluate] if evaluate else []
        with self._inner_loop(start) as inner_loop, self.interrupt.waited_for():
            stopped = loop.train(inner_loop, start, self.plan.last_step, config.steps_per_loop, actions, self._stop)
            self.checkpoints.save()
        if stopped:
            raise self._stopped("training")

    @contextlib.contextmanager
    def _inner_loop(self, start: int) -> Iterator[InnerLoop | LoggedInnerLoop]:
        rank, replicas = self.cluster.rank, self.strategy.num_replicas_in_sync
        request = self.plan.training.request.deliver(start_step=start)
        if not self.config.log_keys:
            yield InnerLoop(self.stepper, iter(distribute_request(self.strategy, request, self.config.prefetch)))
            return
        path = pathlib.Path(self.config.log_keys) / f"worker-{rank:05d}{SUFFIX}"
        with KeyLogWriter(path, Header.of(self.plan.spec, rank, self.cluster.size, replicas)) as log:
            request = dataclasses.replace(request, examples=dataclasses.replace(request.examples, features=("key",)))
            batches = iter(distribute_request(self.strategy, request, prefetch=0))
            yield LoggedInnerLoop(self.stepper, batches, log, rank * (replicas // self.cluster.size))

    def _evaluate_at_end(self, evaluate: Evaluate) -> Evaluation:
        result = evaluate.evaluate(self.state.step)
        if result is None:
            raise self._stopped("evaluation")
        self.say(str(result))
        return result

    def _evaluation(self) -> Evaluate:
        config, plan = self.config, self.plan
        return Evaluate(
            every=config.eval_every,
            last_step=plan.last_step,
            stepper=self.stepper,
            batches=distribute_request(self.strategy, plan.evaluation_request(config.eval_split), config.prefetch),
            num_batches=plan.evaluation_steps,
            split=config.eval_split,
            num_examples=plan.evaluation_examples,
            may_skip=config.max_corrupt * self.cluster.size if config.on_corrupt == "skip" else 0,
            chunk=config.steps_per_loop,
            stop=self._stop,
            scalars=self.scalars,
            say=self.say,
        )

    def _stop(self) -> bool:
        return self.agreement.any(self.interrupt.requested is not None)

    def _stopped(self, what: str) -> RerunError:
        signal = self.interrupt.requested.name if self.interrupt.requested else "another worker's signal"
        return RerunError(
            f"{what} stopped by {signal}: step {self.state.step} of {self.plan.last_step} is saved; "
            "the same command goes on"
        )

    def _start_line(self, resumed_from: str | None) -> str:
        devices, replicas = strategies.device_names(self.strategy), self.strategy.num_replicas_in_sync
        return (
            f"{self.config.strategy}: {replicas} replica{'s' if replicas > 1 else ''}, here {', '.join(devices)}; "
            f"{self.config.model} with {self.state.model.count_params():,} parameters; "
            f"step {self.state.step} to {self.plan.last_step} of {self.config.global_batch_size} examples, "
            f"{self.plan.steps_per_epoch} an epoch; {f'resumed from {resumed_from}' if resumed_from else 'a new run'}"
        )


def _say_nothing(line: str) -> None:
    """What the workers other than the chief say."""
