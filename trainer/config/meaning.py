"""What each trainer flag means, for code that must not know flags by name; checks that flag groups share."""

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
    """What a flag means; for None, its group's attribute of the same name applies, if there is one.

    Attributes:
      shapes_training: whether a resumed run reports a value that differs from the checkpoint's; None everywhere means
        yes.
      ends: whether it determines where a run ends, which affects some schedules.
      per_machine: whether workers may have different values, such as for a folder mounted in different places.
      per_process: whether it determines which process of a job this is: `trainer.launch` sets it, and workers compare
        the resulting clusters.
      by_model: whether some models and optimizers have their own defaults in `trainer.config.model`.
      writes: kind of path that the run writes to. The path must be on this machine and, on a cluster, on a volume; a
        folder must be separate from the data.
      reads: whether it is a path that every process reads, so a cluster must provide it.
      logs_rows: whether something about each row is logged to its folder, so that steps run one by one: all workers
        give it or none, and waiting for input is not measured.
      draws: whether it adds TensorBoard summaries, which are only written along with scalars.
      of_topology: whether it determines which processes and devices train, so that other uses of the model take the
        default.
      replay: value with which `trainer.replay` repeats steps; `...` for the run's value.
      compiled: part of a compiled model that replaces the flag, which would be ignored: an optimizer, a loss.
      option: whether it is an argument of `input_fn`; the argument's name if that differs.
      of_run: flag of `trainer.run` whose value it replaces, in commands that use a run.
      used_in: `training` or `evaluation` if only that input has the argument.
      parameter_server: reason why it cannot be given with --strategy=parameter_server; or {excluded value: reason}.
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
    """Returns a dataclass field for a trainer flag.

    Args:
      default: default value; a flag without one is required.
      text: help text.
      **said: attributes of `Meaning`, and options of `pipeline.commands.flags.flag`.
    """
    names = [field.name for field in dataclasses.fields(Meaning) if field.name in said]
    meaning = Meaning(**{"per_machine": "writes" in said, **{name: said.pop(name) for name in names}})
    default_of = said.pop("default_of", "the model" if meaning.by_model else "")
    return flags.flag(default, text, meaning=vars(meaning), default_of=default_of, **said)


def order_flag(name: str, default: Any = None, **changes: Any) -> Any:
    """Returns a dataclass field for a flag that `pipeline.order_flags` declares.

    Args:
      name: name of the flag.
      default: default value.
      **changes: changes to its declaration, and its meaning to the trainer, as for `flag`.
    """
    said = flags.flags_of(OrderFlags)[name].field.metadata
    declared = {key: said[key] for key in ("text", "known", "unset")} | said["bounds"]
    return flag(default, **{**declared, "option": said.get("option", name), **changes})


def fields(config: Any, meaning: str | None = None) -> Iterator[tuple[Any, dataclasses.Field[Any]]]:
    """Yields (group instance, field) of each flag in a config, optionally only of flags with a certain meaning."""
    for group in (getattr(config, field.name) for field in dataclasses.fields(config)):
        for field in dataclasses.fields(group):
            if meaning is None or field.metadata[meaning]:
                yield group, field


def given(config: Any, meaning: str) -> dict[str, Any]:
    """Returns {name: value} of the flags in a config that have a certain meaning and are given."""
    values = {field.name: getattr(group, field.name) for group, field in fields(config, meaning)}
    return {name: value for name, value in values.items() if value}


def options(config: Any, used_in: str) -> dict[str, Any]:
    """Returns the arguments of `input_fn` from a config's flags, for `training` or `evaluation`."""
    found = dict[str, Any]()
    for group, field in fields(config, "option"):
        if field.metadata["used_in"] in (None, used_in):
            option = field.metadata["option"]
            found[field.name if option is True else option] = getattr(group, field.name)
    return found


def shapes_training(group: Any, field: dataclasses.Field[Any]) -> bool:
    """Returns whether a flag affects training regardless of other flags."""
    return _said(group, field, "shapes_training", True)


def compiled(group: Any, field: dataclasses.Field[Any]) -> str:
    """Returns the part of a compiled model that replaces a flag; empty if the flag still applies."""
    return _said(group, field, "compiled", "")


def elsewhere(kind: type) -> dict[str, Any]:
    """Returns a config class's defaults for the flags that determine which processes and devices train."""
    found = flags.flags_of(kind).values()
    return {one.name: one.field.default for one in found if _said(one.group, one.field, "of_topology", False)}


def in_replay(kind: type) -> dict[str, Any]:
    """Returns the values that `trainer.replay` gives to flags which do not affect a run's steps."""
    found = {one.name: one.field.metadata["replay"] for one in flags.flags_of(kind).values()}
    return {**elsewhere(kind), **{name: value for name, value in found.items() if value is not ...}}


def _said(group: Any, field: dataclasses.Field[Any], meaning: str, default: _Said) -> _Said:
    """Returns a flag's own metadata, or its group's if it has none."""
    said: _Said | None = field.metadata.get(meaning)
    return getattr(group, meaning, default) if said is None else said


def check_parameter_server(config: Any) -> None:
    """Raises UsageError if a flag has a value that its field excludes with parameter servers."""
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
    """Raises UsageError if an output folder is a data set's folder, lies in it, or contains it.

    Links and `..` are resolved. Data at a URL cannot clash.

    Args:
      name: name of the output flag.
      path: value of the output flag; None if not given.
      data_dir: value of --data_dir: a folder, or several with weights; None if not given.
      flag: name of the flag for `data_dir`.
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
    """Raises UsageError if a named field is empty or a URL, which only data sets may be; None is allowed."""
    for name in names:
        value = getattr(group, name)
        if value is not None and not value.strip():
            raise UsageError(f"--{name}: is empty (a shell variable that is not set?); name a {what}")
        if value is not None and "://" in value:
            raise UsageError(
                f"--{name}={value}: must be a {what} on this machine, or mounted; mount the store and give the path "
                "there"
            )
