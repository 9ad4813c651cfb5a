"""`python -m trainer.run`: trains, evaluates, and resumes where it stopped.

Exit codes: 0 done; 1 the data or a loss is bad; 2 a flag cannot work; 75 not done, rerun the same command to resume.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from pipeline.commands import commandline, quiet
from trainer import config as configs
from trainer import plan as plans
from trainer.cluster import lock, tf_config
from trainer.cluster.interrupt import Interrupt

COMMAND = "trainer.run"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: whatever a user can cause.
    """
    config = configs.parse(argv)
    commandline.require("tensorflow")
    cluster = _cluster(config.run.strategy)
    plan = plans.make(config, cluster)
    if cluster.is_chief:
        plans.prepare_folder("--model_dir", config.run.model_dir)
    if config.run.log_keys:
        plans.prepare_folder("--log_keys", config.run.log_keys)
    only_job = lock.held(config.run.model_dir) if cluster.is_chief else contextlib.nullcontext()
    with only_job, Interrupt(COMMAND) as interrupt:
        with quiet.loading(), _hidden("matplotlib", "sklearn", "jax"):
            from trainer import training  # noqa: PLC0415, here because it loads TensorFlow

        training.run(config, plan, cluster, interrupt)


@contextlib.contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Context in which packages seem not to be installed, unless they are loaded already.

    Keras loads matplotlib and sklearn when it finds them, for plots and wrappers that training does not use: 2.8 of the
    9.4 seconds of processor time that TensorFlow and Keras take to load. TensorFlow Lite loads jax: 1 second.
    """
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: Python raises ImportError
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def _cluster(strategy: str) -> tf_config.Cluster:
    if strategy != "multiworker":
        tf_config.check_alone(strategy)
        return tf_config.ALONE
    cluster = tf_config.from_environment()
    if cluster is None:
        os.environ.pop(tf_config.VARIABLE, None)  # it may be there and empty, which TensorFlow cannot read
        print(f"{tf_config.VARIABLE} is not set: --strategy=multiworker trains on this one worker", flush=True)
    return cluster or tf_config.ALONE


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
