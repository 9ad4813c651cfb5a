"""A run with parameter servers: what each process does, and how the chief's `Run` makes its steps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.commands.text import count_of
from pipeline.errors import DataError, RerunError, UsageError
from pipeline.request import Request
from trainer import description
from trainer.callbacks.base import Callback, Callbacks
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.terminal import Output
from trainer.cluster import failures, rendezvous, strategies, tf_config
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.strategies import Agreement
from trainer.config import TrainConfig
from trainer.config.interval import period_of
from trainer.loop import Action, Progress
from trainer.parameter_server.asynchronous import Asynchronous, AsyncScheduler
from trainer.parameter_server.columns import ColumnBatches
from trainer.parameter_server.compute import Compute, check_optimizer
from trainer.parameter_server.connecting import CHIEF_DEVICE, Members, connect
from trainer.parameter_server.coordinator import Coordinator
from trainer.parameter_server.ledger import Averages, EpochSums, Ledger, Rows, Tally
from trainer.parameter_server.loop import Loop
from trainer.parameter_server.roles import CHIEF, PS, WORKER, Roles, Task, gradients_of_step
from trainer.parameter_server.scheduling import Closures, Scheduler, WorkerLines
from trainer.parameter_server.synchronous import Synchronous, SyncScheduler
from trainer.parameter_server.worker_client import WorkerClient
from trainer.plan import Plan
from trainer.step import train_step
from trainer.step.state import TrainState
from trainer.step.train_step import TrainStep
from trainer.task import base
from trainer.task.base import Evaluation, Sums
from trainer.training import Batches, Run, TrainLoop


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
      RerunError: stopped by a signal, with the state saved; a parameter server was lost; or a process did not come.
      DataError: a loss or weight is not finite, or the data cannot be read.
      UsageError: the config does not fit the cluster or the checkpoint in the run's folder.
    """
    timeout, silence = config.run.join_timeout, config.run.collective_timeout
    with rendezvous.explaining(roles.seat, timeout, output.live.aside):
        strategies.configure(config)
        expected = {PS: description.of_server(config), WORKER: description.of_graph_reader(config, plan)}
    tf.get_logger().setLevel("CRITICAL")  # TensorFlow logs many lines for a lost worker, where the coordinator has one

    def expected_of(task: Task) -> description.Description:
        return described(roles, expected[task.job])

    chief = Task(CHIEF)
    callbacks.phase("waiting for all processes", shown="")
    port = tf_config.listen(roles.address(chief), roles.name(chief), roles.source_of(chief))
    needed = gradients_of_step(config, len(roles.workers))
    say, on_lost = output.line, callbacks.on_lost
    with Coordinator(roles, expected_of, port, timeout, silence, needed, interrupt, say, on_lost) as coordinator:
        coordinator.wait()
        with _in_one_line(coordinator, roles):
            return ParameterServerRun(config, plan, roles, coordinator, interrupt, output, callbacks).run(task)


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
        strategies.configure(config)
        mine = description.of_graph_reader(config, plan) if plan else description.of_server(config)
    output = Output(is_timed=config.output.log_time)
    gpu = strategies.first_gpu() if roles.mine.job == WORKER else None
    heartbeat.on_devices([gpu or "CPU:0"])
    if gpu:
        output.print(f"{roles.name(roles.mine)}: here {gpu}")
    WorkerClient(roles, described(roles, mine), timeout, silence, interrupt, heartbeat, output).serve()


def described(roles: Roles, rest: description.Description) -> description.Description:
    """Returns the description of a process, with its cluster."""
    return [{"cluster": f"a cluster of {roles}"}, *rest]


@contextlib.contextmanager
def _in_one_line(coordinator: Coordinator, roles: Roles) -> Iterator[None]:
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
        coordinator.check_soon()
        raise


