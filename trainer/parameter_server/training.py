"""A run with parameter servers: the work of each process, the chief's `Run`, and the loop over its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.commands.text import count_of
from pipeline.errors import DataError, RerunError, UsageError
from pipeline.request import Request
from trainer import description, runtime
from trainer import task as tasks
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.terminal import Output
from trainer.checkpoint import NotFiniteError
from trainer.cluster import failures, rendezvous, strategies, tf_config
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.strategies import Agreement
from trainer.cluster.tf_config import PS, WORKER, Cluster, Task
from trainer.config import TrainConfig
from trainer.config.steps import period_of
from trainer.loop import Action, Clocks, Progress, Spent
from trainer.parameter_server.asynchronous import Asynchronous, AsyncScheduler
from trainer.parameter_server.compute import Compute, TurnBatches, check_optimizer
from trainer.parameter_server.connecting import CHIEF_DEVICE, connect
from trainer.parameter_server.coordinator import Coordinator
from trainer.parameter_server.ledger import SPAN, Averages, EpochSums, Ledger, Row, Rows, Tally, loop_result
from trainer.parameter_server.scheduling import Closures, Finished, Scheduler, WorkerLines
from trainer.parameter_server.synchronous import Synchronous, SyncScheduler
from trainer.parameter_server.worker_client import WorkerClient
from trainer.plan import Plan
from trainer.step import train_step
from trainer.step.evaluation import EvaluationStep
from trainer.step.measures import Sums
from trainer.step.state import TrainState
from trainer.task import Evaluation
from trainer.training import Batches, Run, TrainLoop

_REGISTERING_SECONDS = 15.0  # added to the timeout: by then a stopped worker has been killed, or given up


def serve(config: TrainConfig, plan: Plan | None, roles: Cluster, interrupt: Interrupt, heartbeat: Heartbeat) -> None:
    """Serves the chief as a worker or parameter server; see `WorkerClient.serve`.

    Args:
      config: flags of the job.
      plan: plan of the run; None on a parameter server.
      roles: processes of the job.
      interrupt: interrupt that records signals.
      heartbeat: heartbeat of this process.
    """
    timeout, silence = config.run.join_timeout, config.run.collective_timeout
    with rendezvous.explaining(roles, timeout):
        strategies.configure(config)
        mine = description.of_graph_reader(config, plan) if plan else description.of_server(config)
    output = Output(is_timed=config.output.log_time)
    gpu = strategies.first_gpu() if roles.mine.job == WORKER else None
    heartbeat.on_devices([gpu or "CPU:0"])
    if gpu:
        output.print(f"{roles.name(roles.mine)}: here {gpu}")
    WorkerClient(roles, described(roles, mine), timeout, silence, interrupt, heartbeat, output).serve()


def described(roles: Cluster, rest: description.Description) -> description.Description:
    """Returns the description of a process, including its cluster."""
    return [{"cluster": f"a cluster of {roles}"}, *rest]


@contextlib.contextmanager
def _in_one_line(coordinator: Coordinator, roles: Cluster) -> Iterator[None]:
    """Context that turns TensorFlow's errors into PipelineErrors that name the worker or server they come from."""
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
    """A run whose steps are made by workers, with the weights on parameter servers, as seen by the chief."""

    io_device = CHIEF_DEVICE
    rerun = "rerun the same commands to resume"

    epoch: EpochSums

    def run(self, task: type[tasks.Task]) -> Evaluation | None:
        """Waits for the other processes, and runs with them as the chief; see `Run.run`."""
        config, cluster, callbacks = self.config, self.cluster, self.callbacks
        timeout, silence = config.run.join_timeout, config.run.collective_timeout
        with rendezvous.explaining(cluster, timeout, self.output.live.aside):
            strategies.configure(config)
            expected = {PS: description.of_server(config), WORKER: description.of_graph_reader(config, self.plan)}
        tf.get_logger().setLevel("CRITICAL")  # for a lost worker, TensorFlow logs many lines and the coordinator one

        def expected_of(task: Task) -> description.Description:
            return described(cluster, expected[task.job])

        callbacks.phase("waiting for all processes", shown="")
        mine, needed = cluster.mine, config.gradients_of_step(len(cluster.workers))
        port = tf_config.listen(cluster.address(mine), cluster.name(mine), cluster.source_of(mine))
        with Coordinator(
            cluster, expected_of, port, timeout, silence, needed, self.interrupt, self.output.line, callbacks.on_lost
        ) as self.coordinator:
            self.coordinator.wait()
            with _in_one_line(self.coordinator, cluster), runtime.registering_within(silence + _REGISTERING_SECONDS):
                return super().run(task)

    def connect(self) -> None:
        """Connects the chief to TensorFlow's servers; it alone decides, so there is nothing to agree on."""
        self.callbacks.phase("connecting")
        self.strategy, self.remote, self.members, self._server = connect(self.cluster, self.coordinator)
        self.agreement = Agreement(self.strategy, tf_config.ALONE)

    def build_step(self) -> None:
        """Builds the graphs that workers run, and their scheduler."""
        config, plan, flags = self.config, self.plan, self.config.aggregation
        check_optimizer(self.state.optimizer, config.model.task or f"--optimizer={config.optimizer.optimizer}")
        self.epoch, self.tally = EpochSums(plan.training.steps_per_epoch), Tally()
        self.averages = Averages(plan.training.spec.is_skipped)
        self.parts = {"averages": self.averages, "epoch": self.epoch, "ledger": self.tally}
        num_workers = len(self.cluster.workers)
        lines = self.lines = WorkerLines(self.coordinator, config.steps.period("log", plan.training.steps_per_epoch))
        needed = config.gradients_of_step(num_workers)
        batches = TurnBatches(plan.training, needed)
        with self.strategy.scope():
            self.ledger = Ledger()
        columns = iter(self.remote.create_per_worker_dataset(tf.function(batches.dataset, autograph=False)))
        shown = period_of(config.output.histogram_every, plan.training.steps_per_epoch)
        augment = train_step.augmentation(plan.training)
        compute = self.shown = Compute(self.strategy, self.state, config, augment, shown, plan.training.spec.skip_steps)
        if shown.steps:
            self.read_histograms = compute.histograms
        self.rows = Rows(self.state.measure)
        closures = Closures(self.remote, self.coordinator.check_soon)
        self.scheduler: Scheduler
        if flags.sync:
            how = f"synchronous by {needed} of {count_of(num_workers, 'gradient')}"
            shares = Synchronous(self.strategy, self.state, batches, compute, self.ledger, self.rows, num_workers)
            self.scheduler = SyncScheduler(shares, closures, columns, num_workers, needed, flags.max_staleness, lines)
        else:
            how = "asynchronous"
            blocks = Asynchronous(self.state, batches, compute, self.ledger, self.rows)
            self.scheduler = AsyncScheduler(blocks, closures, columns, num_workers, config.steps.steps_per_loop, lines)
        self.where = self.here = f"{count_of(num_workers, 'worker')}, {len(self.cluster.ps)} ps, {how}"
        gpu = strategies.first_gpu() if self.cluster.chief_works else None
        self.callbacks.on_devices([gpu or "CPU:0"])
        if gpu:
            self.where = self.here = f"{self.where}; worker 0 here {gpu}"

    def own_scalars(self) -> dict[str, float]:
        """Returns each worker's progress, and the tally of the steps up to the last pause."""
        return self.lines.scalars() | {
            f"ledger/{name}": float(count) for name, count in self.tally.state_dict().items()
        }

    def evaluation_input(self, requests: Mapping[str, Request]) -> tuple[EvaluationStep, Batches]:
        """Returns a stepper that evaluates in the chief's process, and batches that the chief reads."""
        return _ChiefEvaluation(self.state), {name: make_dataset(request) for name, request in requests.items()}

    @contextlib.contextmanager
    def train_loop(self, start: int) -> Iterator[TrainLoop]:
        """Context with the loop that follows the workers' steps."""
        # When a function runs for the first time, TensorFlow waits for all workers, even for a stopped one. These
        # functions are needed during training, so they run once before it.
        self.state.rate(self.state.global_step.read_value())
        self.state.is_finite()
        self.ledger.read(start, start)
        yield functools.partial(self._train_to_end, start)

    def _train_to_end(self, start: int, actions: Sequence[Action]) -> bool:
        kept = self.averages, self.epoch, self.ledger, self.tally
        loop = Loop(self.scheduler, self.rows, *kept, actions, self._settle, self._stops, self._watch)
        return loop.train(start, self.plan.last_step)

    def _settle(self, step: int) -> None:
        """Sets the optimizer's counts to the step: a gradient that was applied twice was counted twice."""
        self.state.global_step.assign(step)
        self.state.optimizer.iterations.assign(step)

    def _stops(self) -> bool:
        self.coordinator.check()
        self.members.tend()
        asked = self.interrupt.requested is not None
        if asked and not self.coordinator.has_workers:
            raise RerunError(
                "stopped while no worker was present: nothing is saved since the last checkpoint; rerun the same "
                "commands to resume"
            )
        return asked or self.checkpoints.ends_early

    def _watch(self, progress: Progress) -> None:
        self.callbacks.on_loop(progress)
        if self.interrupt.asked:
            self.interrupt.asked = False
            self.output.line(self.progress_bar.text(progress))

    def on_evaluation_loop(self) -> None:
        """Lets workers leave during an evaluation, too."""
        self.members.tend()

    def on_end(self, step: int) -> None:
        """Prints which workers took part, and the tally."""
        if absent := self.coordinator.never_came:
            self.output.line(f"never came: {', '.join(absent)}; the other workers made all steps")
        self.output.line(str(self.tally))


