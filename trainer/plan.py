"""The plan of a run, computed from its config and the manifests, and checked before TensorFlow is loaded."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError, as_flag, reason_of
from pipeline.files.paths import PathLike
from pipeline.manifest.sources import Source, Sources, own_views, parse_sources
from pipeline.manifest.splits import EVALUATED, names_of, to_evaluate
from pipeline.manifest.succession import are_versions
from pipeline.order.order import sharing_note
from pipeline.order.sharding import check_virtual_replicas
from pipeline.request import HOST, Request, check_classes
from pipeline.resolved import ResolvedInput, ResolvedRequest, check_alike, require_labels, resolve, resolve_all
from trainer.config import TrainConfig, meaning
from trainer.config.chosen import require_classes
from trainer.config.data import AUTO
from trainer.config.model import defaults_of
from trainer.config.phases import FLAG, NO_PHASES, Phase, Phases

if TYPE_CHECKING:
    from trainer.task import Task

_EVAL_SPLIT = EVALUATED[0]
_AS_TRAINED = (
    "a model is evaluated on the classes and shapes that it was trained on (--resize stretches images to one size; an "
    "index takes --class_names=FILE)"
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The data that a run reads, and its end.

    Attributes:
      training: request for training data, with the data sets and their order.
      last_step: global step at which training ends.
      evaluation: {name: request for one pass over a source's split}; empty if there is no evaluation.
      may_skip: largest number of examples of a split that may be skipped because their records are corrupt.
      notes: lines for the user, such as on data that are read several times or not evaluated.
      phases: phases of training: what is frozen, how fast the rest learns, and on which images.
    """

    training: ResolvedInput
    last_step: int
    evaluation: dict[str, ResolvedRequest]
    may_skip: int
    notes: tuple[str, ...] = ()
    phases: Phases = NO_PHASES

    @property
    def inputs(self) -> tuple[ResolvedInput, ...]:
        """Input of each phase: `training` with the phase's own images, in the same order."""
        return tuple(self.training.in_phase(phase.resize, phase.augment) for phase in self.phases.each)

    def input_at(self, step: int) -> ResolvedInput:
        """Returns the input of the phase to which the step after a global step belongs."""
        return self.inputs[self.phases.number_at(step)]


def make(config: TrainConfig, workers: int = 1, task: type[Task] | None = None) -> Plan:
    """Returns the plan of a run.

    Args:
      config: flags of the run.
      workers: processes whose replicas share the training.
      task: class with the run's own `parse` and `augment`; None for images augmented by --augment.

    Raises:
      DataError: there is no valid data set.
      UsageError: the config does not fit the data.
    """
    given, config = config.data.eval_split, with_eval_split(config)
    split = config.data.eval_split  # not given: the plan chooses one that the data have
    replicas, virtual = max(config.run.num_replicas or 1, workers), config.order.virtual_replicas
    request = request_of(config, task)
    if virtual is not None:
        check_virtual_replicas(config.order.global_batch_size, virtual, replicas)
        request.check_replicas(virtual, "virtual replicas")
    request.check_replicas(replicas)
    with as_flag("split", "--train_split"):
        training = resolve_all(request)
    training.check_pairs(replicas)
    if task is None and not config.model.modules:  # before any writing; a model's own loss needs the model
        require_classes(config.data.data_dir, training.first.manifest)
    _check_labels(training.parts)
    label = None if request.parse else training.first.manifest.features.get("label")
    if training.first.placed and config.model.class_weights:
        raise UsageError(f"--class_weight: weighs the classes of images, and the labels are {request.label}")
    check_classes(config.model.class_weights, training.first.class_names, label, "--class_weight")
    evaluation = _evaluation(config, task) if config.data.evaluates else {}
    other = list(_otherwise_stored(config, training, evaluation))
    may_skip = config.data.max_corrupt * workers if config.data.on_corrupt == "skip" else 0
    notes = [*_sharing(training, workers), *other, *_left_out(config, evaluation), *_repeated(training)]
    if given is None and split != _EVAL_SPLIT:
        found = any(_EVAL_SPLIT in part.manifest.splits for part in evaluation.values())
        why = f"{_EVAL_SPLIT!r} has no labels" if found else f"there is no {_EVAL_SPLIT!r}"
        notes.insert(0, f"evaluates on the split {split!r}, as {why} (--eval_split)")
    in_epoch, last_step = training.steps_per_epoch, config.last_step(training.steps_per_epoch)
    phases = Phases.of(config.optimizer.phases, in_epoch, last_step, training.spec.skip_steps)
    for phase in phases.each:
        _check_images(training, phase, replicas)
    return Plan(training, last_step, evaluation, may_skip, tuple(notes), phases)


