"""`trainer.run` with --strategy=parameter_server, up to the point where TensorFlow is loaded."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.commands.text import size_of
from pipeline.errors import PipelineError, UsageError
from pipeline.resolved import ResolvedRequest
from trainer import data_versions, lazy_imports, run_folder
from trainer import plan as plans
from trainer.callbacks.base import Callbacks, Phase
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.terminal import LiveLine, Output
from trainer.checkpoint import files, fresh
from trainer.cluster import rendezvous, tf_config
from trainer.cluster.interrupt import Interrupt
from trainer.cluster.tf_config import PS, WORKER, Cluster
from trainer.config import TrainConfig
from trainer.config.meaning import PARAMETER_SERVER

if TYPE_CHECKING:
    from trainer.task import Task

_ENVIRONMENT = {
    "GRPC_FAIL_FAST": "use_caller",  # the caller decides whether a call to an absent process waits or fails
    "GRPC_VERBOSITY": "NONE",  # it would log every lost connection
    # Errors that name a server also occur when a worker is lost. Only its connection tells whether a server is lost.
    "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": str(1 << 30),
    "TF_PS_HANDLE_UNKNOWN_ERROR": "1",
}


def train(config: TrainConfig, task: type[Task] | None, command: str) -> Any:
    """Runs this process's part of the job; returns the last evaluation on the chief, None elsewhere.

    Args:
      config: flags of the job.
      task: class to use instead of `config.model.task`.
      command: name of the command, for messages.

    Raises:
      PipelineError: any error that a user can cause.
    """
    roles = tf_config.of(config.cluster, PARAMETER_SERVER)
    assert roles is not None
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if roles.mine.job != WORKER and not (roles.is_chief and roles.chief_works):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # only workers use GPUs
    with (
        Heartbeat.of_environment() as heartbeat,
        LiveLine(wanted=roles.is_chief) as live,
        Interrupt(command) as interrupt,
    ):
        if roles.is_chief:
            return _lead(config, roles, task, interrupt, live, heartbeat)
        with ends_at_once():
            _serve(config, roles, task, interrupt, heartbeat)
        return None


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Context after which the interpreter exits without shutting down TensorFlow's servers, some of which would abort.

    The exit code is 0 only if the context completed: a process that crashed must not look finished.
    """
    code = 1

    def end() -> None:
        sys.stdout.flush()
        os._exit(code)

    try:
        yield
        code = 0
    except PipelineError as error:
        code = error.exit_code
        raise
    except (KeyboardInterrupt, BrokenPipeError) as error:
        code = 128 + (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE)
        raise
    finally:
        atexit.register(end)


def _lead(
    config: TrainConfig,
    roles: Cluster,
    task: type[Task] | None,
    interrupt: Interrupt,
    live: LiveLine,
    heartbeat: Heartbeat,
) -> Any:
    with rendezvous.explaining(roles, config.run.join_timeout, live.aside):
        config.gradients_of_step(len(roles.workers))
        config = data_versions.settled(config, task, print)
        plan, found = _plan(config, roles, task)
        _check_functions(plan.training.first, found)
        files.check_to_train(config.run.folder, config.run.fresh)
        plans.prepare_folder("--model_dir", config.run.folder.path)
        heartbeat.job(plan.last_step, config.order.global_batch_size)
    # The other processes are not told that the folder is locked: if this job was started twice, they belong to the
    # first.
    with run_folder.held(config.run.folder), fresh.advised(config):
        heartbeat.keep_in(config.run.folder, roles.file, is_chief=True)
        with rendezvous.explaining(roles, config.run.join_timeout, live.aside):
            config = fresh.begin(config)
        callbacks = Callbacks(live, heartbeat)
        callbacks.phase("loading TensorFlow", quiet=lazy_imports.QUIET_SECONDS)
        with lazy_imports.loading():
            from trainer.parameter_server.training import ParameterServerRun  # noqa: PLC0415, it loads TensorFlow
            from trainer.task import Task  # noqa: PLC0415

        output = Output(0, live, config.output.log_time)
        return ParameterServerRun(config, plan, roles, interrupt, output, callbacks).run(found or Task)


def _serve(
    config: TrainConfig, roles: Cluster, task: type[Task] | None, interrupt: Interrupt, heartbeat: Heartbeat
) -> None:
    with rendezvous.explaining(roles, config.run.join_timeout):
        config.gradients_of_step(len(roles.workers))
        config = data_versions.settled(config, task, lambda line: None)
        plan = None if roles.mine.job == PS else _plan(config, roles, task)[0]
    heartbeat.keep_in(config.run.folder, roles.file, is_chief=False)
    heartbeat.on_phase(Phase("loading TensorFlow", quiet=lazy_imports.QUIET_SECONDS))
    with lazy_imports.loading():
        from trainer.parameter_server import training  # noqa: PLC0415, here because it loads TensorFlow

    training.serve(fresh.begin(config, is_chief=False), plan, roles, interrupt, heartbeat)


def _plan(config: TrainConfig, roles: Cluster, task: type[Task] | None) -> tuple[plans.Plan, type[Task] | None]:
    found = task or lazy_imports.load_task(config.model.task)
    plan = plans.make(config, task=found)
    for part in plan.training.parts:
        _check_windows(part)
    return plan, found


def _check_functions(resolved: ResolvedRequest, task: type[Task] | None) -> None:
    """Raises UsageError if workers, which run the input's graph, cannot call a task's own functions."""
    if task is not None and (task.parse or task.augment):
        with lazy_imports.loading():
            from trainer.task import data_spec_of  # noqa: PLC0415, here because it loads TensorFlow

        data_spec_of(resolved, f"the workers of --strategy={PARAMETER_SERVER} run the input in processes of their own")


def _check_windows(resolved: ResolvedRequest) -> None:
    """Raises UsageError if the split does not fit in one shuffle window: workers keep the whole split in memory."""
    spec, order = resolved.spec, resolved.order
    if order.windows > 1:
        needed = order.num_records * spec.record_bytes
        raise UsageError(
            f"--shuffle_bytes={spec.shuffle_bytes}: with --strategy=parameter_server each worker keeps all of "
            f"{resolved.request.split!r} in memory, {size_of(needed)} decoded; give --shuffle_bytes={needed} or more "
            "(another order), fewer records, as in --train_split=train[:10000], or --strategy=multiworker"
        )