class _ChiefEvaluation(EvaluationStep):
    """Evaluates with a copy of the weights in the chief's memory, while workers train."""

    def __init__(self, state: TrainState) -> None:
        super().__init__(tf.distribute.OneDeviceStrategy(CHIEF_DEVICE), state)
        model = state.model
        weights = state.averages.values if state.averages else [v.value for v in model.trainable_variables]
        self._theirs = [*weights, *(v.value for v in model.non_trainable_variables)]
        self._num_weights = len(weights)
        with tf.device(CHIEF_DEVICE):
            self._mine = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self._theirs]

    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """See `EvaluationStep.evaluate`; uses the current weights."""
        for mine, theirs in zip(self._mine, self._theirs, strict=True):
            mine.assign(theirs.read_value())
        sums: Sums = super().evaluate(iterator, steps)
        return sums

    def values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        values = [tf.convert_to_tensor(variable) for variable in self._mine]
        return values[: self._num_weights], values[self._num_weights :]


@dataclasses.dataclass(eq=False)
class Loop:
    """Follows a scheduler: workers run steps without pause, up to a step that all of them must finish.

    Attributes:
      scheduler: scheduler of the workers' steps.
      rows: unpacker of the results of steps.
      averages: moving averages over the steps.
      epoch: sums over the current epoch.
      ledger: ledger of the applied steps.
      tally: tally of all training steps.
      actions: actions between steps, in order. Workers continue during actions that only look at a step's numbers.
        Before an action that `pauses`, exactly the steps before it are applied.
      settle: function called at every pause with the number of applied steps.
      stops: function that returns whether training must end, called often; raises if it cannot continue.
      watch: function called with every report.
    """

    scheduler: Scheduler
    rows: Rows
    averages: Averages
    epoch: EpochSums
    ledger: Ledger
    tally: Tally
    actions: Sequence[Action]
    settle: Callable[[int], None]
    stops: Callable[[], bool]
    watch: Callable[[Progress], None]

    def __post_init__(self) -> None:
        self._progress: Progress | None = None
        self._last: Row | None = None
        self._seconds, self._waited = 0.0, 0.0
        self._updates = 0  # at the last report
        self._clocks = Clocks(self.actions)

    def train(self, start: int, last: int) -> bool:
        """Trains from step `start` to step `last`; returns whether it ended early.

        Raises:
          NotFiniteError: a loss or gradient is NaN or infinite; the message names the step.
        """
        step = start
        while step < last:  # from pause to pause
            self._run(step, min(last, self._next_due(step, SPAN, pauses=True)))
            self.tally.add(self.ledger.read(step, self.scheduler.reached))
            self.tally.add(self.scheduler.tally())
            step = self.scheduler.reached
            self.settle(step)
            self._act(step, pauses=True)
            if self.stops():
                return step < last
        return False

    def _run(self, first: int, end: int) -> None:
        began = time.perf_counter()
        before, self._updates = self._seconds, first
        for finished in self.scheduler.run(first, end, self._cut, self._pauses):
            self._seconds = before + time.perf_counter() - began
            self._report(finished)
        self._seconds = before + time.perf_counter() - began

    def _next_due(self, step: int, most: int, pauses: bool) -> int:
        """Returns the next step, at most `most` later, at which a pausing (or other) action is due."""
        steps = [action.next_after(step) for action in self.actions if action.pauses == pauses]
        return int(min([step + most, *steps]))

    def _act(self, step: int, pauses: bool) -> None:
        """Runs the pausing (or other) actions that are due at a step."""
        for number, action in enumerate(self.actions):
            is_due = action.is_due(step) or self._clocks.is_due(number)
            if self._progress and action.pauses == pauses and is_due:
                action.do(self._progress)
                self._clocks.done(number)

    def _cut(self, step: int) -> int:
        # The first report has one step, so that the compile time can be separated.
        return self._next_due(step, SPAN if self._last else 1, pauses=False)

    def _pauses(self) -> bool:
        # Before the first report no action can run, so pausing for one would wait forever.
        is_due = self._progress and any(self.actions[number].pauses for number in self._clocks.due())
        return self.stops() or bool(is_due)

    def _report(self, finished: Finished) -> None:
        for step in sorted(finished.rows):
            self._last = finished.rows[step]
            self.averages.add(step, self.rows.loss(self._last), self._last.penalty)
            self.epoch.add(step, self._last, self.rows.weight(self._last))
        self._waited += finished.waited
        if self._last is None:  # a lost worker had applied all of them
            return
        if not finished.finite:
            loss = self.rows.loss(self._last)
            raise NotFiniteError(f"step {max(finished.rows) + 1}: loss is {loss:.4g}, or a gradient is not finite")
        self._progress = self._next(finished, self._last)
        self.watch(self._progress)
        self._act(finished.stop, pauses=False)

    def _next(self, finished: Finished, row: Row) -> Progress:
        before, values = self._progress, self.rows.values(row)
        result = loop_result(finished.stop, self.averages, self.epoch.means(self.rows), row.norm)
        # Reports arrive in the order of steps, and so in bursts if a worker is slow. The speed counts all updates made
        # so far.
        more, self._updates = finished.updates - self._updates, finished.updates
        made = before.spent.steps + more if before else max(1, len(finished.rows))
        spent = Spent(made, self._seconds, self._waited)
        compiling = before.compiling if before else spent._replace(steps=1)
        return Progress(finished.stop, values, spent, compiling, result)
