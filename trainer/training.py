"""Composes a run: strategy -> state -> steps -> checkpoints -> input -> loop -> evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pipeline.errors import RerunError
from trainer import description, loop
from trainer.actions import compose as composed
from trainer.actions.announcing import RunSummary
from trainer.actions.evaluation import Evaluator
from trainer.actions.evaluations import Evaluations
from trainer.actions.feeding import Feed
from trainer.actions.heartbeat import Heartbeat
from trainer.actions.kubeflow import Reporter
from trainer.actions.live import LiveLine
from trainer.actions.metrics import Metrics
from trainer.actions.output import Output
from trainer.actions.profile import Profiler
from trainer.actions.status import Status
from trainer.checkpoint import structure
from trainer.checkpoint.manager import CheckpointManager, EpochSums, LossAverages, Stateful
from trainer.cluster import failures, rendezvous, runtime, strategies
from trainer.cluster.agreement import Agreement
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.rendezvous import Ties
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.loop import Action, Progress
from trainer.plan import Plan
from trainer.step import optimizers, state, train_step
from trainer.task import data_spec
from trainer.task.base import Evaluation, Task
from trainer.timing.judge import Judge

_STOP = 0  # what workers agree on; numbers above it are 1 + those of actions
_ANSWER = 0  # the number of the action that answers SIGUSR1


def run(
    config: TrainConfig,
    plan: Plan,
    cluster: Cluster,
    interrupt: Interrupt,
    task: type[Task] | None = None,
    live: LiveLine | None = None,
    heartbeat: Heartbeat | None = None,
) -> Evaluation | None:
    """Trains to the end of the plan and evaluates.

    Returns:
      The last evaluation, or None if the config asks for none.

    Raises:
      RerunError: stopped by a signal, with the state saved, or another worker was lost.
      DataError: a loss or weight is not finite, or the data cannot be read.
      UsageError: the config does not fit this machine or the checkpoint in model_dir.
    """
    runtime.configure(config)
    output, heartbeat = Output(cluster.rank, live), heartbeat or Heartbeat()
    heartbeat.job(plan.last_step, config.order.global_batch_size, config.steps.steps_per_loop)
    ties = Ties(cluster)
    if cluster.size > 1:
        output.live.phase("")
        heartbeat.phase("waiting for all workers")
        with rendezvous.explaining(cluster.seat, config.run.join_timeout, output.live.aside):
            described = description.of(config, plan)
        ties = rendezvous.meet(cluster, described, config.run.join_timeout)
    with ties, ties.told(), failures.in_one_line(cluster.size):
        return _Run(config, plan, cluster, interrupt, task or Task, output, heartbeat, ties).run()


class _Run:
    """The parts of a run, made in the order in which they need each other."""

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        cluster: Cluster,
        interrupt: Interrupt,
        task: type[Task],
        output: Output,
        heartbeat: Heartbeat,
        ties: Ties,
    ) -> None:
        self.config, self.plan, self.cluster, self.interrupt = config, plan, cluster, interrupt
        self.output, self.heartbeat = output, heartbeat
        output.live.phase("building the model")
        joins = config.run.strategy == "multiworker"  # lets no thread run meanwhile
        heartbeat.phase("joining the cluster" if joins else "", quiet=config.run.collective_timeout)
        with interrupt.left_to_the_system() if joins else contextlib.nullcontext():
            self.strategy = strategies.create(config.run, config.order.global_batch_size, cluster)
        heartbeat.phase("building the model")
        self.agreement = Agreement(self.strategy, cluster)
        steps_per_epoch = plan.training.steps_per_epoch
        schedule = optimizers.schedule(config.optimizer, steps_per_epoch, plan.last_step)
        self.task = task(config, data_spec.of(plan.training.first))
        self.state = state.create(self.strategy, config, self.task, schedule)
        if cluster.size > 1:
            ties.compare(structure.of(self.state.model), description.model_difference, config.run.collective_timeout)
        self.stepper = train_step.create(self.strategy, self.state, config, plan.training)
        self.summary = RunSummary(output, config, plan, self.state)
        self.epoch_sums = EpochSums(self.stepper.epoch, self.stepper.steps_per_epoch)
        parts: dict[str, Stateful] = {"averages": LossAverages(self.stepper.averages), "epoch": self.epoch_sums}
        self.checkpoints = CheckpointManager(
            config, plan, self.state, parts, is_chief=cluster.is_chief, say=output.line
        )
        self.feed = Feed(config, plan, cluster, self.stepper)
        self.judge = Judge(config, plan, self.stepper)
        self.reporter = Reporter(plan.last_step, cluster.is_chief, output.line)
        unit = "img" if train_step.are_images(self.task.data.features) else "rows"
        self.status = Status(output.live, plan.last_step, steps_per_epoch, config.order.global_batch_size, unit)

    def run(self) -> Evaluation | None:
        """Restores or initializes, trains, evaluates."""
        restored = self.checkpoints.restore()
        self.agreement.check_equal("the step to resume from", self.state.step)
        if restored:
            self.checkpoints.complete_best()
        else:
            self.state.initialize(self.strategy)
        self.summary.start(self.strategy, restored, self.epoch_sums.steps)
        self.metrics = Metrics(self.config, self.task, self.state.step, self.cluster.is_chief)
        evaluations = self._evaluations()
        if self.state.step < self.plan.last_step and not self.checkpoints.ends_early:
            self._train(evaluations)
        result = self._evaluate_at_end(evaluations) if evaluations else None
        self.heartbeat.phase("finishing")
        self.reporter.end(self.state.step)
        self.summary.end(self.checkpoints, self.metrics.events.folder)
        self.state.take_averages()
        if self.cluster.is_chief:
            self.task.after_train(self.state.model, result)
        self._say_verdict()
        self.agreement.wait()
        return result

    def _train(self, evaluations: Evaluations | None) -> None:
        start, last, flags = self.state.step, self.plan.last_step, self.config.steps
        events = self.metrics.events
        profiler = Profiler(self.config.output.profiled, events.folder, self.cluster.is_chief)
        deferred, named = self.interrupt.deferred(), self.checkpoints.naming_the_way_back()
        with self.feed.inner_loop(start) as inner_loop, deferred, profiler, named:
            actions = [Action(0, self._answer), *composed.actions(self._parts(evaluations)), *profiler.actions()]
            actions.append(self.reporter.action())
            self.output.live.phase("compiling the step")
            if evaluations and not evaluations.before(start, flags.eval_every):
                raise self._stopped("evaluation")
            stopped = self.checkpoints.ends_early or loop.train(
                inner_loop, start, last, flags.steps_per_loop, actions, self._agree, self._watch
            )
            if self.config.output.headspace:
                self.judge.batch = next(self.feed.iterator)
            self._save()
        if stopped and not self.checkpoints.ends_early:
            raise self._stopped("training")

    def _watch(self, progress: Progress) -> None:
        """Is told of every inner loop."""
        self.heartbeat.watch(progress)
        self.reporter.watch(progress)
        self.judge.verdict.watch(progress)
        self.status.watch(progress)

    def _answer(self, progress: Progress) -> None:
        self.output.line(f"step {progress.step}, {self.judge.verdict.text()}")

    def _parts(self, evaluations: Evaluations | None) -> composed.Parts:
        return composed.Parts(
            self.config,
            self.stepper,
            self.output,
            self.metrics,
            evaluations.during if evaluations else None,
            self._save,
        )

    def _evaluations(self) -> Evaluations | None:
        splits = self.plan.evaluation
        if not splits:
            return None
        batches = {name: self.feed.batches(split.request) for name, split in splits.items()}
        steps_per_loop, may_skip = self.config.steps.steps_per_loop, self.plan.may_skip
        write = self.reporter.also(self.metrics.write)
        evaluator = Evaluator(self.stepper, batches, splits, may_skip, steps_per_loop, self._stop, write)
        return Evaluations(evaluator, self.checkpoints.best, self.output, self.plan.last_step)

    def _evaluate_at_end(self, evaluations: Evaluations) -> Evaluation:
        result = evaluations.at_end(self.state.step)
        if result is None:
            raise self._stopped("evaluation")
        self.checkpoints.tidy()
        return result

    def _save(self) -> None:
        with self.heartbeat.during("saving"):
            self.checkpoints.save()

    def _agree(self, due: Sequence[int]) -> tuple[bool, set[int]]:
        stop = [_STOP] if self.interrupt.requested is not None else []
        asked = [_ANSWER] if self.interrupt.asked else []
        self.interrupt.asked = False
        agreed = self.agreement.union([*stop, *(number + 1 for number in (*asked, *due))])
        return _STOP in agreed or self.checkpoints.ends_early, {number - 1 for number in agreed if number != _STOP}

    def _stop(self) -> bool:
        self.heartbeat.evaluated()
        return _STOP in self.agreement.union([_STOP] if self.interrupt.requested is not None else [])

    def _stopped(self, what: str) -> RerunError:
        signal = self.interrupt.requested.name if self.interrupt.requested else "another worker's signal"
        return RerunError(
            f"{what} stopped by {signal}: step {self.state.step} of {self.plan.last_step} is saved; "
            "rerun the same command to resume"
        )

    def _say_verdict(self) -> None:
        """Says what bounds the speed, after long runs and where --headspace asks for it."""
        is_asked = self.judge.batch is not None
        if self.agreement.on_any(is_asked or (self.cluster.is_chief and self.judge.verdict.is_worth_telling)):
            self.output.live.phase("measuring where the time goes")
            self.output.line(self.judge.measured())
