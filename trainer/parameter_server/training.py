"""Composes a run with parameter servers: what each process does, and on the chief all of the training."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.commands.text import count_of
from pipeline.errors import DataError, PipelineError, RerunError, UsageError
from trainer import description
from trainer.callbacks.base import Callback, Callbacks
from trainer.callbacks.evaluation import Evaluations, Evaluator
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.kubeflow import KubeflowReporter
from trainer.callbacks.metrics_file import MetricsFile, TaskMetrics
from trainer.callbacks.progress import LogLine, ProgressBar
from trainer.callbacks.run_summary import RunSummary
from trainer.callbacks.tensorboard import TensorBoard, TrainScalars
from trainer.callbacks.terminal import Output
from trainer.checkpoint.manager import CheckpointManager, Stateful
from trainer.cluster import failures, ports, rendezvous, runtime
from trainer.cluster.interrupt import Interrupt
from trainer.config import TrainConfig
from trainer.loop import Action, Progress
from trainer.parameter_server import numbered
from trainer.parameter_server.asynchronous import Asynchronous, AsyncScheduler
from trainer.parameter_server.columns import ColumnBatches
from trainer.parameter_server.compute import Compute
from trainer.parameter_server.connecting import CHIEF_DEVICE, connect
from trainer.parameter_server.guest import WorkerClient
from trainer.parameter_server.host import Host
from trainer.parameter_server.ledger import Ledger, Tally
from trainer.parameter_server.loop import Loop
from trainer.parameter_server.roles import CHIEF, PS, WORKER, Roles, Task, gradients_of_step
from trainer.parameter_server.rows import Averages, EpochSums, Rows
from trainer.parameter_server.scheduling import Closures, Scheduler, WorkerLines
from trainer.parameter_server.synchronous import Synchronous, SyncScheduler
from trainer.plan import Plan
from trainer.step import optimizers, state, train_step
from trainer.step.state import TrainState
from trainer.step.train_step import TrainStep
from trainer.task import base, data_spec
from trainer.task.base import Evaluation, Sums


def run(
    config: TrainConfig,
    plan: Plan,
    roles: Roles,
    interrupt: Interrupt,
    task: type[base.Task],
    output: Output,
    callbacks: Callbacks,
) -> Evaluation | None:
    """Trains to the end of the plan and evaluates, as the chief of a job.

    Returns:
      The last evaluation, or None if the config asks for none.

    Raises:
      RerunError: stopped by a signal, with the state saved; or a parameter server was lost, or a process did not come.
      DataError: a loss or weight is not finite, or the data cannot be read.
      UsageError: the config does not fit the cluster or the checkpoint in the run's folder.
    """
    timeout, silence = config.run.join_timeout, config.run.collective_timeout
    with rendezvous.explaining(roles.seat, timeout, output.live.aside):
        runtime.configure(config)
        expected = {PS: description.of_server(config), WORKER: description.of_graph_reader(config, plan)}
    tf.get_logger().setLevel("CRITICAL")  # TensorFlow tells of lost workers in many lines; here it is one

    def expected_of(task: Task) -> description.Description:
        return described(roles, expected[task.job])

    chief = Task(CHIEF)
    callbacks.phase("waiting for all processes", shown="")
    port = ports.listen_at(roles.address(chief), roles.name(chief), roles.source_of(chief))
    needed = gradients_of_step(config, len(roles.workers))
    on_lost = callbacks.on_lost
    with Host(roles, expected_of, port, timeout, silence, needed, interrupt, output.line, on_lost) as host:
        host.wait()
        with _in_one_line(host, roles):
            return _Run(config, plan, roles, interrupt, task, output, callbacks, host).run()


def serve(config: TrainConfig, plan: Plan | None, roles: Roles, interrupt: Interrupt, heartbeat: Heartbeat) -> None:
    """Serves the chief as a worker or a parameter server; see `WorkerClient.serve`.

    Args:
      config: of the job.
      plan: None on a parameter server.
      roles: the processes.
      interrupt: says whether a signal came.
      heartbeat: says what is done.
    """
    timeout, silence = config.run.join_timeout, config.run.collective_timeout
    with rendezvous.explaining(roles.seat, timeout):
        runtime.configure(config)
        mine = description.of_graph_reader(config, plan) if plan else description.of_server(config)
    WorkerClient(roles, described(roles, mine), timeout, silence, interrupt, heartbeat).serve()


def described(roles: Roles, rest: description.Description) -> description.Description:
    """Returns the description of a process, with its cluster."""
    return [{"cluster": f"a cluster of {roles}"}, *rest]


@contextlib.contextmanager
def _in_one_line(host: Host, roles: Roles) -> Iterator[None]:
    """Turns TensorFlow's errors inside into PipelineErrors that name the worker or server they come from."""
    try:
        with failures.in_one_line(2):
            yield
    except (DataError, UsageError) as error:
        worker = getattr(error.__context__, "worker", None)  # see `connecting`
        if worker is None:
            raise
        raise type(error)(f"{roles.name(Task(WORKER, worker))}: {error}") from None
    except RerunError:
        host.check_soon()
        raise


