"""`python -m trainer.run`: trains, evaluates, and resumes where it stopped.

Exit codes: 0 done; 1 the data or a loss is bad; 2 a flag is invalid; 75 not done, rerun the same command to resume.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.commands import commandline
from pipeline.errors import UsageError
from trainer import config as configs
from trainer import lazy_imports, run_folder
from trainer.callbacks.base import Callbacks
from trainer.callbacks.heartbeat import Heartbeat
from trainer.callbacks.terminal import LiveLine, Output
from trainer.checkpoint import files, fresh
from trainer.cluster import interrupt, tf_config
from trainer.config import TrainConfig, meaning
from trainer.config.meaning import MULTIWORKER, PARAMETER_SERVER
from trainer.config.model import name_of_code
from trainer.config.run import ClusterFlags, RunFlags

if TYPE_CHECKING:
    from trainer.task import Evaluation, Task

COMMAND = "trainer.run"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    SIGUSR1 and SIGUSR2 are ignored before and after the run that handles them: by default they would end the process.

    Raises:
      PipelineError: any error that a user can cause.
    """
    for number in (interrupt.QUESTION, interrupt.SAVE):
        # Not SIG_IGN, which child processes would inherit: a shell could then not trap the signal.
        signal.signal(number, lambda number, frame: None)
    with _explaining(argv):
        config = configs.parse(argv)
        commandline.require("tensorflow")
    if config.run.strategy != PARAMETER_SERVER:
        train(config)
        return
    from trainer.parameter_server import run as parameter_server  # noqa: PLC0415, NumPy and asyncio: 0.2 s after --help

    with parameter_server.ends_at_once():
        train(config)


@contextlib.contextmanager
def _explaining(argv: Sequence[str] | None) -> Iterator[None]:
    """Context that tells the other processes of a job why this one's flags are invalid."""
    try:
        yield
    except UsageError:
        if (cluster := _told_cluster(argv)) is None:
            raise
        timeout = RunFlags.join_timeout
        with contextlib.suppress(ValueError):
            timeout = float(configs.values(argv, "join_timeout").get("join_timeout", timeout))
        from trainer.cluster import rendezvous  # noqa: PLC0415, as in `main`

        with rendezvous.explaining(cluster, timeout):
            raise


def _told_cluster(argv: Sequence[str] | None) -> tf_config.Cluster | None:
    """Returns the processes of the job; None if this is the only one or the flags do not determine them."""
    names = [field.name for field in dataclasses.fields(ClusterFlags)]
    with contextlib.suppress(UsageError, ValueError):
        values: dict[str, Any] = configs.values(argv, "strategy", *names)
        strategy = values.pop("strategy", PARAMETER_SERVER if "ps_hosts" in values else None)
        if "task_index" in values:
            values["task_index"] = int(values["task_index"])
        flags = ClusterFlags(**values)
        if strategy in tf_config.JOBS:
            return tf_config.of(flags, strategy)
    return None


def train(
    config: TrainConfig, *, model: Callable[..., Any] | None = None, task: type[Task] | None = None
) -> Evaluation | None:
    """Trains, evaluates, and resumes where it stopped: `trainer.run` from Python.

    Call it on every worker, from the main thread, before TensorFlow's devices are used.

    Args:
      config: flags, such as `TrainConfig.of(data_dir="mnist", model_dir="run", model="lenet")`.
      model: function that returns a Keras model, used instead of `config.model.model`; see `trainer.models.build`.
      task: subclass of Task, used instead of `config.model.task`.

    Returns:
      The last evaluation, or None if the config asks for none.

    Raises:
      PipelineError: any error that a user can cause; its `exit_code` is that of the command.
    """
    given = {"model": model, "task": task}
    if names := {flag: name_of_code(flag, code) for flag, code in given.items() if code is not None}:
        config = config.with_code(**names)
    if config.run.strategy == PARAMETER_SERVER:
        from trainer.parameter_server import run as parameter_server  # noqa: PLC0415, as in `main`

        return parameter_server.train(config, task, COMMAND)
    cluster = _cluster(config)
    with Heartbeat.of_environment() as heartbeat, LiveLine(wanted=cluster.is_chief) as live:
        return _train(config, cluster, task, live, heartbeat)


def _train(
    config: TrainConfig, cluster: tf_config.Cluster, given: type[Task] | None, live: LiveLine, heartbeat: Heartbeat
) -> Any:
    from trainer import data_versions, loss_log  # noqa: PLC0415, as in `main`
    from trainer import plan as plans  # noqa: PLC0415, as in `main`
    from trainer.cluster import rendezvous  # noqa: PLC0415, as in `main`

    callbacks, output = Callbacks(live, heartbeat), Output(cluster.rank, live, config.output.log_time)
    with rendezvous.explaining(cluster, config.run.join_timeout, live.aside):
        if config.model.task and given is None:
            callbacks.phase("loading TensorFlow")
            given = lazy_imports.load_task(config.model.task)
        config = data_versions.settled(config, given, output.line)
        plan = plans.make(config, cluster.size, given)
        if config.of_data:
            output.line(config.of_data)
        heartbeat.job(plan.last_step, config.order.global_batch_size, config.steps.steps_per_loop)
        if cluster.is_chief:
            files.check_to_train(config.run.folder, config.run.fresh)
            plans.prepare_folder("--model_dir", config.run.folder.path)
        for name, folder in meaning.given(config, "logs_rows").items():
            plans.prepare_folder(f"--{name}", folder)
        if config.run.log_losses:
            loss_log.begin(config.run, plan.training, plan.last_step, cluster.is_chief)
    # The other processes are not told if another job holds the lock: it may be this job, started twice, and they belong
    # to it.
    only_job = run_folder.held(config.run.folder) if cluster.is_chief else contextlib.nullcontext()
    with only_job, interrupt.Interrupt(COMMAND) as signals, fresh.advised(config):
        heartbeat.keep_in(config.run.folder, cluster.file, cluster.is_chief)
        with rendezvous.explaining(cluster, config.run.join_timeout, live.aside):
            config = fresh.begin(config, cluster.is_chief)
        callbacks.phase("loading TensorFlow", quiet=lazy_imports.QUIET_SECONDS)
        if config.output.log_device_placement:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")  # TensorFlow logs placements at this level
        with lazy_imports.loading():
            from trainer.task import Task  # noqa: PLC0415, here because it loads TensorFlow
            from trainer.training import AllReduceRun  # noqa: PLC0415

        return AllReduceRun(config, plan, cluster, signals, output, callbacks).run(given or Task)


def _cluster(config: TrainConfig) -> tf_config.Cluster:
    strategy, flags = config.run.strategy, config.cluster
    if strategy != MULTIWORKER:
        tf_config.check_alone(strategy)
        return tf_config.ALONE
    cluster = tf_config.of(flags, strategy)
    if flags.given:  # for TensorFlow, which reads the variable
        os.environ[tf_config.VARIABLE] = tf_config.of_flags(flags, strategy)
    elif cluster is None:
        os.environ.pop(tf_config.VARIABLE, None)  # it may be empty, which TensorFlow cannot parse
        print(f"{tf_config.VARIABLE} is not set: --strategy=multiworker trains on this one worker", flush=True)
    return cluster or tf_config.ALONE


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
