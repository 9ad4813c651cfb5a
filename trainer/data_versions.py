"""Which versions of its data a run trains on: the ones it began with, and later ones from the end of an epoch on.

A data set may have grown, or been edited, since a run began. The run resumes on its own version, whose order its
checkpoints store. It moves to a later one if --data_dir names that, at the end of the newest checkpoint's epoch. From
then on its flags, and so all later checkpoints, describe a mixture of versions that take turns
(`pipeline.manifest.succession`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline import manifest as manifests
from pipeline.commands import aliases
from pipeline.errors import DataError, PipelineError, UsageError
from pipeline.files.paths import folder, with_version
from pipeline.files.remote import in_command
from pipeline.manifest import Manifest, succession, versions
from pipeline.manifest.sources import parse_sources
from pipeline.manifest.succession import Chain
from pipeline.order import order as orders
from pipeline.resolved import resolve_all
from trainer import lazy_imports, plan
from trainer.checkpoint import files
from trainer.config import TrainConfig
from trainer.run_folder import RunFolder

if TYPE_CHECKING:
    from trainer.checkpoint.reader import Record
    from trainer.task import Task


def settled(config: TrainConfig, task: type[Task] | None, say: Callable[[str], object]) -> TrainConfig:
    """Returns the flags of a run with the versions of its data that it trains on.

    A data set with a single version needs no version number; otherwise a new run uses the newest unless it names one.

    Args:
      config: flags of the run as given by the user.
      task: class of the task, as for `trainer.plan.make`.
      say: function that prints a line about versions.

    Raises:
      DataError: the data, or a version of them, cannot be read.
      UsageError: the run cannot move to the version that --data_dir names.
    """
    if not _has_versions(config):
        return config
    record = None if config.run.fresh else _newest(config)
    given = parse_sources(config.data.data_dir)
    if not isinstance(given, str):
        now = config if record is None else pinned(config, record.content["order"], config.run.folder)  # a mixture
        if now != config:
            say(f"trains on the versions on which it began: --data_dir={now.data.data_dir}")
        return now
    if record is not None:
        return _in_turns(config, task, record, given, say)
    return _with(config, with_version(given)[0], ((0, manifests.load(given).digest),))


def _has_versions(config: TrainConfig) -> bool:
    """Returns whether one of the data sets has, or should have, versions besides the newest."""
    places = {with_version(source.data_dir)[0] for source in config.data.sources}
    with contextlib.suppress(DataError, OSError):  # problems with the data are reported when they are needed
        return any(manifests.version_names(folder(place)) or manifests.load(place).parent for place in places)
    return False


def _in_turns(
    config: TrainConfig, task: type[Task] | None, record: Record, given: str, say: Callable[[str], object]
) -> TrainConfig:
    """Returns the flags of a run on one data set with its versions; `given` is --data_dir. See `settled`."""
    chain, (place, version) = succession.of_order(record.content["order"]), with_version(given)
    every = {made.digest: made for made in versions.all_of(place)}
    if chain is None:
        return config
    if missing := [digest for _, digest in chain if digest not in every]:
        if not config.order.allow_order_change:
            _check_lost(place, missing[0], every, record)
        return config  # the order differs, which the checkpoint's check reports
    wanted = chain[-1][1] if version is None else manifests.load(given).digest
    if wanted != chain[-1][1]:
        if config.order.allow_order_change:
            return config
        if not versions.descends(folder(place), every[wanted], chain[-1][1]):
            numbers = {digest: made.version for digest, made in every.items()}
            raise UsageError(
                f"--data_dir={given}: the run trains on {succession.in_words(chain, numbers)}, and moves to later ones "
                f"only; give {place}@{numbers[chain[-1][1]]} to continue, or another --model_dir for a new run"
            )
        chain = _moved(_with(config, place, chain), task, record, chain, wanted)
    newest = max(every.values(), key=lambda made: made.version)
    for line in _lines(place, chain, every, newest):
        say(line)
    return _with(config, place, chain)


def _check_lost(place: str, digest: str, every: Mapping[str, Manifest], record: Record) -> None:
    """Raises DataError if a version that a run needs has been lost, according to the data set's other versions."""
    if digest in {gone.digest for gone in manifests.gone_in(folder(place))}:
        try:
            manifests.load(f"{place}@{digest}")
        except DataError as error:
            newest = max(made.version for made in every.values())
            raise error.changed(
                advice=f"{record.path} was trained on it, so its order cannot be kept: retrain on {place}@{newest}, "
                "with another --model_dir and --initialize_from for its weights, or continue in this one with "
                "--allow_order_change"
            ) from None
    if digest in {made.parent for made in every.values()}:
        known = ", ".join(f"{made.version} ({made.short})" for made in every.values())
        raise DataError(
            f"has no version {digest[:12]}, which {record.path} was trained on; it has {known}",
            path=place,
            advice="put back its folder versions/, or give another --model_dir for a new run",
        )


