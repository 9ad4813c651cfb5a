"""`--fresh`: a run replaces the one in its folder. Without TensorFlow.

A note in the folder, `.trainer.fresh`, is written before anything is removed, so that after a kill the next start
removes the rest before it looks for a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Iterator

from pipeline.errors import RerunError, UsageError, named
from pipeline.files.paths import sync
from pipeline.files.reading import content_of, opened
from pipeline.files.write import replaced
from trainer import run_folder
from trainer.checkpoint.files import FILE, LIST, SCRATCH
from trainer.config import TrainConfig, file
from trainer.run_folder import EVENTS, RunFolder, check_file

VARIABLE = "STEPFEED_FRESH"  # name of the job; it starts over once, even if its processes are started several times
_REMOVING, _BEGUN = "removing", "begun"  # in the note, before the name of the job


def begin(config: TrainConfig, is_chief: bool = True) -> TrainConfig:
    """Carries out --fresh; returns the config without it, for a run that may look for its newest checkpoint.

    With --fresh, the run in the folder is removed first, once per job. Without it, the leftovers of a killed removal
    are removed.

    Args:
      config: flags of the run.
      is_chief: whether this process has locked the run's folder; other processes leave it alone, and meet the chief
        before they read it.

    Raises:
      UsageError: the folder holds other files; nothing is removed.
      DataError: the folder cannot be read or written to.
    """
    folder = config.run.folder
    settled = dataclasses.replace(config, run=dataclasses.replace(config.run, fresh=False))
    if not is_chief:
        return settled
    check_file(folder.fresh_note)
    with named(folder.fresh_note, "cannot be written or read"):
        text = content_of(folder.fresh_note).decode() if folder.fresh_note.exists() else ""
        state, _, job = text.strip().partition(" ")
        now = os.environ.get(VARIABLE, "")
        if config.run.fresh and not (now and now == job):
            _check(folder, config.run.log_keys)
            state, job = _REMOVING, now
            _note(folder, f"{state} {job}")
            # With these flags `--model_dir` alone continues the run, even before the first checkpoint.
            file.write(folder.config, dataclasses.asdict(settled))
        elif state == _REMOVING:
            _check(folder, None)  # other files may have been added since the kill
        if state == _REMOVING:
            _remove(folder)
            _note(folder, f"{_BEGUN} {job}")
    return settled


@contextlib.contextmanager
def advised(config: TrainConfig) -> Iterator[None]:
    """Context for a run that has begun: advice to rerun leaves out --fresh unless the job has a name."""
    try:
        yield
    except RerunError as error:
        if not config.run.fresh or os.environ.get(VARIABLE):
            raise
        raise error.advised("without --fresh, which would start over") from None


def _note(folder: RunFolder, text: str) -> None:
    with replaced(folder.fresh_note, f"{folder.fresh_note.name}.tmp") as draft:
        draft.write(f"{text}\n".encode())
    sync(folder.path)


def _check(folder: RunFolder, log_keys: str | None) -> None:
    metrics = _metrics(folder)
    for path in sorted(folder.path.iterdir()):
        for other in _others(folder, path, metrics):
            raise UsageError(
                "is not a file of a run, so --fresh removes nothing",
                path=other,
                advice="move it away, or use another --model_dir",
            )
    if log_keys and any(pathlib.Path(log_keys).rglob("worker-*.jsonl")):
        raise UsageError(f"--log_keys={log_keys} with --fresh: has the keys of another run; name another folder")


def _others(folder: RunFolder, path: pathlib.Path, metrics: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yields paths that were not written by a run: an entry of the folder, or a file in one of its subfolders."""
    if path.is_symlink():
        yield path
    elif path in _kept(folder) or path in metrics or (path.name.startswith(SCRATCH) and path.is_dir()):
        return
    elif path in (folder.best, folder.logs) and path.is_dir():
        for inner in sorted(path.rglob("*")):
            place = inner.relative_to(path).parts
            of_best = inner.name == LIST or FILE.fullmatch(inner.name) or place[0].startswith(SCRATCH)
            of_logs = inner.name.startswith(EVENTS) or place[0] == "plugins" or inner.is_dir()
            if inner.is_symlink() or not (of_best if path == folder.best else of_logs):
                yield inner
    elif not (path.is_file() and (FILE.fullmatch(path.name) or path.name.removesuffix(".tmp") in _names(folder))):
        yield path


def _names(folder: RunFolder) -> set[str]:
    return {LIST, *(path.name for path in folder.files())}


def _kept(folder: RunFolder) -> tuple[pathlib.Path, ...]:
    return folder.config, folder.launch, folder.metrics_note, folder.fresh_note, folder.path / run_folder.LOCK


def _metrics(folder: RunFolder) -> list[pathlib.Path]:
    """Returns the --metrics_jsonl files in the folder, which begin with the line that the run noted."""
    if not folder.metrics_note.exists():
        return []
    first = set(content_of(folder.metrics_note).splitlines(keepends=True))
    found = []
    for path in folder.path.iterdir():
        if path.is_file() and not path.name.startswith("."):
            with opened(path) as lines:
                found += [path] if lines.readline(1 << 16) in first else []
    return found


def _remove(folder: RunFolder) -> None:
    """Removes a run, newest checkpoints first. Logs of `trainer.launch`, flags and notes stay."""
    with named(folder.path, "cannot be emptied for --fresh"):
        metrics, written = _metrics(folder), _names(folder) - {path.name for path in _kept(folder)}
        for path in sorted(folder.path.iterdir(), key=lambda path: path.suffix != ".index"):
            if path in (folder.best, folder.logs) or (path.name.startswith(SCRATCH) and path.is_dir()):
                shutil.rmtree(path)
            elif path in metrics or path.suffix == ".tmp" or path.name in written or FILE.fullmatch(path.name):
                path.unlink()
        sync(folder.path)
