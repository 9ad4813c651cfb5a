"""One run, from the strategy to the last line: strategy -> state -> checkpoint -> callbacks -> input -> loop -> end.

`Run` contains what all runs share. `AllReduceRun` makes its steps on replicas that sum their gradients, in one or
several processes; the other kind is in `parameter_server.training`.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeAlias

import tensorflow as tf

from pipeline.batch.batches import best_place
from pipeline.batch.diagnosis import Fed, naming_records
from pipeline.commands.text import count_of
from pipeline.distribution import distribute_request, replicas_are_on_cpus
from pipeline.errors import RerunError, UsageError
from pipeline.order.key_log import SourceLogs
from pipeline.request import Request
from trainer import description, loop, runtime
from trainer import plan as plans
from trainer.callbacks import heartbeat
from trainer.callbacks.base import Callback, Callbacks
from trainer.callbacks.bottleneck import Bottleneck, Facts
from trainer.callbacks.evaluation import Evaluations, Evaluator
from trainer.callbacks.metrics_file import MetricsFile
from trainer.callbacks.progress import EpochLine, LogLine, ProgressBar, RunSummary, phase_text
from trainer.callbacks.tensorboard import Profiler, Shown, TensorBoard, TrainScalars
from trainer.callbacks.terminal import Output
from trainer.checkpoint import structure
from trainer.checkpoint.manager import CheckpointManager, Stateful, parts_of
from trainer.cluster import algorithms, failures, rendezvous, strategies
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.rendezvous import Ties
from trainer.cluster.strategies import Agreement
from trainer.cluster.tf_config import Cluster
from trainer.cluster.watchdog import Watchdog
from trainer.config import TrainConfig, meaning
from trainer.config.steps import Period
from trainer.loop import Action, InnerLoop, Progress
from trainer.loss_log import LossLog
from trainer.plan import Plan
from trainer.step import state, train_step
from trainer.step.evaluation import EvaluationStep
from trainer.step.summaries import are_images
from trainer.task import Evaluation, Task, uncalled

_STOP = 0  # workers agree on numbers: this one means stop, 1 + its number each action that is due
_ANSWER = 0  # number of the action that answers SIGUSR1

Batches: TypeAlias = Mapping[str, Iterable[tuple[Any, ...]]]  # {name: one pass over a split}
TrainLoop: TypeAlias = Callable[[Sequence[Action]], bool]  # trains to the last step; returns whether it was stopped


class _EpochSteps(Protocol):
    """The sums over an epoch, such as `trainer.checkpoint.manager.EpochSums`."""

    @property
    def steps(self) -> int:
        """Number of steps summed so far."""


class Run(Callback, abc.ABC):
    """A run from its first line to its last; a subclass connects the processes and makes the steps.

    It is itself one of its callbacks: callbacks before it run their actions first, on the state that it then saves.

    Attributes:
      strategy: strategy in whose scope the state is created; set by `connect`, as is `agreement`.
      agreement: means for the workers to agree on when to stop.
      task, state: task and state, available when `build_step` is called, which sets the attributes below.
      where, here: text on the devices of the run and of this process.
      epoch: counter of the steps of the epoch so far.
      parts: parts of a checkpoint that are not variables, by name.
      bottleneck: explanation of the speed; None without one.
      shown: step whose graph and histograms TensorBoard shows.
      read_histograms: function that returns the current histograms; None if a step's result has them.
    """

    io_device: ClassVar[str | None] = None  # device that reads and writes checkpoints; None for the variables' own
    rerun: ClassVar[str] = "rerun the same command to resume"  # what to do after a signal

    strategy: tf.distribute.Strategy
    agreement: Agreement
    where: str
    here: str
    epoch: _EpochSteps
    parts: Mapping[str, Stateful]
    bottleneck: Bottleneck | None = None
    shown: Shown
    read_histograms: Callable[[], tf.Tensor] | None = None

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        cluster: Cluster,
        interrupt: Interrupt,
        output: Output,
        callbacks: Callbacks,
    ) -> None:
        """Stores the arguments.

        Args:
          config, plan: flags and plan of the run.
          cluster: processes of the job, including this one.
          interrupt: interrupt that records signals.
          output: output for lines.
          callbacks: callbacks that already follow the run; all others are added.
        """
        self.config, self.plan, self.cluster, self.interrupt = config, plan, cluster, interrupt
        self.output, self.callbacks, self.is_chief = output, callbacks, cluster.is_chief
        self.evaluations: Evaluations | None = None

    def run(self, task: type[Task]) -> Evaluation | None:
        """Builds the model, restores or initializes it, trains to the end of the plan and evaluates.

        Args:
          task: class of the task.

        Returns:
          The last evaluation, or None if the config asks for none.

        Raises:
          RerunError: a signal stopped the run, with the state saved, or another process was lost or did not join.
          DataError: a loss or weight is not finite, or the data cannot be read.
          UsageError: the config does not fit this machine, the cluster or the checkpoint in the run's folder.
        """
        if odd := uncalled(task):
            self.output.line(odd)
        self.build(task)
        self._restore()
        self._attach_callbacks()
        with naming_records(self._fed):
            if self.state.step < self.plan.last_step and not self.checkpoints.ends_early:
                self._train()
            result = self._evaluate_at_end() if self.evaluations else None
        self.callbacks.on_end(self.state.step)
        self.summary.end(self.checkpoints)
        self.state.take_averages()  # once no checkpoint is saved any more
        if self.is_chief:
            self.task.after_train(self.state.model, result)
        self._say_bottleneck()  # last, because it changes the weights
        self.agreement.wait()
        return result

    def build(self, task: type[Task]) -> None:
        """Creates the strategy and, in its scope, the model, its state and the step."""
        self.connect()
        place = best_place(self.plan.inputs, self.on_gpus)
        self.config, self.plan = plans.settled(self.config, self.plan, place)
        self.callbacks.phase("building the model")
        self.state = state.planned(self.config, self.plan, self.strategy, task)
        self.task = self.state.task
        self.build_step()

    def _restore(self) -> None:
        """Restores the newest checkpoint, or initializes the state of a new run; prints the first lines."""
        config, plan, line = self.config, self.plan, self.output.line
        self.summary = RunSummary(self.output, config, plan, self.state)
        self.checkpoints = CheckpointManager(
            config,
            plan.training,
            plan.evaluation,
            self.state,
            self.parts,
            is_chief=self.is_chief,
            say=line,
            io_device=self.io_device,
        )
        restored = self.checkpoints.restore()
        # Without a shared --model_dir, workers would continue from different steps.
        shared = "--model_dir must be the same folder for all"
        self.agreement.check_equal("the step to resume from", lambda: self.state.step, shared)
        if restored:
            self.checkpoints.complete_best()
        else:
            self.state.initialize(self.strategy)
            # Each worker sets its own replicas' weights, and nothing makes them equal afterwards.
            alike = "--initialize_from must name the same file for all, and Task.initialize set the same weights"
            digest = functools.partial(self.state.digest_of_weights, self.strategy)
            self.agreement.check_equal("the digest of the first weights", digest, alike)
            if self.task.left_out:
                line(self.task.left_out)
        self.summary.start(self.where, self.here, restored, self.epoch.steps)

    def _attach_callbacks(self) -> None:
        """Adds the callbacks in the order of their actions: whatever a checkpoint stores comes before the save."""
        config, plan, output, last_step = self.config, self.plan, self.output, self.plan.last_step
        start, rows, is_chief = self.state.step, config.order.global_batch_size, self.is_chief
        unit = "img" if are_images(self.task.data.features) else "rows"
        folder, path, in_epoch = config.run.folder, config.output.metrics_jsonl, plan.training.steps_per_epoch
        skips = plan.training.spec.skip_steps
        period = functools.partial(config.steps.period, steps_per_epoch=in_epoch)
        if splits := plan.evaluation:
            stepper, batches = self.evaluation_input({name: split.request for name, split in splits.items()})
            flags, best = config.steps, self.checkpoints.best
            evaluator = Evaluator(stepper, batches, splits, plan.may_skip, flags.steps_per_loop, self._stops_evaluation)
            self.evaluations = Evaluations(evaluator, best, output, period("eval"), last_step, self.callbacks)
        self.progress_bar = ProgressBar(output.live, last_step, in_epoch, rows, unit)
        is_evaluated = self.evaluations.is_due if self.evaluations else lambda step: False
        self.epoch_line = EpochLine(in_epoch, last_step, lambda: self.epoch.steps, is_evaluated, output)
        callbacks: list[Callback | None] = [
            self.progress_bar,
            self.bottleneck,
            LogLine(period("log"), rows, output, skips),
            self.epoch_line if config.steps.logs_epochs else None,
            TrainScalars(
                period("summary"),
                rows,
                self.state.rate,
                self.callbacks.on_metrics,
                self.own_scalars,
                skips,
                plan.phases,
            ),
            TensorBoard(config, in_epoch, start, is_chief, self.shown, self.read_histograms),
            MetricsFile(path, start, folder) if path and is_chief else None,
            self.evaluations,
            self,
            Profiler(config.output.profiled, folder.logs, is_chief),
        ]
        self.callbacks.callbacks += [each for each in callbacks if each]

    def actions(self) -> list[Action]:
        """Returns the actions that begin a phase and that save."""
        period = self.config.steps.period("checkpoint", self.plan.training.steps_per_epoch)
        return [
            Action(Period(), self._begin_phase, at=tuple(self.state.phases.starts[1:])),
            Action(period, lambda progress: self._save(), pauses=True),
            Action(Period(), self._save_now, asked=lambda: self.interrupt.saves, pauses=True),
        ]

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Calls `Task.on_metrics` on the chief."""
        if self.is_chief:
            self.task.on_metrics(step, values)

    def _begin_phase(self, progress: Progress) -> None:
        self.output.line(phase_text(self.state))
        self.callbacks.phase("compiling the step")

    def _train(self) -> None:
        start, checkpoints = self.state.step, self.checkpoints
        most = self.config.steps.steps_per_loop
        steps = "the current step" if most == 1 else f"the current steps (at most {most})"
        # A launcher prints it once for all of its processes.
        first = "" if heartbeat.VARIABLE in os.environ else f"stops after {steps} and saves"
        with self.interrupt.deferred(first), self.callbacks.training(), checkpoints.naming_the_way_back():
            self.callbacks.phase("compiling the step")
            with self.train_loop(start) as train:
                if self.evaluations and not self.evaluations.before(start):
                    raise self._stopped("evaluation")
                stopped = checkpoints.ends_early or train(self.callbacks.actions())
                self._save()  # also after a signal: the run resumes from here
        if stopped and not checkpoints.ends_early:
            raise self._stopped("training")

    def _fed(self) -> Iterator[Fed]:
        first = self.state.step  # after the last loop: it does not show how far the next one got
        yield Fed(self.plan.input_at(first).request, first, first + self.config.steps.steps_per_loop + 1)
        yield from (Fed(part.request) for part in self.plan.evaluation.values())

    def _say_bottleneck(self) -> None:
        """Prints what limits the speed, after a long run or if --headspace is given."""
        if found := self.bottleneck:
            is_asked = found.batch is not None
            if self.agreement.on_any(is_asked or (self.is_chief and found.is_worth_telling)):
                self.callbacks.phase("measuring where the time goes")
                self.output.line(found.measured())

    def _save(self) -> None:
        with self.callbacks.saving():
            if self.is_chief:
                algorithms.publish(self.config.run.folder)
            self.checkpoints.save()

    def _save_now(self, progress: Progress) -> None:
        self.interrupt.saves = False
        self._save()
        self.output.line(f"step {progress.step} is saved, as SIGUSR2 asked: {self.checkpoints.newest}")

    def _evaluate_at_end(self) -> Evaluation:
        assert self.evaluations is not None
        result = self.evaluations.at_end(self.state.step)
        if result is None:
            self.epoch_line.flush()
            raise self._stopped("evaluation")
        self.checkpoints.tidy()
        return result

    def _stops_evaluation(self) -> bool:
        self.callbacks.on_evaluation_loop()
        return _STOP in self.agreement.union([_STOP] if self.interrupt.requested is not None else [])

    def _stopped(self, what: str) -> RerunError:
        signal = self.interrupt.reason or "another worker's signal"
        return RerunError(
            f"{what} stopped by {signal}: step {self.state.step} of {self.plan.last_step} is saved; {self.rerun}"
        )

    @property
    def on_gpus(self) -> bool:
        """Whether all replicas are on GPUs, which determines `auto`; known once `connect` has been called."""
        return False

    def own_scalars(self) -> dict[str, float]:
        """Returns further numbers of this kind of run by TensorBoard tag."""
        return {}

    @abc.abstractmethod
    def connect(self) -> None:
        """Creates `strategy` and `agreement`; with several processes, connects TensorFlow's servers."""

    @abc.abstractmethod
    def build_step(self) -> None:
        """Creates the step, and sets the attributes listed in the class."""

    @abc.abstractmethod
    def evaluation_input(self, requests: Mapping[str, Request]) -> tuple[EvaluationStep, Batches]:
        """Returns the step that evaluates, and the batches of each request."""

    @abc.abstractmethod
    def train_loop(self, start: int) -> AbstractContextManager[TrainLoop]:
        """Returns a context with the loop up to the last step."""


