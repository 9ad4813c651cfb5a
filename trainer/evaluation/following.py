"""The checkpoints of a run that is training, each once, until its last step."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from pipeline.errors import PipelineError
from pipeline.mixture import resolve_all
from trainer import heavy, plan
from trainer.stored import files, record
from trainer.stored.record import Record, UnreadableError


def follow(
    model_dir: str,
    interval: float,
    evaluate: Callable[[Record], object],
    say: Callable[[str], object],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Calls `evaluate` with each checkpoint in the order of their steps; returns after that of the run's last step.

    The folder is only read, and need not be there yet. A checkpoint that is damaged, or that the run removes before it
    is read, is left out.

    Args:
      model_dir: of the run.
      interval: seconds between two looks for new checkpoints.
      evaluate: what is called.
      say: takes lines for the user.
      sleep: waits so many seconds.
    """
    folder, done, waits = pathlib.Path(model_dir), -1, False
    while True:
        steps = [step for step in files.steps_in(folder) if step > done]
        if not steps:
            if not waits:
                after = f" after step {done}" if done >= 0 else ""
                say(f"waiting for checkpoints in {folder}{after}, looking every {interval:g} s; Ctrl-C ends")
            waits = True
            sleep(interval)
            continue
        waits = False
        for done in steps:
            path = files.path_of(folder, done)
            try:
                found = record.read(path)
                evaluate(found)
            except UnreadableError as error:
                is_there = path.with_name(f"{path.name}.index").exists()
                say(f"skipped {path}, which is damaged: {error.reason}" if is_there else f"skipped {path}: was removed")
                continue
            if done >= _last_step(found):
                return


def _last_step(found: Record) -> float:
    """Returns the global step at which a run ends; infinity where its data are not there to say so."""
    try:
        config = found.config()
        if config.steps.train_steps:
            return config.steps.train_steps
        task = heavy.load_task(config.model.task)
        request = plan.request_of(config, task.parse if task else None)
        return config.last_step(resolve_all(request).steps_per_epoch)
    except PipelineError:
        return float("inf")
