"""The checkpoints of a run that is training, each once, until its last step."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable

from pipeline.errors import DataError, PipelineError
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
    """Calls `evaluate` with each checkpoint in the order of their steps; returns after the last one of the run.

    The folder is only read, and need not be there yet. A checkpoint that is damaged, or that the run removes before it
    is read, is left out. One that is written again, by a run that began anew or went back, is evaluated again.

    Args:
      model_dir: of the run.
      interval: seconds between two looks for new checkpoints.
      evaluate: what is called.
      say: takes lines for the user.
      sleep: waits so many seconds.

    Raises:
      DataError: the folder was there and is gone.
    """
    folder, looked_at, latest = pathlib.Path(model_dir), dict[int, int](), ""
    was_there = waits = False
    while True:
        new = {step: written for step, written in _found(folder).items() if looked_at.get(step) != written}
        is_there = folder.is_dir()
        if was_there and not is_there:
            raise DataError(f"{folder}: was removed or moved while its checkpoints were evaluated")
        was_there = is_there
        if not new:
            if not waits:
                say(f"waiting for checkpoints in {folder}{latest}, looking every {interval:g} s; Ctrl-C ends")
            waits = True
            sleep(interval)
            continue
        waits = False
        for step, written in new.items():
            looked_at[step], latest = written, f" after step {step}"
            if _is_last(files.path_of(folder, step), evaluate, say):
                return


def _found(folder: pathlib.Path) -> dict[int, int]:
    """Returns the steps of the checkpoints, ascending, and when each was written."""
    found = {}
    for step in files.steps_in(folder):
        path = files.path_of(folder, step)
        with contextlib.suppress(FileNotFoundError):  # removed in between
            found[step] = path.with_name(f"{path.name}.index").stat().st_mtime_ns
    return found


def _is_last(path: pathlib.Path, evaluate: Callable[[Record], object], say: Callable[[str], object]) -> bool:
    """Evaluates a checkpoint, where it can be read; returns whether its run ends with it."""
    try:
        found = record.read(path)
        evaluate(found)
    except UnreadableError as error:
        say(error.skipped)
        return False
    return _ended_early(found) or found.step >= _last_step(found)


def _ended_early(found: Record) -> bool:
    """Returns whether the evaluations up to a checkpoint have ended its run, by --early_stopping."""
    patience = found.content.get("config", {}).get("steps", {}).get("early_stopping", 0)
    ranking = found.content.get("remembered", {}).get("ranking") or {}
    return bool(patience) and ranking.get("stale", 0) >= patience


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
