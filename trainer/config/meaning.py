"""What a flag of the trainer means to those who know no flag by name; checks that groups share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from pipeline.commands import flags
from pipeline.errors import UsageError
from pipeline.files.paths import with_version
from pipeline.manifest.sources import parse_sources, sources_of
from pipeline.order_flags import OrderFlags

MULTIWORKER, PARAMETER_SERVER = "multiworker", "parameter_server"  # strategies of several processes
_Said = TypeVar("_Said")


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What a flag means; None: what the attribute of that name of its group says, if there is one.

    Attributes:
      shapes_training: whether a resumed run tells that it differs from the checkpoint's; None in the end: yes.
      ends: whether it says where a run ends, on which some schedules depend.
      per_machine: whether workers may have different values, as of a folder that is mounted elsewhere.
      per_process: whether it says which process of a job this is: `trainer.launch` sets it, and workers compare the
        resulting clusters.
      by_model: whether `trainer.config.model` has other defaults for some models and optimizers.
      writes: kind of the path at which the run writes. It must be on this machine and, on a cluster, on a volume; a
        folder must be apart from the data.
      reads: whether it is a path that every process reads, and that a cluster must have.
      logs_rows: whether its folder gets something of each row, for which steps run one by one: all workers give it or
        none, and waiting for input is not measured.
      draws: whether it draws for TensorBoard, whenever scalars are written.
      of_topology: whether it says which processes and devices train, so that whoever uses the model elsewhere takes the
        default.
      replay: value with which `trainer.replay` makes steps again; ...: the run's.
      compiled: what a compiled model has of its own instead, so that the flag would be ignored: an optimizer, a loss.
      option: whether it is an argument of `input_fn` of the same name; or the name of that.
      of_run: flag of `trainer.run` whose value it replaces, if it is of a command that takes a run.
      used_in: `training` or `evaluation`, if it is an argument of that input alone.
      parameter_server: why it cannot be given with --strategy=parameter_server; or {value that cannot: reason}.
    """

    shapes_training: bool | None = None
    ends: bool = False
    per_machine: bool = False
    per_process: bool = False
    by_model: bool = False
    writes: Literal["folder", "file"] | None = None
    reads: bool = False
    logs_rows: bool = False
    draws: bool = False
    of_topology: bool | None = None
    replay: Any = ...
    compiled: str | None = None
    option: str | bool = False
    of_run: str = ""
    used_in: str | None = None
    parameter_server: str | Mapping[str, str] | None = None


def flag(default: Any = dataclasses.MISSING, text: str = "", **said: Any) -> Any:
    """Returns a field that is a flag of the trainer.

    Args:
      default: its value if it is not given; without a default it is required.
      text: help text.
      **said: what it means, by the attributes of `Meaning`; and the options of `pipeline.commands.flags.flag`.
    """
    names = [field.name for field in dataclasses.fields(Meaning) if field.name in said]
    meaning = Meaning(**{"per_machine": "writes" in said, **{name: said.pop(name) for name in names}})
    default_of = said.pop("default_of", "the model" if meaning.by_model else "")
    return flags.flag(default, text, meaning=vars(meaning), default_of=default_of, **said)


def order_flag(name: str, default: Any = None, **changes: Any) -> Any:
    """Returns a field for a flag that `pipeline.order_flags` declares.

    Args:
      name: the flag's name.
      default: its value if it is not given.
      **changes: to its declaration, and what it means to the trainer: as for `flag`.
    """
    said = flags.flags_of(OrderFlags)[name].field.metadata
    declared = {key: said[key] for key in ("text", "known", "unset")} | said["bounds"]
    return flag(default, **{**declared, "option": said.get("option", name), **changes})


def fields(config: Any, meaning: str | None = None) -> Iterator[tuple[Any, dataclasses.Field[Any]]]:
    """Yields each flag of a config, or each that has a meaning, as its group, which is an instance, and its field."""
    for group in (getattr(config, field.name) for field in dataclasses.fields(config)):
        for field in dataclasses.fields(group):
            if meaning is None or field.metadata[meaning]:
                yield group, field