def _check_images(training: ResolvedInput, phase: Phase, replicas: int) -> None:
    """Raises UsageError if a phase's images are impossible, or would change the order of examples."""
    try:
        found = training.in_phase(phase.resize, phase.augment)
        if found is training:
            return
        own, of_run = found.first.image_shape, training.first.image_shape
        if own and of_run and math.prod(own) > math.prod(of_run):
            larger = "x".join(map(str, own[:2]))
            raise UsageError(
                f"its images are larger than the run's, {of_run[0]}x{of_run[1]}, which determine windows and "
                f"evaluations; give --resize={larger}"
            )
        resolved = resolve_all(found.request)
        resolved.check_pairs(replicas)
        if resolved.spec != training.spec:
            raise UsageError("it would change the order of examples; give --streams")
    except UsageError as error:
        raise UsageError(f"{FLAG}: {str(phase)!r}: {error}") from None


def settled(config: TrainConfig, plan: Plan, place: str) -> tuple[TrainConfig, Plan]:
    """Returns the config and the plan of a run with `--augment_on=auto` resolved."""
    if config.data.augment_on != AUTO:
        return config, plan
    data, training = dataclasses.replace(config.data, augment_on=place), plan.training.with_images(augment_on=place)
    return dataclasses.replace(config, data=data), dataclasses.replace(plan, training=training)


def with_eval_split(config: TrainConfig) -> TrainConfig:
    """Returns the config with a split to evaluate on: the given one, or `test` or another that the data have.

    Raises:
      DataError: there is no valid data set.
    """
    if config.data.eval_split is not None:
        return config
    splits, is_apart = splits_of(config), config.data.eval_data_dir is not None
    trained = [name for source in config.data.sources for name in names_of(source.split)] if not is_apart else []
    found = to_evaluate(splits, trained) or _EVAL_SPLIT
    return dataclasses.replace(config, data=dataclasses.replace(config.data, eval_split=found))


def with_trained_split(config: TrainConfig) -> TrainConfig:
    """Returns the config with the first source's training split as the split to evaluate on."""
    split = config.data.sources[0].split
    data = dataclasses.replace(config.data, eval_data_dir=None, eval_split=split, eval_where=None, eval_limit=None)
    return dataclasses.replace(config, data=data)


def splits_of(config: TrainConfig) -> list[str]:
    """Returns the names of all splits with labels, on which evaluation is possible, in order.

    Raises:
      DataError: there is no valid data set.
    """
    loaded = [manifests.load(folder) for folder in _evaluated(config)]
    return list(dict.fromkeys(name for made in loaded for name in made.labelled(made.splits)))


def request_of(config: TrainConfig, task: type[Task] | None) -> Request:
    """Returns the request for the training split.

    Args:
      config: flags of the run.
      task: task, as in `make`.
    """
    data_dir = parse_sources(config.data.data_dir)
    return _request(config, task, data_dir, config.data.train_split, None, training=True)


def evaluation_of(
    config: TrainConfig, task: type[Task] | None, statistics: PathLike | None = None
) -> dict[str, ResolvedRequest]:
    """Returns {name: request for one padded pass over the evaluation split} for each data set that has the split.

    Args:
      config: flags of the run.
      task: task, as in `make`.
      statistics: data set whose means and deviations normalise images; None for the first training data set.

    Raises:
      DataError: there is no valid data set.
      UsageError: the config does not fit the data.
    """
    config = with_eval_split(config)
    folders, trained = _evaluated(config), _folders(config)
    assert config.data.eval_split is not None
    names = _names(folders, config.data.eval_split)
    needed = set(names_of(config.data.eval_split))
    has_split = [folder for folder in folders if len(folders) == 1 or needed <= manifests.load(folder).splits.keys()]
    found = {
        names[folder]: resolve(
            _request(config, task, folder, config.data.eval_split, statistics or trained[0], training=False)
        )
        for folder in has_split or folders
    }
    _check_labels(found.values())
    check_alike(list(found.values()), list(found))
    return found


def _check_labels(parts: Iterable[ResolvedRequest]) -> None:
    """Raises UsageError if images have no labels, and no parser, masks, boxes or points instead."""
    for part in parts:
        if part.request.parse is None and not part.placed:
            require_labels(part.manifest, part.request.split)


def _evaluation(config: TrainConfig, task: type[Task] | None) -> dict[str, ResolvedRequest]:
    try:
        return evaluation_of(config, task)
    except UsageError as error:
        flag = f"--eval_split={with_eval_split(config).data.eval_split}"
        flag = f"--eval_data_dir={config.data.eval_data_dir}, {flag}" if config.data.eval_data_dir else flag
        reason = error.reason if error.argument == "split" else error
        raise UsageError(f"{flag}: {reason}; --eval_split=none trains without evaluation") from None


def _otherwise_stored(
    config: TrainConfig, training: ResolvedInput, evaluation: dict[str, ResolvedRequest]
) -> Iterator[str]:
    """Yields a note if the images in --eval_data_dir are stored differently from the training images."""
    given = config.data.eval_data_dir
    if given is None or not evaluation:
        return
    try:
        check_alike([training.first, *evaluation.values()], [str(training.first.request.folder), given], _AS_TRAINED)
    except UsageError as error:
        raise UsageError(f"--eval_data_dir={given}: {error}") from None
    there, here = (_storage(part) for part in (next(iter(evaluation.values())), training.first))
    if there != here:
        yield f"--eval_data_dir={given}: its images are stored as {there}, those that are trained on as {here}"


