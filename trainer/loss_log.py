"""The loss of each row that a run trained on, by record: `trainer.run --log_losses` writes it.

`DIR/worker-00000.losses`, one file per worker, is a sequence of `ROW`s in the order of steps, without a header. NumPy
reads it directly:

    rows = np.fromfile("losses/worker-00000.losses", [("step", "<u4"), ("record", "<u4"), ("loss", "<f4")])

`step` is the global step before the update, `record` a record id as returned by `input_fn(record_ids=True)`, and `loss`
the row's loss without regularisation. Padding and skipped records have no row. `DIR/losses.json` identifies the run and
the order of examples.
"""

from __future__ import annotations

import bisect
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, UsageError, name_of, named
from pipeline.files.write import replace
from pipeline.order.order import AHEAD
from pipeline.resolved import ResolvedInput
from trainer.config.run import RunFlags

ROW = np.dtype([("step", "<u4"), ("record", "<u4"), ("loss", "<f4")])
FORMAT = 1
_HEADER = "losses.json"
_NAME = re.compile(r"worker-(\d{5})\.losses")
_MOST = 1 << 32  # limit of steps and records


def begin(flags: RunFlags, training: ResolvedInput, last_step: int, is_chief: bool) -> None:
    """Checks that a run may write to a folder, where the chief then notes which run the losses belong to.

    Call it before any `LossLog` is opened, since that removes the rows of steps that will be repeated.

    Args:
      flags: values of --log_losses and --model_dir.
      training: resolved training input.
      last_step: step at which training ends.
      is_chief: whether this process is the chief.

    Raises:
      DataError: the folder cannot be written to.
      UsageError: the folder has the losses of another run or order, or the run is too long for the format.
    """
    assert flags.log_losses is not None
    folder = flags.log_losses
    flag, path = f"--log_losses={folder}", pathlib.Path(folder) / _HEADER
    num_records = sum(part.selection.num_examples for part in training.parts)
    if max(last_step, num_records) > _MOST:
        raise UsageError(
            f"{flag}: has room for {_MOST:,} steps and records; the run has {last_step:,}, {num_records:,}"
        )
    run = {
        "format": FORMAT,
        "model_dir": os.path.realpath(flags.model_dir),
        # Without fields that a resumed run may change for future steps, since rows of such steps are removed first.
        "order": {name: value for name, value in training.spec.fields().items() if name not in AHEAD},
    }
    with named(path, "cannot be read"):
        text = path.read_text(encoding="utf-8") if path.is_file() else None
    before = None if text is None else _header_of(text, path)
    if is_chief and before is not None and before != run:
        what = next(name for name in run if before.get(name) != run[name])
        theirs = "" if what == "order" else f" ({before.get(what)})"
        raise UsageError(
            f"{flag}: has the losses of a run with another {what}{theirs}, whose rows would be mixed with these; name "
            "another folder"
        )
    if is_chief and before is None:
        if found := next(iter(_files(folder)), None):
            raise UsageError(f"{flag}: has {found.name} but no {_HEADER}, which says whose it is; name another folder")
        with named(path, "cannot be written"):
            replace(path, f"{json.dumps(run, sort_keys=True)}\n")


def _header_of(text: str, path: pathlib.Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
        found["order"] = {name: value for name, value in found["order"].items() if name not in AHEAD}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError("does not say whose losses these are; name another folder", path=path) from None
    return found


def _files(folder: str) -> list[pathlib.Path]:
    return sorted(path for path in pathlib.Path(folder).glob("worker-*.losses") if _NAME.fullmatch(path.name))


class LossLog:
    """Appends to one worker's file. Use it as a context manager.

    A resumed run first removes the rows of the steps that it will repeat, so that no step occurs twice. The chief does
    the same in the files of workers that no longer exist.
    """

    def __init__(self, folder: str, worker: int, workers: int, start_step: int) -> None:
        """Opens the file, or continues the file from an earlier part of the run.

        Raises:
          DataError: a file cannot be written.
        """
        path = pathlib.Path(folder) / f"worker-{worker:05d}.losses"
        gone = [one for one in _files(folder) if worker == 0 and int(_NAME.fullmatch(one.name)[1]) >= workers]  # type: ignore[index]
        for each in (path, *gone):
            with named(each, "cannot be written"), each.open("ab") as file:
                file.truncate(_rows_before(each, start_step) * ROW.itemsize)
        self._path = path
        with named(path, "cannot be written"):
            self._file: BinaryIO = path.open("ab")

    def append(self, step: int, records: NDArray[Any], losses: NDArray[Any], weights: NDArray[Any]) -> None:
        """Appends the rows of a global step, except rows of weight 0.

        Args:
          step: global step before the update.
          records, losses, weights: ids (int64), losses and sample weights (float32) of all rows of the worker's
            replicas, arrays of the same shape.
        """
        real = weights.reshape(-1) > 0
        rows = np.empty(int(real.sum()), ROW)
        rows["step"], rows["record"], rows["loss"] = step, records.reshape(-1)[real], losses.reshape(-1)[real]
        with named(self._path, "cannot be written"):
            self._file.write(rows.tobytes())

    def flush(self) -> None:
        """Hands all rows to the operating system, so that they survive if the process is killed."""
        with named(self._path, "cannot be written"):
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with named(self._path, "cannot be written"):
            self._file.close()


def _rows_before(path: pathlib.Path, step: int) -> int:
    """Returns the number of rows of earlier steps; what follows them will be repeated, or is a partial row."""
    count = path.stat().st_size // ROW.itemsize
    if not count:
        return 0
    rows: NDArray[Any] = np.memmap(path, ROW, "r", shape=(count,))
    # Not np.searchsorted, which would copy the column of a file that may have gigabytes.
    return bisect.bisect_left(range(count), step, key=lambda row: int(rows[row]["step"]))


def read(folder: str | os.PathLike[str], first: int = 0, stop: int = _MOST) -> NDArray[Any]:
    """Returns all workers' rows for the steps from `first` up to, but not including, `stop`, by step: `ROW` (rows,).

    Raises:
      DataError: the log does not exist or cannot be read.
    """
    files = _files(os.fspath(folder))
    if not files:
        raise DataError(f"has no worker-*.losses, which {name_of('trainer.run')} --log_losses writes", path=folder)
    parts: Sequence[NDArray[Any]] = [np.fromfile(path, ROW, path.stat().st_size // ROW.itemsize) for path in files]
    rows = np.concatenate([part[(part["step"] >= first) & (part["step"] < stop)] for part in parts])
    return rows[np.argsort(rows["step"], kind="stable")]
