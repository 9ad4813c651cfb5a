"""A trained model outside its run, for evaluation and export: built from a checkpoint, with splits to run it on."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline import manifest as manifests
from pipeline.augmentation.recipes import make_recipe
from pipeline.errors import DataError, PipelineError, UsageError, name_of
from pipeline.files.paths import PathLike
from pipeline.manifest import PixelRule, succession
from pipeline.resolved import ResolvedRequest
from trainer import lazy_imports, plan
from trainer.checkpoint import files, reader, resume, structure
from trainer.checkpoint.reader import Record, UnreadableError
from trainer.config import TrainConfig
from trainer.config.trained import CheckpointFlags
from trainer.step import state
from trainer.step.state import Forward, TrainState
from trainer.task import DataSpec, Task, data_spec_of, gives_probabilities


@dataclasses.dataclass(eq=False)
class Trained:
    """A model that can load the weights of any checkpoint of its run.

    Attributes:
      config: flags of the run for one device, with the requested data and split.
      state: task, model and measure. It has no averages: the model's weights are set to them.
      splits: {name: one padded pass over a source's split}.
      may_skip: largest number of examples of a split that may be skipped because their records are corrupt.
      record: checkpoint whose weights the model has.
      averaged: whether the weights are the average over the steps.
    """

    config: TrainConfig
    state: TrainState
    splits: dict[str, ResolvedRequest]
    may_skip: int
    record: Record
    averaged: bool = False

    @property
    def name(self) -> str:
        """The name of the task, or of the model."""
        return self.config.model.task or self.config.model.model

    @property
    def split(self) -> ResolvedRequest:
        """The split of the first source."""
        return next(iter(self.splits.values()))

    @property
    def pixel_rule(self) -> PixelRule:
        """Rule for decoding image files for the model, the same as for the training data."""
        data = self.config.data
        if data.eval_data_dir is None:
            return self.split.manifest.pixels
        return manifests.load(data.sources[0].data_dir).pixels

    @property
    def model(self) -> keras.Model:
        """The Keras model."""
        return self.state.model

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names by number."""
        return self.state.task.data.class_names

    @property
    def parses(self) -> bool:
        """Whether the task parses records; the model then takes the parsed features instead of images."""
        return self.split.request.parse is not None

    @property
    def takes_records(self) -> bool:
        """Whether predictions and exports take records: the task parses them, or the images' labels are not classes."""
        return self.parses or not self.state.task.data.are_classes

    def forward(self) -> Forward:
        """Returns the model as a function of features as evaluations call it, with its current weights."""
        kinds = self.model.trainable_variables, self.model.non_trainable_variables
        return self.state.evaluating(*([tf.convert_to_tensor(v.value) for v in variables] for variables in kinds))

    def probabilities(self, outputs: tf.Tensor) -> tf.Tensor:
        """Converts the outputs of a classification model to probabilities, float32."""
        return tf.cast(outputs if gives_probabilities(self.model) else tf.nn.softmax(outputs), tf.float32)

    def __str__(self) -> str:
        """The name and the checkpoint, for messages."""
        averaged = ", averaged weights" if self.averaged else ""
        return f"{self.name} at step {self.record.step}{averaged} ({self.record.path})"

    def take(self, record: Record, kind: str | None) -> None:
        """Loads the weights of another checkpoint of the run; for `kind` see `Record.chooses_average`.

        Raises:
          UnreadableError: the checkpoint is damaged or was removed.
          UsageError: it is a checkpoint of another model.
        """
        self._check_structure(record)
        averaged = record.chooses_average(kind)
        record.load_weights(self.model, averaged)
        self.record, self.averaged = record, averaged

    def _check_structure(self, record: Record) -> None:
        stored = record.content.get("structure")  # old checkpoints lack it
        changed = structure.changes(stored, structure.of(self.model), is_trained=False) if stored else []
        if found := [change for change in changed if not change.is_harmless]:
            raise UsageError(
                f"{record.path} has a different model from {self.name} now: {structure.in_words(found)}; go back to "
                "the code of that run"
            )


def build_first(paths: Sequence[pathlib.Path], flags: CheckpointFlags, say: Callable[[str], object]) -> Trained:
    """Returns the model of the first readable checkpoint, with its weights.

    If none can be read, looks for checkpoints again: a run that is training may have replaced all of them.

    Args:
      paths: one or more checkpoints.
      flags: weights to use, and flag values that differ from the run's.
      say: function that prints a line, on skipped checkpoints and on code that has changed since the run.

    Raises:
      UnreadableError: none can be read.
      DataError, UsageError: as in `build`.
    """
    try:
        return _build_first(paths, flags, say)
    except UnreadableError:
        now = []
        with contextlib.suppress(PipelineError):
            now = files.candidates(flags.folder.path, flags.checkpoint)
        if set(now) <= set(paths):
            raise
    return _build_first(now, flags, say)


def _build_first(paths: Sequence[pathlib.Path], flags: CheckpointFlags, say: Callable[[str], object]) -> Trained:
    *rest, last = reader.best_first(paths)
    skipped: list[str] = []
    for path in (*rest, last):
        try:
            trained = build(reader.read(path), flags)
        except UnreadableError as error:
            if path == last:
                for line in skipped:
                    say(line)
                raise
            skipped.append(error.skipped)
            continue
        if flags.checkpoint is None:
            skipped += map(files.without_index, files.cut_after(path))
        break
    for line in skipped:
        say(f"warning: {line}; {path} is used instead")
    if changes := resume.code_changes(trained.record.content, trained.config):
        say(f"changed since {trained.record.path.name}: {'; '.join(changes)}")
    return trained


def build(record: Record, flags: CheckpointFlags) -> Trained:
    """Returns the model of a checkpoint, with its weights.

    Args:
      record: record of the checkpoint.
      flags: weights to use, and flag values that differ from the run's.

    Raises:
      DataError: there is no data set, or the checkpoint cannot be read.
      UsageError: the model does not fit the data or cannot be built, or the statistics that normalised the run's images
        are unknown.
    """
    given = flags.of_run
    if "data_dir" not in given:
        succession.check_trained_on(record.config().data.sources, record.content.get("order", {}), record.path)
    if "global_batch_size" in given:
        given["streams"] = None  # the run's number need not divide the new batch size; an evaluation has one stream
    if "data_dir" in given and record.config().data.eval_data_dir is not None:  # data_dir replaces it
        given = {"eval_split": None, **given, "eval_data_dir": None}
    config = record.config(**given)
    if not config.data.evaluates:
        if flags.needs_split:
            names = plan.splits_of(config)
            raise UsageError(
                f"--split is missing: the run had --eval_split={config.data.eval_split or 'none'}; give one of its "
                f"data's splits ({', '.join(names)}), or a part of one, such as --split={names[0]}[:1000]"
            )
        # Building the model takes no split, only the shapes and classes of the training data.
        config = plan.with_trained_split(config)
    task_class = lazy_imports.load_task(config.model.task) or Task
    splits = _resolved(record, config, task_class, flags)
    data = data_spec_of(next(iter(splits.values())))
    _check_data(record, data, config.data.evaluated)
    found = state.build(config, data, tf.distribute.get_strategy(), task_class)
    may_skip = config.data.max_corrupt if config.data.on_corrupt == "skip" else 0
    trained = Trained(config, found, splits, may_skip, record)
    trained.take(record, flags.weights)
    return trained


def _resolved(
    record: Record, config: TrainConfig, task: type[Task], flags: CheckpointFlags
) -> dict[str, ResolvedRequest]:
    statistics = _given_statistics(config, flags) or _statistics(record, config, flags)
    try:
        return plan.evaluation_of(config, task, statistics)
    except DataError as error:
        if flags.data_dir is not None:
            raise
        raise error.advised("the run's data: if they have moved, give --data_dir") from None
    except UsageError as error:
        if error.argument != "statistics":
            reason = error.reason if error.argument == "split" else error
            raise UsageError(f"--split={config.data.eval_split or 'test'}: {reason}") from None
        if flags.statistics is not None:
            raise error.changed(argument=f"--{error.argument}") from None
        raise UsageError(
            f"--data_dir={config.data.data_dir}: unlike what {record.path} was trained on: {error}"
        ) from None


def _given_statistics(config: TrainConfig, flags: CheckpointFlags) -> str | None:
    """Returns the data set that --statistics names, if any."""
    if flags.statistics is None:
        return None
    if not make_recipe(config.data.augment, "--augment").normalizes:
        raise UsageError(f"--statistics={flags.statistics}: --augment={config.data.augment} does not use it")
    try:
        manifests.load(flags.statistics)
    except DataError as error:
        raise DataError(f"--statistics={flags.statistics}: {error}") from None
    return flags.statistics


def _statistics(record: Record, config: TrainConfig, flags: CheckpointFlags) -> PathLike | None:
    """Returns the data set whose statistics normalised the run's images; None for the first given data set."""
    if flags.data_dir is None or not make_recipe(config.data.augment, "--augment").normalizes:
        return None
    was, given = (one.data.sources[0].data_dir for one in (record.config(), config))
    order = record.content.get("order", {})
    digest = order.get("manifest_digest", order.get("source 0: manifest_digest"))
    if manifests.load(given).digest == digest:
        return given
    with contextlib.suppress(DataError):
        if manifests.load(was).digest == digest:
            return was
    raise UsageError(
        f"--data_dir={flags.data_dir}: is not what {record.path} was trained on, and {was} does not hold that "
        f"data set, whose statistics --augment={config.data.augment} normalised by; give its folder as --statistics, "
        "or the folder of another data set to normalise by"
    )


def _check_data(record: Record, data: DataSpec, data_dir: str) -> None:
    shape = getattr(data.features, "shape", None)
    here: dict[str, Any] = {"num_classes": len(data.class_names), "image_shape": shape and shape[1:].as_list()}
    for name, value in here.items():
        if name in record.content and (trained := record.content[name]) != value:
            is_other_size = value and trained and name == "image_shape" and len(value) == len(trained) == 3
            helps = (
                f"; {name_of('beam_jobs.convert')} --resize={trained[0]}x{trained[1]} makes such images"
                if is_other_size
                else ""
            )
            raise UsageError(
                f"--data_dir={data_dir}: has {name} {value}, but {record.path} was trained on {trained}{helps}"
            )
    if other := resume.other_class(record.content, data.class_names):
        number, was, here_named = other
        raise UsageError(
            f"--data_dir={data_dir}: its class {number} is {here_named!r}, but {record.path} was trained with {was!r}; "
            f"the same numbers must mean the same classes: {name_of('pipeline.index')} --class_names=FILE gives names"
        )