def _storage(part: ResolvedRequest) -> str:
    """Returns text on how a data set's images are stored; empty if the user's code parses them."""
    image = part.manifest.features.get("image") if part.request.parse is None else None
    if image is None:
        return ""
    return "raw" if image.encoding == "raw" else f"{image.encoding}, {part.manifest.pixels.words}"


def _request(
    config: TrainConfig,
    task: type[Task] | None,
    data_dir: PathLike | Sources,
    split: str,
    statistics: PathLike | None,
    training: bool,
) -> Request:
    options = meaning.options(config, "training" if training else "evaluation")
    if options.get("augment_on") == AUTO:
        options["augment_on"] = HOST
    if not training and options.get("classes"):
        options["classes"] = _classes(config, data_dir)
    parse = None
    if task is not None:
        parse, options["augment"], options["label"] = task.parse, _augment_of(task, config), task.label
    if parse and options["resize"] == defaults_of(config.model.model).get("resize"):
        options["resize"] = None  # the model's size, not the user's: parsed images have a size of their own
    return Request(data_dir, split, training=training, parse=parse, statistics=statistics, **options)


def _augment_of(task: type[Task], config: TrainConfig) -> Any:
    """Returns a task's augmentation: its own function, or the recipe of --augment; None if there is none."""
    name, flag = task.__name__, config.data.augment
    if task.augment is None:
        return None if task.parse and flag == "none" else flag
    if task.parse is not None:
        raise UsageError(
            f"{name}.augment with {name}.parse: parse returns everything that is fed; augment there, by keys: "
            "parse(records, keys)"
        )
    if flag != "none":
        raise UsageError(
            f"--augment={flag} with {name}.augment: only one of them can augment; give --augment=none (the default is "
            "--model's), or remove the method"
        )
    return task.augment


def _classes(config: TrainConfig, folder: object) -> Any:
    """Returns the classes to evaluate of a data set: the ones that its source trains on."""
    given = config.data.sources
    sources, for_all = own_views(given if len(given) > 1 else (), {"classes": config.order.classes})
    own = (one.options["classes"] for one in sources if one.data_dir == folder and one.options)
    return next(own, None) or for_all["classes"]


def _folders(config: TrainConfig) -> list[PathLike]:
    return list(dict.fromkeys(source.data_dir for source in config.data.sources))


def _evaluated(config: TrainConfig) -> list[PathLike]:
    given, trained = config.data.eval_data_dir, _folders(config)
    if given is None and config.order.mixture_schedule and are_versions(trained):
        return trained[-1:]  # earlier phases lead up to it
    return [given] if given is not None else trained


def _names(folders: list[PathLike], split: str) -> dict[PathLike, str]:
    """Returns the name of each data set's evaluation: `test`, or `mnist:test` if there are several."""
    if len(folders) == 1:
        return {folders[0]: split}
    short = [os.path.basename(os.path.normpath(os.fspath(folder))) for folder in folders]
    return {
        folder: f"{name if short.count(name) == 1 else os.fspath(folder)}:{split}"
        for folder, name in zip(folders, short, strict=True)
    }


def _sharing(training: ResolvedInput, workers: int) -> Iterator[str]:
    for part in training.parts:
        note = sharing_note(part.spec, part.order, workers)
        if note:
            yield f"{part.request.folder}:{part.request.split}: {note}" if training.request.is_mixture else note


def _left_out(config: TrainConfig, evaluation: dict[str, ResolvedRequest]) -> Iterator[str]:
    evaluated = {part.request.folder for part in evaluation.values()}
    for folder in _evaluated(config) if evaluation else []:
        if folder not in evaluated:
            yield f"{os.fspath(folder)} has no split {config.data.eval_split!r}: it is not evaluated"


def _repeated(training: ResolvedInput) -> Iterator[str]:
    """Yields a note for each source with the same records as another."""
    first: dict[tuple[str, str], Source] = {}
    for part, source in zip(training.parts, training.request.sources, strict=True):
        other = first.setdefault((part.spec.manifest_digest, part.spec.split), source)
        if other is not source:
            yield (
                f"the sources {other} and {source} hold the same records, so a step may have one twice; if that is not "
                "meant, give one of them with the sum of the weights"
            )


def prepare_folder(flag: str, path: str | pathlib.Path) -> None:
    """Creates the folder named by a flag.

    Raises:
      UsageError: the path is a file or a checkpoint, or the folder cannot be created.
      DataError: the folder cannot be written to.
    """
    folder = pathlib.Path(path)
    if folder.name and folder.with_name(f"{folder.name}.index").is_file() and not folder.is_dir():
        raise UsageError(f"{flag}={path}: is a checkpoint, not a folder; give the folder that contains it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{flag}={path}: is a file, not a folder") from None
    except OSError as error:
        raise UsageError(f"{flag}={path}: cannot be created: {reason_of(error)}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(
            f"{flag}={path}: is not writable; make it so, or name another folder (to continue a run: a copy)"
        )