class AllReduceRun(Run):
    """A run of one process or several workers, whose replicas sum their gradients in every step."""

    def run(self, task: type[Task]) -> Evaluation | None:
        """Meets the other workers, runs with them, and gives up those that stop responding; see `Run.run`."""
        cluster, timeout = self.cluster, self.config.run.join_timeout
        strategies.configure(self.config, self.is_chief)
        is_compiled = train_step.is_compiled(self.config)
        self.config = self.config.with_mode("on" if is_compiled else "off")  # for checkpoints
        self.ties, self._watchdog = Ties(cluster), Watchdog(self.config.run.collective_timeout, cluster)
        if cluster.size > 1:
            self.callbacks.phase("waiting for all workers", shown="")
            with rendezvous.explaining(cluster, timeout, self.output.live.aside):
                described = description.of(self.config, self.plan)
            self.ties = rendezvous.meet(cluster, described, timeout)
        with self.ties, self.ties.told(), failures.in_one_line(cluster.size), self._watchdog:
            return super().run(task)

    def connect(self) -> None:
        """Creates the strategy; with several workers, joins TensorFlow's cluster, which blocks all other threads."""
        config, joins = self.config, self.config.run.strategy == meaning.MULTIWORKER
        self.callbacks.phase("building the model")
        if joins:
            quiet = config.run.collective_timeout
            self.callbacks.phase("joining the cluster", quiet=quiet, shown="building the model")
        with self.interrupt.left_to_the_system() if joins else contextlib.nullcontext():
            self.strategy = strategies.create(config.run, config.order.global_batch_size, self.cluster)
        if joins and self.strategy.num_replicas_in_sync > 1:
            self._watchdog.watch(self.strategy)
        self.agreement = Agreement(self.strategy, self.cluster)

    @property
    def on_gpus(self) -> bool:
        """Whether all replicas are on GPUs; the same on all workers, since they compare their numbers of GPUs."""
        return not replicas_are_on_cpus(self.strategy)

    def build_step(self) -> None:
        """Checks that all workers have the same model, and creates the step."""
        config, plan = self.config, self.plan
        if self.cluster.size > 1:
            found = structure.of(self.state.model)
            self.ties.compare(found, description.model_difference, config.run.collective_timeout)
        self.stepper = self.shown = train_step.create(self.strategy, self.state, config, plan.training, plan.inputs)
        self.bottleneck: Bottleneck = Bottleneck(config, Facts.of(plan, self.strategy, self.state.model), self.stepper)
        self.parts = parts_of(self.stepper)
        self.epoch = self.parts["epoch"]
        devices = strategies.device_names(self.strategy)
        self.callbacks.on_devices(devices)
        self.here = f"here {', '.join(devices)}"
        self.where = f"{count_of(self.strategy.num_replicas_in_sync, 'replica')}, {self.here}"

    def evaluation_input(self, requests: Mapping[str, Request]) -> tuple[EvaluationStep, Batches]:
        """Returns a step that evaluates on the same replicas, and distributed batches."""
        step = EvaluationStep(self.strategy, self.state, self.config.order.virtual_replicas)
        return step, {name: self.batches(request) for name, request in requests.items()}

    @contextlib.contextmanager
    def train_loop(self, start: int) -> Iterator[TrainLoop]:
        """Context with the loop over the training batches.

        Raises:
          UsageError: --log_keys cannot work with a task's own parse function.
          DataError: a log cannot be written.
        """
        if meaning.given(self.config, "logs_rows"):
            with self._logged(start) as inner_loop:
                yield functools.partial(self._train_to_end, inner_loop, start)
            return
        made = list[loop.Batches]()

        def make() -> InnerLoop:
            made[:] = [loop.Batches(self.plan, self.batches)]  # frees what the last one holds
            return lambda steps, summaries: self.stepper.run(made[-1].at(self.state.step), steps, summaries)

        yield functools.partial(self._train_to_end, loop.made_again(make, self._leave_xla), start)
        if self.config.output.headspace:
            self.bottleneck.batch = next(made[-1].at(self.state.step))

    @contextlib.contextmanager
    def _logged(self, start: int) -> Iterator[InnerLoop]:
        """Context with an inner loop that logs the keys or the losses of each step's rows."""
        flags, rank, size = self.config.run, self.cluster.rank, self.cluster.size
        num_replicas, options = self.strategy.num_replicas_in_sync, dict[str, Any]()
        with contextlib.ExitStack() as opened:
            keys = losses = None
            if flags.log_keys:
                if self.plan.training.request.parse:
                    raise UsageError(f"--log_keys={flags.log_keys}: does not work with a task's own parse function")
                if not all("key" in part.manifest.features for part in self.plan.training.parts):
                    raise UsageError(f"--log_keys={flags.log_keys}: the manifest of the data names no key")
                spec = self.plan.training.spec
                logs = SourceLogs(flags.log_keys, spec, rank, size, num_replicas, start)
                keys, options["features"] = opened.enter_context(logs), ("key",)
            if flags.log_losses:
                losses = opened.enter_context(LossLog(flags.log_losses, rank, size, start))
                options["record_ids"] = True

            def make() -> InnerLoop:
                # Keys stay in host memory, since GPUs have no strings.
                made = functools.partial(self.batches, prefetch=0 if keys else None)
                batches = loop.Batches(self.plan, made, **options)
                return loop.logged(self.stepper, batches.at, rank * (num_replicas // size), keys, losses)

            yield loop.made_again(make, self._leave_xla)

    def _leave_xla(self, error: Exception) -> bool:
        """Continues without XLA if an error means that XLA cannot compile the step; returns whether it does.

        All workers decide alike, since each compiles the same step before its first all-reduce.
        """
        compiled = self.stepper.gradients.compiled
        if not compiled or not isinstance(error, tf.errors.OpError) or not runtime.is_of_xla(error):
            return False
        why = runtime.said_by_xla(error)
        self.output.line(f"XLA cannot compile the step, which continues without it, as with --jit_compile=off: {why}")
        self.config = self.config.with_mode("off")
        self.checkpoints.use(self.config)
        self.stepper = self.bottleneck.stepper = self.stepper.without_xla()
        return True

    def _train_to_end(self, inner_loop: InnerLoop, start: int, actions: Sequence[Action]) -> bool:
        last_step, steps_per_loop = self.plan.last_step, self.config.steps.steps_per_loop
        answer = Action(Period(), self._answer)
        return loop.train(
            inner_loop,
            start,
            last_step,
            steps_per_loop,
            [answer, *actions],
            self._agree,
            self.callbacks.on_loop,
            self.plan.phases,
        )

    def batches(self, request: Request, prefetch: int | None = None) -> Any:
        """Returns distributed batches, prefetching `prefetch` of them, or as many as --prefetch if that is None."""
        order = self.config.order
        ahead = order.prefetch if prefetch is None else prefetch
        return distribute_request(self.strategy, request, ahead, order.virtual_replicas, grouped=True)

    def _answer(self, progress: Progress) -> None:
        self.output.line(f"step {progress.step}, {self.bottleneck.text()}")

    def _agree(self, due: Sequence[int]) -> tuple[bool, set[int]]:
        stop = [_STOP] if self.interrupt.requested is not None else []
        asked = [_ANSWER] if self.interrupt.asked else []
        self.interrupt.asked = False
        agreed = self.agreement.union([*stop, *(number + 1 for number in (*asked, *due))])
        return _STOP in agreed or self.checkpoints.ends_early, {number - 1 for number in agreed if number != _STOP}