class _Run:
    """The parts of a run, made in the order in which they need each other."""

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        roles: Roles,
        interrupt: Interrupt,
        task: type[base.Task],
        output: Output,
        callbacks: Callbacks,
        host: Host,
    ) -> None:
        self.config, self.plan, self.roles, self.interrupt = config, plan, roles, interrupt
        self.output, self.callbacks, self.host = output, callbacks, host
        callbacks.phase("connecting")
        self.strategy, coordinator, self.members, self._server = connect(roles, host)
        callbacks.phase("building the model")
        steps_per_epoch = plan.training.steps_per_epoch
        schedule = optimizers.schedule(config.optimizer, steps_per_epoch, plan.last_step)
        self.task = task(config, data_spec.of(plan.training.first))
        self.state = state.create(self.strategy, config, self.task, schedule)
        numbered.check(self.state.optimizer, config.model.task or f"--optimizer={config.optimizer.optimizer}")
        self.averages, self.epoch, self.tally = Averages(), EpochSums(steps_per_epoch), Tally()
        self.summary = RunSummary(output, config, plan, self.state)
        parts: dict[str, Stateful] = {"averages": self.averages, "epoch": self.epoch, "ledger": self.tally}
        self.checkpoints = CheckpointManager(
            config, plan, self.state, parts, is_chief=True, say=output.line, io_device=CHIEF_DEVICE
        )
        self.workers = _workers(config, plan, roles, self.strategy, coordinator, self.state, host)

    def run(self) -> Evaluation | None:
        """Restores or initializes, trains, evaluates."""
        restored = self.checkpoints.restore()
        if restored:
            self.checkpoints.complete_best()
        else:
            self.state.initialize(self.strategy)
        start, where = self.state.step, self.workers.where
        self.summary.start_at(where, where, restored, self.epoch.steps)
        evaluations = self._evaluations()
        self._attach_callbacks(start)
        if start < self.plan.last_step and not self.checkpoints.ends_early:
            self._train(start, evaluations)
        result = self._evaluate_at_end(evaluations) if evaluations else None
        self.callbacks.on_end(self.state.step)
        if absent := self.host.never_came:
            self.output.line(f"never came: {', '.join(absent)}; the other workers made all steps")
        self.output.line(str(self.tally))
        self.summary.end(self.checkpoints)
        self.state.take_averages()
        self.task.after_train(self.state.model, result)
        return result

    def _train(self, start: int, evaluations: Evaluations | None) -> None:
        with self.interrupt.deferred(), self.checkpoints.naming_the_way_back():
            self.callbacks.phase("compiling the step")
            # TensorFlow waits for all workers where something runs for the first time, and so for one that has stopped.
            self.state.rate(self.state.global_step.read_value())
            self.state.is_finite()
            self.workers.ledger.read(start, start)
            if evaluations and not evaluations.before(start):
                raise self._stopped("evaluation")
            stopped = self.checkpoints.ends_early or self._loop(evaluations).train(start, self.plan.last_step)
            self._save()
        if stopped and not self.checkpoints.ends_early:
            raise self._stopped("training")

    def _loop(self, evaluations: Evaluations | None) -> Loop:
        flags, workers = self.config.steps, self.workers
        light = self.callbacks.actions()
        heavy = [
            *(evaluations.actions() if evaluations else []),
            Action(flags.checkpoint_every, lambda progress: self._save(), seconds=flags.checkpoint_secs),
        ]
        return Loop(
            workers.scheduler,
            workers.rows,
            self.averages,
            self.epoch,
            workers.ledger,
            self.tally,
            light,
            heavy,
            self._settle,
            self._stop,
            self._watch,
        )

    def _save(self) -> None:
        with self.callbacks.saving():
            self.checkpoints.save()

    def _settle(self, step: int) -> None:
        """Sets the counts to the step: a gradient that was applied twice has counted twice."""
        self.state.global_step.assign(step)
        self.state.optimizer.iterations.assign(step)

    def _watch(self, progress: Progress) -> None:
        self.callbacks.on_loop(progress)
        if self.interrupt.asked:
            self.interrupt.asked = False
            self.output.line(self.progress_bar.text(progress))

    def _evaluations(self) -> Evaluations | None:
        splits = self.plan.evaluation
        if not splits:
            return None
        evaluator = Evaluator(
            _ChiefStepper(self.state),
            {name: make_dataset(split.request) for name, split in splits.items()},
            splits,
            self.plan.may_skip,
            self.config.steps.steps_per_loop,
            self._stop_evaluation,
        )
        every, last_step = self.config.steps.eval_every, self.plan.last_step
        return Evaluations(evaluator, self.checkpoints.best, self.output, every, last_step, self.callbacks)

    def _attach_callbacks(self, start: int) -> None:
        """Adds what is told of the steps; evaluations and checkpoints are not among them, as they need a pause."""
        config, plan, output, rows = self.config, self.plan, self.output, self.config.order.global_batch_size
        unit = "img" if train_step.are_images(self.task.data.features) else "rows"
        self.progress_bar = ProgressBar(output.live, plan.last_step, plan.training.steps_per_epoch, rows, unit)
        path = config.output.metrics_jsonl
        callbacks: list[Callback | None] = [
            self.progress_bar,
            LogLine(config.steps.log_every, rows, output),
            TrainScalars(config.steps, rows, self.state.rate, self.callbacks.on_metrics),
            TensorBoard(config, start, is_chief=True),
            MetricsFile(path, start, config.run.folder) if path else None,
            TaskMetrics(self.task),
            KubeflowReporter(plan.last_step, True, output.line),
        ]
        self.callbacks.callbacks += [each for each in callbacks if each]

    def _evaluate_at_end(self, evaluations: Evaluations) -> Evaluation:
        result = evaluations.at_end(self.state.step)
        if result is None:
            raise self._stopped("evaluation")
        self.checkpoints.tidy()
        return result

    def _stop(self) -> bool:
        self.host.check()
        self.members.tend()
        asked = self.interrupt.requested is not None
        if asked and not self.host.has_workers:
            raise RerunError(
                "stopped while no worker was there: nothing is saved since the last checkpoint; rerun the same "
                "commands to resume"
            )
        return asked or self.checkpoints.ends_early

    def _stop_evaluation(self) -> bool:
        self.callbacks.on_evaluation_loop()
        self.members.tend()
        return self.interrupt.requested is not None

    def _stopped(self, what: str) -> PipelineError:
        assert self.interrupt.requested is not None
        return RerunError(
            f"{what} stopped by {self.interrupt.reason}: step {self.state.step} of {self.plan.last_step} is "
            "saved; rerun the same commands to resume"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Workers:
    """What makes steps.

    Attributes:
      scheduler: of them.
      rows: says what they came to.
      ledger: counts them.
      where: a few words on who computes.
    """

    scheduler: Scheduler
    rows: Rows
    ledger: Ledger
    where: str


def _workers(
    config: TrainConfig,
    plan: Plan,
    roles: Roles,
    strategy: tf.distribute.Strategy,
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    state: TrainState,
    host: Host,
) -> _Workers:
    """Returns what makes the steps of a run."""
    num_workers, lines, flags = len(roles.workers), WorkerLines(host, config.steps.log_every), config.aggregation
    needed = gradients_of_step(config, num_workers)
    batches = ColumnBatches(plan.training.first, needed)
    with strategy.scope():
        ledger = Ledger()
    columns = iter(coordinator.create_per_worker_dataset(tf.function(batches.dataset, autograph=False)))
    compute, rows, closures = (
        Compute(strategy, state, config, train_step.distortion(plan.training)),
        Rows(state.measure),
        Closures(coordinator, host.check_soon),
    )
    where = f"{count_of(num_workers, 'worker')}, {len(roles.ps)} ps"
    if flags.sync:
        shares = Synchronous(strategy, state, batches, compute, ledger, rows, num_workers)
        rounds = SyncScheduler(shares, closures, columns, num_workers, needed, flags.max_staleness, lines)
        return _Workers(
            rounds, rows, ledger, f"{where}, synchronous by {needed} of {count_of(num_workers, 'gradient')}"
        )
    graph = Asynchronous(state, batches, compute, ledger, rows)
    blocks = AsyncScheduler(graph, closures, columns, num_workers, config.steps.steps_per_loop, lines)
    return _Workers(blocks, rows, ledger, f"{where}, asynchronous")


class _ChiefStepper(TrainStep):
    """Evaluates with a copy of the weights in the chief's memory; workers train."""

    def __init__(self, state: TrainState) -> None:
        super().__init__(tf.distribute.OneDeviceStrategy(CHIEF_DEVICE), state)
        model = state.model
        weights = state.averages.values if state.averages else [v.value for v in model.trainable_variables]
        self._theirs = [*weights, *(v.value for v in model.non_trainable_variables)]
        self._num_weights = len(weights)
        with tf.device(CHIEF_DEVICE):
            self._mine = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self._theirs]

    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """See `TrainStep.evaluate`; with the weights as they are now."""
        for mine, theirs in zip(self._mine, self._theirs, strict=True):
            mine.assign(theirs.read_value())
        sums: Sums = super().evaluate(iterator, steps)
        return sums

    def evaluation_values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the values of the copy."""
        values = [tf.convert_to_tensor(variable) for variable in self._mine]
        return values[: self._num_weights], values[self._num_weights :]