def _newest(config: TrainConfig) -> Record | None:
    """Returns the record of the newest readable checkpoint in the run's folder; None if there is none."""
    with contextlib.suppress(PipelineError, OSError):
        paths = files.candidates(config.run.folder.path, None)
        with lazy_imports.loading():
            from trainer.checkpoint import reader  # noqa: PLC0415, here because it loads TensorFlow
        for path in paths:
            with contextlib.suppress(reader.UnreadableError):
                return reader.read(path)
    return None


def _with(config: TrainConfig, place: str, chain: Chain) -> TrainConfig:
    flags = succession.flags_of(place, chain)
    data = dataclasses.replace(config.data, data_dir=flags["data_dir"])
    order = dataclasses.replace(config.order, mixture_schedule=flags["mixture_schedule"])
    return dataclasses.replace(config, data=data, order=order)


def _moved(config: TrainConfig, task: type[Task] | None, record: Record, chain: Chain, wanted: str) -> Chain:
    """Returns the versions plus another one, which begins at the end of an epoch of the last one."""
    first = chain[-1][0]
    if first and record.step <= first:  # the last one has not begun, and can be left out
        return (*chain[:-1], (first, wanted))
    last = resolve_all(plan.request_of(config, task)).parts[-1]
    spec = last.spec
    in_epoch = orders.steps_per_epoch(last.order.num_records, spec.global_batch_size, spec.remainder)
    epochs = max(1, -(-(record.step - first) // in_epoch))
    return (*chain, (first + epochs * in_epoch, wanted))


def _lines(place: str, chain: Chain, every: dict[str, Manifest], newest: Manifest) -> list[str]:
    numbers = {digest: made.version for digest, made in every.items()}
    first, last = every[chain[0][1]], chain[-1][1]
    found = [f"trains on {succession.in_words(chain, numbers)} of {place}"] if chain != ((0, newest.digest),) else []
    if len(chain) > 1:
        found.append(
            f"its epochs, as in --epochs, stay as long as those of version {first.version}, by whose mean and "
            "deviation recipes normalise; each version's own epochs have each of its records once"
        )
    if last != newest.digest:
        at = in_command(f"{place}@{newest.version}", "--data_dir")
        found.append(
            f"the newest is version {newest.version}, {_difference(every[last], newest)}; to move to it at the end of "
            f"an epoch: {at}"
        )
    return found


def _difference(last: Manifest, newest: Manifest) -> str:
    more = _count(newest) - _count(last)
    return f"of {abs(more):,} {'more' if more > 0 else 'fewer'} examples" if more else "of as many examples"


def _count(made: Manifest) -> int:
    return sum(split.num_examples for split in made.splits.values())


def pinned(config: TrainConfig, order: Mapping[str, Any], run: RunFolder) -> TrainConfig:
    """Returns the flags of a run with the data that it trains on; for the arguments see `succession.pinned`."""
    flags = aliases.stored(dataclasses.asdict(config))
    now = succession.pinned(flags, order, run.path)
    changed = {name: value for name, value in now.items() if flags.get(name) != value}
    return TrainConfig.of_stored(dataclasses.asdict(config), **changed) if changed else config