def given(config: Any, meaning: str) -> dict[str, Any]:
    """Returns the values, by name, of the flags of a config that have a meaning and are given."""
    values = {field.name: getattr(group, field.name) for group, field in fields(config, meaning)}
    return {name: value for name, value in values.items() if value}


def options(config: Any, used_in: str) -> dict[str, Any]:
    """Returns the arguments of `input_fn` that flags of a config give, in `training` or in `evaluation`."""
    found = dict[str, Any]()
    for group, field in fields(config, "option"):
        if field.metadata["used_in"] in (None, used_in):
            option = field.metadata["option"]
            found[field.name if option is True else option] = getattr(group, field.name)
    return found


def shapes_training(group: Any, field: dataclasses.Field[Any]) -> bool:
    """Returns whether a flag shapes what is trained, whatever the other flags are."""
    return _said(group, field, "shapes_training", True)


def compiled(group: Any, field: dataclasses.Field[Any]) -> str:
    """Returns the part of a compiled model that replaces a flag; empty if the flag applies to it, too."""
    return _said(group, field, "compiled", "")


def elsewhere(kind: type) -> dict[str, Any]:
    """Returns the default of each flag of a config, a class, that says which processes and devices train."""
    found = flags.flags_of(kind).values()
    return {one.name: one.field.default for one in found if _said(one.group, one.field, "of_topology", False)}


def in_replay(kind: type) -> dict[str, Any]:
    """Returns the values with which `trainer.replay` makes a run's steps again, of the flags that do not shape them."""
    found = {one.name: one.field.metadata["replay"] for one in flags.flags_of(kind).values()}
    return {**elsewhere(kind), **{name: value for name, value in found.items() if value is not ...}}


def _said(group: Any, field: dataclasses.Field[Any], meaning: str, default: _Said) -> _Said:
    """Returns a flag's own metadata, or else its group's."""
    said: _Said | None = field.metadata.get(meaning)
    return getattr(group, meaning, default) if said is None else said


def check_parameter_server(config: Any) -> None:
    """Raises UsageError if a flag has a value that its field rules out with parameter servers."""
    with flags.Mistakes() as mistakes:
        for group, field in fields(config):
            with mistakes.noted():
                why, value = field.metadata.get("parameter_server"), getattr(group, field.name)
                if isinstance(why, Mapping):
                    why = why.get(value)
                elif value == field.default:
                    continue
                if why:
                    raise UsageError(f"--{field.name}={value} with --strategy={PARAMETER_SERVER}: {why}")


def check_apart(name: str, path: str | None, data_dir: str | None, flag: str = "data_dir") -> None:
    """Raises UsageError if a folder for output is a data set's folder, lies in it, or holds it.

    Links and `..` are resolved. Data at a URL cannot clash.

    Args:
      name: flag for the output.
      path: its value; None: not given.
      data_dir: value of --data_dir: a folder, or several with weights; None if not given.
      flag: flag that gives `data_dir`.
    """
    if not data_dir:
        return
    for folder in (with_version(one.data_dir)[0] for one in sources_of(parse_sources(data_dir), "")):
        if "://" in folder:
            continue
        data = os.path.realpath(folder)
        if data == os.path.realpath(os.sep):
            raise UsageError(f"--{flag}={data_dir}: is the root of the file system; name the data set's own folder")
        given = None if path is None else os.path.realpath(path)
        if given is not None and os.path.commonpath([given, data]) in (given, data):
            where = "is" if given == data else "lies in" if os.path.commonpath([given, data]) == data else "holds"
            raise UsageError(
                f"--{name}={path}: {where} the data set's folder, --{flag}={data_dir}; name a folder beside it"
            )


def check_local(group: object, *names: str, what: str = "folder") -> None:
    """Raises UsageError if a named field is empty, or is a URL, which only data sets may be; None is allowed."""
    for name in names:
        value = getattr(group, name)
        if value is not None and not value.strip():
            raise UsageError(f"--{name}: is empty (a shell variable that is not set?); name a {what}")
        if value is not None and "://" in value:
            raise UsageError(
                f"--{name}={value}: must be a {what} on this machine, or mounted; mount the store and give the path "
                "there"
            )
