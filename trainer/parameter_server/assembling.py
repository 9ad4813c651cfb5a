"""Puts together what has workers make steps: the graph that they run, and what schedules it."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline.commands.text import count_of
from trainer.config import TrainConfig
from trainer.parameter_server import limits
from trainer.parameter_server.asynchronous import Asynchronous
from trainer.parameter_server.blocks import Blocks
from trainer.parameter_server.closures import Closures
from trainer.parameter_server.columns import ColumnBatches
from trainer.parameter_server.compute import Compute
from trainer.parameter_server.finished import Driver
from trainer.parameter_server.host import Host
from trainer.parameter_server.ledger import Ledger
from trainer.parameter_server.roles import Roles
from trainer.parameter_server.rounds import Rounds
from trainer.parameter_server.rows import Rows
from trainer.parameter_server.synchronous import Synchronous
from trainer.parameter_server.worker_lines import WorkerLines
from trainer.plan import Plan
from trainer.step import train_step
from trainer.step.state import TrainState


@dataclasses.dataclass(frozen=True, eq=False)
class Workers:
    """What makes steps.

    Attributes:
      driver: schedules them.
      rows: says what they came to.
      ledger: counts them.
      where: a few words on who computes.
    """

    driver: Driver
    rows: Rows
    ledger: Ledger
    where: str


def workers(
    config: TrainConfig,
    plan: Plan,
    roles: Roles,
    strategy: tf.distribute.Strategy,
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    state: TrainState,
    host: Host,
) -> Workers:
    """Returns what makes the steps of a run."""
    num_workers, lines, flags = len(roles.workers), WorkerLines(host, config.steps.log_every), config.aggregation
    needed = limits.gradients_of_step(config, num_workers)
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
        rounds = Rounds(shares, closures, columns, num_workers, needed, flags.max_staleness, lines)
        return Workers(rounds, rows, ledger, f"{where}, synchronous by {needed} of {count_of(num_workers, 'gradient')}")
    graph = Asynchronous(state, batches, compute, ledger, rows)
    blocks = Blocks(graph, closures, columns, num_workers, config.steps.steps_per_loop, lines)
    return Workers(blocks, rows, ledger, f"{where}, asynchronous")
