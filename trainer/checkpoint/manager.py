"""`CheckpointManager`: saves and restores a run's state, and keeps the newest and the best checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf

from pipeline import errors
from pipeline.errors import DataError, UsageError
from pipeline.files.write import replace
from pipeline.manifest.succession import STARTED_IN
from pipeline.resolved import ResolvedInput, ResolvedRequest
from trainer import runtime
from trainer.checkpoint import NotFiniteError, reader
from trainer.checkpoint.best import BestCheckpoints, Ranking
from trainer.checkpoint.files import ALL, PREFIX, CheckpointFiles, path_of, without_index
from trainer.checkpoint.resume import STEP, RunSpec, State
from trainer.config import TrainConfig, file
from trainer.run_folder import check_file

_LOWER = "a lower --learning_rate"
_RANKING = "ranking"  # name among the parts of a checkpoint


class Stateful(Protocol):
    """A part of a run's state that is not a variable; checkpoints store it as JSON."""

    def state_dict(self) -> Any:
        """Returns the state as a JSON-compatible object, the same on every worker."""

    def load_state_dict(self, stored: Any) -> None:
        """Restores what `state_dict` returned; None if the checkpoint lacks this part."""


@dataclasses.dataclass(frozen=True)
class LossAverages:
    """The moving averages of the losses.

    Attributes:
      variable: variable that holds the averages, float32; NaN before the first update.
    """

    variable: tf.Variable

    def state_dict(self) -> list[float | None]:
        """Returns the exact averages, as float64 holds every float32."""
        return [None if math.isnan(value) else value for value in self.variable.numpy().tolist()]

    def load_state_dict(self, stored: list[float | None] | None) -> None:
        """See `Stateful`."""
        if stored is not None:
            self.variable.assign([math.nan if value is None else value for value in stored])


