"""The layout of a run's folder, --model_dir."""

from __future__ import annotations

import dataclasses
import pathlib

EVENTS = "events.out.tfevents."  # prefix of TensorBoard's files
FLAGS = "flags"  # tag of the run's flags there: by group, as JSON
BEST = "best"  # folder of the best checkpoints; users call them so, too


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The layout of a run's folder; its checkpoints lie in the folder itself.

    Attributes:
      path: of the folder, which need not exist yet.
    """

    path: pathlib.Path

    def __str__(self) -> str:
        """The folder as the flag that names it, for messages."""
        return f"--model_dir={self.path}"

    @property
    def best(self) -> pathlib.Path:
        """Folder of the checkpoints that --keep_best keeps."""
        return self.path / BEST

    @property
    def logs(self) -> pathlib.Path:
        """Folder of TensorBoard's files."""
        return self.path / "logs"

    @property
    def evaluation_logs(self) -> pathlib.Path:
        """Folder of the events of `trainer.evaluate --continuous`, a separate run in TensorBoard."""
        return self.logs / "evaluate"

    @property
    def config(self) -> pathlib.Path:
        """File with the flags of the run, for --config."""
        return self.path / "config.yaml"

    @property
    def launch(self) -> pathlib.Path:
        """Folder of the logs, heartbeats and status of `trainer.launch`."""
        return self.path / "launch"

    @property
    def heartbeats(self) -> pathlib.Path:
        """Folder with a heartbeat of each process of the run."""
        return self.launch / "heartbeats"

    @property
    def events(self) -> pathlib.Path:
        """File with what happened to the job, which `trainer.launch` writes: a JSON object per line."""
        return self.launch / "events.jsonl"

    @property
    def fresh_note(self) -> pathlib.Path:
        """Which job has started over in the folder, and whether it was still removing the run before it."""
        return self.path / ".trainer.fresh"

    @property
    def metrics_note(self) -> pathlib.Path:
        """File with the first lines of the --metrics_jsonl files that the run has begun."""
        return self.path / ".trainer.metrics"