class ParameterServerRun(Run):
    """A run whose steps workers make, with the weights on parameter servers; this process is the chief."""

    io_device = CHIEF_DEVICE
    rerun = "rerun the same commands to resume"

    epoch: EpochSums

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        roles: Roles,
        coordinator: Coordinator,
        interrupt: Interrupt,
        output: Output,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(config, plan, interrupt, output, callbacks, is_chief=True)
        self.roles, self.coordinator = roles, coordinator

    def connect(self) -> None:
        """Connects the chief to TensorFlow's servers; it decides alone, so there is nobody to agree with."""
        self.callbacks.phase("connecting")
        self.strategy, self.cluster, self.members, self._server = connect(self.roles, self.coordinator)
        self.agreement = Agreement(self.strategy, tf_config.ALONE)

    def build_step(self) -> None:
        """Makes the graphs that workers run, and the scheduler of them."""
        config, plan, flags = self.config, self.plan, self.config.aggregation
        check_optimizer(self.state.optimizer, config.model.task or f"--optimizer={config.optimizer.optimizer}")
        self.epoch, self.tally = EpochSums(plan.training.steps_per_epoch), Tally()
        self.averages = Averages(plan.training.spec.skip_steps)
        self.parts = {"averages": self.averages, "epoch": self.epoch, "ledger": self.tally}
        self.observers = [_Attendance(self.members, self._say_end)]
        num_workers = len(self.roles.workers)
        lines = self.lines = WorkerLines(self.coordinator, config.steps.period("log", plan.training.steps_per_epoch))
        needed = gradients_of_step(config, num_workers)
        batches = ColumnBatches(plan.training.first, needed)
        with self.strategy.scope():
            self.ledger = Ledger()
        columns = iter(self.cluster.create_per_worker_dataset(tf.function(batches.dataset, autograph=False)))
        shown = period_of(config.output.histogram_every, plan.training.steps_per_epoch)
        distort = train_step.distortion(plan.training)
        compute = self.shown = Compute(self.strategy, self.state, config, distort, shown, batches.skip_steps)
        if shown.steps:
            self.read_histograms = compute.histograms
        self.rows = Rows(self.state.measure)
        closures = Closures(self.cluster, self.coordinator.check_soon)
        self.scheduler: Scheduler
        if flags.sync:
            how = f"synchronous by {needed} of {count_of(num_workers, 'gradient')}"
            shares = Synchronous(self.strategy, self.state, batches, compute, self.ledger, self.rows, num_workers)
            self.scheduler = SyncScheduler(shares, closures, columns, num_workers, needed, flags.max_staleness, lines)
        else:
            how = "asynchronous"
            blocks = Asynchronous(self.state, batches, compute, self.ledger, self.rows)
            self.scheduler = AsyncScheduler(blocks, closures, columns, num_workers, config.steps.steps_per_loop, lines)
        self.where = self.here = f"{count_of(num_workers, 'worker')}, {len(self.roles.ps)} ps, {how}"
        gpu = strategies.first_gpu() if self.roles.chief_works else None
        self.callbacks.on_devices([gpu or "CPU:0"])
        if gpu:
            self.where = self.here = f"{self.where}; worker 0 here {gpu}"

    def own_scalars(self) -> dict[str, float]:
        """Returns what each worker has done, and how often the steps up to the last pause were applied."""
        return self.lines.scalars() | {
            f"ledger/{name}": float(count) for name, count in self.tally.state_dict().items()
        }

    def evaluation_input(self, requests: Mapping[str, Request]) -> tuple[TrainStep, Batches]:
        """Returns a stepper that evaluates in the chief's process, and batches that the chief reads."""
        return _ChiefStepper(self.state), {name: make_dataset(request) for name, request in requests.items()}

    @contextlib.contextmanager
    def train_loop(self, start: int) -> Iterator[TrainLoop]:
        """Context with the loop that follows the workers' steps."""
        # TensorFlow waits for all workers when a function runs for the first time, and so for one that is stopped.
        # These are needed during the training, so they run once before it.
        self.state.rate(self.state.global_step.read_value())
        self.state.is_finite()
        self.ledger.read(start, start)
        yield functools.partial(self._train_to_end, start)

    def _train_to_end(self, start: int, actions: Sequence[Action]) -> bool:
        kept = self.averages, self.epoch, self.ledger, self.tally
        loop = Loop(self.scheduler, self.rows, *kept, actions, self._settle, self._stops, self._watch)
        return loop.train(start, self.plan.last_step)

    def _settle(self, step: int) -> None:
        """Sets the counts to the step: a gradient that was applied twice was counted twice."""
        self.state.global_step.assign(step)
        self.state.optimizer.iterations.assign(step)

    def _stops(self) -> bool:
        self.coordinator.check()
        self.members.tend()
        asked = self.interrupt.requested is not None
        if asked and not self.coordinator.has_workers:
            raise RerunError(
                "stopped while no worker was there: nothing is saved since the last checkpoint; rerun the same "
                "commands to resume"
            )
        return asked or self.checkpoints.ends_early

    def _watch(self, progress: Progress) -> None:
        self.callbacks.on_loop(progress)
        if self.interrupt.asked:
            self.interrupt.asked = False
            self.output.line(self.progress_bar.text(progress))

    def _say_end(self) -> None:
        if absent := self.coordinator.never_came:
            self.output.line(f"never came: {', '.join(absent)}; the other workers made all steps")
        self.output.line(str(self.tally))


class _Attendance(Callback):
    """Lets workers leave during an evaluation, too, and says at the end who took part."""

    def __init__(self, members: Members, say_end: Callable[[], None]) -> None:
        self._members, self._say_end = members, say_end

    def on_evaluation_loop(self) -> None:
        self._members.tend()

    def on_end(self, step: int) -> None:
        self._say_end()


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