@dataclasses.dataclass(frozen=True)
class EpochSums:
    """The sums over the epoch so far, from which its mean loss and metrics follow.

    Attributes:
      variable: variable that holds the number of steps, then the sums over them; empty before the first update.
      steps_per_epoch: T; None if all updates are in one epoch.
    """

    variable: tf.Variable
    steps_per_epoch: int | None

    @property
    def steps(self) -> int:
        """Number of steps summed so far."""
        sums = self.variable.numpy()
        return int(sums[0]) if len(sums) else 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the exact sums, and the steps per epoch."""
        return {"steps_per_epoch": self.steps_per_epoch, "sums": self.variable.numpy().tolist()}

    def load_state_dict(self, stored: dict[str, Any] | None) -> None:
        """See `Stateful`; sums over an epoch of a different length are dropped."""
        if stored is not None and stored["steps_per_epoch"] == self.steps_per_epoch:
            self.variable.assign(stored["sums"])


def parts_of(stepper: Any) -> dict[str, Any]:
    """Returns the checkpoint parts that a `trainer.step.train_step.TrainStep` keeps besides the state, by name."""
    return {"averages": LossAverages(stepper.averages), "epoch": EpochSums(stepper.epoch, stepper.steps_per_epoch)}


@dataclasses.dataclass(frozen=True)
class Restored:
    """A checkpoint that was restored.

    Attributes:
      path: path of the checkpoint.
      changes: training options that have changed since then: `--learning_rate was 0.05, is 0.01`.
    """

    path: str
    changes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path)


class CheckpointManager:
    """Saves and restores the state of one run, and keeps the best checkpoints in addition to the newest.

    tf.distribute requires every worker to save. The chief saves to the run's folder, the others to a temporary folder,
    which they remove. All restore from the run's folder.

    Attributes:
      best: best checkpoints; None if evaluations are not ranked.
    """

    def __init__(
        self,
        config: TrainConfig,
        training: ResolvedInput,
        evaluation: Mapping[str, ResolvedRequest],
        state: State,
        parts: Mapping[str, Stateful],
        *,
        is_chief: bool,
        say: Callable[[str], None],
        io_device: str | None = None,
    ) -> None:
        """Removes files that a killed process left behind in the run's folder.

        Args:
          config: flags of the run.
          training, evaluation: data to train and evaluate on.
          state: initial state, before a checkpoint is restored.
          parts: non-variable parts of the state, by name.
          is_chief: whether this worker writes to the run's folder.
          say: function that prints a line.
          io_device: device that reads and writes the files; None for the variables' own devices, which must be in this
            process.
        """
        folder = config.run.folder
        self._config, self._state, self._say, self._is_chief = config, state, say, is_chief
        self._spec = RunSpec.of(state, training, config)
        in_epoch = training.steps_per_epoch
        period = config.steps.period("checkpoint", in_epoch)
        # Saves by the default clock must not push out the checkpoints of --checkpoint_every.
        counted = period if period.soonest else ALL
        self._files = CheckpointFiles(folder.path, config.steps.max_to_keep, in_epoch, counted)
        self._checkpoint = tf.train.Checkpoint(**state.trackable(), record=_Record(self._record_text))
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        flags, data = config.steps, {name: split.spec.manifest_digest for name, split in evaluation.items()}
        ranking = Ranking(flags.keep_best, flags.early_stopping, flags.best_metric, flags.best_mode, data)
        self._ranking, self._saved = ranking, (0, 0)
        self._parts: dict[str, Stateful] = {**parts, _RANKING: ranking}  # a run without ranking passes it on
        if is_chief:
            check_file(folder.config)
            for path in self._files.tidy():
                say(without_index(path))
        self.best = BestCheckpoints(ranking, folder, is_chief, self._write_with) if flags.ranks else None

    def use(self, config: TrainConfig) -> None:
        """Stores these flags from now on."""
        self._config, self._spec = config, dataclasses.replace(self._spec, config=config)

    @property
    def newest(self) -> str | None:
        """Path of the newest checkpoint in the run's folder; None if there is none."""
        paths = self._files.paths
        return paths[-1] if paths else None

    @property
    def ends_early(self) -> bool:
        """Whether evaluations have stopped improving."""
        return self.best is not None and self.best.ranking.ended

    def restore(self, upto: int | None = None) -> Restored | None:
        """Restores the newest readable checkpoint; returns None if there is none.

        Args:
          upto: latest step to restore; None for any.

        A damaged checkpoint is skipped with a notice: the same steps from an earlier one lead to the same weights, so
        only time is lost. If all are damaged, that is an error rather than a silent start from step 0.

        Raises:
          UsageError: the checkpoint has another model, optimizer, image shape or order of examples.
          DataError: none can be read.
        """
        steps = [step for step in self._files.steps if upto is None or step <= upto]
        paths = [str(path_of(self._files.folder, step)) for step in steps]
        for path in reversed(paths):
            try:
                stored = self._read(path)
            except reader.UnreadableError as error:
                self._say(f"skipped {path}, which is damaged: {error.reason}")
                continue
            for name, part in self._parts.items():
                part.load_state_dict(stored["remembered"].get(name))
            self._saved = self._version()
            if self._is_chief:  # the process that saved it may have been killed before it removed older ones
                self._files.prune(self._state.step)
            return Restored(path, self._changes(stored))
        if paths:
            raise DataError(
                f"{self._files.folder}: none of its {len(paths)} checkpoints can be read, the newest is {paths[-1]}; "
                "restore one from a backup, or start over with another --model_dir"
            )
        return None

    def complete_best(self) -> None:
        """Rewrites the restored state if it is among the best, as its file may be lost. All workers call it."""
        if self.best:
            self.best.resume(self._state.step)

    def _read(self, path: str) -> dict[str, Any]:
        record = reader.read(pathlib.Path(path))
        if path != str(path_of(self._files.folder, record.step)):  # the batches would be another step's
            raise DataError(
                f"{path}: is a copy of {PREFIX}-{record.step} under another name: it holds step {record.step}; move it "
                "away, or restore its name"
            )
        stored = {**record.content, STEP: record.step}
        self._spec.check(path, stored)
        with reader.readable(pathlib.Path(path)):
            try:
                self._checkpoint.read(path, self._options).assert_existing_objects_matched().expect_partial()
            except (AssertionError, ValueError) as error:
                changes = "".join(f"; {change}" for change in self._spec.changes(stored))
                raise UsageError(
                    f"{path} has a different form of the model or the optimizer: {reader.mismatch(error)}{changes}; go "
                    "back to the old code and flags, or use another --model_dir"
                ) from None
        self._spec.take_over(stored)
        return stored

    def _changes(self, stored: dict[str, Any]) -> tuple[str, ...]:
        changes = self._spec.changes(stored)
        if self.best and (reason := self.best.ranking.why_reset):
            return (*changes, f"{reason}, so the ranking of evaluations starts over")
        return changes

    def save(self) -> None:
        """Saves the state unless it is already saved, then removes checkpoints that are no longer among the best.

        A step is saved again if it has been evaluated since: a run that a signal stopped before an evaluation makes up
        for it on resume, and may end right after it.

        Raises:
          NotFiniteError: a weight is not finite; nothing is written.
        """
        if self._version() != self._saved:
            self._write_with(self._files.add)
            if self._is_chief:  # after the checkpoint, so that the flags belong to a resumable run
                with errors.named(self._files.folder, "cannot be written to"):
                    order = self._spec.spec.fields()
                    with contextlib.suppress(FileNotFoundError):  # the folder was removed meanwhile
                        order[STARTED_IN] = os.getcwd()
                    replace(self._config.run.folder.order, f"{json.dumps(order, sort_keys=True)}\n")
                    file.write(self._config.run.folder.config, dataclasses.asdict(self._config))
            self._saved = self._version()
        self.tidy()

    def _version(self) -> tuple[int, int]:
        """Returns the step, and the step of the last ranked evaluation."""
        return self._state.step, self._ranking.evaluated

    def tidy(self) -> None:
        """Removes checkpoints that are no longer among the best. Call it once the state is saved."""
        if self.best:
            self.best.tidy()

    def _write_with(self, add: Callable[[int, Callable[[str], object]], None]) -> None:
        """Writes the state with the `add` or `write` of a folder's `CheckpointFiles`; called by all workers."""
        step = self._state.step
        if not bool(self._state.is_finite()):
            raise NotFiniteError(f"step {step}: a weight is NaN or infinite, so it is not saved")
        if self._is_chief:
            add(step, self._write)
        else:
            with tempfile.TemporaryDirectory(prefix="trainer-worker-") as scratch:
                self._write(os.path.join(scratch, PREFIX))

    def _write(self, path: str) -> None:
        with runtime.saving_without_function():
            self._checkpoint.write(path, self._options)

    def _record_text(self) -> str:
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        return json.dumps({**self._spec.content(), "remembered": parts}, sort_keys=True)

    @contextlib.contextmanager
    def naming_the_way_back(self) -> Iterator[None]:
        """Context that adds `way_back` to errors about a loss or weight that is not finite."""
        try:
            yield
        except NotFiniteError as error:
            raise error.advised(self.way_back()) from None

    def way_back(self) -> str:
        """Returns advice after a non-finite loss or weight: which checkpoint to resume from, and with what change."""
        paths = self._files.paths
        if not paths:
            return f"try {_LOWER}"
        oldest, newest = os.path.basename(paths[0]), paths[-1]
        lower = "a phase of a lower learning_rate from there on" if self._config.optimizer.phases else _LOWER
        further = f"; to go further back, as far as {oldest}, delete the newer ones" if len(paths) > 1 else ""
        return f"rerun with {lower} to resume from {newest}{further}"


class _Record(tf.train.experimental.PythonState):
    """A text in the checkpoint that `trainer.checkpoint.reader` reads before the variables are restored."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def serialize(self) -> str:
        return self._text()

    def deserialize(self, string_value: str) -> None:
        """Ignores the text, which has already been read."""
