"""The flags of an order of examples: a command's own, or the flags stored in a run's folder."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Self, TypeGuard

from pipeline.commands import aliases, commandline
from pipeline.commands.flags import flag
from pipeline.errors import DataError, UsageError, name_of, reason_of
from pipeline.files.paths import folder, with_version
from pipeline.files.reading import content_of
from pipeline.files.remote import in_command
from pipeline.manifest import gone_in, version_names
from pipeline.manifest.sources import flags_for, parse_sources, sources_of
from pipeline.manifest.succession import check_trained_on, pinned
from pipeline.order import sharding

_ON_SHEET = {"on_sheet": True}  # meaning: the flag also affects a contact sheet of the data set
# Files that `trainer.run` writes to a run's folder: its flags, in groups, and the spec of its order.
_CONFIG, _ORDER = "config.yaml", "order.json"


@dataclasses.dataclass(frozen=True)
class InputFlags:
    """Which examples are in which batch. Flags that are None come from the run that --model_dir names, if any."""

    split: str | None = flag(None, "a split, or a slice of one, such as train[:1000]", unset="train", meaning=_ON_SHEET)
    # At most 16.7 million rows per step, more images than any memory holds.
    global_batch_size: int | None = flag(None, "batch rows over all replicas", least=1, most=1 << 24)
    seed: int | None = flag(None, "seed of the order and the augmentations", unset="0", meaning=_ON_SHEET)
    streams: int | None = flag(None, "K of the order", least=1, unset="1 if the decoded split fits --shuffle_bytes")
    shuffle_bytes: int | None = flag(
        None, "decoded bytes that are shuffled together, over all streams", least=1, unset="1 GiB"
    )
    remainder: str | None = flag(
        None, "the last batch of an epoch: pad it (weight 0) or drop it", known=sharding.REMAINDERS, unset="pad"
    )
    resize: str | None = flag(None, "stretch every image to HxW, such as 32x32, or 32 for both, before it is augmented")
    augment: str | None = flag(
        None, "recipes, such as cifar10_tutorial, or 'pad_crop_flip(pad=4) | cutout(size=8) | mixup'", meaning=_ON_SHEET
    )
    classes: str | None = flag(
        None, "classes to take, such as cat,dog; their labels become 0, 1, ... in this order", meaning=_ON_SHEET
    )
    where: str | None = flag(
        None,
        "records to take, by columns: \"label in ('cat', 'dog') and width >= 28\"; of one source of a mixture, "
        "'b: width >= 28' (docs/views.md)",
        meaning=_ON_SHEET,
    )
    limit: str | None = flag(None, "number of records to take, or '500 per label'", meaning=_ON_SHEET)
    balance: str | None = flag(
        None,
        "column whose values fill the same number of rows of an epoch: label; 'sqrt(label)' for half way to that",
        meaning=_ON_SHEET,
    )
    weigh: str | None = flag(
        None, "column of weights: a record of weight w occurs floor(w) or ceil(w) times in an epoch", meaning=_ON_SHEET
    )
    mixture_schedule: str | None = flag(
        None,
        "weights of a mixture from steps on, such as '0:a=0.9,b=0.1;10000:a=0.5,b=0.5' (docs/views.md)",
        meaning={"option": "schedule"},
    )

    @classmethod
    def of_run(cls, flags: Mapping[str, Any]) -> Self:
        """Returns these flags from a run's, by name; empty values count as not given."""
        flags = {**flags, "split": flags.get("train_split")}
        return cls(**{field.name: flags.get(field.name) or None for field in dataclasses.fields(cls)})

    @property
    def given(self) -> dict[str, Any]:
        """{name: value} of the flags that are given."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The given arguments of `input_fn`."""
        found = {field: value for field in dataclasses.fields(self) if (value := getattr(self, field.name)) is not None}
        return {field.metadata.get("option", field.name): value for field, value in found.items()}


@dataclasses.dataclass(frozen=True)
class OrderFlags(InputFlags):
    """Which examples are trained on. Flags that are None come from the run that --model_dir names, if any."""

    skip_steps: str | None = flag(None, "steps that are not trained on, such as 12300:12360,20000:20010 (end excluded)")


