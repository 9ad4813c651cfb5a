"""One run, from the strategy to the last line: strategy -> state -> checkpoint -> callbacks -> input -> loop -> end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.audit.key_log import SourceLogs
from pipeline.distribution import distribute_request
from pipeline.errors import RerunError, UsageError
from pipeline.request import Request
from trainer import description, loop
from trainer.callbacks.base import Callback, Callbacks
from trainer.callbacks.bottleneck import Bottleneck, Facts
from trainer.callbacks.evaluation import Evaluations, Evaluator
from trainer.callbacks.kubeflow import KubeflowReporter
from trainer.callbacks.metrics_file import MetricsFile, TaskMetrics
from trainer.callbacks.progress import LogLine, ProgressBar
from trainer.callbacks.run_summary import RunSummary
from trainer.callbacks.tensorboard import Profiler, TensorBoard, TrainScalars
from trainer.callbacks.terminal import Output
from trainer.checkpoint import structure
from trainer.checkpoint.manager import CheckpointManager, EpochSums, LossAverages, Stateful
from trainer.cluster import failures, rendezvous, runtime, strategies
from trainer.cluster.agreement import Agreement
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.rendezvous import Ties
from trainer.cluster.tf_config import Cluster
from trainer.config import TrainConfig
from trainer.loop import Action, InnerLoop, Progress
from trainer.plan import Plan
from trainer.step import optimizers, state, train_step
from trainer.task import data_spec
from trainer.task.base import Evaluation, Task

_STOP = 0  # what workers agree on; numbers above it are 1 + those of actions
_ANSWER = 0  # the number of the action that answers SIGUSR1


def run(
    config: TrainConfig,
    plan: Plan,
    cluster: Cluster,
    interrupt: Interrupt,
    task: type[Task],
    output: Output,
    callbacks: Callbacks,
) -> Evaluation | None:
    """Trains to the end of the plan and evaluates.

    Args:
      config: of the run.
      plan: of the same.
      cluster: of which this process is a worker.
      interrupt: says whether a signal came.
      task: its class.
      output: of lines.
      callbacks: that were told of the run so far; all others are added.

    Returns:
      The last evaluation, or None if the config asks for none.

    Raises:
      RerunError: stopped by a signal, with the state saved, or another worker was lost.
      DataError: a loss or weight is not finite, or the data cannot be read.
      UsageError: the config does not fit this machine or the checkpoint in the run's folder.
    """
    runtime.configure(config)
    ties = Ties(cluster)
    if cluster.size > 1:
        callbacks.phase("waiting for all workers", shown="")
        with rendezvous.explaining(cluster.seat, config.run.join_timeout, output.live.aside):
            described = description.of(config, plan)
        ties = rendezvous.meet(cluster, described, config.run.join_timeout)
    with ties, ties.told(), failures.in_one_line(cluster.size):
        return _Run(config, plan, cluster, interrupt, output, callbacks).run(task, ties)


class _Run:
    """The parts of a run, each made once those that it needs are there."""

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        cluster: Cluster,
        interrupt: Interrupt,
        output: Output,
        callbacks: Callbacks,
    ) -> None:
        self.config, self.plan, self.cluster, self.interrupt = config, plan, cluster, interrupt
        self.output, self.callbacks = output, callbacks

    def run(self, task: type[Task], ties: Ties) -> Evaluation | None:
        """Builds the model, restores or initializes it, trains, evaluates."""
        self._join()
        self._build(task, ties)
        self._restore()
        self._attach_callbacks()
        if self.state.step < self.plan.last_step and not self.checkpoints.ends_early:
            self._train()
        result = self._evaluate_at_end() if self.evaluations else None
        self.callbacks.on_end(self.state.step)
        self.summary.end(self.checkpoints)
        self.state.take_averages()
        if self.cluster.is_chief:
            self.task.after_train(self.state.model, result)
        self._say_bottleneck()  # last, as it changes the weights
        self.agreement.wait()
        return result

    def _join(self) -> None:
        """Makes the strategy; with several workers, joins TensorFlow's cluster, which lets no thread run meanwhile."""
        config, joins = self.config, self.config.run.strategy == "multiworker"
        self.callbacks.phase("building the model")
        if joins:
            quiet = config.run.collective_timeout
            self.callbacks.phase("joining the cluster", quiet=quiet, shown="building the model")
        with self.interrupt.left_to_the_system() if joins else contextlib.nullcontext():
            self.strategy = strategies.create(config.run, config.order.global_batch_size, self.cluster)
        self.agreement = Agreement(self.strategy, self.cluster)

    def _build(self, task: type[Task], ties: Ties) -> None:
        """Makes the model, its state and its step, and compares them with those of the other workers."""
        config, plan = self.config, self.plan
        self.callbacks.phase("building the model")
        schedule = optimizers.schedule(config.optimizer, plan.training.steps_per_epoch, plan.last_step)
        self.task = task(config, data_spec.of(plan.training.first))
        self.state = state.create(self.strategy, config, self.task, schedule)
        if self.cluster.size > 1:
            found = structure.of(self.state.model)
            ties.compare(found, description.model_difference, config.run.collective_timeout)
        self.stepper = train_step.create(self.strategy, self.state, config, plan.training)
        self.bottleneck = Bottleneck(config, Facts.of(plan, self.strategy), self.stepper)

    def _restore(self) -> None:
        """Restores the newest checkpoint, or begins a new run; prints the first lines."""
        config, plan = self.config, self.plan
        self.summary = RunSummary(self.output, config, plan, self.state)
        epoch = EpochSums(self.stepper.epoch, self.stepper.steps_per_epoch)
        parts: dict[str, Stateful] = {"averages": LossAverages(self.stepper.averages), "epoch": epoch}
        is_chief = self.cluster.is_chief
        self.checkpoints = CheckpointManager(config, plan, self.state, parts, is_chief=is_chief, say=self.output.line)
        restored = self.checkpoints.restore()
        self.agreement.check_equal("the step to resume from", self.state.step)
        if restored:
            self.checkpoints.complete_best()
        else:
            self.state.initialize(self.strategy)
        self.summary.start(self.strategy, restored, epoch.steps)

    def _attach_callbacks(self) -> None:
        """Adds what is told of the steps, in the order of its actions: what a checkpoint stores before it is saved."""
        config, plan, output = self.config, self.plan, self.output
        start, rows, is_chief = self.state.step, config.order.global_batch_size, self.cluster.is_chief
        unit = "img" if train_step.are_images(self.task.data.features) else "rows"
        self.evaluations = self._evaluations()
        folder, path = config.run.folder, config.output.metrics_jsonl
        callbacks: list[Callback | None] = [
            ProgressBar(output.live, plan.last_step, plan.training.steps_per_epoch, rows, unit),
            self.bottleneck,
            LogLine(config.steps.log_every, rows, output),
            TrainScalars(config.steps, rows, self.state.rate, self.callbacks.on_metrics),
            TensorBoard(config, start, is_chief, self.stepper),
            MetricsFile(path, start, folder) if path and is_chief else None,
            TaskMetrics(self.task) if is_chief else None,
            self.evaluations,
            _Saver(config, self._save),
            Profiler(config.output.profiled, folder.logs, is_chief),
            KubeflowReporter(plan.last_step, is_chief, output.line),
        ]
        self.callbacks.callbacks += [each for each in callbacks if each]

    def _evaluations(self) -> Evaluations | None:
        splits, flags = self.plan.evaluation, self.config.steps
        if not splits:
            return None
        batches = {name: self._batches(split.request) for name, split in splits.items()}
        may_skip = self.plan.may_skip
        evaluator = Evaluator(self.stepper, batches, splits, may_skip, flags.steps_per_loop, self._stops_evaluation)
        best, last_step = self.checkpoints.best, self.plan.last_step
        return Evaluations(evaluator, best, self.output, flags.eval_every, last_step, self.callbacks)

    def _train(self) -> None:
        start, last, checkpoints = self.state.step, self.plan.last_step, self.checkpoints
        deferred, named = self.interrupt.deferred(), checkpoints.naming_the_way_back()
        with self._inner_loop(start) as inner_loop, deferred, self.callbacks.training(), named:
            self.callbacks.phase("compiling the step")
            if self.evaluations and not self.evaluations.before(start):
                raise self._stopped("evaluation")
            actions = [Action(0, self._answer), *self.callbacks.actions()]
            stopped = checkpoints.ends_early or loop.train(
                inner_loop,
                start,
                last,
                self.config.steps.steps_per_loop,
                actions,
                self._agree,
                self.callbacks.on_loop,
            )
            if self.config.output.headspace:
                self.bottleneck.batch = next(self.iterator)
            self._save()
        if stopped and not checkpoints.ends_early:
            raise self._stopped("training")

    def _batches(self, request: Request, prefetch: int | None = None) -> Any:
        """Returns distributed batches; None: as many of them are ready as --prefetch says."""
        order = self.config.order
        ahead = order.prefetch if prefetch is None else prefetch
        return distribute_request(self.strategy, request, ahead, order.virtual_replicas)

    @contextlib.contextmanager
    def _inner_loop(self, start: int) -> Iterator[InnerLoop]:
        """Context with the loop over the training batches from a step on.

        Raises:
          UsageError: --log_keys cannot work with a task's own parse function.
        """
        request, folder = dataclasses.replace(self.plan.training.request, start_step=start), self.config.run.log_keys
        if not folder:
            iterator = self.iterator = iter(self._batches(request))
            yield functools.partial(self.stepper.run, iterator)
            return
        if request.parse:
            raise UsageError(f"--log_keys={folder}: not for a task with its own parse function")
        rank, size, num_replicas = self.cluster.rank, self.cluster.size, self.strategy.num_replicas_in_sync
        with SourceLogs(folder, self.plan.training.spec, rank, size, num_replicas) as log:
            batches = self._batches(dataclasses.replace(request, features=("key",)), prefetch=0)
            yield loop.logged(self.stepper, iter(batches), log, rank * (num_replicas // size))

    def _save(self) -> None:
        with self.callbacks.saving():
            self.checkpoints.save()

    def _answer(self, progress: Progress) -> None:
        self.output.line(f"step {progress.step}, {self.bottleneck.text()}")

    def _evaluate_at_end(self) -> Evaluation:
        assert self.evaluations is not None
        result = self.evaluations.at_end(self.state.step)
        if result is None:
            raise self._stopped("evaluation")
        self.checkpoints.tidy()
        return result

    def _agree(self, due: Sequence[int]) -> tuple[bool, set[int]]:
        stop = [_STOP] if self.interrupt.requested is not None else []
        asked = [_ANSWER] if self.interrupt.asked else []
        self.interrupt.asked = False
        agreed = self.agreement.union([*stop, *(number + 1 for number in (*asked, *due))])
        return _STOP in agreed or self.checkpoints.ends_early, {number - 1 for number in agreed if number != _STOP}

    def _stops_evaluation(self) -> bool:
        self.callbacks.on_evaluation_loop()
        return _STOP in self.agreement.union([_STOP] if self.interrupt.requested is not None else [])

    def _stopped(self, what: str) -> RerunError:
        signal = self.interrupt.requested.name if self.interrupt.requested else "another worker's signal"
        return RerunError(
            f"{what} stopped by {signal}: step {self.state.step} of {self.plan.last_step} is saved; "
            "rerun the same command to resume"
        )

    def _say_bottleneck(self) -> None:
        """Says what bounds the speed, after long runs and if --headspace asks for it."""
        is_asked = self.bottleneck.batch is not None
        if self.agreement.on_any(is_asked or (self.cluster.is_chief and self.bottleneck.is_worth_telling)):
            self.callbacks.phase("measuring where the time goes")
            self.output.line(self.bottleneck.measured())


class _Saver(Callback):
    """Saves checkpoints as --checkpoint_every and --checkpoint_secs say."""

    def __init__(self, config: TrainConfig, save: Callable[[], None]) -> None:
        self._flags, self._save = config.steps, save

    def actions(self) -> list[Action]:
        """Returns the action that saves."""
        every, seconds = self._flags.checkpoint_every, self._flags.checkpoint_secs
        return [Action(every, lambda progress: self._save(), seconds=seconds)]
