"""`python -m trainer.run`: trains, evaluates, and goes on where it stopped.

Exit codes: 0 done; 1 the data or a loss is bad; 2 a flag cannot work; 75 not done, and the same command goes on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from pipeline.commands import commandline, quiet
from trainer import cluster as clusters
from trainer import config as configs
from trainer import plan as plans
from trainer.interrupt import Interrupt

COMMAND = "trainer.run"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: whatever a user can cause.
    """
    config = configs.parse(argv)
    commandline.require("tensorflow")
    cluster = _cluster(config)
    plan = plans.make(config, cluster)
    if cluster.is_chief:
        plans.prepare_folder("--model_dir", config.model_dir)
    if config.log_keys:
        plans.prepare_folder("--log_keys", config.log_keys)
    with Interrupt(COMMAND) as interrupt:
        with quiet.loading(), _left_out("matplotlib", "sklearn"):
            from trainer import training  # noqa: PLC0415, here because it loads TensorFlow

        training.run(config, plan, cluster, interrupt)


@contextlib.contextmanager
def _left_out(*packages: str) -> Iterator[None]:
    """Context in which packages seem not to be installed, where they are not loaded yet.

    Keras loads these two when it finds them, for plots and wrappers that training does not use: 2.8 of the 9.4 seconds
    of processor time that TensorFlow and Keras take to load.
    """
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: what Python keeps for "not there"
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def _cluster(config: configs.TrainConfig) -> clusters.Cluster:
    if config.strategy != "multiworker":
        return clusters.ALONE
    cluster = clusters.from_environment()
    if cluster is None:
        print(f"{clusters.VARIABLE} is not set: --strategy=multiworker trains on this one worker", flush=True)
    return cluster or clusters.ALONE


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