def flags_of_run(model_dir: str) -> dict[str, Any]:
    """Returns the stored flags of the run in a folder, by name.

    Raises:
      DataError: there is no run, or its flags cannot be read.
    """
    commandline.require("yaml")
    import yaml  # noqa: PLC0415, most commands do not need it

    flag, path = f"--model_dir={model_dir}", pathlib.Path(model_dir) / _CONFIG
    try:
        groups = yaml.safe_load(content_of(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        why = f"{_CONFIG} cannot be read: {reason_of(error)}"
        raise DataError(f"{flag}: {why}; give the --model_dir of a run of {name_of('trainer.run')}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{flag}: {_CONFIG} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise DataError(f"{flag}: {_CONFIG} does not have the flags of a run, in groups")
    return aliases.stored(groups)


def flags_of_data(model_dir: str, data_dir: str | None) -> dict[str, Any]:
    """Returns the stored flags of the run in a folder, by name, for its own data or other data.

    Args:
      model_dir: folder of the run.
      data_dir: data to use; None for the version of the data that the run was trained on.

    Raises:
      DataError: there is no run, or its files cannot be read.
      UsageError: the run's own data are not where its flags place them, or their version is unknown.
    """
    flags, path = flags_of_run(model_dir), pathlib.Path(model_dir) / _ORDER
    if data_dir is None and path.exists():  # earlier releases did not write it
        order = order_in(path)
        flags = pinned(flags, order, model_dir)
        sources = sources_of(parse_sources(str(flags.get("data_dir"))), flags.get("train_split") or "train")
        check_trained_on(sources, order, f"--model_dir={model_dir}")
    own, flags = str(flags.get("data_dir")), flags_for(data_dir, flags)
    _check_version(model_dir, data_dir or str(flags.get("data_dir")), own)
    return flags


def order_in(path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of the order of a run, and `STARTED_IN`, from its file `order.json`.

    Raises:
      DataError: the file cannot be read.
    """
    try:
        order = json.loads(content_of(path))
        if not isinstance(order, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        advice = f"remove it, and let {name_of('trainer.run')} resume, which writes it again"
        raise DataError(f"cannot be read: {reason_of(error)}", path=path, advice=advice) from None
    return order


def _check_version(model_dir: str, data_dir: str, own: str) -> None:
    """Raises UsageError if data have several versions, from an append or edit, and it is unknown which one is meant.

    `data_dir` is the user's value, if any; `own` is the value in the run's flags.
    """
    given = parse_sources(data_dir)
    if not _is_plain(given):
        return
    place = folder(given)
    if not place.is_dir() or not (version_names(place) or gone_in(place)):
        return
    first = in_command(f"{given}@1", "--data_dir")
    if not _is_plain(parse_sources(own)):
        raise UsageError(
            f"--data_dir={given}: has other versions; give one, such as {first}, or leave it out: the run in "
            f"{model_dir} is of {own}"
        )
    raise UsageError(
        f"--model_dir={model_dir}: the data set {given} has other versions, and the run's {_CONFIG} is older, so it "
        f"does not name the version; give that on which the run began, such as {first}, or let the run resume first"
    )


def _is_plain(sources: Any) -> TypeGuard[str]:
    """Returns whether data are a single folder, without a version."""
    return isinstance(sources, str) and with_version(sources)[1] is None


def workers_of_run(flags: Mapping[str, Any]) -> int:
    """Returns the number of workers that share the order, from a run's flags: the number of hosts, else 1.

    With parameter servers one process has the whole order. Only --sync cuts each step into equal parts, by
    --replicas_to_aggregate or the number of workers; an asynchronous worker makes whole steps.
    """
    workers = len([host for host in str(flags.get("worker_hosts") or "").split(",") if host]) or 1
    if flags.get("strategy") != "parameter_server":
        return workers
    return int(flags.get("replicas_to_aggregate") or workers) if flags.get("sync") else 1


def replicas_of_run(flags: Mapping[str, Any]) -> int:
    """Returns the number of replicas from a run's flags: --num_replicas, or one per worker."""
    return int(flags.get("num_replicas") or workers_of_run(flags))
