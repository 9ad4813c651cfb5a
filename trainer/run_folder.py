"""The layout of a run's folder, --model_dir, and its lock: two jobs there would delete each other's checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import socket
from collections.abc import Iterator

from pipeline.errors import DataError, RerunError, named
from pipeline.files.paths import locked

EVENTS = "events.out.tfevents."  # prefix of TensorBoard's event files
FLAGS = "flags"  # tag of the run's flags in event files: JSON, by group
BEST = "best"  # folder of the best checkpoints, and its name in flags


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The layout of a run's folder; its checkpoints are in the folder itself.

    Attributes:
      path: path of the folder, which need not exist yet.
    """

    path: pathlib.Path

    def __str__(self) -> str:
        """The folder as the flag names it, for messages."""
        return f"--model_dir={self.path}"

    def is_run(self) -> bool:
        """Returns whether a run has written to the folder, even if its checkpoints are gone or half copied."""
        # It may only have kept its best checkpoints.
        patterns = ("ckpt-*.index", f"{BEST}/ckpt-*.index", "ckpt-*.data-*")
        has_files = self.config.is_file() or (self.path / LOCK).is_file()
        return has_files or any(path for pattern in patterns for path in self.path.glob(pattern))

    def run_around(self) -> RunFolder | None:
        """Returns the run that contains this folder, for example as its `best`; None if there is none."""
        path = pathlib.Path(os.path.abspath(self.path))
        for run in (RunFolder(parent) for parent in path.parents[:2]):
            if run.is_run() and path in (run.best, run.logs, run.evaluation_logs, run.launch, run.heartbeats):
                return run
        return None

    def files(self) -> set[pathlib.Path]:
        """Returns the files that the properties below name in the folder itself, whether or not they are there."""
        places = {getattr(self, name) for name, of in vars(RunFolder).items() if isinstance(of, property)}
        return {one for one in places if one.parent == self.path} - {self.best, self.logs, self.launch}

    @property
    def best(self) -> pathlib.Path:
        """Folder of the checkpoints that --keep_best keeps."""
        return self.path / BEST

    @property
    def logs(self) -> pathlib.Path:
        """Folder of TensorBoard's event files."""
        return self.path / "logs"

    @property
    def evaluation_logs(self) -> pathlib.Path:
        """Folder of the events from `trainer.evaluate --continuous`, a separate run in TensorBoard."""
        return self.logs / "evaluate"

    @property
    def config(self) -> pathlib.Path:
        """File with the run's flags, for --config."""
        return self.path / "config.yaml"

    @property
    def order(self) -> pathlib.Path:
        """File with the spec of the run's order, as JSON, which identifies its data."""
        return self.path / "order.json"

    @property
    def launch(self) -> pathlib.Path:
        """Folder of the logs, heartbeats and status from `trainer.launch`."""
        return self.path / "launch"

    @property
    def heartbeats(self) -> pathlib.Path:
        """Folder with a heartbeat of each process of the run."""
        return self.launch / "heartbeats"

    @property
    def events(self) -> pathlib.Path:
        """File in which `trainer.launch` records what happened to the job: a JSON object per line."""
        return self.launch / "events.jsonl"

    @property
    def algorithms(self) -> pathlib.Path:
        """File with the algorithms that XLA has chosen on GPUs, as text; see `trainer.cluster.algorithms`."""
        return self.path / "xla_algorithms.txt"  # XLA infers the format from the suffix

    @property
    def algorithms_draft(self) -> pathlib.Path:
        """File with algorithms that no checkpoint depends on yet."""
        return self.path / ".trainer.algorithms.txt"

    @property
    def fresh_note(self) -> pathlib.Path:
        """File that records which job started over in the folder, and whether it is still deleting the old run."""
        return self.path / ".trainer.fresh"

    @property
    def metrics_note(self) -> pathlib.Path:
        """File with the first lines of the --metrics_jsonl files that the run has started."""
        return self.path / ".trainer.metrics"


def check_file(path: pathlib.Path) -> None:
    """Raises DataError if something other than a file has the path of a run's file."""
    if os.path.lexists(path) and not path.is_file():
        kind = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() else "not a regular file"
        raise DataError(f"{path}: is {kind}, where a run has a file; move it away, then rerun the same command")


LOCK = ".trainer.lock"  # file in the folder that names the last holder; it is never deleted
_MOST_BYTES = 1000  # limit of its content


@contextlib.contextmanager
def held(folder: RunFolder, place: pathlib.Path | None = None, what: str = "is training") -> Iterator[None]:
    """Context in which no other job can train in a folder. The kernel releases a dead process's lock.

    Args:
      folder: folder of the run.
      place: folder with the lock; None for the run's.
      what: activity of the lock's holder, for the error.

    Raises:
      RerunError: another job is training there. A rerun may help: a launcher may start a job while the previous one is
        still ending.
      DataError: the folder cannot be written to.
    """
    path = (place or folder.path) / LOCK
    with named(path, "cannot be opened"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    with locked(descriptor) as is_free:
        if not is_free:
            holder = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").strip() or "another process"
            raise RerunError(f"{folder}: {holder} {what} there; wait until it ends, or use another --model_dir")
        with contextlib.suppress(OSError):  # e.g. the disk is full: the lock works without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
